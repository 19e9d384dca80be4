//! Callers who wait for their answers, and hold each against the right one.

use std::io::{Error, ErrorKind, Result};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rand::Rng as _;
use serde_json::{Value, json};

use super::kserve;
use super::late;
use super::life::Life;
use super::mutate::Rng;
use super::support::client::{Answer, Client};
use super::world::{Vector, Writing};

/// How much later than it is due a request may be sent; those that are later are counted.
const BEHIND: Duration = Duration::from_millis(50);

/// Requests of an open loop: each is due at its time, whoever is free.
pub struct Arrivals {
    start: Instant,
    /// Requests a second, so many seconds behind the start.
    rate: fn(f64, f64) -> f64,
    mean: f64,
    next: Mutex<(f64, Rng)>,
}

impl Arrivals {
    /// Arrivals from now on, at the rate that `rate` makes of the time and of `mean`.
    pub fn new(rng: Rng, mean: f64, rate: fn(f64, f64) -> f64) -> Self {
        Self { start: Instant::now(), rate, mean, next: Mutex::new((0.0, rng)) }
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Waits until the next request is due: how long behind the start that is, and what it is drawn from.
    pub fn next(&self) -> (Duration, Rng) {
        let (due, rng) = {
            let mut next = self.next.lock().unwrap();
            let due = next.0;
            let gap = -(1.0 - next.1.random::<f64>()).ln() / (self.rate)(due, self.mean);
            next.0 += gap;
            (Duration::from_secs_f64(due), rand::SeedableRng::seed_from_u64(next.1.random()))
        };
        std::thread::sleep((self.start + due).saturating_duration_since(Instant::now()));
        (due, rng)
    }
}

/// What follows an answer.
#[derive(PartialEq, Eq)]
pub enum Next {
    /// The connection can be used again.
    Goes,
    /// It cannot.
    Closed,
    /// The server has ended.
    Over,
}

/// Asks until the server says that it ends, or is gone.
pub fn ask_until_the_end(life: &Life<'_>, arrivals: &Arrivals, number: usize) {
    let own = format!("own{number}");
    let mut kept = None;
    while !life.is_over() {
        let (due, mut rng) = arrivals.next();
        if !life.is_ending() {
            life.counts.sent.one();
            life.counts.behind.many(u64::from(arrivals.elapsed() > due + BEHIND));
        }
        let mut client = match kept.take().map_or_else(|| Client::to(life.addr()), Ok) {
            Ok(client) => client,
            Err(error) => {
                assert!(life.is_ending(), "no connection: {error}");
                life.counts.over.one();
                return;
            }
        };
        let next = match rng.random_range(0..20) {
            14..16 => kserve::embed(life, &mut client, &mut rng),
            16..18 => kserve::attend(life, &mut client, &mut rng),
            18 => kserve::regions(life, &mut client, &mut rng, &own),
            0..5 => embed(life, &mut client, &mut rng),
            5..10 => late::embed(life, &mut client, &mut rng),
            10..12 => write(life, &mut client, &mut rng),
            _ => stream(life, &mut client, &mut rng, Duration::ZERO),
        };
        match next {
            Next::Goes => kept = Some(client),
            Next::Closed => {}
            Next::Over => return,
        }
    }
}

/// Any vector of the world.
pub fn any<'a, T>(rng: &mut Rng, all: &'a [T]) -> &'a T {
    &all[rng.random_range(0..all.len())]
}

/// The bits of a vector in an answer.
pub fn bits(vector: &Value) -> Vec<u32> {
    match vector {
        Value::String(text) => BASE64_STANDARD.decode(text).unwrap().chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect(),
        other => other.as_array().unwrap().iter().map(|value| (value.as_f64().unwrap() as f32).to_bits()).collect(),
    }
}

/// Holds an answer against the vectors that were asked for.
pub fn check_vectors(answer: &Answer, asked: &[&Vector]) {
    let body = answer.json();
    let rows = body["data"].as_array().unwrap();
    assert_eq!(rows.len(), asked.len());
    for (row, vector) in rows.iter().zip(asked) {
        assert_eq!(bits(&row["embedding"]), vector.bits, "{:?} of {}", vector.text, vector.model);
    }
}

/// Several vectors of one model, in one request; the body that asks for them.
pub fn question<'a>(rng: &mut Rng, vectors: &'a [Vector], count: usize) -> (Vec<&'a Vector>, Value) {
    let first = any(rng, vectors);
    let same: Vec<&Vector> = vectors.iter().filter(|vector| vector.model == first.model).collect();
    let asked: Vec<&Vector> = (0..count).map(|_| *any(rng, &same)).collect();
    let input: Value = match rng.random_range(0..3) {
        0 if count == 1 => asked[0].text.as_str().into(),
        0 | 1 => asked.iter().map(|vector| vector.text.as_str()).collect(),
        _ => asked.iter().map(|vector| json!(vector.ids)).collect(),
    };
    (asked, json!({"model": first.model, "input": input, "encoding_format": if rng.random() { "base64" } else { "float" }}))
}

fn embed(life: &Life<'_>, client: &mut Client, rng: &mut Rng) -> Next {
    let count = if rng.random_ratio(1, 8) { rng.random_range(2..30) } else { 1 };
    let (asked, body) = question(rng, &life.world.vectors, count);
    let limit = rng.random_ratio(1, 20).then(|| rng.random_range(1..40u32).to_string());
    let headers: Vec<(&str, &str)> = limit.iter().map(|limit| ("x-request-timeout-ms", limit.as_str())).collect();
    let answer = client.send("POST", "/v1/embeddings", &headers, body.to_string().as_bytes());
    let may = May { expire: limit.is_some(), ..May::default() };
    judge(life, client, answer, may, |answer| check_vectors(answer, &asked))
}

fn write(life: &Life<'_>, client: &mut Client, rng: &mut Rng) -> Next {
    let Writing { ask, choice } = any(rng, &life.world.writings);
    let answer = client.send("POST", "/v1/completions", &[], ask.to_string().as_bytes());
    judge(life, client, answer, May::default(), |answer| assert_eq!(&answer.json()["choices"][0], choice, "{ask}"))
}

/// Reads a stream, with a rest before each of its chunks.
pub fn stream(life: &Life<'_>, client: &mut Client, rng: &mut Rng, rest: Duration) -> Next {
    let Writing { ask, choice } = any(rng, &life.world.writings);
    let mut ask = ask.clone();
    ask["stream"] = true.into();
    let text = ask.to_string();
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}", text.len());
    let answer = client.write(head.as_bytes()).and_then(|()| client.head()).and_then(|mut answer| {
        if !answer.headers.contains_key("transfer-encoding") {
            answer.body = client.sized(&answer)?;
            return Ok(answer);
        }
        loop {
            std::thread::sleep(rest);
            match client.chunk()? {
                chunk if chunk.is_empty() => return Ok(answer),
                chunk => answer.body.extend(chunk),
            }
        }
    });
    judge(life, client, answer, May::default(), |answer| {
        let text = answer.text();
        let events: Vec<&str> = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        assert_eq!(events.last(), Some(&"[DONE]"), "a stream without its mark: {text}");
        let parts = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
        let said: String = parts.filter_map(|event| event["choices"][0]["text"].as_str().map(str::to_owned)).collect();
        assert_eq!(Some(said.as_str()), choice["text"].as_str(), "{ask}");
        life.counts.streams.one();
    })
}

/// What may come besides a right answer, by what was asked.
#[derive(Clone, Copy, Default)]
pub struct May {
    /// It has a deadline that may pass.
    pub expire: bool,
    /// It names an adapter that may not have been there.
    pub be_absent: bool,
    /// The device may have no room for what it does.
    pub be_crowded: bool,
}

/// Counts an answer, and fails where it is none that may come.
pub fn judge(life: &Life<'_>, client: &Client, answer: Result<Answer>, may: May, right: impl FnOnce(&Answer)) -> Next {
    let counts = &life.counts;
    let answer = match answer {
        Ok(answer) => answer,
        // The server ends: before anything of an answer came the request was not taken.
        Err(error) if is_end(&error) && !client.begun && life.is_ending() => {
            counts.over.one();
            return Next::Closed;
        }
        Err(error) => panic!("lost: {error} ({:?}); an answer had begun: {}; the server ends: {}", error.kind(), client.begun, life.is_ending()),
    };
    let code = || (answer.status, code(&answer));
    match answer.status {
        200 => {
            right(&answer);
            counts.right.one();
        }
        404 => {
            assert!(code().1 == "model_not_found" && may.be_absent, "{}", answer.text());
            counts.absent.one();
        }
        429 => {
            assert_eq!(code().1, "overloaded");
            assert!(answer.headers.contains_key("retry-after"));
            counts.refused.one();
        }
        500 => {
            assert!(counts.blamed.get() > 0, "no fault was planned: {}", answer.text());
            counts.failed.one();
        }
        503 if code().1 == "out_of_memory" => {
            assert!(may.be_crowded && counts.crowded.get() > 0, "{}", answer.text());
            counts.denied.one();
        }
        503 if code().1 == "device_lost" => {
            assert!(life.is_lost(), "{}", answer.text());
            counts.lost.one();
        }
        503 => {
            assert_eq!((code().1.as_str(), life.is_ending()), ("draining", true));
            counts.draining.one();
            return Next::Over;
        }
        504 => {
            assert!(may.expire, "{}", answer.text());
            counts.expired.one();
        }
        _ => panic!("{}: {}", answer.status, answer.text()),
    }
    if answer.closes() { Next::Closed } else { Next::Goes }
}

/// The code of an error; the open inference protocol has words alone.
pub fn code(answer: &Answer) -> String {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let Some(words) = body["error"].as_str() else { return answer.code() };
    assert!(answer.headers.contains_key("x-request-id"), "{:?}", answer.headers);
    let codes = [
        ("the server is ending", "draining"),
        ("the device failed", "device_lost"),
        ("the device has no room", "out_of_memory"),
        ("there is work for", "overloaded"),
        ("model: there is no", "model_not_found"),
        ("the deadline passed", "deadline_exceeded"),
        ("the server failed", "internal"),
    ];
    let code = codes.iter().find(|(start, _)| words.starts_with(start)).map(|(_, code)| (*code).to_owned());
    code.unwrap_or_else(|| panic!("an error of no known words: {} {words}", answer.status))
}

/// Whether a connection has ended rather than been reset.
pub fn is_end(error: &Error) -> bool {
    error.kind() == ErrorKind::UnexpectedEof
}
