//! `/v1/embeddings`: answers, forms of input, names, and what is refused.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::Running;
use crate::support::tiny::{MAX_TOKENS, Reference, WIDTH};

/// The bits of a vector of an answer, whichever way it is written.
pub fn bits(vector: &Value) -> Vec<u32> {
    match vector {
        Value::String(text) => BASE64_STANDARD.decode(text).unwrap().chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect(),
        Value::Array(values) => values.iter().map(|value| (value.as_f64().unwrap() as f32).to_bits()).collect(),
        other => panic!("{other}"),
    }
}

#[test]
fn every_form_of_input_has_the_bits_of_the_library() {
    let server = Running::new();
    let (mut client, mut reference) = (server.client(), Reference::new(server.folder.path()));
    let texts = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11 w12", ""];
    for format in [None, Some("float"), Some("base64")] {
        let ask = |input: Value| json!({"model": "tiny", "input": input, "encoding_format": format, "user": "somebody"});
        let answer = client.post("/v1/embeddings", &ask(json!(texts)));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let body = answer.json();
        assert_eq!((body["object"].as_str(), body["model"].as_str()), (Some("list"), Some("tiny")));
        let count: usize = texts.iter().map(|text| reference.ids(text).len()).sum();
        assert_eq!(body["usage"], json!({"prompt_tokens": count, "total_tokens": count}));
        for (index, text) in texts.iter().enumerate() {
            let row = &body["data"][index];
            assert_eq!((row["index"].as_u64(), row["object"].as_str()), (Some(index as u64), Some("embedding")));
            assert_eq!(bits(&row["embedding"]), reference.of(text, None), "{text:?} as {format:?}");
        }
        let one = client.post("/v1/embeddings", &ask(json!(texts[0]))).json();
        assert_eq!(bits(&one["data"][0]["embedding"]), reference.of(texts[0], None));
        let ids = client.post("/v1/embeddings", &ask(json!([0, 4, 5, 1]))).json();
        assert_eq!((bits(&ids["data"][0]["embedding"]), ids["data"].as_array().unwrap().len()), (reference.of_ids(&[0, 4, 5, 1], None), 1));
        let arrays = client.post("/v1/embeddings", &ask(json!([[0, 7, 1], [9]]))).json();
        assert_eq!(bits(&arrays["data"][0]["embedding"]), reference.of_ids(&[0, 7, 1], None));
        assert_eq!(bits(&arrays["data"][1]["embedding"]), reference.of_ids(&[9], None));
    }
}

#[test]
fn a_name_leads_to_its_adapter_and_adapters_may_be_mixed() {
    let server = Running::new();
    let (mut client, mut reference) = (server.client(), Reference::new(server.folder.path()));
    for (model, adapter) in [("left", "left"), ("tiny:right", "right")] {
        let body = client.post("/v1/embeddings", &json!({"model": model, "input": "w1 w2"})).json();
        assert_eq!(bits(&body["data"][0]["embedding"]), reference.of("w1 w2", Some(adapter)));
        assert_eq!(body["data"][0]["adapter_generation"], format!("{adapter}-1"));
        assert_eq!(body["model"], model);
        assert_ne!(reference.of("w1 w2", Some(adapter)), reference.of("w1 w2", None), "the adapter does something");
    }
    let turns = [None, Some("left"), Some("right"), Some("tiny:left")];
    let texts = ["w1", "w1", "w1", "w1"];
    let body = client.post("/v1/embeddings", &json!({"model": "tiny", "input": texts, "adapters": turns})).json();
    for (index, adapter) in [None, Some("left"), Some("right"), Some("left")].into_iter().enumerate() {
        assert_eq!(bits(&body["data"][index]["embedding"]), reference.of("w1", adapter), "{index}");
    }
}

#[test]
fn a_name_that_is_not_there_is_404_and_never_the_base() {
    let server = Running::new();
    let mut client = server.client();
    for (body, param) in [
        (json!({"model": "nobody", "input": "w1"}), "model"),
        (json!({"model": "tiny:nobody", "input": "w1"}), "model"),
        (json!({"model": "", "input": "w1"}), "model"),
        (json!({"model": "left:tiny", "input": "w1"}), "model"),
        (json!({"model": "tiny", "input": ["w1", "w2"], "adapters": [null, "nobody"]}), "adapters[1]"),
    ] {
        let answer = client.post("/v1/embeddings", &body);
        assert_eq!((answer.status, answer.code().as_str()), (404, "model_not_found"), "{body}");
        let error = &answer.json()["error"];
        assert_eq!((error["type"].as_str(), error["param"].as_str()), (Some("not_found_error"), Some(param)));
        assert!(error["message"].as_str().unwrap().contains("tiny, left, right"), "{error}");
    }
    assert_eq!(server.handle().ledger().accepted(), 0);
}

#[test]
fn what_is_not_sound_is_told_by_its_field() {
    let server = Running::new();
    let mut client = server.client();
    let long = vec!["w1"; MAX_TOKENS].join(" ");
    for (body, code, param) in [
        (json!({"input": "w1"}), "invalid_value", "model"),
        (json!({"model": 1, "input": "w1"}), "invalid_value", "model"),
        (json!({"model": "tiny"}), "invalid_value", "input"),
        (json!({"model": "tiny", "input": []}), "invalid_value", "input"),
        (json!({"model": "tiny", "input": ["w1", 2]}), "invalid_value", "input"),
        (json!({"model": "tiny", "input": vec!["w1"; 257]}), "invalid_value", "input"),
        (json!({"model": "tiny", "input": [[]]}), "invalid_value", "input"),
        (json!({"model": "tiny", "input": [64]}), "invalid_value", "input"),
        (json!({"model": "tiny", "input": vec![3; MAX_TOKENS + 1]}), "context_length_exceeded", "input"),
        (json!({"model": "tiny", "input": long}), "context_length_exceeded", "input"),
        (json!({"model": "tiny", "input": "w1", "encoding_format": "int8"}), "invalid_value", "encoding_format"),
        (json!({"model": "tiny", "input": "w1", "dimensions": WIDTH - 1}), "unsupported_parameter", "dimensions"),
        (json!({"model": "tiny", "input": "w1", "adapters": []}), "invalid_value", "adapters"),
        (json!({"model": "tiny", "input": "w1", "adapters": [1]}), "invalid_value", "adapters[0]"),
        (json!({"model": "left", "input": "w1", "adapters": ["right"]}), "invalid_value", "adapters"),
        (json!({"model": "tiny", "input": "w1", "truncate": 1}), "invalid_value", "truncate"),
        (json!({"model": "tiny", "input": "w1", "pooling": "max"}), "unsupported_parameter", "pooling"),
    ] {
        let answer = client.post("/v1/embeddings", &body);
        assert_eq!((answer.status, answer.code().as_str()), (400, code), "{body}: {}", answer.text());
        assert_eq!(answer.json()["error"]["param"], param, "{body}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
    }
    for bad in ["", "{", "[1]", "\"text\"", "{\"model\": \"tiny\", \"input\": \"\u{0}\"}"] {
        let answer = client.send("POST", "/v1/embeddings", &[], bad.as_bytes()).unwrap();
        assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_json"), "{bad:?}");
    }
    let body = json!({"model": "tiny", "input": long, "truncate": true, "dimensions": WIDTH});
    let answer = client.post("/v1/embeddings", &body);
    assert_eq!((answer.status, &answer.json()["usage"]["prompt_tokens"]), (200, &json!(MAX_TOKENS)));
    assert_eq!(server.handle().ledger().accepted(), 1, "what is refused is not let in");
}
