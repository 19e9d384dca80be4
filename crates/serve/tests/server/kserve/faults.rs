//! Regions that change under a query, deadlines, callers who go away, and a device that fails.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use trifuse::ops::Attention;
use trifuse::{DType, Error};
use trifuse_serve::Config;
use trifuse_serve::operations::task::{Done, Job, Task};
use trifuse_serve::operations::{Operate, Operator, Ran};
use trifuse_serve::queueing::ledger::Outcome;

use super::case::{Blocks, Case, dense};
use super::{error, infer, operator, parts, send};
use crate::Running;

/// A door before the device.
#[derive(Default)]
pub struct Door {
    shut: Mutex<bool>,
    moved: Condvar,
    /// Batches that stand before it or have gone through.
    came: Mutex<usize>,
}

impl Door {
    pub fn set(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.moved.notify_all();
    }

    pub fn pass(&self) {
        *self.came.lock().unwrap() += 1;
        drop(self.moved.wait_while(self.shut.lock().unwrap(), |shut| *shut).unwrap());
    }

    /// How many batches have come.
    pub fn came(&self) -> usize {
        *self.came.lock().unwrap()
    }

    /// Waits until that many batches have come.
    pub fn wait(&self, came: usize) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.came() < came {
            assert!(Instant::now() < end, "no batch came");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A device behind a door, which fails at queries of 13 tokens. Of each batch that it was given: how many tasks fail, or that it is the device's.
struct Doored(Operator<trifuse::backends::cpu::Cpu>, Arc<Door>, VecDeque<Option<usize>>);

impl Operate for Doored {
    fn submit(&mut self, tasks: &[&Task]) {
        self.1.pass();
        let breaks = |task: &&Task| matches!(&task.job, Job::Attend(ask) if ask.op.q_len == 13);
        let fails = tasks.iter().any(breaks).then_some(tasks.len());
        if fails.is_none() {
            self.0.submit(tasks);
        }
        self.2.push_back(fails);
    }

    fn finish(&mut self) -> Ran {
        let Some(tasks) = self.2.pop_front().unwrap() else { return self.0.finish() };
        let results = (0..tasks).map(|_| Err::<Done, Error>(Error::device("a test", "it is meant to"))).collect();
        Ran { results, planned: Duration::ZERO, together: 0 }
    }
}

fn behind() -> (Running, Arc<Door>) {
    behind_with(|_| {})
}

/// A server of operations behind a door.
pub fn behind_with(set: impl FnOnce(&mut Config)) -> (Running, Arc<Door>) {
    let door = Arc::new(Door::default());
    let own = Arc::clone(&door);
    (Running::operating_with(set, move || Box::new(Doored(operator(), own, VecDeque::new()))), door)
}

#[test]
fn a_region_that_is_replaced_or_removed_stays_for_queries_that_have_begun() {
    let (server, door) = behind();
    let mut client = server.client();
    let case = dense(DType::F32);
    let mut other = case.clone();
    other.values[0].reverse();
    let put = |client: &mut _, case: &Case| {
        let answer = send(client, "PUT", "/v2/trifuse/regions/q", &[], &case.bytes()[0]);
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    put(&mut client, &case);
    let (mut request, sent) = case.in_binary();
    let q = case.bytes()[0].len();
    request["inputs"][0]["parameters"] = json!({"shared_memory_region": "q", "shared_memory_byte_size": q});
    request["parameters"]["binary_data_output"] = json!(true);
    let (request, sent) = (&request, &sent[q..]);
    std::thread::scope(|scope| {
        door.set(true);
        let asked = scope.spawn(|| parts(&infer(&mut server.client(), "op.attention", request, sent)).1);
        door.wait(2);
        let replaced = scope.spawn(|| put(&mut server.client(), &other));
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(send(&mut client, "DELETE", "/v2/trifuse/regions/q", &[], b"").status, 200);
        assert_eq!(infer(&mut client, "op.attention", request, sent).status, 404, "its name is gone at once");
        door.set(false);
        assert_eq!(asked.join().unwrap(), case.of_library(), "the query has what was there when it was asked");
        replaced.join().unwrap();
    });
    assert_eq!(parts(&infer(&mut client, "op.attention", request, sent)).1, other.of_library());
    assert_eq!(send(&mut client, "DELETE", "/v2/trifuse/regions/q", &[], b"").status, 200);
    assert_eq!(client.get("/v2/trifuse/regions").json()["used_byte_size"], 0);
}

#[test]
fn a_deadline_that_passes_in_the_queue_is_504_and_a_caller_who_goes_is_skipped() {
    let (server, door) = behind();
    let case = dense(DType::F32);
    let (request, sent) = case.in_binary();
    let mut late = request.clone();
    late["parameters"]["timeout"] = json!(20_000);
    std::thread::scope(|scope| {
        door.set(true);
        let first = scope.spawn(|| infer(&mut server.client(), "op.attention", &request, &sent).status);
        door.wait(1);
        let second = scope.spawn(|| infer(&mut server.client(), "op.attention", &late, &sent));
        let mut gone = server.client();
        let json = request.to_string();
        let head = format!(
            "POST /v2/models/op.attention/infer HTTP/1.1\r\nhost: a\r\ninference-header-content-length: {}\r\ncontent-length: {}\r\n\r\n",
            json.len(),
            json.len() + sent.len()
        );
        gone.write(&[head.as_bytes(), json.as_bytes(), &sent].concat()).unwrap();
        while server.handle().ledger().accepted() < 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(gone);
        std::thread::sleep(Duration::from_millis(300));
        door.set(false);
        assert_eq!(first.join().unwrap(), 200);
        let second = second.join().unwrap();
        assert_eq!(second.status, 504, "{}", second.text());
        error(&second);
    });
    let ledger = server.handle().ledger();
    let end = Instant::now() + Duration::from_secs(10);
    while ledger.open() > 0 {
        assert!(Instant::now() < end, "a request without an end");
        std::thread::sleep(Duration::from_millis(1));
    }
    let ended = [Outcome::Finished, Outcome::Failed, Outcome::Cancelled, Outcome::Expired].map(|outcome| ledger.ended(outcome));
    assert_eq!(ended, [1, 0, 1, 1]);
}

#[test]
fn a_device_that_fails_is_503_from_then_on() {
    let (server, _door) = behind();
    let mut client = server.client();
    let case = Case::new(Attention::dense(DType::F32, 1, [1, 1], [13, 9], 16), Blocks::All);
    let (request, sent) = case.in_binary();
    for _ in 0..2 {
        let answer = infer(&mut client, "op.attention", &request, &sent);
        assert_eq!(answer.status, 503, "{}", answer.text());
        error(&answer);
    }
    for path in ["/v2/health/ready", "/v2/models/op.attention/ready", "/health"] {
        assert_eq!(client.get(path).status, 503, "{path}");
    }
    assert_eq!(client.get("/v2/models/tiny/ready").status, 200);
    let end = Instant::now() + Duration::from_secs(10);
    while !server.handle().is_lost() {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(1));
    }
}
