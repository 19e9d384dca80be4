//! SIGTERM to the command under load, as a service manager sends it: whatever was let in is answered, no connection is reset, and the status is 0.
#![cfg(all(unix, feature = "serve"))]

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::client::Client;
use super::served::Served;
use super::tiny::kinds;

/// Callers who wait for their answers.
const CALLERS: usize = 6;
/// Tokens of an answer.
const MOST: usize = 12;

/// How often a server ends: twenty times, and a hundred where a soak is to be as long as that of `./check full`.
fn rounds() -> u64 {
    let seconds = std::env::var("TRIFUSE_SOAK_SECONDS").ok().and_then(|text| text.parse::<u64>().ok());
    if seconds.is_some_and(|seconds| seconds >= 60) { 100 } else { 20 }
}

fn ask(number: usize, stream: bool) -> Vec<u8> {
    let prompt: Vec<usize> = (0..4 + number).map(|at| (at * at + 7 * number) % 256).collect();
    json!({"model": "tiny", "prompt": prompt, "max_tokens": MOST, "temperature": 0.8, "seed": number, "stream": stream}).to_string().into_bytes()
}

/// The text of a completion, in one piece or in many; one that comes in pieces has its end.
fn text(body: &str, stream: bool) -> String {
    let piece = |body: &str| serde_json::from_str::<Value>(body).ok()?["choices"][0]["text"].as_str().map(str::to_owned);
    if !stream {
        return piece(body).unwrap_or_else(|| panic!("{body}"));
    }
    assert!(body.ends_with("data: [DONE]\n\n") && !body.contains("event: error"), "{body}");
    body.split("\n\n").filter_map(|event| piece(event.strip_prefix("data: ")?)).collect()
}

/// Asks until the server says that it ends, or is gone; counts right answers.
fn ask_until_the_end(addr: SocketAddr, expected: &[String], from: usize, right: &AtomicUsize) {
    let mut turn = from;
    while let Ok(mut client) = Client::to(addr) {
        loop {
            let (number, stream) = (turn % expected.len(), turn.is_multiple_of(2));
            turn += 1;
            match client.send("POST", "/v1/completions", &[], &ask(number, stream)) {
                Ok(answer) if answer.status == 200 => {
                    assert_eq!(text(&answer.text(), stream), expected[number], "{number}");
                    right.fetch_add(1, Ordering::SeqCst);
                    if answer.closes() {
                        break;
                    }
                }
                Ok(answer) => {
                    assert_eq!((answer.status, answer.code().as_str(), answer.closes()), (503, "draining", true));
                    return;
                }
                // The end of the connection before the first byte of an answer: the request was not taken.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof && !client.begun => break,
                Err(error) => panic!("{error}: {:?}", error.kind()),
            }
        }
    }
}

pub fn a_signal_under_load_costs_nobody_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    kinds()[0].write(folder.path());
    let options = ["--model", folder.path().to_str().unwrap(), "--name", "tiny", "--invariant", "--seats", "4"];
    let mut expected: Vec<String> = Vec::new();
    for round in 0..rounds() {
        // By turns on one device and on two.
        let mut served = if round % 2 == 0 { Served::start(&options) } else { Served::on("cpu:0,cpu:0", &options) };
        let (addr, right) = (served.address(), AtomicUsize::new(0));
        if expected.is_empty() {
            let mut client = Client::to(addr).unwrap();
            expected.extend((0..9).map(|number| text(&client.send("POST", "/v1/completions", &[], &ask(number, false)).unwrap().text(), false)));
            right.store(9, Ordering::SeqCst);
        }
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let (expected, right) = (&expected, &right);
                scope.spawn(move || ask_until_the_end(addr, expected, caller * 5, right));
            }
            std::thread::sleep(Duration::from_millis(60 + 17 * (round % 10)));
            served.signal();
        });
        let right = right.into_inner();
        assert!(right > 0, "round {round}");
        served.ended(right);
    }
}
