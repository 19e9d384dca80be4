//! `bench shrink`: pictures of evaluations, profiles and ledgers that are made up here.

use serde_json::{Value, json};

use crate::support::{err, files, object, out, run, scratch, text};

fn evaluated() -> Value {
    let models = [("org/model", 20.0, 3.0), ("results/free-0.9", 24.0, 2.5), ("results/align16-0.9", 24.5, 2.0)];
    let ppl: Vec<Value> = models
        .iter()
        .map(|(model, perplexity, _)| json!({"model": model, "text": "held-out/wiki & more.txt", "perplexity": perplexity, "perplexity_ci95": [19.0, 26.0]}))
        .collect();
    let speed: Vec<Value> = models
        .iter()
        .map(|(model, _, ms)| json!({"model": model, "batch": 4, "prompt": 128, "answer": 8, "prefill_seconds": 0.25, "step_ms_p50": ms}))
        .collect();
    json!({"schema_version": 1, "command": "eval", "format": "trifuse.llm-eval/1", "device": {"name": "A"}, "dtype": "f16", "ppl": ppl, "speed": speed})
}

fn profile(ranks: &Value) -> Value {
    let shapes = json!([{"shape": [64, 96], "whole": [1e-6], "ranks": ranks}]);
    json!({"format": "trifuse.profile/1", "device": "cuda: A", "dtype": "f16", "rows": [16], "shapes": shapes})
}

fn line(d_out: u64, d_in: u64, theirs: f64) -> String {
    let sizes =
        json!({"ledger": "trifuse.hunt/1", "name": format!("m16 n{d_out} k{d_in}"), "op": "linear", "tokens": 16, "d_out": d_out, "d_in": d_in, "delta": null});
    let place = json!({"suite": "linear", "dtype": "f16", "captured": true, "backend": "cuda", "device": "A", "revision": "1", "against": "peers"});
    let times = json!({"ours": 1e-7, "theirs": theirs, "ratio": 1e-7 / theirs});
    let all: serde_json::Map<String, Value> = [sizes, place, times].into_iter().flat_map(|part| part.as_object().unwrap().clone()).collect();
    format!("{}\n", Value::Object(all))
}

#[test]
fn pictures_are_drawn_of_what_is_there() {
    let folder = scratch();
    let file = |name: &str, held: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, held).unwrap();
        text(&path).to_owned()
    };
    let eval = file("eval.json", evaluated().to_string());
    let times = file("profile.json", profile(&json!({"16": [4e-7], "24": [5e-7]})).to_string());
    let ledger = file("ledger.jsonl", line(16, 96, 2e-7) + &line(64, 16, 3e-7) + &line(64, 96, 9e-7));
    let pictures = folder.path().join("pictures");
    let output = run(&["bench", "shrink", "--eval", &eval, "--profile", &times, "--ledger", &ledger, "--pictures", text(&pictures), "--json"]);
    assert!(output.status.success(), "{}", err(&output));
    assert_eq!(object(&output, "bench")["written"].as_array().unwrap().len(), 2);
    assert_eq!(files(&pictures), ["perplexity-time.svg", "time-rank-f16.svg"]);
    let drawn = |name: &str| std::fs::read_to_string(pictures.join(name)).unwrap();
    let quality = drawn("perplexity-time.svg");
    for word in
        ["wiki &amp; more.txt: a step of 4 at once", "wiki &amp; more.txt: 4 prompts of 128 tokens", "free-0.9", "align16-0.9", ">\nms\n<", "A, f16; bars"]
    {
        assert!(quality.contains(word), "{word}");
    }
    // Two panels of three models, and the legend.
    assert_eq!(quality.matches("<circle").count(), 3 * 3);
    let ranks = drawn("time-rank-f16.svg");
    for word in ["96 to 64, 16 rows", "trifuse, one after another", "best peer, cold caches", "cuda: A, f16"] {
        assert!(ranks.contains(word), "{word}");
    }
    // Two ranks of the profile, one of ours and the peer's, and three in the legend.
    assert_eq!(ranks.matches("<circle").count(), 2 + 1 + 1 + 3);
    assert!(std::fs::read_to_string(&ledger).unwrap().lines().count() == 3, "it is read alone");
    // A few ranks are named one by one, and stand beside each other.
    for rank in ["16", "24"] {
        assert!(ranks.contains(&format!(">\n{rank}\n<")), "{rank}");
    }
}

#[test]
fn a_ledger_alone_gives_what_it_holds() {
    let folder = scratch();
    let [ledger, pictures] = ["ledger.jsonl", "pictures"].map(|name| folder.path().join(name));
    std::fs::write(&ledger, line(16, 96, 2e-7) + &line(64, 16, 3e-7) + &line(64, 96, 9e-7)).unwrap();
    let output = run(&["bench", "shrink", "--ledger", text(&ledger), "--pictures", text(&pictures)]);
    let left_out = ["perplexity against time, which --eval has", "one after another, which --profile has"];
    assert!(output.status.success() && left_out.iter().all(|what| err(&output).contains(what)), "{}", err(&output));
    assert_eq!(files(&pictures), ["time-rank-f16.svg"]);
    let drawn = std::fs::read_to_string(pictures.join("time-rank-f16.svg")).unwrap();
    // A rank, ours and the peer's, and both in the legend.
    assert!(drawn.matches("<circle").count() == 2 + 2 && drawn.contains("96 to 64, 16 rows") && !drawn.contains("one after another"), "{drawn}");
}

#[test]
fn what_cannot_be_drawn_is_told() {
    let folder = scratch();
    let pictures = folder.path().join("pictures");
    let times = folder.path().join("profile.json");
    std::fs::write(&times, profile(&json!({})).to_string()).unwrap();
    let output = run(&["bench", "shrink", "--profile", text(&times), "--pictures", text(&pictures)]);
    assert!(output.status.success() && err(&output).contains("nothing to draw") && out(&output).is_empty(), "{}", err(&output));
    let none = run(&["bench", "shrink", "--pictures", text(&pictures)]);
    assert!(none.status.code() == Some(2) && err(&none).contains("--eval, --profile or --ledger"), "{}", err(&none));
    let wrong = run(&["bench", "shrink", "--eval", text(&times), "--pictures", text(&pictures)]);
    assert!(wrong.status.code() == Some(4) && err(&wrong).contains("expected a report of `trifuse eval"), "{}", err(&wrong));
}
