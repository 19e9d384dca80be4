//! Queries with blocks that wait together are one launch where their tensors lie one behind the other or are rows of one region, and each has the bits
//! that it has alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trifuse::DType;
use trifuse::backends::cpu::Cpu;
use trifuse::ops::checksum::checksum;
use trifuse::ops::index::{BlockShape, MapShape};
use trifuse_serve::operations::task::Task;
use trifuse_serve::operations::{Operate, Operator, Ran};

use super::case::{Blocks, Case, dense, listed, mapped};
use super::faults::Door;
use super::{infer, operator, parts, send};
use crate::Running;
use crate::support::client::Answer;

/// Queries that wait together: a launch of eight, and one of two.
const QUERIES: usize = 10;
/// Bytes that are no row.
const OFF: usize = 8;

/// A device behind a door that counts the queries of which several were one launch.
struct Counted(Operator<Cpu>, Arc<Door>, Arc<AtomicUsize>);

impl Operate for Counted {
    fn submit(&mut self, tasks: &[&Task]) {
        self.1.pass();
        self.0.submit(tasks);
    }

    fn finish(&mut self) -> Ran {
        let ran = self.0.finish();
        self.2.fetch_add(ran.together, Ordering::SeqCst);
        ran
    }
}

struct Device {
    server: Running,
    door: Arc<Door>,
    together: Arc<AtomicUsize>,
}

impl Device {
    fn new() -> Self {
        let (door, together) = (Arc::new(Door::default()), Arc::default());
        let (own, counted) = (Arc::clone(&door), Arc::clone(&together));
        Self { server: Running::operating_with(|_| {}, move || Box::new(Counted(operator(), own, counted))), door, together }
    }

    /// The answers to requests that wait together, and how many were part of a launch of several. Each comes to the line behind the one before.
    fn ask(&self, requests: &[(Value, Vec<u8>)]) -> (Vec<Answer>, usize) {
        let ledger = self.server.handle().ledger();
        let (before, accepted) = (self.together.load(Ordering::SeqCst), ledger.accepted());
        let wait = |count: usize| {
            let end = Instant::now() + Duration::from_secs(20);
            while ledger.accepted() < accepted + count as u64 {
                assert!(Instant::now() < end, "a query does not come");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let answers = std::thread::scope(|scope| {
            self.door.set(true);
            let came = self.door.came();
            // One that is before the door, so that all others wait behind it.
            let (first, sent) = dense(DType::F32).in_binary();
            let first = scope.spawn(move || infer(&mut self.server.client(), "op.attention", &first, &sent).status);
            self.door.wait(came + 1);
            let asked: Vec<_> = requests
                .iter()
                .enumerate()
                .map(|(number, (request, sent))| {
                    wait(1 + number);
                    scope.spawn(move || infer(&mut self.server.client(), "op.attention", request, sent))
                })
                .collect();
            wait(1 + requests.len());
            self.door.set(false);
            assert_eq!(first.join().unwrap(), 200);
            asked.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        (answers, self.together.load(Ordering::SeqCst) - before)
    }
}

/// Queries like `case` with numbers, and where each has its own also blocks, that differ.
fn several(case: &Case, blocks: impl Fn(usize) -> Blocks) -> Vec<Case> {
    let query = |number: usize| {
        let mut own = Case { blocks: blocks(number), ..case.clone() };
        own.values.iter_mut().for_each(|values| values.rotate_left(7 * number));
        own
    };
    (0..QUERIES).map(query).collect()
}

/// Maps with a pattern for each of two heads, of which some block is always there.
fn maps(number: usize) -> Blocks {
    let bytes: Vec<u8> = (0..12).map(|block| if block % 3 == number % 3 { 1 } else { ((number * 5 + block * 3) % 4) as u8 }).collect();
    Blocks::Map(bytes, MapShape { block: 64, q_blocks: 2, kv_blocks: 3, patterns: 2 })
}

/// Lists of different length, with a pattern for each of two heads.
fn lists(number: usize) -> Blocks {
    let columns: Vec<Vec<i32>> = (0..4).map(|row| (0..3).filter(|column| !(number + row + *column as usize).is_multiple_of(2 + row)).collect()).collect();
    let starts = |rows: &[Vec<i32>], from: usize| -> Vec<i32> {
        std::iter::once(from)
            .chain(rows.iter().scan(from, |at, row| {
                Some({
                    *at += row.len();
                    *at
                })
            }))
            .map(|at| at as i32)
            .collect()
    };
    let first = starts(&columns[..2], 0);
    let second = starts(&columns[2..], first[2] as usize);
    let all = columns.concat();
    let shape = BlockShape { block: 64, q_blocks: 2, kv_blocks: 3, patterns: 2, capacity: all.len().max(1) as u32, masks: 0 };
    Blocks::Rows([first, second].concat(), all, shape)
}

fn in_binary(case: &Case) -> (Value, Vec<u8>) {
    let (mut request, sent) = case.in_binary();
    request["parameters"]["binary_data_output"] = json!(true);
    (request, sent)
}

#[test]
fn queries_that_bring_their_tensors_are_one_launch() {
    let device = Device::new();
    for dtype in [DType::F32, DType::F16] {
        let (map, rows) = (mapped(dtype), listed(dtype));
        let same = |case: &Case| {
            let blocks = case.blocks.clone();
            several(case, move |_| blocks.clone())
        };
        for (cases, expected) in [
            (several(&map, maps), QUERIES),
            (several(&map, lists), QUERIES),
            (same(&map), QUERIES),
            // Heads share a pattern, which is that of all queries.
            (same(&rows), QUERIES),
            (same(&dense(dtype)), 0),
        ] {
            let requests: Vec<_> = cases.iter().map(in_binary).collect();
            let (answers, together) = device.ask(&requests);
            for (number, (case, answer)) in cases.iter().zip(&answers).enumerate() {
                assert_eq!(parts(answer).1, case.of_library(), "query {number} of {:?}", case.op);
            }
            assert_eq!(together, expected, "{:?}", cases[0].op);
        }
    }
}

/// Names `bytes` of a region from the place that the query of this number has.
fn place(region: &str, number: usize, bytes: usize) -> Value {
    json!({"shared_memory_region": region, "shared_memory_offset": number * bytes, "shared_memory_byte_size": bytes})
}

/// The request, whose tensors q, k and v lie so many bytes further on.
fn shifted((mut request, sent): (Value, Vec<u8>), offset: usize) -> (Value, Vec<u8>) {
    for input in request["inputs"].as_array_mut().unwrap().iter_mut().take(3) {
        let place = &mut input["parameters"]["shared_memory_offset"];
        *place = json!(place.as_u64().unwrap() + offset as u64);
    }
    (request, sent)
}

/// Has a device region hold these bytes.
fn put(device: &Device, region: &str, bytes: &[u8]) {
    let answer = send(&mut device.server.client(), "PUT", &format!("/v2/trifuse/regions/{region}"), &[], bytes);
    assert_eq!(answer.status, 200, "{}", answer.text());
}

fn read(device: &Device, region: &str) -> Vec<u8> {
    device.server.client().get(&format!("/v2/trifuse/regions/{region}/bytes")).body
}

#[test]
fn queries_whose_tensors_lie_in_one_region_are_one_launch_whatever_their_order() {
    let device = Device::new();
    let cases = several(&mapped(DType::F16), maps);
    let bytes: Vec<[Vec<u8>; 3]> = cases.iter().map(Case::bytes).collect();
    for (at, region) in ["q", "k", "v"].into_iter().enumerate() {
        put(&device, region, &bytes.iter().flat_map(|bytes| bytes[at].clone()).collect::<Vec<u8>>());
    }
    let map = |case: &Case| if let Blocks::Map(bytes, _) = &case.blocks { bytes.clone() } else { panic!("a map") };
    put(&device, "maps", &cases.iter().flat_map(map).collect::<Vec<u8>>());
    let size = bytes[0][0].len();
    let request = |number: usize, in_region: bool, output: Value| {
        let mut request = cases[number].in_json();
        let inputs = request["inputs"].as_array_mut().unwrap();
        for (at, region) in ["q", "k", "v"].into_iter().enumerate() {
            inputs[at]["parameters"] = place(region, number, bytes[number][at].len());
        }
        if in_region {
            inputs[3]["parameters"] = place("maps", number, 12);
        }
        for input in inputs.iter_mut().filter(|input| !input["parameters"].is_null()) {
            input.as_object_mut().unwrap().remove("data");
        }
        request["outputs"] = json!([{"name": "o", "parameters": output}, {"name": "checksum"}]);
        (request, Vec::new())
    };
    let order: Vec<usize> = (0..QUERIES).map(|turn| turn * 7 % QUERIES).collect();
    let expected: Vec<u8> = cases.iter().flat_map(Case::of_library).collect();
    let sum = |answer: &Answer| parts(answer).0["outputs"][1]["data"][0].as_u64().unwrap();
    for in_region in [false, true] {
        put(&device, "o", &vec![0; QUERIES * size]);
        let requests: Vec<_> = order.iter().map(|number| request(*number, in_region, place("o", *number, size))).collect();
        let (answers, together) = device.ask(&requests);
        for (number, answer) in order.iter().zip(&answers) {
            assert_eq!(sum(answer), checksum(&expected[number * size..][..size]), "query {number}");
        }
        assert_eq!(together, QUERIES);
        assert_eq!(read(&device, "o"), expected);
    }
    // Five, which a launch of six has, one of them twice; then with keys and values of another place than the queries': for their checksums alone.
    for apart in [0, 3] {
        let pairs: Vec<(usize, usize)> = [5, 2, 5, 0, 9].into_iter().map(|number| (number, (number + apart) % QUERIES)).collect();
        let asked = pairs.iter().map(|&(number, keys)| {
            let (mut request, sent) = request(number, true, Value::Null);
            for (at, region) in [(1, "k"), (2, "v")] {
                request["inputs"][at]["parameters"] = place(region, keys, bytes[keys][at].len());
            }
            request["outputs"] = json!([{"name": "checksum"}]);
            (request, sent)
        });
        let (answers, together) = device.ask(&asked.collect::<Vec<_>>());
        assert_eq!(together, pairs.len());
        for ((number, keys), answer) in pairs.into_iter().zip(&answers) {
            let [k, v] = [1, 2].map(|at| cases[keys].values[at].clone());
            let case = Case { values: [cases[number].values[0].clone(), k, v], ..cases[number].clone() };
            assert_eq!(parts(answer).0["outputs"][0]["data"][0].as_u64(), Some(checksum(&case.of_library())), "queries {number}, keys {keys}");
        }
    }
    // Every second row of the regions: read where they lie, and outputs copied to their places.
    put(&device, "o", &vec![0; QUERIES * size]);
    let second = |offset: usize| -> Vec<_> { (0..QUERIES).step_by(2).map(|number| shifted(request(number, true, place("o", number, size)), offset)).collect() };
    let right = |answers: &[Answer]| {
        for (number, answer) in (0..QUERIES).step_by(2).zip(answers) {
            assert_eq!(sum(answer), checksum(&expected[number * size..][..size]), "query {number}");
        }
        let written = read(&device, "o");
        for number in 0..QUERIES {
            let own = if number % 2 == 0 { expected[number * size..][..size].to_vec() } else { vec![0; size] };
            assert_eq!(written[number * size..][..size], own, "output {number}");
        }
    };
    let (answers, together) = device.ask(&second(0));
    assert_eq!(together, QUERIES.div_ceil(2).next_power_of_two() / 2);
    right(&answers);
    // Off by some bytes they are no rows, and each is a launch of its own.
    put(&device, "o", &vec![0; QUERIES * size]);
    for (at, region) in ["q", "k", "v"].into_iter().enumerate() {
        put(&device, region, &bytes.iter().fold(vec![0; OFF], |all, bytes| [all, bytes[at].clone()].concat()));
    }
    let (answers, together) = device.ask(&second(OFF));
    assert_eq!(together, 0);
    right(&answers);
    // A map that is written anew is read anew.
    let turned: Vec<u8> = (1..=QUERIES).flat_map(|number| map(&cases[number % QUERIES])).collect();
    assert_eq!(send(&mut device.server.client(), "PUT", "/v2/trifuse/regions/maps?offset=0", &[], &turned).status, 200);
    let (answers, _) = device.ask(&second(OFF));
    for (number, answer) in (0..QUERIES).step_by(2).zip(&answers) {
        let case = Case { blocks: cases[(number + 1) % QUERIES].blocks.clone(), ..cases[number].clone() };
        assert_eq!(sum(answer), checksum(&case.of_library()), "query {number} with the map of the next");
    }
    for (at, region) in ["q", "k", "v"].into_iter().enumerate() {
        put(&device, region, &bytes.iter().flat_map(|bytes| bytes[at].clone()).collect::<Vec<u8>>());
    }
    put(&device, "maps", &cases.iter().flat_map(map).collect::<Vec<u8>>());
    // A query that reads what another writes keeps its turn, behind it or before it.
    for first in [0, 1] {
        put(&device, "o", &vec![0; QUERIES * size]);
        let mut reads = request(1, true, place("o", 1, size));
        reads.0["inputs"][0]["parameters"] = place("o", 0, size);
        let mut requests = [request(0, true, place("o", 0, size)), reads];
        requests.rotate_left(first);
        let (answers, together) = device.ask(&requests);
        assert!(together == 0 && answers.iter().all(|answer| answer.status == 200));
        let mut case = cases[1].clone();
        let written = if first == 0 { expected[..size].to_vec() } else { vec![0; size] };
        case.values[0] = case.op.dtype.decode(&written);
        assert_eq!(read(&device, "o")[size..2 * size], case.of_library(), "{first}");
    }
}

#[test]
fn queries_of_one_launch_have_checksums_of_their_own() {
    let device = Device::new();
    let one = mapped(DType::F16);
    let two = Case::new(one.op.clone().with_batch(2), one.blocks.clone());
    // All are launches of four sequences.
    for (case, queries) in [(&one, 4), (&two, 2), (&one, 4)] {
        let cases: Vec<Case> = several(case, maps).into_iter().take(queries).collect();
        let requests: Vec<_> = cases.iter().map(Case::in_binary).collect();
        let asked = requests.into_iter().map(|(mut request, sent)| {
            request["outputs"] = json!([{"name": "checksum"}]);
            (request, sent)
        });
        let (answers, together) = device.ask(&asked.collect::<Vec<_>>());
        for (number, (case, answer)) in cases.iter().zip(&answers).enumerate() {
            let (told, binary) = parts(answer);
            assert_eq!((&told["outputs"][0]["data"], binary.len()), (&json!([checksum(&case.of_library())]), 0), "query {number}");
        }
        assert_eq!(together, queries);
    }
}

#[test]
fn one_that_is_not_sound_fails_alone() {
    let device = Device::new();
    let mut cases = several(&mapped(DType::F32), lists);
    let Blocks::Rows(starts, columns, shape) = cases[4].blocks.clone() else { panic!("lists") };
    // Its lists reach into those of the next query, if they lay one behind the other.
    let reaching = starts.iter().map(|start| start + 1).collect();
    cases[4].blocks = Blocks::Rows(reaching, columns, shape);
    let (answers, together) = device.ask(&cases.iter().map(in_binary).collect::<Vec<_>>());
    assert_eq!(answers[4].status, 400, "{}", answers[4].text());
    for (number, (case, answer)) in cases.iter().zip(&answers).enumerate().filter(|(number, _)| *number != 4) {
        assert_eq!(parts(answer).1, case.of_library(), "query {number}");
    }
    assert_eq!(together, 2, "the launch of eight is eight launches");
}
