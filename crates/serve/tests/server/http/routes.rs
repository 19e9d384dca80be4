//! The routes around the models: lists, health, metrics, ids, methods.

use std::sync::Arc;

use serde_json::json;
use trifuse_serve::Models;

use crate::support::parrot::Parrot;
use crate::support::tiny;
use crate::{Running, config};

#[test]
fn models_are_listed_with_their_adapters() {
    let server = Running::new();
    let mut client = server.client();
    let list = client.get("/v1/models").json();
    let cards = list["data"].as_array().unwrap();
    let told: Vec<(&str, Option<&str>)> = cards.iter().map(|card| (card["id"].as_str().unwrap(), card["parent"].as_str())).collect();
    assert_eq!(told, [("tiny", None), ("left", Some("tiny")), ("right", Some("tiny"))]);
    assert!(cards.iter().all(|card| card["object"] == "model" && card["max_model_len"] == 128 && card["state"] == "ready" && card["created"].is_u64()));
    assert_eq!(client.get("/v1/models/left").json(), cards[1]);
    assert_eq!(client.get("/v1/models/tiny:left").json()["adapter_generation"], "left-1");
    let answer = client.get("/v1/models/org%2Fother");
    assert_eq!((answer.status, answer.code().as_str()), (404, "model_not_found"));
    assert!(answer.text().contains("org/other"), "{}", answer.text());
}

#[test]
fn a_name_that_another_route_serves_is_told_apart_from_one_that_is_not_there() {
    let folder = tiny::folder();
    let embeddings = Some(tiny::model_with(folder.path(), |_| {}));
    let both = Running::start(config(|_| {}), folder, Models { embeddings, generator: Some(Arc::new(Parrot::default())), ..Models::default() });
    let folder = tiny::folder();
    let writes = Running::start(config(|_| {}), folder, Models { generator: Some(Arc::new(Parrot::default())), ..Models::default() });
    let embeds = Running::new();
    let embed = |model: &str| ("/v1/embeddings", json!({"model": model, "input": "w1"}));
    let chat = |model: &str| ("/v1/chat/completions", json!({"model": model, "messages": [{"role": "user", "content": "a"}]}));
    let complete = |model: &str| ("/v1/completions", json!({"model": model, "prompt": "a"}));
    for (server, (route, body), told) in [
        (&both, chat("tiny"), "POST /v1/embeddings asks it"),
        (&both, complete("left"), "POST /v1/embeddings asks it"),
        (&both, embed("loud"), "POST /v1/completions or /v1/chat/completions asks it"),
        (&both, embed("nobody"), "there is tiny, left, right"),
        (&both, chat("nobody"), "there is parrot, loud"),
        (&embeds, chat("tiny:left"), "POST /v1/embeddings asks it"),
        (&embeds, chat("nobody"), "there is tiny, left, right"),
        (&writes, embed("parrot"), "POST /v1/completions or /v1/chat/completions asks it"),
        (&writes, embed("nobody"), "there is parrot, loud"),
    ] {
        let answer = server.client().post(route, &body);
        assert_eq!((answer.status, answer.code().as_str()), (404, "model_not_found"), "{body}");
        assert!(answer.json()["error"]["param"] == "model" && answer.text().contains(told), "{body}: {}", answer.text());
    }
    let of_another = both.client().get("/v2/models/tiny/versions/2").text();
    assert!(of_another.contains("there is 1\""), "{of_another}");
}

#[test]
fn health_version_and_metrics_answer() {
    let server = Running::new();
    let mut client = server.client();
    assert_eq!(client.get("/health").json(), json!({"status": "ready", "devices": {"all": 1, "working": 1}}));
    assert_eq!(client.get("/health?deep=1").status, 200);
    assert_eq!(client.get("/version").json(), json!({"version": env!("CARGO_PKG_VERSION")}));
    client.post("/v1/embeddings", &json!({"model": "tiny", "input": "w1 w2"}));
    client.post("/v1/embeddings", &json!({"model": "none", "input": "w1 w2"}));
    let metrics = client.get("/metrics").text();
    for line in [
        "trifuse_requests_accepted_total 2",
        "trifuse_requests_total{outcome=\"finished\"} 2",
        "trifuse_requests_total{outcome=\"failed\"} 0",
        "trifuse_requests_open 0",
        "trifuse_http_answers_total{route=\"/v1/embeddings\",status=\"404\"} 1",
        "trifuse_refusals_total{code=\"model_not_found\"} 1",
        "trifuse_prompt_tokens_total 4",
        "trifuse_model_requests_total{model=\"tiny\"} 1",
        "trifuse_request_seconds_count{route=\"/v1/embeddings\"} 2",
        "trifuse_request_seconds_bucket{le=\"+Inf\",route=\"/v1/embeddings\"} 2",
        "trifuse_first_token_seconds_count 0",
        "trifuse_connections 1",
        "trifuse_queued_tokens 0",
        "# EOF",
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line} is not in\n{metrics}");
    }
    let value = |name: &str| metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
    assert!(value("trifuse_cores ").is_some_and(|cores| cores >= 1.0), "{metrics}");
    if cfg!(target_os = "linux") {
        let process = ["process_cpu_seconds_total ", "process_resident_memory_bytes ", "process_open_fds "].map(value);
        assert!(process.iter().all(|value| value.is_some_and(|value| value >= 0.0)) && process[1] > Some(1e6) && process[2] > Some(2.0), "{process:?}");
    }
}

#[test]
fn a_request_keeps_its_id_or_gets_one() {
    let server = Running::new();
    let mut client = server.client();
    let answer = client.send("GET", "/health", &[("x-request-id", "mine-1")], b"").unwrap();
    assert_eq!(answer.headers["x-request-id"], "mine-1");
    let own: Vec<String> = (0..3).map(|_| client.get("/health").headers["x-request-id"].clone()).collect();
    assert!(own[0] != own[1] && own[1] != own[2] && own[0].len() == 24, "{own:?}");
    let long = "x".repeat(129);
    assert_ne!(client.send("GET", "/health", &[("x-request-id", &long)], b"").unwrap().headers["x-request-id"], long);
}

#[test]
fn what_is_no_route_is_told() {
    let server = Running::new();
    let mut client = server.client();
    for path in ["/index.html", "/v1", "/v1/nothing", "/v26/models", "/health/x"] {
        let answer = client.get(path);
        assert_eq!((answer.status, answer.code().as_str()), (404, "route_not_found"), "{path}");
    }
    let answer = client.get("/v1/embeddings");
    assert_eq!((answer.status, answer.code().as_str()), (405, "method_not_allowed"));
}
