use std::path::Path;

use serde_json::{Value, json};
use trifuse::adapters::encoded::Matrix;
use trifuse::adapters::peft::{CONFIG_FILE, LoraAdapter, TENSOR_FILE, Verdict, inspect, inspect_bytes, open_all};
use trifuse::{DType, Error};

use crate::support::{adapter_tensors, config, f32s, ramp, safetensors};

fn write(folder: &Path, name: &str, config: &[u8], tensors: &[u8]) {
    let folder = folder.join(name);
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join(CONFIG_FILE), config).unwrap();
    std::fs::write(folder.join(TENSOR_FILE), tensors).unwrap();
}

fn open(changes: &Value, tensors: Vec<u8>) -> Result<LoraAdapter, Error> {
    inspect_bytes("test", &config(changes), tensors).into_adapter()
}

#[test]
fn a_folder_opens_with_its_values() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "rust", &config(&json!({})), &adapter_tensors());
    let adapter = LoraAdapter::open(folder.path().join("rust")).unwrap();
    assert_eq!(adapter.name, "rust");
    assert_eq!(adapter.config["lora_alpha"], 4);
    assert_eq!(adapter.modules.keys().collect::<Vec<_>>(), ["l.0.q", "l.0.v"]);
    let q = &adapter.modules["l.0.q"];
    assert_eq!((q.a.rows, q.a.cols, q.b.rows, q.b.cols), (2, 4, 3, 2));
    assert_eq!(q.a.data, [1.0, -1.125, 1.25, -1.375, 1.5, -1.625, 1.75, -1.875]);
    assert_eq!((q.scaling, q.dtype, q.rank(), q.bytes()), (2.0, DType::F32, 2, 56));
    let v = &adapter.modules["l.0.v"];
    assert_eq!(v.a, Matrix::new(2, 3, vec![1.0, -1.0, 0.5, 0.0, 2f32.powi(-24), 2.0]).unwrap());
    assert!(v.b.data.iter().all(|&value| value == 1.0) && v.dtype == DType::F32);
    assert!(adapter.findings.iter().all(|finding| finding.verdict != Verdict::Refused));
    assert_eq!(adapter.findings.iter().filter(|finding| finding.reason.contains("rank 2, scaling 2")).count(), 4);
}

#[test]
fn other_spellings_of_names_open_alike() {
    for spell in [|name: &str| name.replace("base_model.model.", ""), |name: &str| name.replace(".weight", ".default.weight")] {
        let names = ["A", "B"].map(|letter| spell(&format!("base_model.model.l.0.q.lora_{letter}.weight")));
        let tensors = safetensors(&[(&names[0], "F32", &[2, 4], ramp(1.0, 8)), (&names[1], "F32", &[3, 2], ramp(2.0, 6))]);
        assert_eq!(open(&json!({}), tensors).unwrap().modules.keys().collect::<Vec<_>>(), ["l.0.q"]);
    }
}

#[test]
fn ranks_and_scales_come_from_the_patterns() {
    let tensors = || {
        safetensors(&[
            ("l.0.q.lora_A.weight", "F32", &[4, 4], ramp(1.0, 16)),
            ("l.0.q.lora_B.weight", "F32", &[3, 4], ramp(2.0, 12)),
            ("l.0.v.lora_A.weight", "F32", &[2, 3], ramp(1.0, 6)),
            ("l.0.v.lora_B.weight", "F32", &[5, 2], ramp(2.0, 10)),
        ])
    };
    let adapter = open(&json!({ "rank_pattern": {r"0\.q": 4}, "alpha_pattern": {"v": 1}, "use_rslora": true }), tensors()).unwrap();
    assert_eq!([&adapter.modules["l.0.q"], &adapter.modules["l.0.v"]].map(|lora| lora.scaling), [2.0, 1.0 / 2f32.sqrt()]);
    let error = open(&json!({}), tensors()).unwrap_err().to_string();
    assert!(error.contains("l.0.q.lora_B") && error.contains("expected rank 2") && error.contains("found 4"), "{error}");
}

#[test]
fn what_is_not_targeted_is_left_out_and_listed() {
    let inspection = inspect_bytes("test", &config(&json!({ "target_modules": ["q"] })), adapter_tensors());
    assert!(inspection.faults.is_empty());
    let ignored: Vec<_> = inspection.findings.iter().filter(|finding| finding.verdict == Verdict::Ignored && finding.name.contains("lora_")).collect();
    assert_eq!(ignored.len(), 2);
    assert!(ignored.iter().all(|finding| finding.name.contains(".v.") && finding.reason.contains("target_modules")));
    assert_eq!(inspection.into_adapter().unwrap().modules.len(), 1);
    assert!(open(&json!({ "target_modules": ["other"] }), adapter_tensors()).is_err());
}

/// The fault of a tensor, beside a sound module: its name, type, shape, bytes, and a word that the error must hold.
type BadTensor = (&'static str, &'static str, &'static [usize], Vec<u8>, &'static str);

#[test]
fn bad_tensors_are_refused_by_name_and_all_listed() {
    let table: Vec<BadTensor> = vec![
        ("l.1.q.lora_A.weight", "F32", &[2, 4], ramp(1.0, 8), "lora_B of l.1.q"),
        ("l.1.q.lora_B.weight", "F32", &[4, 2], ramp(1.0, 8), "lora_A of l.1.q"),
        ("l.1.q.lora_A.weight", "I32", &[2, 4], vec![0; 32], "I32"),
        ("l.1.q.lora_A.weight", "F64", &[2, 4], vec![0; 64], "F64"),
        ("l.1.q.lora_A.weight", "F32", &[2, 2, 2], ramp(1.0, 8), "two dimensions"),
        ("l.1.q.lora_A.weight", "F32", &[8], ramp(1.0, 8), "two dimensions"),
        ("l.1.q.lora_A.weight", "F32", &[], ramp(1.0, 1), "two dimensions"),
        ("l.1.q.lora_A.weight", "F32", &[0, 4], vec![], "rank"),
        ("l.1.q.lora_A.weight", "F32", &[2, 0], vec![], "at least 1"),
        ("l.1.q.lora_A.weight", "F32", &[4097, 1], vec![0; 4097 * 4], "4097"),
        ("l.1.q.lora_A.weight", "F32", &[2, 1], f32s([1.0, f32::NAN]), "NaN at element 1"),
        ("l.1.q.lora_B.weight", "F32", &[1, 2], f32s([f32::NEG_INFINITY, 1.0]), "-inf at element 0"),
        ("l.0.q.lora_A.default.weight", "F32", &[2, 4], ramp(1.0, 8), "one such factor"),
        ("l.1.q.lora_magnitude_vector", "F32", &[2], ramp(1.0, 2), "use_dora"),
        ("l.1.q.lora_embedding_A", "F32", &[2, 1], ramp(1.0, 2), "embedding"),
        ("l.1.q.lora_B.bias", "F32", &[2], ramp(1.0, 2), "lora_bias"),
        ("l.1.q.bias", "F32", &[2], ramp(1.0, 2), "bias"),
        ("classifier.weight", "F32", &[2, 1], ramp(1.0, 2), "modules_to_save"),
    ];
    for (name, dtype, shape, bytes, word) in table {
        let tensors = safetensors(&[
            ("base_model.model.l.0.q.lora_A.weight", "F32", &[2, 4], ramp(1.0, 8)),
            ("base_model.model.l.0.q.lora_B.weight", "F32", &[3, 2], ramp(2.0, 6)),
            (name, dtype, shape, bytes),
        ]);
        let inspection = inspect_bytes("test", &config(&json!({})), tensors);
        assert_eq!(inspection.modules.len(), 1, "{name}: the sound module is still listed");
        let refused: Vec<_> = inspection.findings.iter().filter(|finding| finding.verdict == Verdict::Refused).collect();
        assert!(refused.len() == 1 && refused[0].content.contains(dtype), "{name}: {refused:?}");
        let error = inspection.into_adapter().unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Input { .. }) && text.contains(TENSOR_FILE) && text.contains(word), "{name}: {text}");
    }
}

#[test]
fn a_product_that_f32_cannot_hold_is_refused() {
    let of = |a: f32, b: f32, alpha: f64| {
        let flat = |value: f32, count: usize| f32s((0..count).map(|_| value));
        let tensors = safetensors(&[("l.q.lora_A.weight", "F32", &[2, 4], flat(a, 8)), ("l.q.lora_B.weight", "F32", &[3, 2], flat(b, 6))]);
        open(&json!({ "lora_alpha": alpha }), tensors)
    };
    for (a, b, alpha) in [(1.0, 3e38, 4.0), (3e38, 3e38, 4.0), (1.0, 1e30, 1e9), (1e-40, 1e-40, 4.0), (0.03, 3e38, 4.0)] {
        let error = of(a, b, alpha).unwrap_err();
        assert!(matches!(error, Error::Input { .. }) && error.to_string().contains("a product from"), "{a:e} {b:e}: {error}");
    }
    for (a, b, alpha) in [(0.0, 0.0, 4.0), (1.0, 0.0, 4.0), (1e6, 1e6, 4.0), (1.0, 1.0, 0.0), (1.0, 1.0, -5.0)] {
        assert!(of(a, b, alpha).is_ok(), "{a:e} {b:e} {alpha}");
    }
}

#[cfg(unix)]
#[test]
fn an_adapter_behind_links_that_lead_nowhere_is_refused_and_not_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("one").join(CONFIG_FILE), config(&json!({}))).unwrap();
    std::fs::write(folder.path().join("one").join(TENSOR_FILE), adapter_tensors()).unwrap();
    assert_eq!(open_all(&[folder.path()]).unwrap().len(), 1, "a folder of something else");
    for file in [CONFIG_FILE, TENSOR_FILE] {
        std::os::unix::fs::symlink("/nowhere", folder.path().join("two").join(file)).unwrap();
    }
    let text = open_all(&[folder.path()]).unwrap_err().to_string();
    assert!(text.contains("two"), "{text}");
}

#[test]
fn factors_that_disagree_are_refused() {
    let tensors = safetensors(&[("l.q.lora_A.weight", "F32", &[2, 4], ramp(1.0, 8)), ("l.q.lora_B.weight", "F32", &[3, 3], ramp(2.0, 9))]);
    let text = open(&json!({}), tensors).unwrap_err().to_string();
    assert!(text.contains("l.q.lora_B.weight: expected 2 columns") && text.contains("[3, 3]"), "{text}");
    assert!(open(&json!({}), safetensors(&[])).unwrap_err().to_string().contains("found none"));
}

#[test]
fn a_rank_above_both_sizes_is_legal() {
    let tensors = safetensors(&[("q.lora_A.weight", "F32", &[4, 1], ramp(1.0, 4)), ("q.lora_B.weight", "F32", &[1, 4], ramp(2.0, 4))]);
    assert_eq!(open(&json!({ "r": 4 }), tensors).unwrap().modules["q"].rank(), 4);
}

#[test]
fn inspection_goes_on_past_every_fault() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "bad", &config(&json!({ "use_dora": true, "modules_to_save": ["score"] })), &adapter_tensors()[..100]);
    let inspection = inspect(folder.path().join("bad"));
    let text: Vec<String> = inspection.faults.iter().map(ToString::to_string).collect();
    assert_eq!(text.len(), 3, "{text:?}");
    for word in ["use_dora", "modules_to_save", TENSOR_FILE] {
        assert!(text.iter().any(|fault| fault.contains(word)), "{word}: {text:?}");
    }
    let missing = inspect(folder.path().join("none"));
    assert!(!missing.faults.is_empty() && missing.config.is_none());
}

#[test]
fn pickles_are_refused_with_how_to_convert() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "old", &config(&json!({})), &[]);
    std::fs::rename(folder.path().join("old").join(TENSOR_FILE), folder.path().join("old/adapter_model.bin")).unwrap();
    let text = LoraAdapter::open(folder.path().join("old")).unwrap_err().to_string();
    assert!(text.contains("adapter_model.bin") && text.contains("pickle") && text.contains("safe_serialization"), "{text}");
}

#[test]
fn folders_of_adapters_open_sorted_and_without_doubles() {
    let folder = tempfile::tempdir().unwrap();
    for (group, name) in [("a", "sqlite"), ("a", "rust"), ("b", "rust")] {
        let _ = std::fs::create_dir(folder.path().join(group));
        write(&folder.path().join(group), name, &config(&json!({})), &adapter_tensors());
    }
    std::fs::create_dir(folder.path().join("a/notes")).unwrap();
    let names = |paths: &[&str]| {
        let paths: Vec<_> = paths.iter().map(|path| folder.path().join(path)).collect();
        open_all(&paths).map(|adapters| adapters.into_iter().map(|adapter| adapter.name).collect::<Vec<_>>())
    };
    assert_eq!(names(&["a"]).unwrap(), ["rust", "sqlite"]);
    assert_eq!(names(&["a/sqlite", "b"]).unwrap(), ["rust", "sqlite"]);
    let text = names(&["a", "b"]).unwrap_err().to_string();
    assert!(text.contains("\"rust\"") && text.contains("different names"), "{text}");
    assert!(text.contains("NAME=DIR"), "{text}");
    let given = |parts: &[(&str, &str)]| parts.iter().map(|(name, path)| format!("{name}={}", folder.path().join(path).display())).collect::<Vec<_>>();
    let named = |parts: &[(&str, &str)]| open_all(&given(parts)).map(|adapters| adapters.into_iter().map(|adapter| adapter.name).collect::<Vec<_>>());
    assert_eq!(named(&[("mine", "a/rust"), ("theirs", "b")]).unwrap(), ["mine", "theirs"]);
    for (parts, problem) in [([("mine", "a")], "found 2"), ([("..", "b")], "a name that can be a folder's"), ([("mine", "none")], "cannot read")] {
        let text = named(&parts).unwrap_err().to_string();
        assert!(text.contains(problem), "{text}");
    }
    assert!(names(&["a/notes"]).is_err());
    assert!(names(&["missing"]).is_err());
    let text = names(&[""]).unwrap_err().to_string();
    assert!(text.contains("one level lower") && text.contains("/a ") && text.contains("/b"), "{text}");
    if cfg!(unix) {
        let text = open_all(&["/dev/null"]).unwrap_err().to_string();
        assert!(text.contains("expected an adapter's folder") && text.contains("a device or a pipe"), "{text}");
    }
}

#[test]
fn a_snapshot_of_the_hub_has_the_name_of_its_repository() {
    let cache = tempfile::tempdir().unwrap();
    let place = cache.path().join("models--org--lora/snapshots");
    std::fs::create_dir_all(&place).unwrap();
    write(&place, "0123abcd", &config(&json!({})), &adapter_tensors());
    for path in [place.join("0123abcd"), cache.path().join("models--org--lora"), cache.path().into()] {
        let names: Vec<String> = open_all(&[&path]).unwrap().into_iter().map(|adapter| adapter.name).collect();
        assert_eq!(names, ["lora"], "{}", path.display());
    }
    let model = cache.path().join("model");
    std::fs::create_dir(&model).unwrap();
    ["config.json", "model.safetensors"].iter().for_each(|file| std::fs::write(model.join(file), "{}").unwrap());
    let text = open_all(&[&model]).unwrap_err().to_string();
    assert!(text.contains("a whole model"), "{text}");
}
