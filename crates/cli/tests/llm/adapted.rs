//! `eval --adapters`: the perplexity of a text with an adapter is that of its merged weights, from a bundle and from folders.

use std::path::Path;
use std::process::{Command, Output};

use libtest_mimic::Trial;
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::Value;
use trifuse::adapters::bundle::to_bytes;
use trifuse::llm::Files;

use super::backends::ignored;
use super::engine::{adapters, merge};
use super::support::{NO_WEIGHTS, root, weights};
use super::tiny::{VOCABULARY, kinds};

/// The trials of the command.
pub fn commands() -> Vec<Trial> {
    let tests: [(&str, fn()); 2] = [
        ("eval scores texts with adapters as with their merged weights", scored),
        ("eval refuses adapters that it has not, and windows without room", refused),
    ];
    let trial = |(name, test): (&str, fn())| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
        .with_kind("command")
    };
    let real = match weights().is_file() {
        true => trial(("real adapters foretell their own text better", real)),
        false => ignored(format!("real adapters foretell their own text better: {NO_WEIGHTS}")).with_kind("command"),
    };
    tests.map(trial).into_iter().chain([real]).collect()
}

fn trifuse(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trifuse"));
    command.args(arguments).args(["--backend", "cpu"]).env_remove("TRIFUSE_BACKEND").output().unwrap()
}

/// The scores of a run.
fn ppl(arguments: &[&str]) -> Vec<Value> {
    let run = trifuse(arguments);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let found: Value = serde_json::from_slice(&run.stdout).unwrap();
    found["ppl"].as_array().unwrap().clone()
}

/// A tiny model, a bundle of its adapters, their decompressed folders and a text, below a folder.
fn prepared(place: &Path) -> Files {
    std::fs::create_dir(place.join("model")).unwrap();
    kinds()[0].write(&place.join("model"));
    let files = Files::open(&place.join("model")).unwrap();
    std::fs::write(place.join("all.s2lc"), to_bytes(&adapters(&files.config)).unwrap()).unwrap();
    let words: Vec<String> = (0..600u32).map(|at| format!("t{}", (at * at * 7 + at * 3) % VOCABULARY as u32)).collect();
    std::fs::write(place.join("text.txt"), words.join(" ")).unwrap();
    files
}

/// The model with an adapter in its weights, as a folder.
fn merged(place: &Path, files: &Files, name: &str) {
    let (from, to) = (place.join("model"), place.join(name));
    std::fs::create_dir(&to).unwrap();
    for file in ["config.json", "tokenizer.json", "generation_config.json"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
    let population = adapters(&files.config);
    let tensors: Vec<(String, Vec<usize>, Vec<f32>)> = files
        .weights
        .names()
        .into_iter()
        .map(|tensor| {
            let (shape, mut values) = files.weights.read(&tensor).unwrap();
            merge(&population, name, &tensor, &mut values);
            (tensor, shape.iter().map(|size| *size as usize).collect(), values)
        })
        .collect();
    let views = tensors.iter().map(|(tensor, shape, values)| (tensor, TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values)).unwrap()));
    std::fs::write(to.join("model.safetensors"), serialize(views.collect::<Vec<_>>(), None).unwrap()).unwrap();
}

fn scored() {
    let place = tempfile::tempdir().unwrap();
    let files = prepared(place.path());
    let at = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (model, bundle, text) = (at("model"), at("all.s2lc"), at("text.txt"));
    let how = ["--window", "50", "--windows", "11", "--dtype", "f32", "--json", text.as_str()];
    let run = |more: &[&str]| ppl(&[&["eval"], more, &how].concat());
    let all = run(&["--model", &model, "--adapters", &bundle]);
    let names: Vec<Option<&str>> = all.iter().map(|row| row["adapter"].as_str()).collect();
    assert_eq!(names, [None, Some("high"), Some("low"), Some("other")]);
    let nats = |row: &Value| {
        assert_eq!((row["windows"].as_u64(), row["tokens"].as_u64()), (Some(11), Some(11 * 49)), "{row}");
        row["nll"].as_f64().unwrap()
    };
    let base = nats(&run(&["--model", &model])[0]);
    assert!((nats(&all[0]) - base).abs() < 1e-5, "{} of {base}", all[0]);
    for row in &all[1..] {
        let name = row["adapter"].as_str().unwrap();
        merged(place.path(), &files, name);
        let want = nats(&run(&["--model", &at(name)])[0]);
        assert!((nats(row) - want).abs() < 5e-5, "{name}: {} of {want}", nats(row));
        assert!((nats(row) - base).abs() > 1e-3, "{name} changes nothing");
    }
    // Folders of the same adapters, and one of them alone, in a table for people as well.
    let folders = at("folders");
    assert!(trifuse(&["decompress", &bundle, "-o", &folders]).status.success());
    let low = run(&["--model", &model, "--adapters", &format!("{folders}/low"), "--adapters", &format!("{folders}/high"), "--adapter", "low"]);
    assert_eq!((low.len(), low[1]["adapter"].as_str()), (2, Some("low")));
    assert!((nats(&low[1]) - nats(&all[2])).abs() < 5e-4, "{} of {}", low[1], all[2]);
    let page = trifuse(&["eval", "--model", &model, "--adapters", &bundle, "--adapter", "high", "--window", "50", "--windows", "1", &text]);
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    assert!(page.contains("adapter") && page.contains(" none ") && page.contains(" high ") && !page.contains(" low "), "{page}");
}

/// The beginning of what the adapters `kjv-…` were trained on.
const GENESIS: &str = "In the beginning God created the heaven and the earth. And the earth was without form, and void; and darkness was upon the face of the deep. \
    And the Spirit of God moved upon the face of the waters. And God said, Let there be light: and there was light. And God saw the light, that it was good: and \
    God divided the light from the darkness. And God called the light Day, and the darkness he called Night. And the evening and the morning were the first day.";

/// Text like what the adapters `wiki-…` were trained on.
const RIVER: &str = "The river rises in the northern hills and flows south for 210 kilometres through a wide valley before it reaches the sea. Its upper course was settled \
    in the twelfth century, when a monastery was founded at the ford. The town that grew around it was granted a charter in 1284 and became a centre of the wool trade. The \
    bridge, which was completed in 1791, is the oldest of its kind that still carries traffic. During the nineteenth century a railway was built along the western bank, and \
    the population doubled within thirty years.";

/// Adapters that PEFT trained, of both ranks, and what a bundle keeps of each, against the model alone.
fn real() {
    let place = tempfile::tempdir().unwrap();
    let data = root().join("tests/data/smollm2");
    for (adapter, words) in [("kjv-r8-common", GENESIS), ("wiki-r4-own", RIVER)] {
        let text = place.path().join("text.txt");
        std::fs::write(&text, words).unwrap();
        let nats = |adapters: &str| {
            let (model, adapters) = (weights(), data.join(adapters));
            let [model, adapters, text] = [&model, &adapters, &text].map(|path| path.to_str().unwrap());
            let found = ppl(&["eval", "--model", model, "--adapters", adapters, "--adapter", adapter, "--dtype", "f32", "--window", "96", "--json", text]);
            assert_eq!((found.len(), found[1]["tokens"].as_u64()), (2, Some(95)));
            [0, 1].map(|row: usize| found[row]["nll"].as_f64().unwrap())
        };
        let ([base, exact], [same, kept]) = (nats(adapter), nats("adapters-0.99.s2lc"));
        assert!((base - same).abs() < 1e-6 && exact < base - 0.1, "{exact} with {adapter}, {base} without");
        assert!((kept - exact).abs() < 0.1 * (base - exact), "{kept} of the bundle, {exact} of {adapter}, {base} without");
    }
}

fn refused() {
    let place = tempfile::tempdir().unwrap();
    prepared(place.path());
    let at = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (model, bundle, text) = (at("model"), at("all.s2lc"), at("text.txt"));
    for (arguments, part) in [
        (&["--adapters", bundle.as_str(), "--adapter", "none", "--window", "50"][..], "one of high, low, other"),
        (&["--adapters", &bundle, "--window", "1024"], "fewer than the 1024 tokens"),
        (&["--adapters", &bundle, "--suite", "speed"], "--suite ppl"),
        (&["--adapters", &bundle, "--baseline-model", &model], "--baseline-model"),
        (&["--adapter", "low"], "--adapters"),
    ] {
        let run = trifuse(&[&["eval", "--model", &model, &text][..], arguments].concat());
        let told = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(run.status.code() == Some(2) && told.contains(part), "{arguments:?}: {:?} {told}", run.status);
    }
}
