//! Models that embed, by the tokens of their sentences.

use serde_json::{Value, json};

use super::{error, infer, parts};
use crate::Running;
use crate::support::tiny::{MAX_TOKENS, Reference, WIDTH};

const SENTENCES: [&[i32]; 3] = [&[0, 4, 5, 1], &[0, 7, 1], &[9]];

/// The sentences as rows of the same length.
fn padded() -> Value {
    let rows: Vec<i32> = SENTENCES.iter().flat_map(|ids| (0..5).map(|at| ids.get(at).copied().unwrap_or(0))).collect();
    json!([{"name": "ids", "datatype": "INT32", "shape": [3, 5], "data": rows}, {"name": "lengths", "datatype": "INT32", "shape": [3], "data": [4, 3, 1]}])
}

fn bits(bytes: &[u8]) -> Vec<Vec<u32>> {
    let words: Vec<u32> = bytes.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect();
    words.chunks_exact(WIDTH).map(<[u32]>::to_vec).collect()
}

#[test]
fn each_model_and_adapter_has_the_bits_of_the_library() {
    let server = Running::operating();
    let (mut client, mut reference) = (server.client(), Reference::new(server.folder.path()));
    for (model, adapter) in [("tiny", None), ("left", Some("left")), ("tiny:right", Some("right"))] {
        let expected: Vec<Vec<u32>> = SENTENCES.iter().map(|ids| reference.of_ids(ids, adapter)).collect();
        let (told, _) = parts(&infer(&mut client, model, &json!({"inputs": padded()}), b""));
        let output = &told["outputs"][0];
        assert_eq!((&output["name"], &output["datatype"], &output["shape"]), (&json!("embedding"), &json!("FP32"), &json!([3, WIDTH])));
        let numbers: Vec<u8> = output["data"].as_array().unwrap().iter().flat_map(|value| (value.as_f64().unwrap() as f32).to_le_bytes()).collect();
        assert_eq!(bits(&numbers), expected, "{model} in JSON");
        assert_eq!(told["parameters"]["adapter_generation"].as_str(), adapter.map(|name| format!("{name}-1")).as_deref());
        // All tokens one after another, as binary data, and the vectors as binary data.
        let tokens: Vec<u8> = SENTENCES.concat().iter().flat_map(|id| id.to_le_bytes()).collect();
        let lengths: Vec<u8> = [4i32, 3, 1].iter().flat_map(|length| length.to_le_bytes()).collect();
        let request = json!({"parameters": {"binary_data_output": true, "timeout": 30_000_000}, "inputs": [
            {"name": "lengths", "datatype": "INT32", "shape": [3], "parameters": {"binary_data_size": lengths.len()}},
            {"name": "ids", "datatype": "INT32", "shape": [8], "parameters": {"binary_data_size": tokens.len()}}]});
        let (_, binary) = parts(&infer(&mut client, &format!("{model}/versions/1"), &request, &[lengths, tokens].concat()));
        assert_eq!(bits(&binary), expected, "{model} in binary");
    }
    let ledger = server.handle().ledger();
    assert_eq!((ledger.accepted(), ledger.open()), (6, 0));
}

#[test]
fn a_name_that_is_not_there_is_404_and_never_the_base() {
    let server = Running::operating();
    let mut client = server.client();
    for model in ["nobody", "tiny:nobody", "left:tiny", "op.attend", "op.attention/versions/2", "tiny/versions/0", "op.attention:left"] {
        let answer = infer(&mut client, model, &json!({"inputs": padded()}), b"");
        assert_eq!(answer.status, 404, "{model}");
        let told = if model.contains("/versions/") { "there is 1" } else { "tiny, left, right, op.attention" };
        assert!(error(&answer).contains(told), "{}", answer.text());
    }
    assert_eq!(server.handle().ledger().accepted(), 0);
}

#[test]
fn what_is_not_sound_is_400() {
    let server = Running::operating();
    let mut client = server.client();
    let ids = |shape: Value, data: Value| json!({"name": "ids", "datatype": "INT32", "shape": shape, "data": data});
    let lengths = |data: Value| json!({"name": "lengths", "datatype": "INT32", "shape": [data.as_array().unwrap().len()], "data": data});
    let many = vec![1; MAX_TOKENS + 1];
    for request in [
        json!({"inputs": [lengths(json!([1]))]}),
        json!({"inputs": [ids(json!([2]), json!([1, 2]))]}),
        json!({"inputs": [ids(json!([1, 2]), json!([1, 64]))]}),
        json!({"inputs": [ids(json!([1, 2]), json!([1, -1]))]}),
        json!({"inputs": [ids(json!([1, MAX_TOKENS + 1]), json!(many))]}),
        json!({"inputs": [ids(json!([257, 1]), json!(vec![1; 257]))]}),
        json!({"inputs": [ids(json!([1, 2]), json!([1, 2])), lengths(json!([3]))]}),
        json!({"inputs": [ids(json!([3]), json!([1, 2, 3])), lengths(json!([2]))]}),
        json!({"inputs": [ids(json!([1, 2]), json!([1, 2]))], "outputs": [{"name": "vector"}]}),
        json!({"inputs": [ids(json!([1, 2]), json!([1, 2]))], "parameters": {"truncate": true}}),
        json!({"inputs": [{"name": "ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}]}),
    ] {
        let answer = infer(&mut client, "tiny", &request, b"");
        assert_eq!(answer.status, 400, "{request}: {}", answer.text());
        error(&answer);
    }
    let region = send_region(&mut client);
    assert_eq!(region.status, 200, "{}", region.text());
    let named = json!({"shared_memory_region": "ids", "shared_memory_byte_size": 8});
    let request = json!({"inputs": [{"name": "ids", "datatype": "INT32", "shape": [1, 2], "parameters": named}]});
    let answer = infer(&mut client, "tiny", &request, b"");
    assert!(answer.status == 400 && error(&answer).contains("op.attention"), "{}", answer.text());
}

fn send_region(client: &mut super::Client) -> super::Answer {
    super::send(client, "PUT", "/v2/trifuse/regions/ids", &[], &[1, 0, 0, 0, 2, 0, 0, 0])
}
