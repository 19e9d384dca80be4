//! Callers who speak the open inference protocol: encoders and attention, in JSON, in binary, and with memory of the device.

use std::io::Result;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rand::Rng as _;
use serde_json::{Value, json};
use trifuse::DType;

use super::attention::{OTHERS, Query};
use super::callers::{May, Next, any, judge};
use super::late::{Whose, check, may_be_absent};
use super::life::Life;
use super::mutate::Rng;
use super::support::client::{Answer, Client};
use super::support::tiny;

/// The region that all callers write and read.
const SHARED: &str = "all";

/// A query in either form, and the data behind its JSON.
fn form(rng: &mut Rng, query: &Query) -> (Value, Vec<u8>) {
    if rng.random() { query.case.in_binary() } else { (query.case.in_json(), Vec::new()) }
}

/// The bytes of a request to a model. Without binary data the length of the JSON is told at times.
pub fn body(rng: &mut Rng, request: &Value, binary: &[u8]) -> (Option<String>, Vec<u8>) {
    let json = request.to_string();
    let told = !binary.is_empty() || rng.random();
    (told.then(|| json.len().to_string()), [json.as_bytes(), binary].concat())
}

fn infer(client: &mut Client, rng: &mut Rng, model: &str, request: &Value, binary: &[u8]) -> Result<Answer> {
    let (length, body) = body(rng, request, binary);
    let headers: Vec<(&str, &str)> = length.iter().map(|length| ("inference-header-content-length", length.as_str())).collect();
    let version = if rng.random_ratio(1, 4) { "/versions/1" } else { "" };
    client.send("POST", &format!("/v2/models/{model}{version}/infer"), &headers, &body)
}

/// Asks for something of a region.
fn region(client: &mut Client, method: &str, path: &str, bytes: &[u8]) -> Result<Answer> {
    let length = bytes.len().to_string();
    client.send(method, &format!("/v2/trifuse/regions/{path}"), &[("content-length", &length), ("content-type", "application/octet-stream")], bytes)
}

/// The JSON of an answer, and the bytes of each of its outputs that are in the answer.
fn outputs(answer: &Answer) -> (Value, Vec<(String, Vec<u8>)>) {
    let length = answer.headers.get("inference-header-content-length").map_or(answer.body.len(), |length| length.parse().unwrap());
    let told: Value = serde_json::from_slice(&answer.body[..length]).unwrap();
    let mut rest = &answer.body[length..];
    let mut all = Vec::new();
    for output in told["outputs"].as_array().unwrap() {
        let bytes = if let Some(size) = output["parameters"]["binary_data_size"].as_u64() {
            let (bytes, more) = rest.split_at(size as usize);
            rest = more;
            bytes.to_vec()
        } else if let Some(data) = output["data"].as_array() {
            numbers(output["datatype"].as_str().unwrap(), data)
        } else {
            continue;
        };
        all.push((output["name"].as_str().unwrap().to_owned(), bytes));
    }
    assert!(rest.is_empty(), "bytes of no output: {told}");
    (told, all)
}

fn numbers(datatype: &str, data: &[Value]) -> Vec<u8> {
    let dtype = match datatype {
        "UINT64" => return data.iter().flat_map(|value| value.as_u64().unwrap().to_le_bytes()).collect(),
        "FP16" => DType::F16,
        "BF16" => DType::BF16,
        _ => DType::F32,
    };
    dtype.encode(&data.iter().map(|value| value.as_f64().unwrap()).collect::<Vec<f64>>())
}

/// Asks for the vectors of some texts by the ids of their tokens.
pub fn embed(life: &Life<'_>, client: &mut Client, rng: &mut Rng) -> Next {
    let whose = Whose::drawn(rng);
    let texts: Vec<usize> = (0..rng.random_range(1..5)).map(|_| rng.random_range(0..super::world::LATE_TEXTS)).collect();
    let rows: Vec<&[i32]> = texts.iter().map(|text| life.world.of_text(*text)[0].ids.as_slice()).collect();
    let lengths: Vec<i32> = rows.iter().map(|ids| ids.len() as i32).collect();
    let longest = rows.iter().map(|ids| ids.len()).max().unwrap();
    // One behind the other, or rows of the same length of which not all is used.
    let (ids, shape): (Vec<i32>, Value) = match rng.random() {
        true => (rows.concat(), json!([lengths.iter().sum::<i32>()])),
        false => (rows.iter().flat_map(|ids| (0..longest).map(|at| ids.get(at).copied().unwrap_or(0))).collect(), json!([rows.len(), longest])),
    };
    let mut inputs = [json!({"name": "ids", "datatype": "INT32", "shape": shape}), json!({"name": "lengths", "datatype": "INT32", "shape": [rows.len()]})];
    let mut binary = Vec::new();
    for (input, values) in inputs.iter_mut().zip([&ids, &lengths]) {
        if rng.random() {
            input["data"] = json!(values);
        } else {
            input["parameters"] = json!({"binary_data_size": 4 * values.len()});
            binary.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
    }
    let request = json!({"inputs": inputs, "parameters": {"binary_data_output": rng.random::<bool>()}});
    let name = whose.name().unwrap_or_else(|| tiny::NAME.into());
    let asked = Instant::now();
    let answer = infer(client, rng, &name, &request, &binary);
    let may = May { be_absent: may_be_absent(life, asked, [whose]), ..May::default() };
    judge(life, client, answer, may, |answer| {
        let (told, outputs) = outputs(answer);
        let [(name, bytes)] = outputs.as_slice() else { panic!("{told}") };
        assert_eq!((name.as_str(), bytes.len()), ("embedding", 4 * tiny::WIDTH * texts.len()), "{told}");
        for (row, text) in bytes.chunks_exact(4 * tiny::WIDTH).zip(&texts) {
            let found: Vec<u32> = row.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().unwrap())).collect();
            check(life, asked, whose, *text, told["parameters"]["adapter_generation"].as_str(), &found);
        }
        life.counts.inferred.one();
    })
}

/// Asks for attention with all tensors in the request, for its output, its checksum, or both.
pub fn attend(life: &Life<'_>, client: &mut Client, rng: &mut Rng) -> Next {
    let queries = any(rng, &life.world.queries);
    let query = any(rng, queries);
    let (mut request, sent) = form(rng, query);
    let binary = |rng: &mut Rng| json!({"binary_data": rng.random::<bool>()});
    let mut wanted = vec![json!({"name": "o", "parameters": binary(rng)}), json!({"name": "checksum", "parameters": binary(rng)})];
    match rng.random_range(0..3) {
        0 => drop(wanted.remove(0)),
        1 => drop(wanted.remove(1)),
        _ => {}
    }
    request["outputs"] = json!(wanted);
    let limit = rng.random_ratio(1, 20).then(|| rng.random_range(1..20_000u32));
    if let Some(limit) = limit {
        request["parameters"]["timeout"] = limit.into();
    }
    let answer = infer(client, rng, "op.attention", &request, &sent);
    judge(life, client, answer, May { expire: limit.is_some(), be_crowded: true, ..May::default() }, |answer| {
        let (told, outputs) = outputs(answer);
        assert_eq!(outputs.len(), wanted.len(), "{told}");
        for (name, bytes) in outputs {
            match name.as_str() {
                "o" => assert!(bytes == query.o, "an output of {:?}: {told}", query.case.op),
                _ => assert_eq!(bytes, query.sum.to_le_bytes(), "a checksum of {:?}", query.case.op),
            }
        }
        life.counts.attended.one();
    })
}

fn place(region: &str, offset: usize, bytes: usize) -> Value {
    json!({"shared_memory_region": region, "shared_memory_offset": offset, "shared_memory_byte_size": bytes})
}

/// Several requests of one connection, of which one that is not answered by 200 ends them.
struct Steps<'a, 'b> {
    life: &'a Life<'b>,
    client: &'a mut Client,
}

impl Steps<'_, '_> {
    /// Judges an answer, and gives it where it is right.
    fn step(&self, answer: Result<Answer>, may: May) -> std::result::Result<Answer, Next> {
        let mut right = None;
        let next = judge(self.life, self.client, answer, may, |answer| {
            right = Some(Answer { body: answer.body.clone(), headers: answer.headers.clone(), status: 200 })
        });
        match (right, next) {
            // What follows a right answer on a connection that ends is asked by nobody.
            (Some(answer), Next::Goes) => Ok(answer),
            (_, next) => Err(next),
        }
    }

    /// Puts q, k and v into a region of the caller's own, writes another q over the first, and has the output stay in a second region.
    fn attend(&mut self, rng: &mut Rng, own: &str) -> std::result::Result<(), Next> {
        let may = May { be_crowded: true, ..May::default() };
        let queries = any(rng, &self.life.world.queries);
        let (before, query) = (rng.random_range(0..OTHERS), any(rng, queries));
        let (q, o) = (format!("{own}.q"), format!("{own}.o"));
        let (mut all, mut inputs) = (Vec::new(), Vec::new());
        for (at, bytes) in queries[before].case.bytes().iter().enumerate() {
            all.resize(all.len().next_multiple_of(256), 0);
            let mut input = query.case.input(at);
            input["parameters"] = place(&q, all.len(), bytes.len());
            inputs.push(input);
            all.extend(bytes);
        }
        let answer = region(self.client, "PUT", &q, &all);
        self.step(answer, may)?;
        let answer = region(self.client, "PUT", &format!("{q}?offset=0"), &query.case.bytes()[0]);
        self.step(answer, may)?;
        let before = rng.random_range(0..8) * 16;
        let answer = region(self.client, "PUT", &format!("{o}?byte_size={}", before + query.o.len() + 32), b"");
        self.step(answer, may)?;
        let (more, parameters) = query.case.more();
        inputs.extend(more);
        let outputs_of = json!([{"name": "o", "parameters": place(&o, before, query.o.len())}, {"name": "checksum"}]);
        let request = json!({"inputs": inputs, "parameters": parameters, "outputs": outputs_of});
        let answer = infer(self.client, rng, "op.attention", &request, b"");
        let (told, sums) = outputs(&self.step(answer, may)?);
        assert_eq!(sums, [("checksum".to_owned(), query.sum.to_le_bytes().to_vec())], "{told}");
        let answer = region(self.client, "GET", &format!("{o}/bytes"), b"");
        let lies = self.step(answer, may)?.body;
        let (head, tail) = lies.split_at(before);
        let (found, tail) = tail.split_at(query.o.len());
        assert!(found == query.o && head.iter().chain(tail).all(|byte| *byte == 0), "what lies in a region of {:?}", query.case.op);
        self.life.counts.resident.one();
        Ok(())
    }

    /// Lets the name that all callers share lead to another q, or asks with whatever it leads to.
    fn share(&mut self, rng: &mut Rng) -> std::result::Result<(), Next> {
        let may = May { be_crowded: true, ..May::default() };
        let queries = &self.life.world.queries[0];
        let query = any(rng, queries);
        let q = query.case.bytes()[0].clone();
        let there = self.life.shared.load(Ordering::SeqCst);
        if !there || rng.random_ratio(1, 3) {
            let answer = region(self.client, "PUT", SHARED, &q);
            self.step(answer, may)?;
            self.life.shared.store(true, Ordering::SeqCst);
            return Ok(());
        }
        let (mut request, sent) = query.case.in_binary();
        request["inputs"][0]["parameters"] = place(SHARED, 0, q.len());
        request["outputs"] = json!([{"name": "o", "parameters": {"binary_data": true}}, {"name": "checksum"}]);
        let answer = infer(self.client, rng, "op.attention", &request, &sent[q.len()..]);
        let (told, found) = outputs(&self.step(answer, may)?);
        let whose = queries.iter().find(|query| found[0].1 == query.o);
        let whose = whose.unwrap_or_else(|| panic!("of no q that was put there: {told}"));
        assert_eq!(found[1].1, whose.sum.to_le_bytes(), "a checksum of another output");
        self.life.counts.shared.one();
        Ok(())
    }
}

/// Asks for attention with tensors that lie on the device, in regions named after `own` or in one that all callers share.
pub fn regions(life: &Life<'_>, client: &mut Client, rng: &mut Rng, own: &str) -> Next {
    let mut steps = Steps { life, client };
    let done = if rng.random() { steps.attend(rng, own) } else { steps.share(rng) };
    match done {
        Err(next) => next,
        Ok(()) if rng.random_ratio(1, 4) => delete(life, client, own),
        Ok(()) => Next::Goes,
    }
}

/// Takes the name of the caller's own output away, where it is there.
fn delete(life: &Life<'_>, client: &mut Client, own: &str) -> Next {
    match region(client, "DELETE", &format!("{own}.o"), b"") {
        // It is no request that the server lets in, so that its books do not have it.
        Ok(answer) if [200, 404].contains(&answer.status) => {
            if answer.closes() {
                Next::Closed
            } else {
                Next::Goes
            }
        }
        other => judge(life, client, other, May::default(), |answer| panic!("{}", answer.text())),
    }
}
