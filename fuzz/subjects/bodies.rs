//! Bodies of requests to the server: each is read, or refused by an answer that says why and is short, whatever the body was.

use rand::Rng as _;
use serde_json::{Value, json};
use trifuse_serve::bodies::{self, Read};

use super::super::mutate::{Rng, bytes, json as change_json, one};
use super::{Answer, Subject};

pub const EMBEDDINGS: Subject = Subject { name: "embeddings_body", sound: embeddings, change: change_json, parse: |body| answer(bodies::embeddings(body)) };
pub const COMPLETIONS: Subject = Subject { name: "completions_body", sound: completions, change: change_json, parse: |body| answer(bodies::completions(body)) };
pub const CHAT: Subject = Subject { name: "chat_body", sound: chat, change: change_json, parse: |body| answer(bodies::chat(body)) };
/// The first line is the header that tells how many bytes of JSON follow it; an empty one is no header.
pub const INFERENCE: Subject = Subject { name: "inference_body", sound: inference, change: change_inference, parse: infer };

/// The most characters of an answer to a body that is not sound: one that gave back what was sent would double what an attack costs.
const LONGEST: usize = 1200;

/// What a caller is told.
fn answer(read: Read) -> Answer {
    let Err((status, body)) = read else { return Ok(()) };
    assert_eq!(status.as_u16(), 400, "the fault is the caller's: {body}");
    let told: Value = serde_json::from_str(&body).expect("an answer in JSON");
    let (code, message) = (&told["error"]["code"], &told["error"]["message"]);
    let length = |value: &Value| value.as_str().map_or(0, |text| text.chars().count());
    let characters = length(message) + length(&told["error"]["param"]);
    assert!(characters <= LONGEST + 2, "an answer of {characters} characters");
    assert!(code.as_str().is_some_and(|code| !code.is_empty()) && message.is_string(), "{body}");
    Err(format!("{code} {}: {message}", told["error"]["param"]))
}

fn text(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

fn embeddings(rng: &mut Rng) -> Vec<u8> {
    let input = one(rng, &[json!("one text"), json!(["one", "\u{1F600} two"]), json!([101, 7592, 102]), json!([[1, 2], [3]])]).clone();
    let mut body = json!({"model": "m", "input": input, "encoding_format": one(rng, &["float", "base64"]), "truncate": rng.random::<bool>()});
    if rng.random() {
        (body["adapters"], body["dimensions"], body["user"]) = (json!([null, "left"]), json!(32), json!("ann"));
    }
    text(&body)
}

/// What a request may say of how an answer is written.
fn writing(rng: &mut Rng) -> Value {
    let all = [
        json!({"max_tokens": 5, "temperature": 0.7, "top_p": 0.9, "seed": 1, "stop": ["a", "b"], "stream": true, "stream_options": {"include_usage": true}}),
        json!({"logit_bias": {"5": -100, "7": 3.5}, "presence_penalty": 0.5, "frequency_penalty": -0.5, "n": 1, "user": "ann"}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}}}),
        json!({"top_k": 4, "min_p": 0.1, "stop": "end"}),
    ];
    one(rng, &all).clone()
}

fn completions(rng: &mut Rng) -> Vec<u8> {
    let mut body = writing(rng);
    body["model"] = "m".into();
    let prompts = [json!("a text"), json!([1, 2, 3]), json!(["a", "b"]), json!([[1], [2]])];
    // A stream has one prompt, and tells of none of its tokens.
    let streams = !body["stream"].is_null();
    body["prompt"] = one(rng, if streams { &prompts[..2] } else { &prompts }).clone();
    if rng.random::<bool>() && !streams {
        (body["echo"], body["logprobs"]) = (true.into(), 3.into());
    }
    text(&body)
}

fn chat(rng: &mut Rng) -> Vec<u8> {
    let mut body = writing(rng);
    body["model"] = "m".into();
    body["messages"] = json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"type": "text", "text": "hello"}], "name": "ann"}]);
    if rng.random() {
        (body["logprobs"], body["top_logprobs"]) = (true.into(), 5.into());
    }
    text(&body)
}

/// A request and the tensors behind it, with the header.
fn written(request: &[u8], binary: &[u8]) -> Vec<u8> {
    let told = if binary.is_empty() { String::new() } else { request.len().to_string() };
    [told.as_bytes(), b"\n", request, binary].concat()
}

fn inference(rng: &mut Rng) -> Vec<u8> {
    let binary = rng.random::<bool>();
    let tensor = |name: &str, datatype: &str, shape: &[u64], data: Value, bytes: u64| {
        let mut tensor = json!({"name": name, "datatype": datatype, "shape": shape});
        if binary {
            tensor["parameters"] = json!({"binary_data_size": bytes});
        } else {
            tensor["data"] = data;
        }
        tensor
    };
    if rng.random() {
        let inputs = [tensor("ids", "INT32", &[2, 3], json!([[101, 7592, 102], [1, 2, 3]]), 24), tensor("lengths", "INT32", &[2], json!([3, 2]), 8)];
        let request =
            json!({"id": "one", "inputs": inputs, "outputs": [{"name": "embedding", "parameters": {"binary_data": true}}], "parameters": {"timeout": 5000}});
        let ids: Vec<u8> = [101, 7592, 102, 1, 2, 3, 3, 2].iter().flat_map(|id: &i32| id.to_le_bytes()).collect();
        return written(&text(&request), if binary { &ids } else { &[] });
    }
    let mut inputs: Vec<Value> = ["q", "k", "v"].iter().map(|name| tensor(name, "FP32", &[1, 2, 1, 2], json!([1.0, 0.5, -2.0, 4.0]), 16)).collect();
    let parameters = json!({"causal": true, "scale": 0.25, "block": 64});
    let mut all = vec![0x3f; 48];
    if rng.random() {
        inputs.push(tensor("block_map", "UINT8", &[1, 1, 1], json!([1]), 1));
        all.push(1);
    } else {
        inputs.push(tensor("row_ptr", "INT32", &[1, 2], json!([0, 1]), 8));
        inputs.push(tensor("col_idx", "INT32", &[1], json!([0]), 4));
        all.extend([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }
    if rng.random_ratio(1, 4) {
        let place = json!({"shared_memory_region": "r", "shared_memory_offset": 16, "shared_memory_byte_size": 16});
        inputs[0] = json!({"name": "q", "datatype": "FP32", "shape": [1, 2, 1, 2], "parameters": place});
        all.drain(..16);
    }
    let request = json!({"inputs": inputs, "outputs": [{"name": "o"}, {"name": "checksum"}], "parameters": parameters});
    written(&text(&request), if binary { &all } else { &[] })
}

/// The header, where there is one, the JSON, and what follows it.
fn parted(input: &[u8]) -> (Option<&[u8]>, &[u8], &[u8]) {
    let line = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (told, body) = (&input[..line], input.get(line + 1..).unwrap_or_default());
    if told.is_empty() {
        return (None, body, &[]);
    }
    let length = std::str::from_utf8(told).ok().and_then(|told| told.parse().ok()).filter(|length| *length <= body.len()).unwrap_or(body.len());
    (Some(told), &body[..length], &body[length..])
}

fn change_inference(rng: &mut Rng, input: &[u8]) -> Vec<u8> {
    let (told, request, binary) = parted(input);
    match rng.random_range(0..8) {
        0 => bytes(rng, input.to_vec()),
        1 if told.is_some() => written(request, &bytes(rng, binary.to_vec())),
        // The header tells of the changed request, or of the one before.
        2 => [told.unwrap_or_default(), b"\n", &change_json(rng, request)[..], binary].concat(),
        _ => {
            let changed = change_json(rng, request);
            written(&changed, binary)
        }
    }
}

fn infer(input: &[u8]) -> Answer {
    let line = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (told, body) = (&input[..line], input.get(line + 1..).unwrap_or_default());
    answer(bodies::inference(body, Some(told).filter(|told| !told.is_empty())))
}
