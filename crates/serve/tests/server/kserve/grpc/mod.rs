//! The same protocol over gRPC: the answers that HTTP gives, its refusals by the codes of gRPC, and how connections end.

mod client;
mod connections;
mod faults;
#[path = "../../../../src/grpc/messages.rs"]
#[allow(dead_code, reason = "the server's own, of which tests read a part")]
mod messages;

use std::time::Duration;

use bytes::Bytes;
use client::Client;
use messages::{Choice, Contents, Empty, Health, HealthCheck, Input, ModelInfer, ModelInferred, ModelMetadata, ModelName, Parameter, Parameters};
use messages::{Ready, ServerLive, ServerMetadata, Wanted};
use prost::Message;
use trifuse::DType;
use trifuse::ops::checksum::checksum;
use trifuse_serve::Config;
use trifuse_serve::operations::Operate;

use super::case::{Case, dense, name as datatype_of};
use super::{infer, operator, parts, send};
use crate::Running;
use crate::support::tiny::{Reference, WIDTH};

const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";
const SENTENCES: [&[i32]; 3] = [&[0, 4, 5, 1], &[0, 7, 1], &[9]];

fn service(method: &str) -> String {
    format!("/inference.GRPCInferenceService/{method}")
}

fn serving(set: impl FnOnce(&mut Config), open: impl FnOnce() -> Box<dyn Operate> + Send + 'static) -> Running {
    let listens = |config: &mut Config| {
        config.grpc_listen = Some(([127, 0, 0, 1], 0).into());
        set(config);
    };
    Running::operating_with(listens, open)
}

fn started() -> Running {
    serving(|_| {}, || Box::new(operator()))
}

fn connected(server: &Running) -> Client {
    Client::to(server.handle().grpc_addr().unwrap())
}

fn model(name: &str, version: &str) -> ModelName {
    ModelName { name: name.into(), version: version.into() }
}

fn parameters(all: &[(&str, Choice)]) -> Parameters {
    all.iter().map(|(name, choice)| ((*name).to_owned(), Parameter { choice: Some(choice.clone()) })).collect()
}

fn input(name: &str, datatype: &str, shape: &[u64]) -> Input {
    Input { name: name.into(), datatype: datatype.into(), shape: shape.iter().map(|size| *size as i64).collect(), ..Input::default() }
}

/// The sentences one after another, as bytes.
fn sentences(model: &str) -> ModelInfer {
    let bytes = |numbers: &[i32]| Bytes::from(numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>());
    let lengths: Vec<i32> = SENTENCES.iter().map(|ids| ids.len() as i32).collect();
    ModelInfer {
        model_name: model.into(),
        id: "7".into(),
        inputs: vec![input("lengths", "INT32", &[3]), input("ids", "INT32", &[8])],
        raw_input_contents: vec![bytes(&lengths), bytes(&SENTENCES.concat())],
        ..ModelInfer::default()
    }
}

/// A query of attention, dense, as bytes.
fn attention(case: &Case) -> ModelInfer {
    let shapes = case.shapes();
    ModelInfer {
        model_name: "op.attention".into(),
        parameters: parameters(&[("causal", Choice::Flag(case.op.causal))]),
        inputs: ["q", "k", "v"].iter().zip(shapes).map(|(name, shape)| input(name, datatype_of(case.op.dtype), &shape)).collect(),
        raw_input_contents: case.bytes().into_iter().map(Bytes::from).collect(),
        ..ModelInfer::default()
    }
}

fn bits(bytes: &[u8]) -> Vec<Vec<u32>> {
    let words: Vec<u32> = bytes.chunks_exact(4).map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect();
    words.chunks_exact(WIDTH).map(<[u32]>::to_vec).collect()
}

#[test]
fn the_server_its_models_and_their_state_are_told_as_over_http() {
    let server = started();
    let (client, mut http) = (connected(&server), server.client());
    assert!(client.call(&service("ServerLive"), &Empty {}, &[]).message::<ServerLive>().live);
    assert!(client.call(&service("ServerReady"), &Empty {}, &[]).message::<Ready>().ready);
    for name in ["", "inference.GRPCInferenceService"] {
        let health = client.call("/grpc.health.v1.Health/Check", &HealthCheck { service: name.into() }, &[]);
        assert_eq!(health.message::<Health>().status, 1, "{name:?}");
    }
    let told: ServerMetadata = client.call(&service("ServerMetadata"), &Empty {}, &[]).message();
    let mut expected = http.get("/v2").json();
    // Counts by model have no method.
    expected["extensions"].as_array_mut().unwrap().retain(|extension| extension != "statistics");
    assert_eq!(serde_json::json!({"name": told.name, "version": told.version, "extensions": told.extensions}), expected);
    for (name, version) in [("tiny", ""), ("left", "1"), ("tiny:left", ""), ("op.attention", "1")] {
        assert!(client.call(&service("ModelReady"), &model(name, version), &[]).message::<Ready>().ready, "{name}");
        let told: ModelMetadata = client.call(&service("ModelMetadata"), &model(name, version), &[]).message();
        let expected = http.get(&format!("/v2/models/{name}")).json();
        let tensors = |tensors: &[messages::TensorMetadata]| -> Vec<serde_json::Value> {
            tensors.iter().map(|tensor| serde_json::json!({"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape})).collect()
        };
        let mut found = serde_json::json!({"name": told.name, "versions": told.versions, "platform": told.platform});
        (found["inputs"], found["outputs"]) = (tensors(&told.inputs).into(), tensors(&told.outputs).into());
        if !told.properties.is_empty() {
            found["parameters"] = serde_json::json!(told.properties);
        }
        assert_eq!(found, expected);
    }
}

#[test]
fn each_model_and_adapter_has_the_bits_of_the_library() {
    let server = started();
    let (client, mut reference) = (connected(&server), Reference::new(server.folder.path()));
    for (name, adapter) in [("tiny", None), ("left", Some("left")), ("tiny:right", Some("right"))] {
        let expected: Vec<Vec<u32>> = SENTENCES.iter().map(|ids| reference.of_ids(ids, adapter)).collect();
        let told: ModelInferred = client.call(INFER, &sentences(name), &[]).message();
        assert_eq!((told.model_name.as_str(), told.model_version.as_str(), told.id.as_str()), (name, "1", "7"));
        let output = &told.outputs[0];
        assert_eq!((output.name.as_str(), output.datatype.as_str(), &output.shape), ("embedding", "FP32", &vec![3, WIDTH as i64]));
        assert_eq!(bits(&told.raw_output_contents[0]), expected, "{name} by bytes");
        let generation = adapter.map(|name| Choice::Text(format!("{name}-1")));
        assert_eq!(told.parameters.get("adapter_generation").and_then(|parameter| parameter.choice.clone()), generation);
        // The same as numbers, rows of one length, with a time that is long enough.
        let rows = SENTENCES.iter().flat_map(|ids| (0..5).map(|at| ids.get(at).copied().unwrap_or(0))).collect();
        let of = |numbers: Vec<i32>| Some(Contents { int_contents: numbers, ..Contents::default() });
        let inputs =
            vec![Input { contents: of(rows), ..input("ids", "INT32", &[3, 5]) }, Input { contents: of(vec![4, 3, 1]), ..input("lengths", "INT32", &[3]) }];
        let numbers = ModelInfer { model_version: "1".into(), inputs, raw_input_contents: Vec::new(), ..sentences(name) };
        let told: ModelInferred = client.call(INFER, &numbers, &[("grpc-timeout", "30S"), ("content-type", "application/grpc+proto")]).message();
        assert_eq!(bits(&told.raw_output_contents[0]), expected, "{name} by numbers");
    }
    let ledger = server.handle().ledger();
    assert_eq!((ledger.accepted(), ledger.open()), (6, 0));
}

#[test]
fn attention_has_the_bits_of_the_library_and_regions_are_those_of_http() {
    let server = started();
    let (client, mut http) = (connected(&server), server.client());
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let case = dense(dtype);
        let told: ModelInferred = client.call(INFER, &attention(&case), &[]).message();
        assert_eq!(told.raw_output_contents, [case.of_library()]);
        let (mut request, sent) = case.in_binary();
        request["parameters"]["binary_data_output"] = true.into();
        assert_eq!(parts(&infer(&mut http, "op.attention", &request, &sent)).1, told.raw_output_contents[0]);
        // q lies in a region, and so shall o; the checksum tells what is there.
        let [q, k, v] = case.bytes();
        for (name, bytes) in [("q", &q), ("o", &vec![0; q.len()])] {
            assert_eq!(send(&mut http, "PUT", &format!("/v2/trifuse/regions/{name}"), &[], bytes).status, 200);
        }
        let named = |name: &str| parameters(&[("shared_memory_region", Choice::Text(name.into())), ("shared_memory_byte_size", Choice::Whole(q.len() as i64))]);
        let mut by_name = attention(&case);
        by_name.inputs[0].parameters = named("q");
        by_name.raw_input_contents = vec![k.into(), v.into()];
        by_name.outputs = vec![Wanted { name: "o".into(), parameters: named("o") }, Wanted { name: "checksum".into(), parameters: Parameters::new() }];
        let told: ModelInferred = client.call(INFER, &by_name, &[]).message();
        assert_eq!((told.raw_output_contents[0].len(), &told.raw_output_contents[1][..]), (0, &checksum(&case.of_library()).to_le_bytes()[..]));
        assert_eq!(told.outputs[0].parameters["shared_memory_region"].choice, Some(Choice::Text("o".into())));
        assert_eq!(send(&mut http, "GET", "/v2/trifuse/regions/o/bytes", &[], b"").body, case.of_library());
    }
}

#[test]
fn calls_run_side_by_side_on_a_connection_and_are_counted() {
    let server = started();
    let (client, mut reference) = (connected(&server), Reference::new(server.folder.path()));
    let expected: Vec<Vec<u32>> = SENTENCES.iter().map(|ids| reference.of_ids(ids, Some("left"))).collect();
    let body = client::framed(&sentences("left").encode_to_vec());
    let answers = client.runtime.block_on(async {
        let asked: Vec<_> = (0..100).map(|_| tokio::spawn(client::ask(client.calls.clone(), client::request(INFER, &[]), body.clone()))).collect();
        let mut answers = Vec::new();
        for asked in asked {
            answers.push(asked.await.unwrap().unwrap());
        }
        answers
    });
    for answer in &answers {
        assert_eq!(bits(&answer.message::<ModelInferred>().raw_output_contents[0]), expected);
    }
    let metrics = server.client().get("/metrics").text();
    let line = "trifuse_grpc_answers_total{method=\"/inference.GRPCInferenceService/ModelInfer\",code=\"OK\"} 100";
    assert!(metrics.contains(line), "{metrics}");
    assert!(metrics.contains("trifuse_request_seconds_count{route=\"/inference.GRPCInferenceService/ModelInfer\"} 100"), "{metrics}");
    assert_eq!((server.handle().ledger().accepted(), server.handle().ledger().open()), (100, 0));
    let stats = server.client().get("/v2/models/left/stats").json();
    assert_eq!(stats["model_stats"][0]["inference_count"], 100);
}

/// How long a test waits for what must come.
const LONG: Duration = Duration::from_secs(20);
