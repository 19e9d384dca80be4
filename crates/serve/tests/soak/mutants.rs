//! Bodies that were changed, sent at a rate on connections that are kept: each has its answer, and what was let in is in the books.

use std::io::Result;

use rand::Rng as _;
use serde_json::{Value, json};

use super::adapters::alias;
use super::attention::Query;
use super::callers::{Arrivals, any, code, is_end, question};
use super::kserve::body;
use super::life::Life;
use super::mutate::{self, Rng};
use super::support::client::{Answer, Client};
use super::support::tiny;

/// Changed bodies a second of a life: with the time between lives more than a million in half an hour.
pub const RATE: f64 = 800.0;
/// Connections on which they are sent.
pub const CONNECTIONS: usize = 12;

/// Where a body goes, and what it is before it is changed.
struct Whole {
    path: String,
    json: Value,
    binary: Vec<u8>,
}

impl Whole {
    fn of(path: &str, json: Value) -> Self {
        Self { path: path.into(), json, binary: Vec::new() }
    }

    /// Any request of the corpus.
    fn drawn(life: &Life<'_>, rng: &mut Rng) -> Self {
        let world = life.world;
        match rng.random_range(0..12) {
            0..3 => {
                let count = rng.random_range(1..4);
                let (_, mut body) = question(rng, &world.vectors, count);
                if rng.random() {
                    body["model"] = tiny::NAME.into();
                    body["adapters"] = (0..count).map(|_| Some(alias(rng.random_range(0..30)))).collect();
                }
                Self::of("/v1/embeddings", body)
            }
            3..5 => Self::completion(life, rng),
            5 => {
                let mut ask = Self::completion(life, rng).json;
                ask.as_object_mut().unwrap().shift_remove("prompt");
                ask.as_object_mut().unwrap().shift_remove("logprobs");
                ask["messages"] = json!([{"role": "system", "content": "t4 t5"}, {"role": "user", "content": "t7 t9 t30"}]);
                Self::of("/v1/chat/completions", ask)
            }
            // There is no adapter at that place, so that no name changes.
            6 => Self::of(
                "/v1/load_lora_adapter",
                json!({"lora_name": "mutant", "lora_path": "none/here", "base_model": tiny::NAME, "load_inplace": false, "expected_generation": "0"}),
            ),
            7 => Self::of("/v1/unload_lora_adapter", json!({"lora_name": "mutant", "expected_generation": "0"})),
            8..10 => Self::ids(life, rng),
            _ => {
                let queries = any(rng, &world.queries);
                Self::attention(any(rng, queries), rng)
            }
        }
    }

    fn completion(life: &Life<'_>, rng: &mut Rng) -> Self {
        let mut ask = any(rng, &life.world.writings).ask.clone();
        (ask["max_tokens"], ask["stream"]) = (3.into(), rng.random::<bool>().into());
        (ask["stop"], ask["logit_bias"]) = (json!(["t9"]), json!({"7": 1.5}));
        Self::of("/v1/completions", ask)
    }

    fn ids(life: &Life<'_>, rng: &mut Rng) -> Self {
        let vector = any(rng, &life.world.vectors);
        let ids = &vector.ids;
        let lengths = json!({"name": "lengths", "datatype": "INT32", "shape": [1], "data": [ids.len()]});
        let mut input = json!({"name": "ids", "datatype": "INT32", "shape": [1, ids.len()]});
        let binary = if rng.random() { ids.iter().flat_map(|id| id.to_le_bytes()).collect() } else { Vec::new() };
        match binary.is_empty() {
            true => input["data"] = json!(ids),
            false => input["parameters"] = json!({"binary_data_size": binary.len()}),
        }
        let json = json!({"id": "7", "inputs": [input, lengths], "outputs": [{"name": "embedding"}], "parameters": {"timeout": 30_000_000}});
        Self { path: format!("/v2/models/{}/infer", vector.model), json, binary }
    }

    fn attention(query: &Query, rng: &mut Rng) -> Self {
        let (mut json, binary) = if rng.random() { query.case.in_binary() } else { (query.case.in_json(), Vec::new()) };
        json["outputs"] = json!([{"name": "o", "parameters": {"binary_data": true}}, {"name": "checksum"}]);
        Self { path: "/v2/models/op.attention/infer".into(), json, binary }
    }
}

/// A request whose body was changed: its JSON several times, and what lies behind it at times.
fn mutant(rng: &mut Rng, whole: &Whole) -> (Option<String>, Vec<u8>) {
    let mut json = whole.json.clone();
    for _ in 0..rng.random_range(0..3) {
        mutate::value(rng, &mut json);
    }
    let (length, bytes) = body(rng, &json, &whole.binary);
    let cut = length.as_ref().map_or(bytes.len(), |length| length.parse().unwrap());
    let (text, binary) = bytes.split_at(cut);
    let text = mutate::json(rng, text);
    let binary = if !binary.is_empty() && rng.random_ratio(1, 4) { mutate::bytes(rng, binary.to_vec()) } else { binary.to_vec() };
    // The length of the JSON may be that of before.
    let told = length.map(|length| if rng.random_ratio(1, 8) { length } else { text.len().to_string() });
    (told, [text, binary].concat())
}

/// Sends changed bodies until the server ends, each when it is due.
pub fn send_until_the_end(life: &Life<'_>, arrivals: &Arrivals) {
    let mut kept: Option<Client> = None;
    while !life.is_over() {
        let (_, mut rng) = arrivals.next();
        let mut client = match kept.take().map_or_else(|| Client::to(life.addr()), Ok) {
            Ok(client) => client,
            Err(error) => return assert!(life.is_ending(), "no connection: {error}"),
        };
        let whole = Whole::drawn(life, &mut rng);
        let (length, bytes) = mutant(&mut rng, &whole);
        let headers: Vec<(&str, &str)> = length.iter().map(|length| ("inference-header-content-length", length.as_str())).collect();
        let answer = client.send("POST", &whole.path, &headers, &bytes);
        life.counts.mutants.one();
        life.counts.mutants_sent.many(u64::from(!life.is_ending()));
        match told(life, &client, &whole.path, &bytes, answer) {
            Some(true) => kept = Some(client),
            Some(false) => {}
            None => return,
        }
    }
}

/// Counts what a changed body was told, and fails where that is not to come; whether the connection goes on, and nothing where the server does not.
fn told(life: &Life<'_>, client: &Client, path: &str, bytes: &[u8], answer: Result<Answer>) -> Option<bool> {
    let counts = &life.counts;
    let sent = || format!("{path}: {}", String::from_utf8_lossy(&bytes[..bytes.len().min(3000)]));
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) if is_end(&error) && !client.begun && life.is_ending() => return Some(false),
        Err(error) => panic!("a changed body without an answer: {error}; it had begun: {}; {}", client.begun, sent()),
    };
    let changes = path.ends_with("lora_adapter");
    match answer.status {
        200 => {
            assert!(!changes, "it changes what is served: {}", sent());
            if answer.headers.get("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
                assert!(answer.text().trim_end().ends_with("data: [DONE]"), "a stream without its mark: {}", sent());
            }
            counts.right.one();
            counts.sound.one();
        }
        400 | 404 | 409 | 413 => {
            // What the device of operations finds not to be sound was let in, and has its answer.
            if path.contains("op.attention") {
                counts.unsure.one();
            }
            counts.unsound.one();
        }
        429 => counts.refused.one(),
        500 => {
            assert!(counts.blamed.get() > 0, "no fault was planned: {}: {}", answer.text(), sent());
            counts.failed.one();
        }
        503 => match code(&answer).as_str() {
            "draining" if life.is_ending() => return None,
            "device_lost" if life.is_lost() => counts.lost.one(),
            "out_of_memory" if path.contains("op.attention") => counts.denied.one(),
            _ => panic!("{}: {}", answer.text(), sent()),
        },
        // A deadline may be among what was changed.
        504 => counts.expired.one(),
        _ => panic!("{} {}: {}", answer.status, answer.text(), sent()),
    }
    Some(!answer.closes())
}
