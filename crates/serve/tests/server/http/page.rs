//! The page and what it shows: nothing from elsewhere, and counts that are true.

use std::sync::Arc;

use serde_json::{Value, json};
use trifuse_serve::Keys;

use crate::support::client::Client;
use crate::support::parrot::Parrot;
use crate::support::tiny;
use crate::{Running, config};

#[test]
fn the_page_is_one_document_that_runs_nothing_else() {
    let server = Running::new();
    let answer = server.client().get("/");
    assert_eq!((answer.status, answer.headers["content-type"].as_str()), (200, "text/html; charset=utf-8"));
    let page = answer.text();
    let policy = &answer.headers["content-security-policy"];
    for rule in ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"] {
        assert!(policy.contains(rule), "{rule} is not in {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let inner = |start: &str, end: &str| page.split_once(start).unwrap().1.split_once(end).unwrap().0.to_owned();
    for (text, rule) in [(inner("<style>", "</style>"), "style-src"), (inner("<script type=\"module\">", "</script>"), "script-src")] {
        use base64::Engine;
        use sha2::Digest;
        let digest = base64::prelude::BASE64_STANDARD.encode(sha2::Sha256::digest(&text));
        assert!(text.len() > 1000 && policy.contains(&format!("{rule} 'sha256-{digest}'")), "{rule}");
        assert!(!text.contains("innerHTML") && !text.contains("insertAdjacentHTML"));
    }
    // Pictures are in the page, and what is asked for begins with this server's own paths.
    assert!(page.contains("href=\"data:image") && !page.contains("src=\"") && !page.contains("@import"));
    assert_eq!(page.matches("://").count(), 1, "the name space of the picture alone");
    assert!(page.contains("<html lang=\"en\" data-keys=\"\">"));
}

#[test]
fn the_status_counts_requests_by_model_and_times_by_route() {
    let server = Running::new();
    let mut client = server.client();
    for body in [json!({"model": "left", "input": "w1"}), json!({"model": "tiny", "input": ["w1", "w2", "w3"], "adapters": ["right", null, "right"]})] {
        assert_eq!(client.post("/v1/embeddings", &body).status, 200);
    }
    client.post("/v1/embeddings", &json!({"model": "nobody", "input": "w1"}));
    let told = client.get("/status").json();
    let models: Vec<Value> =
        told["models"].as_array().unwrap().iter().map(|model| json!([model["id"], model["parent"], model["makes"], model["requests"]])).collect();
    assert_eq!(models, [json!(["tiny", null, "vectors", 1]), json!(["left", "tiny", "vectors", 1]), json!(["right", "tiny", "vectors", 1])]);
    assert_eq!((&told["models"][1]["adapter_generation"], told["models"][0].get("adapter_generation")), (&json!("left-1"), None));
    assert_eq!(told["requests"], json!({"finished": 2, "failed": 0, "cancelled": 0, "expired": 0, "accepted": 2, "open": 0}));
    assert_eq!(
        (&told["state"], &told["tokens"]["prompt"], &told["tokens"]["waiting"], &told["connections"]),
        (&json!("ready"), &json!(12), &json!(0), &json!(1))
    );
    let (seconds, sum) = (&told["seconds"], |counts: &Value| counts.as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum::<u64>());
    assert_eq!(sum(&seconds["routes"]["/v1/embeddings"]), 3);
    assert_eq!((sum(&seconds["queue"]), sum(&seconds["first_token"])), (4, 0));
    assert_eq!(seconds["queue"].as_array().unwrap().len(), seconds["bounds"].as_array().unwrap().len() + 1);
}

#[test]
fn a_text_counts_its_tokens_and_the_adapter_that_it_names() {
    let handle = super::writes(Arc::new(Parrot::default()));
    let mut client = Client::to(handle.addr()).unwrap();
    client.post("/v1/completions", &json!({"model": "parrot:loud", "prompt": ["abc", "de"]}));
    let told = client.get("/status").json();
    assert_eq!(
        told["models"],
        json!([
            {"id": "parrot", "parent": null, "makes": "text", "requests": 0},
            {"id": "loud", "parent": "parrot", "makes": "text", "requests": 2, "adapter_generation": "1"},
        ])
    );
    let sum = |counts: &Value| counts.as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum(&told["seconds"]["first_token"]), sum(&told["seconds"]["next_token"]), &told["tokens"]["generated"]), (2, 3, &json!(5)));
    handle.drain();
    handle.wait();
}

#[test]
fn where_keys_are_needed_the_page_asks_for_one_and_the_status_needs_it() {
    let folder = tiny::folder();
    let keys = folder.path().join("keys");
    // The SHA-256 of "secret".
    std::fs::write(&keys, "ann:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b").unwrap();
    let config = config(|config| config.keys = Keys::open(&keys).unwrap());
    let handle = trifuse_serve::Server::start(config, None, Some(Arc::new(Parrot::default()))).unwrap();
    let mut client = Client::to(handle.addr()).unwrap();
    assert!(client.get("/").text().contains("<html lang=\"en\" data-keys=\"needed\">"));
    let answer = client.get("/status");
    assert_eq!((answer.status, answer.code().as_str()), (401, "invalid_api_key"));
    assert_eq!(client.send("GET", "/status", &[("authorization", "Bearer secret")], b"").unwrap().status, 200);
    handle.drain();
    handle.wait();
}
