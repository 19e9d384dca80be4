//! `op.attention`: every type, every way to give a tensor, and what is refused.

use serde_json::{Value, json};
use trifuse::DType;
use trifuse::ops::Attention;
use trifuse::ops::checksum::checksum;

use super::case::{Blocks, Case, dense, listed, mapped, name};
use super::{error, infer, parts, send};
use crate::Running;

/// The bytes of the numbers of an output in JSON.
fn encoded(dtype: DType, output: &Value) -> Vec<u8> {
    let values: Vec<f64> = output["data"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
    dtype.encode(&values)
}

#[test]
fn every_type_and_form_has_the_bits_of_the_library_and_is_right() {
    let server = Running::operating();
    let mut client = server.client();
    for dtype in DType::ALL {
        for case in [dense(dtype), mapped(dtype), listed(dtype)] {
            let expected = case.of_library();
            case.check(&expected);
            let (json, binary) = parts(&infer(&mut client, "op.attention", &case.in_json(), b""));
            let output = &json["outputs"][0];
            assert_eq!((output["name"].as_str(), output["datatype"].as_str()), (Some("o"), Some(name(dtype))));
            assert_eq!((&output["shape"], binary.len()), (&json!(case.shapes()[0]), 0));
            assert_eq!(encoded(dtype, output), expected, "{:?} in JSON", case.op);
            let (mut request, sent) = case.in_binary();
            request["outputs"] = json!([{"name": "o", "parameters": {"binary_data": true}}, {"name": "checksum"}]);
            request["id"] = json!("query 7");
            let (json, binary) = parts(&infer(&mut client, "op.attention", &request, &sent));
            assert_eq!((json["id"].as_str(), json["model_name"].as_str(), json["model_version"].as_str()), (Some("query 7"), Some("op.attention"), Some("1")));
            assert_eq!(json["outputs"][0]["parameters"]["binary_data_size"], expected.len());
            assert_eq!(binary, expected, "{:?} in binary", case.op);
            assert_eq!((&json["outputs"][1]["datatype"], &json["outputs"][1]["shape"]), (&json!("UINT64"), &json!([1])));
            let sum = checksum(&expected);
            assert_eq!(json["outputs"][1]["data"], json!([sum]));
            request["outputs"] = json!([{"name": "checksum", "parameters": {"binary_data": true}}]);
            let (json, binary) = parts(&infer(&mut client, "op.attention", &request, &sent));
            assert_eq!((json["outputs"].as_array().unwrap().len(), u64::from_le_bytes(binary.try_into().unwrap())), (1, sum));
        }
    }
    assert_eq!(server.handle().ledger().open(), 0);
}

#[test]
fn blocks_that_change_are_not_those_of_the_query_before() {
    let server = Running::operating();
    let mut client = server.client();
    let case = mapped(DType::F32);
    let Blocks::Map(bytes, shape) = case.blocks.clone() else { panic!("a map") };
    let mut other = case.clone();
    other.blocks = Blocks::Map(bytes.iter().map(|byte| u8::from(*byte == 0)).collect(), shape);
    assert_ne!(case.of_library(), other.of_library());
    let mut rows = listed(DType::F32);
    let Blocks::Rows(_, _, shape) = rows.blocks.clone() else { panic!("rows") };
    rows.blocks = Blocks::Rows(vec![0, 1, 3], vec![1, 0, 2], shape);
    for case in [&case, &other, &case, &listed(DType::F32), &rows, &listed(DType::F32), &other] {
        let (request, sent) = case.in_binary();
        let mut request = request;
        request["parameters"]["binary_data_output"] = json!(true);
        let (_, binary) = parts(&infer(&mut client, "op.attention", &request, &sent));
        assert_eq!(binary, case.of_library());
    }
}

#[test]
fn three_dimensions_are_four_with_the_number_of_heads() {
    let server = Running::operating();
    let mut client = server.client();
    let case = Case::new(Attention::dense(DType::F32, 1, [4, 2], [3, 7], 8).with_scale(0.25f32), Blocks::All);
    let mut request = case.in_json();
    request["inputs"][0]["shape"] = json!([1, 3, 32]);
    request["inputs"][1]["shape"] = json!([1, 7, 16]);
    request["inputs"][2]["shape"] = json!([1, 7, 16]);
    request["parameters"] = json!({"heads": 4, "kv_heads": 2, "scale": 0.25});
    let (json, _) = parts(&infer(&mut client, "op.attention", &request, b""));
    assert_eq!(json["outputs"][0]["shape"], json!([1, 3, 32]));
    assert_eq!(encoded(DType::F32, &json["outputs"][0]), case.of_library());
}

#[test]
fn many_shapes_at_once_each_have_their_own_answer() {
    let server = Running::operating();
    let ask = |seed: u64| {
        let mut client = server.client();
        for at in 0..20 {
            let case = Case::new(Attention::dense(DType::F32, 1, [2, 1], [1 + (seed * 7 + at) % 40, 9], 16), Blocks::All);
            let (mut request, sent) = case.in_binary();
            request["parameters"]["binary_data_output"] = json!(true);
            let (_, binary) = parts(&infer(&mut client, "op.attention", &request, &sent));
            assert_eq!(binary, case.of_library(), "{:?}", case.op);
        }
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|seed| drop(scope.spawn(move || ask(seed))));
    });
    let ledger = server.handle().ledger();
    assert_eq!((ledger.accepted(), ledger.open()), (80, 0));
}

#[test]
fn what_is_not_sound_is_400_and_says_why() {
    let server = Running::operating();
    let mut client = server.client();
    let case = mapped(DType::F32);
    let with = |change: &dyn Fn(&mut Value)| {
        let mut request = case.in_json();
        change(&mut request);
        request
    };
    for (request, words) in [
        (with(&|request| request["inputs"][0]["name"] = json!("x")), "no q"),
        (with(&|request| request["inputs"][1]["datatype"] = json!("FP16")), "FP32"),
        (with(&|request| request["inputs"][0]["datatype"] = json!("BYTES")), "FP32"),
        (with(&|request| request["inputs"][0]["datatype"] = json!("INT32")), "numbers that INT32"),
        (with(&|request| request["inputs"][0]["shape"] = json!([1, 100, 2, 31])), "6200"),
        (with(&|request| request["inputs"][0]["shape"] = json!([1u64 << 40, 1u64 << 40])), "2^63"),
        (with(&|request| request["inputs"][0]["data"][0] = json!(1e39)), "FP32"),
        (with(&|request| request["inputs"][3]["data"][0] = json!(256)), "UINT8"),
        (with(&|request| request["parameters"]["block"] = json!(32)), "64 or 128"),
        (with(&|request| request["parameters"]["window"] = json!(3)), "window"),
        (with(&|request| request["parameters"]["heads"] = json!(3)), "shape"),
        (with(&|request| request["outputs"] = json!([{"name": "lse"}])), "lse"),
        (with(&|request| request["outputs"] = json!([{"name": "o", "parameters": {"classification": 3}}])), "classification"),
        (with(&|request| request["more"] = json!(1)), "more"),
        (json!([]), "request"),
    ] {
        let answer = infer(&mut client, "op.attention", &request, b"");
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(error(&answer).contains(words), "{words}: {}", answer.text());
    }
    let mut bad = listed(DType::F32);
    let Blocks::Rows(rows, _, shape) = bad.blocks.clone() else { panic!("rows") };
    for columns in [vec![2, 0, 1], vec![0, 3, 1], vec![-1, 0, 1]] {
        bad.blocks = Blocks::Rows(rows.clone(), columns, shape);
        let answer = infer(&mut client, "op.attention", &bad.in_json(), b"");
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(error(&answer).contains("col_idx"), "{}", answer.text());
    }
    let (request, sent) = case.in_binary();
    let json = request.to_string();
    let path = "/v2/models/op.attention/infer";
    for (headers, body) in [
        (vec![("Inference-Header-Content-Length", "999999999")], [json.as_bytes(), &sent].concat()),
        (vec![("Inference-Header-Content-Length", "-1")], [json.as_bytes(), &sent].concat()),
        (vec![("Inference-Header-Content-Length", "x")], [json.as_bytes(), &sent].concat()),
        (vec![("Inference-Header-Content-Length", "0")], [json.as_bytes(), &sent].concat()),
        (vec![], [json.as_bytes(), &sent].concat()),
        (vec![], json.clone().into_bytes()),
        (vec![], b"".to_vec()),
        (vec![], b"{\"inputs\": [{\"name\": \"q\", \"datatype\": \"FP32\", \"shape\": [1], \"data\": [1".to_vec()),
    ] {
        let answer = send(&mut client, "POST", path, &headers, &body);
        assert_eq!(answer.status, 400, "{headers:?}: {}", answer.text());
        error(&answer);
    }
    let answer = send(&mut client, "POST", path, &[("Inference-Header-Content-Length", &json.len().to_string())], &[json.as_bytes(), &sent, b"more"].concat());
    assert!(answer.status == 400 && error(&answer).contains("4 bytes more"), "{}", answer.text());
    assert_eq!(parts(&infer(&mut client, "op.attention", &request, &sent)).0["outputs"][0]["name"], "o", "the connection goes on");
}
