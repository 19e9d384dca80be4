//! `serve`, run as a user runs it: what it answers is what `embed` writes, and a signal ends it.
#![cfg(all(unix, feature = "serve"))]

use serde_json::{Value, json};

use super::command::{text, trifuse};
use super::served::Served;
use super::support::{model, root};

pub fn answers_as_embed_writes() {
    let adapters = [Some("rust"), None, Some("sqlite")];
    let lines: String = adapters.iter().map(|adapter| format!("{}\n", json!({"text": "let x = 1;", "adapter": adapter}))).collect();
    let population = text(&root().join("crates/cli/data/adapters/A"));
    let written = trifuse(&["embed", "--model", &text(&model()), "--adapters", &population], lines.as_bytes());
    let written: Vec<Value> = String::from_utf8(written.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut served = Served::start(&["--model", &text(&model()), "--adapters", &population]);
    let name = model().file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_owned();
    let (status, body) = served.ask("/v1/embeddings", &json!({"model": name, "input": vec!["let x = 1;"; 3], "adapters": adapters}));
    assert_eq!(status, 200, "{body}");
    for (index, line) in written.iter().enumerate() {
        assert_eq!(body["data"][index]["embedding"], line["embedding"], "{:?}", adapters[index]);
    }
    assert_eq!(written.len(), 3);
    let (status, body) = served.ask("/v1/embeddings", &json!({"model": "nobody", "input": "a"}));
    assert_eq!((status, body["error"]["code"].as_str()), (404, Some("model_not_found")));
    let report = served.load(&["--adapters", "mixed", "--rate", "20", "--seconds", "2", "--warmup", "0", "--length", "6"]);
    let run = &report["runs"][0];
    assert!(report["models"].as_array().unwrap().len() > 2 && report["answered_as_base"] == 0, "{report}");
    assert_eq!((&run["answered"], &run["wrong"]), (&run["requests"], &json!(0)), "{report}");
    // One request before, one of each model, and those of the load.
    served.end(1 + report["models"].as_array().unwrap().len() + run["answered"].as_u64().unwrap() as usize);
}
