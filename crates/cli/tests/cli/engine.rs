//! `eval --suite speed` beside vLLM's engine: benches/peers/vllm_engine.py with a stand-in for vLLM, and the table of both reports.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::{err, object, out, run, scratch, text};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Requests at once and adapters, of both programs.
const LOAD: [&str; 10] = ["--batch", "1,4", "--prompt", "8", "--answer", "4", "--drawn-adapters", "0,3", "--rank", "8"];

fn python(script: &str, environment: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new("python3");
    command.arg(format!("{ROOT}/benches/peers/{script}")).args(arguments).envs(environment.iter().copied());
    // What is imported lies in the repository, which nothing is to be written into.
    command.env("PYTHONPATH", format!("{ROOT}/tests/data/vllm")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.output().expect("this test needs python3")
}

fn stored(name: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(format!("{ROOT}/tests/data/vllm/{name}.json")).unwrap()).unwrap()
}

/// The table of two reports.
fn table(folder: &Path, ours: &Value, theirs: &Value, more: &[&str]) -> Output {
    let [own, other] = [("ours.json", ours), ("theirs.json", theirs)].map(|(name, report)| {
        let path = folder.join(name);
        std::fs::write(&path, report.to_string()).unwrap();
        path
    });
    python("vllm_table.py", &[], &[&[text(&own), text(&other)], more].concat())
}

#[test]
fn the_same_load_on_both_engines_is_one_table() {
    let folder = scratch();
    let config = format!("{ROOT}/tests/data/vllm/config.json");
    let own = run(&[&["--backend", "cpu", "eval", "--suite", "speed", "--drawn", &config, "--dtype", "f32", "--json"], &LOAD[..]].concat());
    assert!(own.status.success(), "{}", err(&own));
    let ours = object(&own, "eval");
    assert!(ours["start_seconds"].as_f64().unwrap() > 0.0 && ours["device"]["name"].is_string(), "{ours}");
    let part = |name: &str| ours["start"][name].as_f64().unwrap();
    let names = ["device", "weights_read", "weights_copied", "memory", "plans", "graphs", "steps", "rest"].map(|name| format!("{name}_seconds"));
    assert!((names.iter().map(|name| part(name)).sum::<f64>() - part("seconds")).abs() < 1e-6, "{}", ours["start"]);
    assert!(["weights_read_seconds", "memory_seconds", "plans_seconds", "steps_seconds"].iter().all(|name| part(name) > 0.0), "{}", ours["start"]);
    let theirs = folder.path().join("theirs.json");
    let device = ours["device"]["name"].as_str().unwrap();
    let output = python("vllm_engine.py", &[("VLLM_STUB_DEVICE", device)], &[&[config.as_str(), "-o", text(&theirs), "--dtype", "f32"], &LOAD[..]].concat());
    assert!(output.status.success(), "{}", err(&output));
    let theirs: Value = serde_json::from_slice(&std::fs::read(&theirs).unwrap()).unwrap();
    // Requests without adapters have an engine without.
    let options = |engine: usize, key: &str| theirs["engines"][engine]["options"][key].clone();
    assert_eq!([options(0, "max_loras"), options(1, "max_loras"), options(1, "max_num_seqs")], [Value::Null, json!(3), json!(4)]);
    for (ours, theirs) in ours["speed"].as_array().unwrap().iter().zip(theirs["speed"].as_array().unwrap()) {
        assert!(["model", "batch", "adapters", "prompt", "answer", "decode_steps"].iter().all(|key| ours[key] == theirs[key]), "{ours} {theirs}");
        assert!(ours.as_object().unwrap().keys().all(|key| !theirs[key].is_null()), "{theirs}");
    }
    let output = table(folder.path(), &ours, &theirs, &[]);
    let page = out(&output);
    assert!(output.status.success(), "{}", err(&output));
    assert_eq!(page.lines().filter(|line| line.starts_with("vllm ")).count(), 3, "{page}");
    assert!(page.contains("in 2 of 2 batches of vLLM's the first request has the greedy tokens that it has alone"), "{page}");
}

#[test]
fn a_configuration_is_given_ranks_and_its_factors_are_drawn() {
    let folder = scratch();
    let [config, factored] = [format!("{ROOT}/tests/data/vllm/config.json"), text(&folder.path().join("low/config.json")).to_owned()];
    let output = python("factored_config.py", &[], &[&config, "-o", &factored, "q_proj,k_proj=3", "down_proj=5"]);
    assert!(output.status.success(), "{}", err(&output));
    let written: Value = serde_json::from_slice(&std::fs::read(&factored).unwrap()).unwrap();
    let ranks = written["low_rank"]["ranks"].as_object().unwrap();
    assert_eq!(ranks.len() as u64, 3 * written["num_hidden_layers"].as_u64().unwrap(), "{written}");
    assert_eq!([&ranks["model.layers.0.self_attn.k_proj"], &ranks["model.layers.0.mlp.down_proj"]], [&json!(3), &json!(5)]);
    let load = ["--batch", "2", "--prompt", "8", "--answer", "4", "--dtype", "f16", "--json"];
    let own = run(&[&["--backend", "cpu", "eval", "--suite", "speed", "--drawn", &factored], &load[..]].concat());
    assert!(own.status.success(), "{}", err(&own));
    assert_eq!(object(&own, "eval")["speed"][0]["decode_steps"], 3);
    let output = python("factored_config.py", &[], &[&config, "-o", &factored, "head=3"]);
    assert!(!output.status.success() && err(&output).contains("expected NAME,NAME=RANK of q_proj"), "{}", err(&output));
}

#[test]
fn an_engine_that_gives_too_few_tokens_is_not_timed() {
    let folder = scratch();
    let [config, report] = [format!("{ROOT}/tests/data/vllm/config.json"), text(&folder.path().join("theirs.json")).to_owned()];
    let lacks = [("VLLM_STUB_DEVICE", "A GPU"), ("VLLM_STUB_LACKS", "1")];
    let output = python("vllm_engine.py", &lacks, &[&config, "-o", &report, "--batch", "2", "--prompt", "8", "--answer", "4"]);
    let told: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!((output.status.code(), told["speed"].as_array().unwrap().len()), (Some(1), 0), "{}", err(&output));
    assert!(told["wrong"][0]["why"].as_str().unwrap().contains("expected 4 tokens of each request"), "{told}");
}

#[test]
fn a_table_holds_what_both_measured_and_tells_the_rest() {
    let folder = scratch();
    let page = folder.path().join("page.md");
    std::fs::write(&page, "before\n<!-- vllm: begin -->\nold\n<!-- vllm: end -->\nafter\n").unwrap();
    let output = table(folder.path(), &stored("ours"), &stored("theirs"), &["--markdown", text(&page)]);
    assert!(output.status.success(), "{}", err(&output));
    let page = std::fs::read_to_string(page).unwrap();
    for line in [
        "| tiny | none | 1 | 2.00 | 1.00 | 2.00 | 3.00 | 4.00 | 0.75 |",
        "| tiny | none | 16 | 2.50 | 1.25 | 2.00 | 20.0 | 10.00 | 2.00 |",
        "- tiny, from start to the first token: vLLM 60.0 s; 90.0 s with room for adapters; here 2.5 s",
        "- tiny: in 0 of 1 batches of vLLM's the first request has the greedy tokens that it has alone",
        "- tiny, 16 requests, 4 adapters: vLLM: expected 64 tokens of each request, found [63]",
        "- tiny: not measured by vLLM: 64 requests with no adapters",
    ] {
        assert!(page.lines().any(|found| found == line), "{line}: {page}");
    }
    assert!(page.starts_with("before\n<!-- vllm: begin -->\n\nA GPU; trifuse 0.1.0, revision 0123456; vLLM 0.24.0") && page.ends_with("after\n"), "{page}");
    assert!(!page.contains("old") && page.matches("| tiny").count() == 2, "{page}");
}

#[test]
fn reports_of_two_machines_are_refused() {
    let refused = |change: &dyn Fn(&mut Value), expected: &str| {
        let folder = scratch();
        let mut theirs = stored("theirs");
        change(&mut theirs);
        let output = table(folder.path(), &stored("ours"), &theirs, &[]);
        assert!(output.status.code() == Some(1) && err(&output).contains(expected) && out(&output).is_empty(), "{expected}: {}", err(&output));
    };
    refused(&|theirs| theirs["device"]["name"] = json!("Another"), "A GPU; found Another");
    // Two GPUs of one name may be of two machines.
    refused(&|theirs| theirs["environment"]["boot"] = json!("two"), "one; found two");
    refused(&|theirs| theirs["environment"]["boot"] = Value::Null, "one; found None");
    refused(&|theirs| theirs["dtype"] = json!("bf16"), "f16; found bf16");
    refused(&|theirs| theirs["format"] = json!("another"), "expected a report of trifuse.llm-eval/1, found another");
    refused(&|theirs| theirs["speed"] = json!([]), "no batch that both reports hold");
}
