//! `inspect` of adapters' folders; of bundles, see `compress`.

use std::path::Path;

use crate::support::{err, object, out, population, run, scratch, text};

#[test]
fn an_adapter_is_shown_whole() {
    let folder = format!("{}/rust", population("A"));
    let output = run(&["inspect", &folder, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let value = object(&output, "inspect");
    assert_eq!((&value["kind"], &value["usable"]), (&"adapters".into(), &true.into()));
    let adapter = &value["adapters"][0];
    assert_eq!(adapter["name"], "rust");
    assert_eq!(adapter["ranks"], serde_json::json!([8]));
    assert_eq!(adapter["dtypes"], serde_json::json!(["f16"]));
    let findings = adapter["findings"].as_array().unwrap();
    let tensors = findings.iter().filter(|finding| finding["kind"] == "tensor");
    assert_eq!(tensors.clone().count(), 72);
    assert!(tensors.clone().all(|finding| finding["verdict"] == "used"));
    assert!(findings.iter().any(|finding| finding["kind"] == "key" && finding["name"] == "r" && finding["content"] == "8"));
    assert!(findings.iter().all(|finding| !finding["reason"].as_str().unwrap().is_empty()), "every verdict has its reason");

    let short = out(&run(&["inspect", &folder]));
    assert!(short.lines().next().unwrap().contains("usable") && short.contains("--all") && !short.contains("lora_dropout"), "{short}");
    let page = out(&run(&["inspect", &folder, "--all"]));
    for finding in findings {
        assert!(page.contains(finding["name"].as_str().unwrap()), "{finding} is not on the page");
    }
    assert!(page.contains("usable") && page.contains("36 modules of rank 8 in f16"), "{page}");
}

#[test]
fn a_population_is_a_line_an_adapter() {
    let page = out(&run(&["inspect", &population("A")]));
    for name in ["apache_french", "bible_kjv", "rust", "sqlite", "4 adapters"] {
        assert!(page.contains(name), "{page}");
    }
}

#[test]
fn a_refused_adapter_is_shown_and_is_status_4() {
    let folder = scratch();
    let adapter = folder.path().join("dora");
    std::fs::create_dir(&adapter).unwrap();
    let source = Path::new(&population("C")).join("r4_rust");
    std::fs::copy(source.join("adapter_model.safetensors"), adapter.join("adapter_model.safetensors")).unwrap();
    let config = std::fs::read_to_string(source.join("adapter_config.json")).unwrap().replace("\"use_dora\": false", "\"use_dora\": true");
    std::fs::write(adapter.join("adapter_config.json"), config).unwrap();

    let output = run(&["inspect", text(&adapter), "--json"]);
    assert_eq!(output.status.code(), Some(4));
    let value = object(&output, "inspect");
    assert_eq!(value["usable"], false);
    assert!(value["adapters"][0]["faults"][0].as_str().unwrap().contains("use_dora"));
    let refused: Vec<_> = value["adapters"][0]["findings"].as_array().unwrap().iter().filter(|finding| finding["verdict"] == "refused").collect();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0]["name"], "use_dora");

    // One bad adapter does not hide the good ones beside it.
    let good = folder.path().join("good");
    std::fs::create_dir(&good).unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(source.join(file), good.join(file)).unwrap();
    }
    let both = run(&["inspect", text(folder.path())]);
    assert_eq!(both.status.code(), Some(4));
    let page = out(&both);
    assert!(page.contains("good") && page.contains("usable") && page.contains("refused: ") && page.contains("use_dora"), "{page}");
}

#[test]
fn what_is_neither_is_status_4_and_says_what_to_give() {
    let folder = scratch();
    let one_file = format!("{}/r4_rust/adapter_model.safetensors", population("C"));
    let pickle = folder.path().join("adapter_model.bin");
    std::fs::write(&pickle, b"\x80\x02}q\x00.").unwrap();
    let calibration = concat!(env!("CARGO_MANIFEST_DIR"), "/data/calibration.safetensors");
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    for (path, said) in [
        (one_file.as_str(), "folder"),
        (text(folder.path()), "safe_serialization"),
        (text(&pickle), "safetensors"),
        (calibration, "expected a bundle"),
        (text(&empty), "adapter_config.json"),
        ("no/such/place", "no/such/place"),
    ] {
        let output = run(&["inspect", path]);
        assert_eq!(output.status.code(), Some(4), "{path}: {}", err(&output));
        let words = format!("{}{}", err(&output), out(&output));
        assert!(words.contains(said), "{path}: {words}");
    }
}

#[test]
fn certificates_of_one_adapter() {
    let folder = scratch();
    let bundle = folder.path().join("c.s2lc");
    assert!(run(&["compress", &population("C"), "-o", text(&bundle), "-q"]).status.success());
    let page = out(&run(&["inspect", text(&bundle), "--adapter", "r4_rust"]));
    assert!(page.contains("encoder.layer.5.output.dense") && page.contains("cos(ΔW)"), "{page}");
    assert!(out(&run(&["inspect", text(&bundle)])).contains("every byte is sound"));
    let unknown = run(&["inspect", text(&bundle), "--adapter", "r4_rusty"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(err(&unknown).contains("r4_rust,") || err(&unknown).contains("as r4_rust"), "{}", err(&unknown));
    assert_eq!(run(&["inspect", &population("C"), "--adapter", "r4_rust"]).status.code(), Some(2));
}
