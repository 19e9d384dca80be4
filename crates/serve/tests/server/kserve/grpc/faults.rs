//! Refusals by their codes, keys, deadlines, and callers who go away.

use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use trifuse::DType;
use trifuse::ops::Attention;
use trifuse_serve::Keys;
use trifuse_serve::queueing::ledger::Outcome;

use super::super::case::{Blocks, Case, dense};
use super::super::faults::behind_with;
use super::super::operator;
use super::client::{self, framed};
use super::messages::{Choice, Empty, Health, HealthCheck, ModelInfer, ModelMetadata, Ready, ServerLive};
use super::{INFER, LONG, attention, connected, model, parameters, sentences, service, serving};

#[test]
fn what_is_refused_has_the_code_of_its_reason() {
    let server = serving(|config| config.limits.body_bytes = 4096, || Box::new(operator()));
    let client = connected(&server);
    let with = |change: &dyn Fn(&mut ModelInfer)| {
        let mut request = sentences("tiny");
        change(&mut request);
        framed(&request.encode_to_vec())
    };
    let ready = service("ModelReady");
    let named = |name: &str, version: &str| framed(&model(name, version).encode_to_vec());
    let sound = with(&|_| {});
    for (path, body, headers, code, words) in [
        (INFER, with(&|request| request.model_name = "nobody".into()), &[][..], 5, "there is tiny, left, right, op.attention"),
        (INFER, with(&|request| request.model_version = "2".into()), &[], 5, "\"2\""),
        (&ready, named("tiny:nobody", ""), &[], 5, "tiny:nobody"),
        (&service("ModelMetadata"), named("tiny", "0"), &[], 5, "\"0\""),
        ("/grpc.health.v1.Health/Check", framed(&HealthCheck { service: "other".into() }.encode_to_vec()), &[], 5, "other"),
        (INFER, with(&|request| drop(request.raw_input_contents.pop())), &[], 3, "raw_input_contents"),
        (INFER, with(&|request| request.inputs[1].shape = vec![9]), &[], 3, "36 bytes"),
        (INFER, with(&|request| request.parameters = parameters(&[("truncate", Choice::Flag(true))])), &[], 3, "truncate"),
        (INFER, Bytes::from_static(&[0, 0, 0, 0, 1, 255]), &[], 3, "message"),
        (INFER, Bytes::from_static(&[0, 0, 0, 0, 9, 1]), &[], 3, "whole message"),
        (&ready, [named("tiny", ""), named("tiny", "")].concat().into(), &[], 3, "one message"),
        (INFER, sound.clone(), &[("grpc-timeout", "soon")], 3, "grpc-timeout"),
        (INFER, sound.clone(), &[("x-request-timeout-ms", "0")], 3, "x-request-timeout-ms"),
        (INFER, framed(&[0; 4097]), &[], 8, "4096"),
        (INFER, [&[1][..], &sound[1..]].concat().into(), &[], 12, "compressed"),
        (&service("ModelStreamInfer"), sound.clone(), &[], 12, "ModelStreamInfer"),
        ("/other", sound.clone(), &[], 12, "/other"),
    ] {
        let answer = client.send(path, body, headers);
        assert_eq!((answer.http, answer.code), (200, Some(code)), "{path}: {}", answer.words);
        assert!(answer.words.contains(words) && answer.body.is_empty(), "{path}: {:?} has no {words:?}", answer.words);
        assert!(answer.headers["content-type"] == "application/grpc" && answer.headers.contains_key("x-request-id"));
    }
    // What is no call is answered as HTTP does.
    assert_eq!(client.send(INFER, sound.clone(), &[("content-type", "application/json")]).http, 415);
    assert_eq!(client.send(INFER, sound, &[("content-type", "application/grpc-web")]).http, 415);
    let ledger = server.handle().ledger();
    assert_eq!((ledger.accepted(), ledger.open()), (0, 0));
    let metrics = server.client().get("/metrics").text();
    assert!(metrics.contains("trifuse_refusals_total{code=\"model_not_found\"} 5"), "{metrics}");
}

#[test]
fn keys_guard_models_and_not_health() {
    let file = tempfile::NamedTempFile::new().unwrap();
    // The SHA-256 of "secret".
    std::fs::write(file.path(), "ann:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b").unwrap();
    let keys = Keys::open(file.path()).unwrap();
    let server = serving(|config| config.keys = keys, || Box::new(operator()));
    let client = connected(&server);
    let own = [("authorization", "Bearer secret"), ("x-request-id", "mine")];
    assert!(client.call(&service("ServerLive"), &Empty {}, &[]).message::<ServerLive>().live);
    for method in ["ModelReady", "ModelMetadata", "ModelInfer"] {
        for headers in [&[][..], &[("authorization", "Bearer other")]] {
            assert_eq!(client.call(&service(method), &model("tiny", ""), headers).code, Some(16), "{method}");
        }
    }
    let answer = client.call(&service("ModelMetadata"), &model("tiny", ""), &own);
    assert_eq!((answer.message::<ModelMetadata>().name.as_str(), answer.headers["x-request-id"].to_str().unwrap()), ("tiny", "mine"));
    assert_eq!(client.call(INFER, &sentences("tiny"), &own).code, Some(0));
}

#[test]
fn a_deadline_that_passes_ends_the_call_and_a_caller_who_resets_it_is_skipped() {
    let (server, door) = behind_with(|config| config.grpc_listen = Some(([127, 0, 0, 1], 0).into()));
    let client = connected(&server);
    let body = framed(&attention(&dense(DType::F32)).encode_to_vec());
    door.set(true);
    let asks = |headers: &[(&str, &str)]| client.runtime.spawn(client::ask(client.calls.clone(), client::request(INFER, headers), body.clone()));
    let first = asks(&[]);
    door.wait(1);
    // One whose time is over while the device is at another; one that is to be at the device by then, and waits for its answer.
    let (second, third) = (asks(&[("grpc-timeout", "20m")]), asks(&[("x-request-timeout-ms", "20")]));
    let fourth = asks(&[]);
    while server.handle().ledger().accepted() < 4 {
        std::thread::sleep(Duration::from_millis(1));
    }
    fourth.abort();
    let second = client.runtime.block_on(second).unwrap().unwrap();
    assert_eq!(second.code, Some(4), "{}", second.words);
    std::thread::sleep(Duration::from_millis(300));
    door.set(false);
    let third = client.runtime.block_on(third).unwrap().unwrap();
    assert_eq!(third.code, Some(4), "{}", third.words);
    assert!(third.words.contains("never reached") || third.words.contains("before the request reached"), "{}", third.words);
    assert_eq!(client.runtime.block_on(first).unwrap().unwrap().code, Some(0));
    let (ledger, end) = (server.handle().ledger(), Instant::now() + LONG);
    while ledger.open() > 0 {
        assert!(Instant::now() < end, "a request without an end");
        std::thread::sleep(Duration::from_millis(1));
    }
    let ended = [Outcome::Finished, Outcome::Failed, Outcome::Cancelled, Outcome::Expired].map(|outcome| ledger.ended(outcome));
    assert_eq!(ended, [1, 0, 2, 1]);
}

#[test]
fn a_model_that_is_lost_is_not_ready_and_unavailable() {
    let (server, _door) = behind_with(|config| config.grpc_listen = Some(([127, 0, 0, 1], 0).into()));
    let client = connected(&server);
    let breaks = Case::new(Attention::dense(DType::F32, 1, [1, 1], [13, 9], 16), Blocks::All);
    for _ in 0..2 {
        let answer = client.call(INFER, &attention(&breaks), &[]);
        assert_eq!((answer.code, answer.headers["grpc-retry-pushback-ms"].to_str().unwrap()), (Some(14), "1000"), "{}", answer.words);
    }
    let ready = |method: &str, name: &str| client.call(&service(method), &model(name, ""), &[]).message::<Ready>().ready;
    assert_eq!((ready("ServerReady", ""), ready("ModelReady", "op.attention"), ready("ModelReady", "tiny")), (false, false, true));
    assert_eq!(client.call("/grpc.health.v1.Health/Check", &HealthCheck::default(), &[]).message::<Health>().status, 2);
}
