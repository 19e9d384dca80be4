//! The open inference protocol through a real socket. Vectors are compared bit for bit with the library's, and attention with the library's bits and with its
//! definition in float64.

mod attention;
mod case;
mod embeddings;
mod faults;
#[cfg(feature = "grpc")]
mod grpc;
mod protocol;
mod regions;
#[cfg(target_os = "linux")]
mod shared;
mod together;

use std::sync::Arc;

use serde_json::Value;
use trifuse::backends::cpu::Cpu;
use trifuse::device::Open;
use trifuse_serve::operations::{Operate, OperationsModel, Operator};
use trifuse_serve::{Config, Models};

use crate::support::client::{Answer, Client};
use crate::support::tiny;
use crate::{Running, config};

/// Bytes that regions may have in tests.
const REGION_BYTES: u64 = 1 << 20;

/// A device of operations on the processor.
pub fn operator() -> Operator<Cpu> {
    Operator::new(Arc::new(Cpu::open(0).unwrap())).unwrap()
}

impl Running {
    /// Serves the encoder and single operations.
    fn operating() -> Self {
        Self::operating_with(|_| {}, || Box::new(operator()))
    }

    fn operating_with(set: impl FnOnce(&mut Config), open: impl FnOnce() -> Box<dyn Operate> + Send + 'static) -> Self {
        let folder = tiny::folder();
        let operations = OperationsModel { device: "cpu:0".into(), open: Box::new(|| Ok(open())), region_bytes: REGION_BYTES };
        let models = Models { embeddings: Some(tiny::model_with(folder.path(), |_| {})), operations: Some(operations), ..Models::default() };
        Self::start(config(set), folder, models)
    }
}

/// Sends a request as it is.
fn send(client: &mut Client, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    client.write(&[head.as_bytes(), b"\r\n", body].concat()).unwrap();
    client.answer().unwrap()
}

/// Asks a model, with binary data behind the JSON.
fn infer(client: &mut Client, model: &str, request: &Value, binary: &[u8]) -> Answer {
    let json = request.to_string();
    let length = json.len().to_string();
    let body = [json.as_bytes(), binary].concat();
    send(client, "POST", &format!("/v2/models/{model}/infer"), &[("Inference-Header-Content-Length", &length)], &body)
}

/// The JSON of an answer, and what follows it.
fn parts(answer: &Answer) -> (Value, Vec<u8>) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    match answer.headers.get("inference-header-content-length") {
        None => (answer.json(), Vec::new()),
        Some(length) => {
            let length = length.parse().unwrap();
            (serde_json::from_slice(&answer.body[..length]).unwrap(), answer.body[length..].to_vec())
        }
    }
}

/// The words of an answer that is an error, which is checked to be one of the protocol.
fn error(answer: &Answer) -> String {
    let body = answer.json();
    let words = body["error"].as_str().unwrap_or_else(|| panic!("{body}"));
    assert!(words.len() > 10 && body.as_object().unwrap().len() == 1, "{body}");
    words.to_owned()
}
