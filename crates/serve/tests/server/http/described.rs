//! `/openapi.json` says what is true: its routes are there and no others, what it requires is required, and it lists every field that is taken.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::Running;
use crate::support::tiny::NAME;

/// A value that a field takes, by its name.
fn value(name: &str) -> Value {
    match name {
        "model" => json!(NAME),
        "input" => json!("w1"),
        "prompt" => json!([1]),
        "messages" => json!([{"role": "user", "content": "a"}]),
        "encoding_format" => json!("float"),
        "dimensions" => json!(crate::support::tiny::WIDTH),
        "adapters" => json!([null]),
        "max_tokens" | "max_completion_tokens" | "n" | "best_of" | "seed" | "top_k" => json!(1),
        "temperature" | "top_p" | "min_p" | "presence_penalty" | "frequency_penalty" | "repetition_penalty" => json!(0.5),
        "stop" | "user" => json!("a"),
        "suffix" => json!(""),
        "logit_bias" => json!({"1": 1}),
        "stream" => json!(true),
        "stream_options" => json!({"include_usage": true}),
        "top_logprobs" => json!(0),
        "tools" => json!([]),
        "modalities" => json!(["text"]),
        "response_format" => json!({"type": "text"}),
        "structured_outputs" => json!({"regex": "a"}),
        _ => json!(false),
    }
}

#[test]
fn the_description_has_every_route_and_field_and_no_other() {
    let server = Running::new();
    let mut client = server.client();
    let description = client.get("/openapi.json").json();
    let paths: BTreeSet<&str> = description["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    let metrics = client.get("/metrics").text();
    assert!(metrics.contains("route=\"/openapi.json\""), "{metrics}");
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let answer = client
                .send(
                    &method.to_uppercase(),
                    &path.replace("{id}", NAME).replace("{version}", "1").replace("{name}", "a"),
                    &[],
                    if method == "post" { b"{}" } else { b"" },
                )
                .unwrap();
            assert!(methods[method]["responses"].get(answer.status.to_string()).is_some(), "{method} {path}: {} is not described", answer.status);
        }
    }
    assert_eq!(paths.len(), 37, "{paths:?}");
    for (path, schema) in [("/v1/embeddings", "Embed"), ("/v1/completions", "Complete"), ("/v1/chat/completions", "Chat")] {
        let schema = &description["components"]["schemas"][schema];
        assert_eq!(schema["additionalProperties"], json!({"type": "null"}), "what nobody knows may be null alone");
        let fields: Vec<&str> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        let needed: Vec<&str> = schema["required"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        let with = |names: &[&str]| Value::Object(names.iter().map(|name| ((*name).to_owned(), value(name))).collect());
        // A model that does not write is told once all else is read.
        let takes = |status: u16| status == 200 || status == 404;
        assert!(takes(client.post(path, &with(&needed)).status), "{path}: what is required is enough");
        for name in &needed {
            let others: Vec<&str> = needed.iter().copied().filter(|other| other != name).collect();
            assert_eq!(client.post(path, &with(&others)).status, 400, "{path} without {name}");
        }
        for name in &fields {
            let extra: &[&str] = if *name == "stream_options" { &["stream"] } else { &[] };
            let mut body = with(&[&needed[..], extra, &[name]].concat());
            if path == "/v1/completions" && *name == "logprobs" {
                body[*name] = json!(1);
            }
            if *name == "top_logprobs" {
                body["logprobs"] = json!(true);
            }
            let answer = client.post(path, &body);
            assert!(takes(answer.status), "{path} with {name}: {}", answer.text());
        }
        let answer = client.post(path, &with(&[&needed[..], &["another"]].concat()));
        assert_eq!((answer.status, answer.code().as_str()), (400, "unsupported_parameter"), "{path}");
    }
}
