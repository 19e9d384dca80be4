//! Connections that end with the server, that do nothing, and whose answers nobody takes.

use std::time::{Duration, Instant};

use prost::Message;
use trifuse::DType;
use trifuse::ops::Attention;

use super::super::case::{Blocks, Case, dense};
use super::super::faults::behind_with;
use super::super::operator;
use super::client::{self, framed};
use super::messages::{Empty, ServerLive};
use super::{INFER, LONG, attention, connected, sentences, service, serving};

#[test]
fn a_server_that_ends_answers_what_it_has_and_takes_no_more() {
    let (server, door) = behind_with(|config| config.grpc_listen = Some(([127, 0, 0, 1], 0).into()));
    let client = connected(&server);
    door.set(true);
    let body = framed(&attention(&dense(DType::F32)).encode_to_vec());
    let asked = client.runtime.spawn(client::ask(client.calls.clone(), client::request(INFER, &[]), body));
    door.wait(1);
    server.handle().drain();
    let end = Instant::now() + LONG;
    // The connection says that it ends: a call that comes later is not taken, and the caller knows.
    loop {
        let late = client.runtime.block_on(client::ask(client.calls.clone(), client::request(INFER, &[]), framed(&sentences("tiny").encode_to_vec())));
        match late {
            Ok(answer) if answer.code == Some(14) => assert!(answer.words.contains("ending"), "{}", answer.words),
            Ok(answer) => assert_eq!(answer.code, Some(0), "{}", answer.words),
            Err(error) => {
                assert!(!error.is_io(), "{error}");
                break;
            }
        }
        assert!(Instant::now() < end, "calls are taken");
        std::thread::sleep(Duration::from_millis(5));
    }
    door.set(false);
    assert_eq!(client.runtime.block_on(asked).unwrap().unwrap().code, Some(0), "what was under way is answered");
    client.runtime.block_on(client.connection).unwrap().unwrap();
}

#[test]
fn a_connection_without_calls_ends_after_a_while() {
    let server = serving(|config| config.limits.idle = Duration::from_millis(200), || Box::new(operator()));
    let client = connected(&server);
    assert!(client.call(&service("ServerLive"), &Empty {}, &[]).message::<ServerLive>().live);
    let ended = client.runtime.block_on(async { tokio::time::timeout(LONG, client.connection).await });
    ended.expect("it stays open").unwrap().unwrap();
}

#[test]
fn a_connection_whose_answers_nobody_takes_is_given_up_and_a_slow_caller_is_not() {
    let server = serving(|config| config.limits.stalled = Duration::from_millis(1500), || Box::new(operator()));
    // An answer of 256 KiB, of which a caller that frees nothing takes 64.
    let case = Case::new(Attention::dense(DType::F32, 1, [4, 4], [1024, 8], 16), Blocks::All);
    let (slow, stalled) = (connected(&server), connected(&server));
    let body = framed(&attention(&case).encode_to_vec());
    let asks = async |client: &client::Client, every: Option<Duration>| -> Result<usize, h2::Error> {
        let mut calls = client.calls.clone().ready().await?;
        let (answer, mut stream) = calls.send_request(client::request(INFER, &[]), false)?;
        stream.send_data(body.clone(), true)?;
        let mut body = answer.await?.into_body();
        let mut taken = 0;
        while let Some(piece) = body.data().await {
            let piece = piece?.len();
            taken += piece;
            if let Some(every) = every {
                tokio::time::sleep(every).await;
                body.flow_control().release_capacity(piece)?;
            }
        }
        Ok(taken)
    };
    let nothing = stalled.runtime.block_on(async { tokio::time::timeout(LONG, asks(&stalled, None)).await });
    assert!(nothing.expect("the connection stays open").is_err());
    let taken = slow.runtime.block_on(asks(&slow, Some(Duration::from_millis(150)))).unwrap();
    assert!(taken > 4 * 1024 * 4 * 16, "{taken}");
    let end = Instant::now() + LONG;
    while server.client().get("/metrics").text().contains("trifuse_connections 3") {
        assert!(Instant::now() < end, "the connection is counted on");
    }
}
