//! `serve --operations`, run as a user runs it.
#![cfg(all(unix, feature = "serve"))]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

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
fn a_hang_up_lets_the_server_read_its_keys_again() {
    // The SHA-256 of "secret" and of "other".
    let [secret, other] =
        ["2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b", "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa"];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, format!("ann:{secret}")).unwrap();
    let mut served = Served::start(&["--operations", "--metrics-key", "--api-key-file", file.to_str().unwrap()]);
    let address = served.address();
    let status = |path: &str, key: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    };
    let statuses = || ["secret", "other"].map(|key| ["/v1/models", "/metrics"].map(|path| status(path, key)));
    assert_eq!(statuses(), [[200; 2], [401; 2]]);
    // What is no file of keys changes nothing.
    std::fs::write(&file, "nonsense").unwrap();
    served.hang_up();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(statuses(), [[200; 2], [401; 2]]);
    std::fs::write(&file, format!("bob:{other}")).unwrap();
    served.hang_up();
    let began = Instant::now();
    while statuses() != [[401; 2], [200; 2]] {
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", statuses());
        std::thread::sleep(Duration::from_millis(20));
    }
    served.end(0);
}

#[test]
fn serving_needs_a_model_or_operations() {
    for arguments in [&["serve"][..], &["serve", "--operations", "--adapters", "a"], &["serve", "--model", "a", "--region-bytes", "1"]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(err(&output).contains("required"), "{}", err(&output));
    }
}
