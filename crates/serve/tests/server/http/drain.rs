//! The end of a server under load: nothing is reset, nothing is left without an answer, and the books agree.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use trifuse_serve::queueing::ledger::{Ledger, Outcome};

use super::embeddings::bits;
use crate::Running;
use crate::support::client::Client;
use crate::support::tiny::{ADAPTERS, NAME, Reference};

#[derive(Debug, Default)]
struct Seen {
    right: AtomicUsize,
    refused: AtomicUsize,
    /// Connections that were closed between two requests, or refused.
    over: AtomicUsize,
}

/// Asks until the server says that it ends, or is gone; every answer is checked.
fn ask_until_the_end(addr: std::net::SocketAddr, expected: &[(String, String, Vec<u32>)], from: usize, seen: &Seen) {
    let mut turn = from;
    loop {
        let Ok(mut client) = Client::to(addr) else {
            seen.over.fetch_add(1, Ordering::Relaxed);
            return;
        };
        loop {
            let (model, text, vector) = &expected[turn % expected.len()];
            turn += 1;
            let body = json!({"model": model, "input": text, "encoding_format": if turn.is_multiple_of(2) { "base64" } else { "float" }}).to_string();
            match client.send("POST", "/v1/embeddings", &[], body.as_bytes()) {
                Ok(answer) if answer.status == 200 => {
                    assert_eq!(&bits(&answer.json()["data"][0]["embedding"]), vector, "{model}, {text}");
                    seen.right.fetch_add(1, Ordering::Relaxed);
                    if answer.closes() {
                        break;
                    }
                }
                Ok(answer) => {
                    assert_eq!((answer.status, answer.code().as_str(), answer.closes()), (503, "draining", true));
                    assert!(answer.headers.contains_key("retry-after"));
                    seen.refused.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                // The end of the connection before the first byte of an answer: the request was not taken.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    seen.over.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Err(error) => panic!("{error}: {:?}", error.kind()),
            }
        }
    }
}

fn agree(ledger: &Ledger, right: usize) {
    assert_eq!(ledger.open(), 0);
    assert_eq!(Outcome::ALL.map(|outcome| ledger.ended(outcome)), [right as u64, 0, 0, 0]);
    assert_eq!(ledger.accepted(), right as u64);
}

/// How often a server ends: ten times, and a hundred where a soak is to be as long as that of `./check full`.
fn rounds() -> u64 {
    let seconds = std::env::var("TRIFUSE_SOAK_SECONDS").ok().and_then(|text| text.parse::<u64>().ok());
    if seconds.is_some_and(|seconds| seconds >= 60) { 100 } else { 10 }
}

#[test]
fn a_server_that_ends_under_load_resets_nothing() {
    let reference = Running::new();
    let mut library = Reference::new(reference.folder.path());
    let names = [(NAME, None), (ADAPTERS[0], Some(ADAPTERS[0])), (ADAPTERS[1], Some(ADAPTERS[1]))];
    let texts = ["w1", "w2 w3 w4", "w5 w6 w7 w8 w9 w10 w11"];
    let expected: Vec<(String, String, Vec<u32>)> =
        names.iter().flat_map(|(name, adapter)| texts.map(|text| ((*name).into(), text.into(), library.of(text, *adapter)))).collect();
    for round in 0..rounds() {
        let mut server = Running::with(|config| config.limits.drain_delay = Duration::from_millis(20 * (round % 3)), |_| {});
        let (addr, seen) = (server.handle().addr(), Seen::default());
        std::thread::scope(|scope| {
            for thread in 0..6 {
                let (expected, seen) = (&expected, &seen);
                scope.spawn(move || ask_until_the_end(addr, expected, thread * 5, seen));
            }
            std::thread::sleep(Duration::from_millis(60 + 17 * (round % 10)));
            server.handle().drain();
            while !server.handle().is_finished() {
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let right = seen.right.load(Ordering::Relaxed);
        assert!(right > 0, "{seen:?}");
        agree(server.handle().ledger(), right);
        server.handle.take().unwrap().wait();
    }
}

#[test]
fn health_says_first_that_a_server_ends() {
    let server = Running::with(|config| config.limits.drain_delay = Duration::from_millis(400), |_| {});
    let mut client = server.client();
    server.handle().drain();
    std::thread::sleep(Duration::from_millis(50));
    let health = client.get("/health");
    assert_eq!((health.status, health.code().as_str()), (503, "draining"));
    let body = json!({"model": NAME, "input": "w1"});
    assert_eq!(server.client().post("/v1/embeddings", &body).status, 200, "it still answers");
}
