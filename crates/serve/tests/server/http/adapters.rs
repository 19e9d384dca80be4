//! Adapters that are loaded, replaced and unloaded over HTTP while others ask: each answer is of the generation that it names.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use trifuse::adapters::peft::LoraAdapter;
use trifuse_serve::queueing::ledger::Outcome;
use trifuse_serve::{AdapterRoot, Keys};

use super::embeddings::bits;
use crate::Running;
use crate::support::client::Answer;
use crate::support::tiny::{self, NAME, Reference, WIDTH, peft};

/// A folder with the adapters `one` and `two` of two contents, and `wide`, which is of another model.
pub fn root() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (name, seed, rank) in [("one", 900, 4), ("two", 950, 4), ("deep", 990, 7)] {
        peft(&root.path().join(name), seed, rank, WIDTH);
    }
    peft(&root.path().join("wide"), 5, 4, WIDTH * 2);
    root
}

fn running(root: &Path, keys: Option<&Path>) -> Running {
    let (root, keys) = (AdapterRoot::open(root).unwrap(), keys.map(|keys| Keys::open(keys).unwrap()));
    let set = move |config: &mut trifuse_serve::Config| {
        config.adapter_root = Some(root);
        config.keys = keys.unwrap_or_default();
    };
    Running::with(set, |_| {})
}

fn load(name: &str, path: &str) -> Value {
    json!({"lora_name": name, "lora_path": path})
}

pub fn vector(answer: &Answer) -> Vec<u32> {
    assert_eq!(answer.status, 200, "{}", answer.text());
    bits(&answer.json()["data"][0]["embedding"])
}

#[test]
fn adapters_come_and_go_while_others_ask() {
    let root = root();
    let server = running(root.path(), None);
    let mut reference = Reference::new(server.folder.path());
    let texts = ["w1 w2 w3", "w4", "w5 w6 w7 w8"];
    let wanted: BTreeMap<&str, Vec<Vec<u32>>> = ["one", "two", "deep"]
        .into_iter()
        .map(|name| {
            reference.add(name, &LoraAdapter::open(root.path().join(name)).unwrap());
            (name, texts.iter().map(|text| reference.of(text, Some(name))).collect())
        })
        .collect();
    let still: Vec<Vec<u32>> = texts.iter().map(|text| reference.of(text, Some("left"))).collect();
    let mut client = server.client();
    assert_eq!(client.post("/v1/embeddings", &json!({"model": "new", "input": "w1"})).status, 404);
    let first = client.post("/v1/load_lora_adapter", &load("new", "one"));
    assert_eq!((first.status, first.text().as_str()), (200, "Success: LoRA adapter 'new' added successfully."));
    let list = client.get("/v1/lora_adapters").json();
    let names: Vec<&str> = list["data"].as_array().unwrap().iter().map(|card| card["lora_name"].as_str().unwrap()).collect();
    assert_eq!(names, ["left", "new", "right"]);
    let card = &list["data"][1];
    assert!(card["cosine"].as_f64().is_some_and(|cosine| cosine > 0.999_999) && card["bytes"].as_u64() > Some(1000) && card["parent"] == NAME, "{card}");
    let generation_of = |path: &str| {
        let mut client = server.client();
        let mut body = load("new", path);
        body["load_inplace"] = json!(true);
        let body = body.to_string();
        let answer = client.send("POST", "/v1/load_lora_adapter", &[("accept", "application/json")], body.as_bytes()).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["adapter_generation"].as_str().unwrap().to_owned()
    };
    let generations: BTreeMap<String, &str> = ["one", "two", "deep"].into_iter().map(|name| (generation_of(name), name)).collect();
    assert_eq!(generations.len(), 3);
    // While the name leads from one to the other, each answer is of the generation that it names.
    let (done, seen) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (server, done, seen, wanted, still, generations) = (&server, &done, &seen, &wanted, &still, &generations);
            scope.spawn(move || {
                let mut client = server.client();
                for number in thread.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    let at = number % texts.len();
                    let model = ["new", "left", "tiny:new"][number % 4 % 3];
                    let answer = client.post("/v1/embeddings", &json!({"model": model, "input": texts[at], "encoding_format": "base64"}));
                    let found = vector(&answer);
                    let named = answer.json()["data"][0]["adapter_generation"].as_str().unwrap().to_owned();
                    let wanted = if model == "left" { &still[at] } else { &wanted[generations[&named]][at] };
                    assert_eq!(&found, wanted, "{model} of {named}");
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for round in 0..40 {
            generation_of(["one", "two", "deep"][round % 3]);
        }
        while seen.load(Ordering::Relaxed) < 100 {
            std::thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
    });
    let gone = client.post("/v1/unload_lora_adapter", &json!({"lora_name": "new"}));
    assert_eq!(gone.status, 200, "{}", gone.text());
    let answer = client.post("/v1/embeddings", &json!({"model": "new", "input": "w1"}));
    assert_eq!((answer.status, answer.code().as_str()), (404, "model_not_found"));
    assert_eq!(vector(&client.post("/v1/embeddings", &json!({"model": "left", "input": texts[0]}))), still[0]);
    // One of the start goes too, and all that was loaded is forgotten by the device.
    assert_eq!(client.post("/v1/unload_lora_adapter", &json!({"lora_name": "right"})).status, 200);
    assert_eq!(client.get("/v1/lora_adapters").json()["data"].as_array().unwrap().len(), 1);
    let ledger = server.handle().ledger();
    assert_eq!(ledger.accepted(), ledger.ended(Outcome::Finished));
}

#[test]
fn what_may_not_be_loaded_is_refused_and_changes_nothing() {
    let root = root();
    let server = running(root.path(), None);
    let mut client = server.client();
    let before = client.get("/v1/lora_adapters").text();
    let long = "n".repeat(201);
    for (body, param) in [
        (load("x", "../one"), "lora_path"),
        (load("x", "/etc"), "lora_path"),
        (load("x", "nothing"), "lora_path"),
        (load("x", "."), "lora_path"),
        (load("x", "wide"), "lora_path"),
        (load("", "one"), "lora_name"),
        (load("a\nb", "one"), "lora_name"),
        (load(&long, "one"), "lora_name"),
        (json!({"lora_name": "x"}), "lora_path"),
        (json!({"lora_name": "x", "lora_path": "one", "base_model": "another"}), "base_model"),
        (json!({"lora_name": "x", "lora_path": "one", "pinned": 3}), "pinned"),
    ] {
        let answer = client.post("/v1/load_lora_adapter", &body);
        assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (400, Some(param)), "{body}: {}", answer.text());
        assert!(!answer.text().contains(root.path().to_str().unwrap()) || param == "lora_path", "{}", answer.text());
    }
    // A client that tries again by itself would be told the same.
    let conflict = |answer: &Answer| {
        let error = &answer.json()["error"];
        let told = ["type", "code", "param"].map(|key| error[key].as_str().unwrap().to_owned());
        assert_eq!((answer.status, answer.headers.get("x-should-retry").map(String::as_str)), (409, Some("false")), "{}", answer.text());
        told
    };
    let taken = ["conflict_error", "name_taken", "lora_name"];
    for body in [load("left", "one"), load(NAME, "one"), json!({"lora_name": NAME, "lora_path": "one", "load_inplace": true})] {
        assert_eq!(conflict(&client.post("/v1/load_lora_adapter", &body)), taken, "{body}");
    }
    for body in [
        json!({"lora_name": "left", "lora_path": "one", "load_inplace": true, "expected_generation": "7"}),
        json!({"lora_name": "left", "expected_generation": "7"}),
    ] {
        let route = if body.get("lora_path").is_some() { "/v1/load_lora_adapter" } else { "/v1/unload_lora_adapter" };
        let answer = client.post(route, &body);
        assert_eq!(conflict(&answer), ["conflict_error", "lora_generation_mismatch", "expected_generation"], "{body}");
    }
    let answer = client.post("/v1/unload_lora_adapter", &json!({"lora_name": "nobody"}));
    assert_eq!((answer.status, answer.code().as_str()), (404, "model_not_found"));
    assert_eq!(client.get("/v1/lora_adapters").text(), before);
    // A second content needs the word, and a name that is expected to be free may be taken.
    assert_eq!(client.post("/v1/load_lora_adapter", &load("x", "one")).status, 200);
    assert_eq!(conflict(&client.post("/v1/load_lora_adapter", &load("x", "two"))), taken);
}

#[test]
fn the_open_inference_protocol_loads_and_unloads_them_too() {
    let root = root();
    let server = running(root.path(), None);
    let mut client = server.client();
    let extensions = client.get("/v2").json()["extensions"].clone();
    assert!(extensions.as_array().unwrap().contains(&json!("model_repository")), "{extensions}");
    let mut ask = |name: &str, action: &str, body: &str| {
        client.send("POST", &format!("/v2/repository/models/{name}/{action}"), &[], body.as_bytes()).map(|answer| (answer.status, answer.text())).unwrap()
    };
    // By its own name, by another, and anew with another content.
    assert_eq!(ask("one", "load", ""), (200, "{}".to_owned()));
    assert_eq!(ask("new", "load", r#"{"parameters": {"lora_path": "two"}}"#).0, 200);
    assert_eq!(ask("new", "load", r#"{"parameters": {"lora_path": "deep"}}"#).0, 200);
    let mut reference = Reference::new(server.folder.path());
    for (name, path) in [("one", "one"), ("new", "deep")] {
        reference.add(name, &LoraAdapter::open(root.path().join(path)).unwrap());
        let answer = server.client().post("/v1/embeddings", &json!({"model": name, "input": "w1 w2", "encoding_format": "base64"}));
        assert_eq!(vector(&answer), reference.of("w1 w2", Some(name)), "{name}");
        assert_eq!(server.client().get(&format!("/v2/models/{name}/ready")).status, 200);
    }
    for (name, action, body, status, told) in [
        ("nothing", "load", "", 400, "below the server's adapter root"),
        ("one", "load", r#"{"parameters": {"config": "{}"}}"#, 400, "config"),
        ("one", "load", r#"{"ready": true}"#, 400, "ready"),
        (NAME, "load", "", 409, "no adapter"),
        (NAME, "unload", "", 409, "no adapter"),
        ("nobody", "unload", "", 404, "nobody"),
        ("one", "index", "", 404, "no route"),
    ] {
        let found = ask(name, action, body);
        assert!(found.0 == status && found.1.starts_with("{\"error\":\"") && found.1.contains(told), "{name} {action} {body}: {found:?}");
    }
    for name in ["one", "new"] {
        assert_eq!(ask(name, "unload", r#"{"parameters": {"unload_dependents": false}}"#).0, 200, "{name}");
        assert_eq!(server.client().get(&format!("/v2/models/{name}/ready")).status, 404, "{name}");
    }
    // Where no folder is given, nobody may.
    let closed = Running::new().client().send("POST", "/v2/repository/models/one/load", &[], b"").unwrap();
    assert_eq!(closed.status, 404, "{}", closed.text());
}

#[test]
fn only_a_key_with_the_right_changes_what_is_served() {
    let root = root();
    let keys = root.path().join("keys");
    let digest = |key: &str| Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    std::fs::write(&keys, format!("ann:{}\nbob:{}:admin\n", digest("a"), digest("b"))).unwrap();
    let server = running(root.path(), Some(&keys));
    let mut client = server.client();
    let body = load("new", "one").to_string();
    let mut ask = |key: &str, route: &str| client.send("POST", route, &[("authorization", &format!("Bearer {key}"))], body.as_bytes()).unwrap();
    assert_eq!(
        (ask("a", "/v1/load_lora_adapter").status, ask("a", "/v1/unload_lora_adapter").status, ask("c", "/v1/load_lora_adapter").status),
        (403, 403, 401)
    );
    let answer = ask("a", "/v1/load_lora_adapter");
    assert_eq!(answer.code(), "permission_denied");
    assert_eq!(ask("b", "/v1/load_lora_adapter").status, 200);
    // Where no folder is given, nobody may.
    let closed = Running::new();
    let answer = closed.client().post("/v1/load_lora_adapter", &load("new", "one"));
    assert_eq!((answer.status, answer.code().as_str()), (404, "route_not_found"));
    assert_eq!(tiny::ADAPTERS.len(), closed.client().get("/v1/lora_adapters").json()["data"].as_array().unwrap().len());
}
