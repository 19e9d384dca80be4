//! What the server tells of itself and its models by the protocol.

use serde_json::json;
use trifuse::DType;

use super::case::dense;
use super::{error, infer, send};
use crate::Running;
use crate::support::tiny::WIDTH;

#[test]
fn the_server_its_models_and_their_state_are_told() {
    let server = Running::operating();
    let mut client = server.client();
    let told = client.get("/v2").json();
    assert_eq!((&told["name"], &told["version"]), (&json!("trifuse"), &json!(env!("CARGO_PKG_VERSION"))));
    assert_eq!(told["extensions"], json!(["binary_tensor_data", "parameters", "trifuse_regions", "statistics"]));
    assert_eq!(client.get("/v2/health/live").json(), json!({"live": true}));
    assert_eq!(client.get("/v2/health/ready").json(), json!({"ready": true}));
    for name in ["tiny", "left", "tiny:left"] {
        let told = client.get(&format!("/v2/models/{name}")).json();
        assert_eq!((told["name"].as_str(), &told["versions"], &told["platform"]), (Some(name), &json!(["1"]), &json!("trifuse_encoder")));
        assert_eq!(told["outputs"], json!([{"name": "embedding", "datatype": "FP32", "shape": [-1, WIDTH]}]));
        assert_eq!(client.get(&format!("/v2/models/{name}/versions/1/ready")).json(), json!({"name": name, "ready": true}));
    }
    let told = client.get("/v2/models/op.attention/versions/1").json();
    let names: Vec<&str> = told["inputs"].as_array().unwrap().iter().map(|input| input["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["q", "k", "v", "block_map", "row_ptr", "col_idx"]);
    let index = send(&mut client, "POST", "/v2/repository/index", &[], b"").json();
    let names: Vec<&str> = index.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!((names, &index[0]["state"]), (vec!["tiny", "left", "right", "op.attention"], &json!("READY")));
    assert_eq!(send(&mut client, "POST", "/v2/repository/index", &[], b"{\"ready\": true}").json(), index);
}

#[test]
fn answers_and_refusals_are_counted_by_model() {
    let server = Running::operating();
    let mut client = server.client();
    let case = dense(DType::F16);
    let (request, sent) = case.in_binary();
    let mut bad = request.clone();
    bad["parameters"]["block"] = json!(64);
    for (request, status) in [(&request, 200), (&bad, 400), (&request, 200)] {
        assert_eq!(infer(&mut client, "op.attention", request, &sent).status, status);
    }
    let told = client.get("/v2/models/op.attention/stats").json();
    let stats = &told["model_stats"][0];
    assert_eq!(
        (&stats["inference_count"], &stats["inference_stats"]["success"]["count"], &stats["inference_stats"]["fail"]["count"]),
        (&json!(2), &json!(2), &json!(1))
    );
    let times = ["success", "queue", "compute_infer"].map(|key| stats["inference_stats"][key]["ns"].as_u64().unwrap());
    assert_eq!((&stats["inference_stats"]["queue"]["count"], &stats["inference_stats"]["compute_infer"]["count"]), (&json!(2), &json!(2)));
    assert!(times[2] > 0 && times[1] + times[2] <= times[0], "{times:?}");
    assert!(stats["inference_stats"]["success"]["ns"].as_u64().unwrap() > 0 && stats["last_inference"].as_u64().unwrap() > 0);
    assert_eq!(client.get("/v2/models/stats").json()["model_stats"].as_array().unwrap().len(), 4);
    assert!(client.get("/metrics").text().contains("trifuse_operations_total 2"));
}

#[test]
fn errors_of_every_route_have_the_form_of_the_protocol() {
    let server = Running::operating();
    let mut client = server.client();
    for (method, path, body, status) in [
        ("GET", "/v2/models/nobody", &b""[..], 404),
        ("GET", "/v2/models/nobody/ready", b"", 404),
        ("GET", "/v2/models/nobody/stats", b"", 404),
        ("GET", "/v2/models/op.attention/infer", b"", 405),
        ("POST", "/v2/models/op.attention/ready", b"{}", 405),
        ("GET", "/v2/nothing", b"", 404),
        ("POST", "/v2", b"", 405),
        ("POST", "/v2/repository/index", b"[]", 400),
        ("GET", "/v2/systemsharedmemory/status", b"", 403),
        ("POST", "/v2/systemsharedmemory/region/a/register", b"{\"key\": \"/a\", \"byte_size\": 1}", 403),
        ("GET", "/v2/trifuse/regions/a", b"", 404),
        ("DELETE", "/v2/trifuse/regions/a", b"", 404),
    ] {
        let answer = send(&mut client, method, path, &[], body);
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.text());
        error(&answer);
    }
    let answer = send(&mut client, "POST", "/v2/models/op.attention/infer", &[("content-type", "text/plain")], b"{}");
    assert_eq!(answer.status, 415);
    error(&answer);
}

#[test]
fn keys_guard_models_and_memory_and_not_health() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    // The SHA-256 of "secret" and of "other".
    let keys = "ann:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n\
        bob:d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa";
    std::fs::write(&path, keys).unwrap();
    let keys = trifuse_serve::Keys::open(&path).unwrap();
    let server = Running::operating_with(|config| config.keys = keys, || Box::new(super::operator()));
    let mut client = server.client();
    for path in ["/v2", "/v2/health/live", "/v2/health/ready"] {
        assert_eq!(client.get(path).status, 200, "{path}");
    }
    for path in ["/v2/models/tiny", "/v2/trifuse/regions", "/v2/models/stats"] {
        let answer = client.get(path);
        assert_eq!(answer.status, 401, "{path}");
        error(&answer);
    }
    let (ann, bob) = (("authorization", "Bearer secret"), ("authorization", "Bearer other"));
    assert_eq!(send(&mut client, "PUT", "/v2/trifuse/regions/a", &[ann], b"1234").status, 200);
    assert_eq!(send(&mut client, "GET", "/v2/trifuse/regions/a/bytes", &[ann], b"").body, b"1234");
    for (method, path) in [("GET", "/v2/trifuse/regions/a"), ("GET", "/v2/trifuse/regions/a/bytes"), ("DELETE", "/v2/trifuse/regions/a")] {
        assert_eq!(send(&mut client, method, path, &[bob], b"").status, 404, "{method} {path}: another key's names are not there");
    }
    assert_eq!(send(&mut client, "GET", "/v2/trifuse/regions", &[bob], b"").json()["regions"], json!([]));
}
