//! Clients that go away, are slow, say half of it, or say nonsense.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread::Scope;
use std::time::{Duration, Instant};

use rand::Rng as _;
use serde_json::Value;

use super::callers::{May, any, check_vectors, judge, question, stream};
use super::life::Life;
use super::mutate::{self, Rng};
use super::support::client::Client;

/// The longest that a slow writer may keep a connection: the limits are of 0.7 s, and looked at every half second.
const LONGEST_DRIP: Duration = Duration::from_secs(15);

/// Lets one of each sort, and three that vanish, do what it does until the server is gone.
pub fn spawn<'scope, 'env>(life: &'env Life<'env>, scope: &'scope Scope<'scope, 'env>) {
    let sorts: [fn(&Life<'_>, &mut Rng); 8] = [vanish, vanish, vanish, drip, starve, starve_a_stream, halve, mangle];
    for (number, sort) in sorts.into_iter().enumerate() {
        let mut rng = life.rng(100 + number as u64);
        scope.spawn(move || {
            while !life.is_ending() {
                sort(life, &mut rng);
            }
        });
    }
}

/// A connection; none where the server has ended.
fn connect(life: &Life<'_>) -> Option<Client> {
    match Client::to(life.addr()) {
        Ok(client) => Some(client),
        Err(error) => {
            assert!(life.is_ending(), "no connection: {error}");
            None
        }
    }
}

/// Any request that is sound, and takes a while where it is of text.
fn request(life: &Life<'_>, rng: &mut Rng) -> Vec<u8> {
    if rng.random() {
        return post("/v1/embeddings", &question(rng, &life.world.vectors, 1).1.to_string().into_bytes());
    }
    let mut ask = any(rng, &life.world.writings).ask.clone();
    (ask["stream"], ask["max_tokens"]) = (rng.random::<bool>().into(), 150.into());
    post("/v1/completions", &ask.to_string().into_bytes())
}

fn post(path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// Goes away in the middle of a request, behind it, or in the middle of its answer.
fn vanish(life: &Life<'_>, rng: &mut Rng) {
    let Some(mut client) = connect(life) else { return };
    let bytes = request(life, rng);
    let whole = rng.random_ratio(2, 3);
    let end = if whole { bytes.len() } else { rng.random_range(0..bytes.len()) };
    if whole {
        life.counts.strange.one();
    }
    if client.write(&bytes[..end]).is_ok() && whole {
        std::thread::sleep(Duration::from_millis(rng.random_range(0..25)));
        if rng.random() {
            // The head alone, or the head and a chunk: whatever has come by then.
            drop(client.head().and_then(|answer| if answer.headers.contains_key("transfer-encoding") { client.chunk() } else { Ok(Vec::new()) }));
        }
    }
    life.counts.vanished.one();
    drop(client);
    std::thread::sleep(Duration::from_millis(rng.random_range(10..60)));
}

/// Writes a byte at a time, until it has enough: in the head, or in the body.
fn drip(life: &Life<'_>, rng: &mut Rng) {
    let Some(mut client) = connect(life) else { return };
    let bytes = request(life, rng);
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let first = if rng.random() { rng.random_range(1..head) } else { head };
    let began = Instant::now();
    client.stream.get_ref().set_read_timeout(Some(Duration::from_millis(60))).unwrap();
    if client.write(&bytes[..first]).is_err() {
        return;
    }
    for byte in &bytes[first..bytes.len() - 1] {
        if client.write(&[*byte]).is_err() {
            break;
        }
        let mut answer = [0; 512];
        match client.stream.read(&mut answer) {
            Ok(0) => break,
            Ok(count) => {
                let answer = String::from_utf8_lossy(&answer[..count]).into_owned();
                assert!(["HTTP/1.1 408", "HTTP/1.1 503", "HTTP/1.1 429"].iter().any(|status| answer.starts_with(status)), "to a slow writer: {answer}");
                break;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
        assert!(began.elapsed() < LONGEST_DRIP, "a slow writer keeps its connection");
    }
    life.counts.dripped.one();
}

/// Asks for much, and reads nothing for a while.
fn starve(life: &Life<'_>, rng: &mut Rng) {
    let Some(mut client) = connect(life) else { return };
    let (asked, body) = question(rng, &life.world.vectors, 150);
    if client.write(&post("/v1/embeddings", body.to_string().as_bytes())).is_err() {
        return;
    }
    std::thread::sleep(Duration::from_millis(300));
    let answer = client.answer();
    judge(life, &client, answer, May::default(), |answer| check_vectors(answer, &asked));
    life.counts.starved.one();
}

/// Reads a stream far more slowly than it is written.
fn starve_a_stream(life: &Life<'_>, rng: &mut Rng) {
    let Some(mut client) = connect(life) else { return };
    stream(life, &mut client, rng, Duration::from_millis(15));
    life.counts.starved.one();
}

/// Says that nothing more will come, and then waits for an answer.
fn halve(life: &Life<'_>, rng: &mut Rng) {
    let Some(mut client) = connect(life) else { return };
    let (asked, body) = question(rng, &life.world.vectors, 1);
    life.counts.strange.one();
    if client.write(&post("/v1/embeddings", body.to_string().as_bytes())).is_err() || client.stream.get_ref().shutdown(Shutdown::Write).is_err() {
        return;
    }
    // The server may take it for a caller who is gone; what it answers all the same has to be right.
    if let Ok(answer) = client.answer()
        && answer.status == 200
    {
        check_vectors(&answer, &asked);
    }
    life.counts.halved.one();
    std::thread::sleep(Duration::from_millis(rng.random_range(10..40)));
}

/// Changes the JSON of a request, or its bytes, and sends what comes of it.
fn mangle(life: &Life<'_>, rng: &mut Rng) {
    let Some(client) = connect(life) else { return };
    let whole = request(life, rng);
    let start = whole.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let bytes = match rng.random_range(0..3) {
        0 => mutate::bytes(rng, whole),
        1 => post("/v1/embeddings", &mutate::json(rng, &whole[start..])),
        _ => post(["/v1/embeddings", "/v1/completions", "/v1/chat/completions"][rng.random_range(0..3)], &mutate::json(rng, &whole[start..])),
    };
    life.counts.strange.one();
    let mut stream: &TcpStream = client.stream.get_ref();
    stream.set_read_timeout(Some(Duration::from_millis(150))).unwrap();
    let mut answer = Vec::new();
    if stream.write_all(&bytes).is_ok() {
        // The end, a reset, or nothing for a while: nonsense may be the first part of something.
        drop(stream.take(1 << 20).read_to_end(&mut answer));
    }
    check_told(life, &answer);
    life.counts.mangled.one();
}

/// Holds what nonsense was told against what it may be: an error in words, an answer to what still made sense, or nothing.
fn check_told(life: &Life<'_>, answer: &[u8]) {
    let text = String::from_utf8_lossy(answer);
    let Some(status) = text.strip_prefix("HTTP/1.1 ").or(text.strip_prefix("HTTP/1.0 ")).and_then(|rest| rest.get(..3)?.parse::<u16>().ok()) else {
        assert!(text.is_empty(), "no answer of HTTP: {text}");
        return;
    };
    let allowed = [200, 400, 404, 405, 408, 413, 414, 415, 417, 429, 431, 501, 503, 504, 505];
    assert!(allowed.contains(&status) || status == 500 && life.counts.blamed.get() > 0, "to nonsense: {text}");
    let body = text.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str::<Value>(body).ok());
    if status == 404
        && let Some(body) = body
    {
        // By the open inference protocol's paths, which nonsense may name, an error is its words alone.
        assert!(body["error"].is_string() || body["error"]["code"].is_string(), "{text}");
    }
}
