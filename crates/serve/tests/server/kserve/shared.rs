//! Shared memory of this machine, which callers name.

use std::path::PathBuf;

use serde_json::{Value, json};
use trifuse::DType;

use super::case::dense;
use super::{error, infer, operator, parts, send};
use crate::Running;
use crate::support::tiny::Reference;

/// Shared memory that goes at the end of the test.
struct Memory(PathBuf);

impl Memory {
    fn new(what: &str, bytes: &[u8]) -> Self {
        let path = PathBuf::from(format!("/dev/shm/trifuse-kserve-{what}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }

    fn key(&self) -> String {
        format!("/{}", self.0.file_name().unwrap().to_str().unwrap())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

fn place(region: &str, offset: usize, bytes: usize) -> Value {
    json!({"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": bytes})
}

#[test]
fn inputs_and_outputs_may_lie_in_shared_memory() {
    let server = Running::operating_with(|config| config.client_shm = true, || Box::new(operator()));
    let mut client = server.client();
    assert!(client.get("/v2").json()["extensions"].as_array().unwrap().contains(&json!("system_shared_memory")));
    let case = dense(DType::F16);
    let (bytes, expected) = (case.bytes(), case.of_library());
    let memory = Memory::new("both", &[&[0; 8], &bytes.concat()[..], &vec![0; expected.len()]].concat());
    let body = json!({"key": memory.key(), "offset": 8, "byte_size": bytes.concat().len() + expected.len()}).to_string();
    let register = |client: &mut _| send(client, "POST", "/v2/systemsharedmemory/region/mine/register", &[], body.as_bytes());
    assert_eq!(register(&mut client).status, 200);
    let taken = register(&mut client);
    assert_eq!(taken.status, 409, "{}", taken.text());
    let told = client.get("/v2/systemsharedmemory/region/mine/status").json();
    assert_eq!(told, client.get("/v2/systemsharedmemory/status").json());
    assert_eq!((&told[0]["name"], &told[0]["offset"]), (&json!("mine"), &json!(8)));
    let mut at = 0;
    let inputs: Vec<Value> = (0..3)
        .map(|input| {
            let mut value = case.input(input);
            value["parameters"] = place("mine", at, bytes[input].len());
            at += bytes[input].len();
            value
        })
        .collect();
    let request = json!({"inputs": inputs, "parameters": {"causal": true}, "outputs": [{"name": "o", "parameters": place("mine", at, expected.len())}]});
    let (told, _) = parts(&infer(&mut client, "op.attention", &request, b""));
    assert_eq!(told["outputs"][0]["parameters"], place("mine", at, expected.len()));
    assert_eq!(&std::fs::read(&memory.0).unwrap()[8 + at..], &expected[..]);
    std::fs::OpenOptions::new().write(true).open(&memory.0).unwrap().set_len(16).unwrap();
    let answer = infer(&mut client, "op.attention", &request, b"");
    assert!(answer.status == 400 && error(&answer).contains("shared memory"), "memory that has shrunk: {}", answer.text());
    assert_eq!(send(&mut client, "POST", "/v2/systemsharedmemory/region/mine/unregister", &[], b"").status, 200);
    assert_eq!(infer(&mut client, "op.attention", &request, b"").status, 404);
    assert_eq!(client.get("/v2/systemsharedmemory/region/mine/status").status, 404);
}

#[test]
fn ids_and_vectors_may_lie_in_shared_memory() {
    let server = Running::operating_with(|config| config.client_shm = true, || Box::new(operator()));
    let (mut client, mut reference) = (server.client(), Reference::new(server.folder.path()));
    let ids = [0i32, 4, 5, 1];
    let width = crate::support::tiny::WIDTH * 4;
    let memory = Memory::new("ids", &[&ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>()[..], &vec![0; width]].concat());
    let body = json!({"key": memory.key(), "byte_size": 16 + width}).to_string();
    assert_eq!(send(&mut client, "POST", "/v2/systemsharedmemory/region/ids/register", &[], body.as_bytes()).status, 200);
    let request = json!({"inputs": [{"name": "ids", "datatype": "INT32", "shape": [1, 4], "parameters": place("ids", 0, 16)}],
        "outputs": [{"name": "embedding", "parameters": place("ids", 16, width)}]});
    parts(&infer(&mut client, "left", &request, b""));
    let found: Vec<u32> = std::fs::read(&memory.0).unwrap()[16..].chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect();
    assert_eq!(found, reference.of_ids(&ids, Some("left")));
    assert_eq!(send(&mut client, "PUT", "/v2/trifuse/regions/ids", &[], b"1").status, 409, "one name, one memory");
    assert_eq!(send(&mut client, "POST", "/v2/systemsharedmemory/unregister", &[], b"").status, 200);
    assert_eq!(client.get("/v2/systemsharedmemory/status").json(), json!([]));
}

#[test]
fn keys_that_lead_elsewhere_are_refused() {
    let server = Running::operating_with(|config| config.client_shm = true, || Box::new(operator()));
    let mut client = server.client();
    let memory = Memory::new("keys", b"1234");
    for body in [
        json!({"key": "/../../etc/passwd", "byte_size": 1}),
        json!({"key": "..", "byte_size": 1}),
        json!({"key": "/no-such-memory", "byte_size": 1}),
        json!({"key": memory.key(), "byte_size": 5}),
        json!({"key": memory.key(), "byte_size": 0}),
        json!({"key": memory.key(), "byte_size": 1, "offset": u64::MAX}),
        json!({"key": memory.key()}),
        json!({"byte_size": 1}),
        json!({"key": memory.key(), "byte_size": 1, "more": 1}),
    ] {
        let answer = send(&mut client, "POST", "/v2/systemsharedmemory/region/a/register", &[], body.to_string().as_bytes());
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        error(&answer);
    }
}
