//! A tiny model shrunk, repaired, multiplied back and evaluated, as a user does it; and what is known of its inputs, against a direct computation.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use libtest_mimic::Trial;
use serde_json::Value;
use trifuse::DType;
use trifuse::backend::Backend;
use trifuse::device::Open;
use trifuse::llm::{Files, Model};
use trifuse::shrink::factor::Method;
use trifuse::shrink::kept::Kept;
use trifuse::shrink::moments::Moments;
use trifuse::shrink::plan::{Rule, by_parameters};
use trifuse::shrink::weigh::{Subject, Worth, curves, pairs, weigh};

use super::support::{NO_WEIGHTS, Test, on_device, weights};
use super::tiny::{VOCABULARY, kinds};

/// The trials of a backend.
pub fn trials<D: Backend>(device: &Arc<D>) -> Vec<Trial> {
    let tests: [Test<D>; 3] = [
        ("shrink: what is seen of inputs is what a direct computation gives", seen),
        ("shrink: a projection is worth what its truncation costs, and gets its weights back", worth),
        ("shrink: a replaced weight is one that was there from the start", replaced),
    ];
    on_device(device, tests)
}

/// The trials of the command.
pub fn commands() -> Vec<Trial> {
    let tests: [(&str, fn()); 2] = [("shrink, repair and eval, as a user runs them", as_a_user), ("shrink refuses what cannot be done", refused)];
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let name = "shrink makes a folder of a GGUF file, with the same forecasts";
    let whole = if weights().is_file() { trial((name, of_a_file)) } else { super::backends::ignored(format!("{name}: {NO_WEIGHTS}")) };
    tests.map(trial).into_iter().chain([whole]).map(|trial| trial.with_kind("command")).collect()
}

/// A file whose projections are all left: its folder is the same model, tokenizer and template.
fn of_a_file() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("folder");
    let path = weights();
    let arguments = ["shrink", path.to_str().unwrap(), "-o", folder.to_str().unwrap(), "--keep", "1", "--factors", "svd", "--leave", ".", "--json"];
    assert_eq!(json(&trifuse(&arguments))["ranks"], serde_json::json!({}));
    let device = Arc::new(trifuse::backends::cpu::Cpu::open(0).unwrap());
    let [file, folder] = [path, folder].map(|path| Files::open(&path).unwrap());
    let text = "The largest planet in the Solar System is";
    let ids = file.tokenizer.encode(text, false).unwrap();
    assert_eq!((folder.tokenizer.encode(text, false).unwrap(), &folder.ends), (ids.clone(), &file.ends));
    let chat = [trifuse::llm::Message::new("user", text)];
    assert_eq!(folder.template.as_ref().unwrap().render(&chat, true).unwrap(), file.template.as_ref().unwrap().render(&chat, true).unwrap());
    let logits = |files: &Files| {
        let mut model = Model::open(device.clone(), files, DType::F32).unwrap();
        let mut context = model.context(ids.len()).unwrap();
        model.run(&mut context, &ids, 1).unwrap()
    };
    assert!(logits(&file) == logits(&folder));
}

fn windows(count: u32, length: u32) -> Vec<Vec<u32>> {
    (0..count).map(|number| (0..length).map(|at| (at * at * 31 + number * 53 + 5) % VOCABULARY as u32).collect()).collect()
}

fn tiny() -> (tempfile::TempDir, Files) {
    let folder = tempfile::tempdir().unwrap();
    kinds()[1].write(folder.path());
    let files = Files::open(folder.path()).unwrap();
    (folder, files)
}

fn seen<D: Backend>(device: &Arc<D>) {
    let (_folder, files) = tiny();
    let mut model = Model::open(device.clone(), &files, DType::F32).unwrap();
    let text = windows(3, 40);
    let moments = Moments::collect(&mut model, files.weights.as_ref(), &text, &mut || Ok(())).unwrap();
    assert_eq!(moments.tokens(), 120);
    // What the first layer's q reads: the token's row of the table, normed.
    let (table, norm) = ("model.embed_tokens.weight", "model.layers.0.input_layernorm.weight");
    let [table, norm] = [table, norm].map(|name| files.weights.read(name).unwrap().1);
    let hidden = norm.len();
    let rows: Vec<Vec<f64>> = text
        .iter()
        .flatten()
        .map(|&id| {
            let row = &table[id as usize * hidden..][..hidden];
            let scale = 1.0 / (row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / hidden as f64 + 1e-5).sqrt();
            row.iter().zip(&norm).map(|(&x, &w)| f64::from(x) * scale * f64::from(w)).collect()
        })
        .collect();
    let subject = Subject { config: &files.config, source: files.weights.as_ref(), moments: &moments, method: Method::Whiten, kept: Kept::default() };
    let path = "model.layers.0.self_attn.q_proj";
    let chosen = subject.chosen(&|own| own == path);
    let curve = curves(&subject, &chosen, Worth::Nat, &mut |_| Ok(())).unwrap().remove(0);
    let weight = subject.weight(path).unwrap();
    for rank in [0usize, 5, 60] {
        let pair = pairs(&subject, &chosen, &[(path.to_owned(), rank.max(1) as u64)].into(), &mut |_| Ok(())).unwrap().remove(path).unwrap();
        let mut sum = 0.0;
        for x in &rows {
            let of = |matrix: &trifuse::adapters::encoded::Matrix, x: &[f64]| -> Vec<f64> {
                (0..matrix.rows).map(|i| (0..matrix.cols).map(|j| f64::from(matrix.at(i, j)) * x[j]).sum()).collect()
            };
            let (whole, kept) = (of(&weight, x), if rank > 0 { of(&pair.0, &of(&pair.1, x)) } else { vec![0.0; weight.rows] });
            sum += whole.iter().zip(&kept).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
        }
        let direct = 0.5 * sum / rows.len() as f64;
        assert!((curve.loss[rank] - direct).abs() < 1e-4 * curve.loss[0], "rank {rank}: {} of {direct}", curve.loss[rank]);
    }
}

fn worth<D: Backend>(device: &Arc<D>) {
    let (_folder, files) = tiny();
    let mut model = Model::open(device.clone(), &files, DType::F32).unwrap();
    let moments = Moments::collect(&mut model, files.weights.as_ref(), &windows(4, 40), &mut || Ok(())).unwrap();
    let subject = Subject { config: &files.config, source: files.weights.as_ref(), moments: &moments, method: Method::Whiten, kept: Kept::default() };
    let chosen = subject.chosen(&|path| !path.ends_with("v_proj"));
    let text = windows(1, 24);
    let logits = |model: &mut Model<D>| {
        let mut context = model.context(24).unwrap();
        model.run(&mut context, &text[0], 24).unwrap()
    };
    let before = logits(&mut model);
    // Differences are those of forecasts that are kept, bit by bit.
    let mut context = model.context(24).unwrap();
    let kept = model.forecasts(&mut context, &text[0]).unwrap();
    let other = windows(2, 24).remove(1);
    let after = model.forecasts(&mut context, &other).unwrap();
    let found = model.differences(&mut context, &other, &kept).unwrap();
    assert!(found == kept.differences(&after).unwrap() && found.len() == 23 && found.iter().any(|difference| difference.divergence > 0.0));
    assert!(model.differences(&mut context, &other[..23], &kept).is_err() && model.differences(&mut context, &[], &kept).is_err());
    let mut steps = 0;
    let found = weigh(&mut model, &subject, &chosen, &text, 0.7, &mut || {
        steps += 1;
        Ok(())
    });
    let curves = found.unwrap();
    assert!(steps == 12 && curves.len() == 12 && curves.iter().all(|curve| curve.loss[0] > 0.0));
    assert!(before == logits(&mut model), "the weights are not what they were");
    // Factors that are not kept are made again, the same.
    let none = Subject { kept: Kept::new(0), ..subject };
    let again = weigh(&mut model, &none, &chosen, &text, 0.7, &mut || Ok(())).unwrap();
    assert!(curves.iter().zip(&again).all(|(one, other)| one.loss == other.loss), "what is kept makes a difference");
    let ranks = chosen.iter().enumerate().map(|(number, one)| (one.path.clone(), 1 + 5 * number as u64)).collect();
    let of = |subject: &Subject<'_>| pairs(subject, &chosen, &ranks, &mut |_| Ok(())).unwrap();
    let subject = Subject { kept: Kept::default(), ..none };
    let made = of(&subject);
    assert!(
        made.iter().all(|(path, pair)| pair.0.cols as u64 == ranks[path])
            && made.values().zip(of(&subject).values()).all(|(a, b)| a.0.data == b.0.data && a.1.data == b.1.data)
    );
    let plan = by_parameters(&curves, Rule::Free, 0.8).unwrap();
    assert!(plan.nats > 0.0 && plan.bound.unwrap() <= plan.nats && !plan.ranks.is_empty());
    // A step that fails ends the work, and the weights are back.
    let stopped = weigh(&mut model, &subject, &chosen, &text, 0.7, &mut || Err(trifuse::Error::invalid("work", "an end", "a stop")));
    assert!(stopped.is_err() && before == logits(&mut model));
}

fn replaced<D: Backend>(device: &Arc<D>) {
    let (_folder, files) = tiny();
    let ids: Vec<u32> = windows(1, 30).remove(0);
    let mut model = Model::open(device.clone(), &files, DType::F32).unwrap();
    let paths: Vec<String> = (0..files.config.layers).flat_map(|layer| files.config.projections(layer).map(|(path, _)| path)).collect();
    for path in &paths {
        let turned = |name: &str, values: &mut Vec<f32>| {
            if name == format!("{path}.weight") {
                values.reverse();
            }
        };
        let source = super::support::Changed { inner: files.weights.as_ref(), change: &turned };
        let mut other = Model::new(device.clone(), files.config.clone(), &source, DType::F32).unwrap();
        let values = trifuse::llm::WeightSource::read(&source, &format!("{path}.weight")).unwrap().1;
        model.replace(path, &values).unwrap();
        let run = |model: &mut Model<D>| {
            let mut context = model.context(30).unwrap();
            model.run(&mut context, &ids, 30).unwrap()
        };
        assert!(run(&mut model) == run(&mut other), "{path}");
        let (_, own) = files.weights.read(&format!("{path}.weight")).unwrap();
        model.replace(path, &own).unwrap();
    }
    assert!(model.replace("model.layers.9.mlp.up_proj", &[]).is_err() && model.replace(&paths[0], &[1.0]).is_err());
}

fn trifuse(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trifuse"));
    command.args(arguments).args(["--backend", "cpu"]).env_remove("TRIFUSE_BACKEND").output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A text of the tiny model's words.
fn write_text(path: &Path, seed: u32) {
    let words: Vec<String> = (0..1500u32).map(|at| format!("t{}", (at * at * 7 + at * seed) % VOCABULARY as u32)).collect();
    std::fs::write(path, words.join(" ")).unwrap();
}

fn as_a_user() {
    let (folder, files) = tiny();
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let model = folder.path().to_str().unwrap();
    let [one, other] = [at("one.txt"), at("other.txt")];
    write_text(Path::new(&one), 3);
    write_text(Path::new(&other), 11);
    let shrink = |name: &str, more: &[&str]| {
        let output = at(name);
        let common = ["shrink", model, "-o", &output, "--calibrate", &one, "--calibrate", &other];
        let sizes = ["--window", "50", "--tokens", "600", "--probe", "50", "--held-out", "100", "--json"];
        let keep: &[&str] = if more.contains(&"--keep") { &[] } else { &["--keep", "0.8"] };
        json(&trifuse(&[&common[..], &sizes, keep, more].concat()))
    };
    let found = shrink("free", &[]);
    assert!(found["parameters"].as_u64() <= found["budget"].as_u64() && found["kept"].as_f64().unwrap() > 0.78);
    assert!(found["predicted_nats"].as_f64().unwrap() > 0.0 && found["measured"]["tokens"] == 98 && found["tokens"] == 600, "{found}");
    let config: Value = serde_json::from_slice(&std::fs::read(Path::new(&at("free")).join("config.json")).unwrap()).unwrap();
    assert_eq!((config["low_rank"]["method"].as_str(), config["low_rank"]["rule"].as_str()), (Some("whiten"), Some("free")));
    assert_eq!(config["low_rank"]["calibration"]["tokens"], 600);
    shrink("dense", &["--dense"]);
    shrink("aligned", &["--ranks", "align:8"]);
    // Others of the same factors are those that a run of its own makes; the tokens that are held out are measured on the model as it was.
    let also = ["0.9:uniform", "0.8:align:8"].map(|how| format!("{how}={}", at(&format!("also-{}", how.replace(':', "-")))));
    let several = shrink("several", &["--also", &also[0], "--also", &also[1]]);
    shrink("uniform", &["--ranks", "uniform", "--keep", "0.9"]);
    let same = |one: &str, other: &str| {
        ["model.safetensors", "config.json"]
            .iter()
            .all(|file| std::fs::read(Path::new(&at(one)).join(file)).unwrap() == std::fs::read(Path::new(&at(other)).join(file)).unwrap())
    };
    assert!(several["models"].as_array().unwrap().len() == 3 && several["models"][0]["measured"] == found["measured"], "{several}");
    assert!(same("several", "free") && same("also-0.9-uniform", "uniform") && same("also-0.8-align-8", "aligned"));
    let repaired = json(&trifuse(&["repair", &at("free"), "-o", &at("repaired"), "--to", "8", "--json"]));
    assert!(repaired["changed"].as_u64().unwrap() > 0 && repaired["parameters"].as_u64() > repaired["parameters_before"].as_u64());
    // The products of the factors are another way to the same forecasts, and zeros change nothing.
    let device = Arc::new(trifuse::backends::cpu::Cpu::open(0).unwrap());
    let logits = |name: &str| {
        let files = Files::open(Path::new(&at(name))).unwrap();
        let mut model = Model::open(device.clone(), &files, DType::F32).unwrap();
        let mut context = model.context(64).unwrap();
        (model.config().ranks.iter().count(), model.run(&mut context, &windows(1, 60)[0], 60).unwrap())
    };
    let ((factors, free), (none, dense), (same, padded)) = (logits("free"), logits("dense"), logits("repaired"));
    assert!(factors > 0 && none == 0 && same == factors);
    let greatest = free.iter().fold(0f32, |most, value| most.max(value.abs()));
    let off = |other: &[f32]| free.iter().zip(other).fold(0f32, |most, (a, b)| most.max((a - b).abs())) / greatest;
    assert!(off(&dense) < 2e-5 && off(&padded) < 1e-5, "{} {}", off(&dense), off(&padded));
    assert_eq!(files.config.ranks.iter().count(), 0);
    // A budget of time, by times that were measured here.
    let times = at("times.json");
    let profile = json(&trifuse(&["profile", model, "-o", &times, "--ranks", "8..96:8", "--rows", "1,32", "--json"]));
    assert!(profile["shapes"].as_array().unwrap().iter().all(|shape| shape["ranks"].as_object().unwrap().len() >= 11), "{profile}");
    let timed = shrink("timed", &["--budget", "time", "--profile", &times, "--mix", "decode1:.5,prefill32:.5", "--keep", "1"]);
    assert!(timed["cost"].as_u64() <= timed["budget"].as_u64());
    // One table of all, against the model itself.
    let all = [at("free"), at("aligned"), at("repaired"), model.to_owned()];
    let named: Vec<&str> = all.iter().flat_map(|name| ["--model", name.as_str()]).collect();
    let run = trifuse(&[&["eval", "--baseline-model", model, "--window", "64", "--windows", "3", "--json", &one][..], &named[..]].concat());
    let table = json(&run);
    let rows = table["ppl"].as_array().unwrap();
    assert_eq!((rows.len(), table["format"].as_str()), (4, Some("trifuse.llm-eval/1")));
    let number = |row: usize, key: &str| rows[row][key].as_f64().unwrap();
    assert!((number(0, "nll") - number(2, "nll")).abs() < 1e-4 && number(0, "kl_mean") > 1e-6 && number(0, "kl_p99") >= number(0, "kl_mean"));
    assert_eq!((number(3, "kl_mean"), number(3, "nats_more"), number(3, "top1")), (0.0, 0.0, 1.0));
    // As an earlier study calls the same.
    let alias = |variant: &str| {
        json(&trifuse(&[
            "eval",
            "--variant",
            variant,
            "--suite",
            "ppl",
            "--baseline-model-id",
            model,
            "--model",
            &at("free"),
            "--window",
            "64",
            "--json",
            &one,
        ]))
    };
    assert!(alias("baseline")["ppl"][0]["kl_mean"].is_null());
    let [plain, repaired] = ["palu", "palu_repair"].map(alias);
    assert!((plain["ppl"][0]["nll"].as_f64().unwrap() - repaired["ppl"][0]["nll"].as_f64().unwrap()).abs() < 1e-4);
}

fn refused() {
    let (folder, _) = tiny();
    let place = tempfile::tempdir().unwrap();
    let output = place.path().join("out");
    let (model, out) = (folder.path().to_str().unwrap(), output.to_str().unwrap());
    for (arguments, status, part) in [
        (&["--keep", "1.5", "--factors", "svd"][..], 2, "a share above 0"),
        (&["--keep", "0.8"], 2, "moments of the projection"),
        (&["--keep", "0.8", "--ranks", "align:0"], 2, "align:N"),
        (&["--keep", "0.01", "--factors", "svd", "--ranks", "align:64"], 2, "at least"),
        (&["--keep", "0.8", "--leave", "("], 2, "regular expression"),
        (&["--keep", "0.8", "--also", "0.7=x"], 2, "0.8:align:16=DIR"),
        (&["--keep", "0.8", "--moments", "/no/such/file"], 4, "/no/such/file"),
    ] {
        let run = trifuse(&[&["shrink", model, "-o", out][..], arguments].concat());
        let told = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(run.status.code() == Some(status) && told.contains(part), "{arguments:?}: {:?} {told}", run.status);
        assert!(!output.exists());
    }
    let run = trifuse(&["repair", model, "-o", out, "--to", "8"]);
    assert!(run.status.code() == Some(4) && String::from_utf8_lossy(&run.stderr).contains("shrink it first"));
}
