//! `serve --operations`, run as a user runs it.
#![cfg(all(unix, feature = "serve"))]

use serde_json::json;

use super::served::Served;
use super::support::{err, run};

#[test]
fn operations_are_served_without_a_model() {
    let mut served = Served::start(&["--operations", "--region-bytes", "4096"]);
    let (status, told) = served.ask("/v2", &json!(null));
    assert_eq!((status, &told["extensions"]), (200, &json!(["binary_tensor_data", "parameters", "trifuse_regions", "statistics"])));
    let tensor = |name: &str| json!({"name": name, "datatype": "FP32", "shape": [1, 2, 1, 2], "data": [1, 2, 1, 2]});
    let (status, body) = served.ask("/v2/models/op.attention/infer", &json!({"inputs": [tensor("q"), tensor("k"), tensor("v")]}));
    assert_eq!((status, &body["outputs"][0]["data"]), (200, &json!([1.0, 2.0, 1.0, 2.0])), "the average of two rows that are the same");
    let (status, told) = served.ask("/v2/trifuse/regions", &json!(null));
    assert_eq!((status, &told["max_byte_size"]), (200, &json!(4096)));
    let (status, _) = served.ask("/v1/embeddings", &json!({"model": "op.attention", "input": "a"}));
    assert_eq!(status, 404);
    served.end(1);
}

#[test]
fn serving_needs_a_model_or_operations() {
    for arguments in [&["serve"][..], &["serve", "--operations", "--adapters", "a"], &["serve", "--model", "a", "--region-bytes", "1"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(err(&output).contains("required"), "{}", err(&output));
    }
}
