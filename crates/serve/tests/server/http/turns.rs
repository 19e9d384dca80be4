//! Turns at a language model: who asks for much waits behind themselves, and what waits ends as it should.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use trifuse_serve::generate::Generate;
use trifuse_serve::queueing::ledger::Outcome;
use trifuse_serve::{Config, Handle, Keys, Server};

use super::faults::until;
use crate::config;
use crate::support::client::{Answer, Client};
use crate::support::parrot::Parrot;

const KEYS: [&str; 2] = ["loud", "quiet"];

struct Spoken {
    parrot: Arc<Parrot>,
    handle: Option<Handle>,
}

impl Spoken {
    /// A parrot that says one thing at a time, and a key for each of two who ask.
    fn new(set: impl FnOnce(&mut Config)) -> Self {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        for key in KEYS {
            let digest: String = Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(file, "{key}:{digest}").unwrap();
        }
        let keys = Keys::open(file.path()).unwrap();
        let parrot = Arc::new(Parrot { seats: 1, ..Parrot::default() });
        let config = config(|config| {
            config.keys = keys;
            set(config);
        });
        let handle = Some(Server::start(config, None, Some(Arc::clone(&parrot) as Arc<dyn Generate>)).unwrap());
        Self { parrot, handle }
    }

    fn handle(&self) -> &Handle {
        self.handle.as_ref().unwrap()
    }

    fn client(&self) -> Client {
        Client::to(self.handle().addr()).unwrap()
    }

    fn ask(&self, key: &str, body: &Value) -> Answer {
        self.client().send("POST", "/v1/completions", &[("authorization", &format!("Bearer {key}"))], body.to_string().as_bytes()).unwrap()
    }

    /// Takes the parrot's only seat until what is returned is dropped.
    fn hold(&self) -> Client {
        let client = self.begin("?");
        until(|| self.gauge("trifuse_prompts_running") == 1);
        client
    }

    /// Begins a stream, and takes nothing of it.
    fn begin(&self, text: &str) -> Client {
        let mut client = self.client();
        let body = json!({"model": "parrot", "messages": [{"role": "user", "content": text}], "stream": true}).to_string();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer loud\r\ncontent-type: application/json";
        let head = format!("{head}\r\ncontent-length: {}", body.len());
        client.write(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
        client
    }

    fn gauge(&self, name: &str) -> usize {
        let text = self.client().get("/metrics").text();
        let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or_else(|| panic!("{text}"));
        line.split(' ').nth(1).unwrap().parse().unwrap()
    }

    fn ended(&self) -> [u64; 4] {
        Outcome::ALL.map(|outcome| self.handle().ledger().ended(outcome))
    }

    /// The tenants of the prompts that the parrot had, in their order.
    fn had(&self) -> Vec<u32> {
        self.parrot.prompts.lock().unwrap().iter().map(|prompt| prompt.tenant.number).collect()
    }
}

impl Drop for Spoken {
    fn drop(&mut self) {
        let handle = self.handle.take().unwrap();
        handle.drain();
        handle.wait();
    }
}

/// A prompt whose answer is its own text turned round.
fn prompt(text: &str) -> Value {
    json!({"model": "parrot", "prompt": text})
}

fn is_right(answer: &Answer, text: &str) {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["choices"][0]["text"], text.chars().rev().collect::<String>());
}

#[test]
fn a_loud_key_does_not_starve_a_quiet_one() {
    let spoken = Spoken::new(|_| {});
    let held = spoken.hold();
    std::thread::scope(|scope| {
        for number in 0..30 {
            let spoken = &spoken;
            scope.spawn(move || is_right(&spoken.ask("loud", &prompt(&format!("loud {number}"))), &format!("loud {number}")));
        }
        until(|| spoken.gauge("trifuse_prompts_waiting") == 30);
        for text in ["one", "two"] {
            let spoken = &spoken;
            scope.spawn(move || is_right(&spoken.ask("quiet", &prompt(text)), text));
        }
        until(|| spoken.gauge("trifuse_prompts_waiting") == 32);
        assert_eq!((spoken.had(), spoken.gauge("trifuse_prompts_running")), (vec![1], 1));
        drop(held);
    });
    let had = spoken.had();
    let last = had.iter().rposition(|tenant| *tenant == 2).unwrap();
    // Turns of a quantum of tokens each: some of the loud one, then both of the quiet one.
    assert!(had.len() == 33 && last <= 8, "{had:?}");
    until(|| spoken.ended() == [32, 0, 1, 0]);
    assert_eq!([spoken.gauge("trifuse_prompts_waiting"), spoken.gauge("trifuse_prompts_running")], [0, 0]);
}

#[test]
fn one_adapter_does_not_starve_another_of_the_same_key() {
    let spoken = Spoken::new(|_| {});
    let held = spoken.hold();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| assert_eq!(spoken.ask("loud", &prompt("abc")).status, 200));
        }
        until(|| spoken.gauge("trifuse_prompts_waiting") == 20);
        scope.spawn(|| assert_eq!(spoken.ask("loud", &json!({"model": "loud", "prompt": "abc"})).json()["choices"][0]["text"], "CBA"));
        until(|| spoken.gauge("trifuse_prompts_waiting") == 21);
        drop(held);
    });
    let at = spoken.parrot.prompts.lock().unwrap().iter().position(|prompt| prompt.adapter.is_some()).unwrap();
    assert!(at <= 8, "{at} before it");
}

#[test]
fn who_asks_for_too_much_is_refused_and_another_is_not() {
    let spoken = Spoken::new(|_| {});
    let held = spoken.hold();
    let many = json!({"model": "parrot", "prompt": vec!["ab"; 256]});
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..4).map(|_| scope.spawn(|| spoken.ask("loud", &many))).collect();
        until(|| spoken.gauge("trifuse_prompts_waiting") == 1024);
        let refused = spoken.ask("loud", &prompt("ab"));
        assert_eq!((refused.status, refused.code().as_str()), (429, "overloaded"));
        assert!(refused.headers.contains_key("retry-after"));
        let quiet = scope.spawn(|| is_right(&spoken.ask("quiet", &prompt("ab")), "ab"));
        until(|| spoken.gauge("trifuse_prompts_waiting") == 1025);
        drop(held);
        quiet.join().unwrap();
        for answer in asked.into_iter().map(|asked| asked.join().unwrap()) {
            let body = answer.json();
            let choices = body["choices"].as_array().unwrap_or_else(|| panic!("{body}"));
            assert!(choices.len() == 256 && choices.iter().all(|choice| choice["text"] == "ba"));
        }
    });
    until(|| spoken.ended() == [1025, 0, 1, 0]);
}

#[test]
fn an_engine_without_room_is_asked_again_and_nobody_loses_a_place() {
    let spoken = Spoken::new(|_| {});
    spoken.parrot.full.store(1, Ordering::SeqCst);
    let refused = spoken.ask("quiet", &prompt("ab"));
    assert_eq!((refused.status, refused.code().as_str()), (429, "overloaded"));
    let held = spoken.hold();
    std::thread::scope(|scope| {
        let asked = ["one", "two", "three"].map(|text| {
            let (spoken, before) = (&spoken, spoken.gauge("trifuse_prompts_waiting"));
            let asked = scope.spawn(move || is_right(&spoken.ask("quiet", &prompt(text)), text));
            until(|| spoken.gauge("trifuse_prompts_waiting") == before + 1);
            asked
        });
        spoken.parrot.full.store(4, Ordering::SeqCst);
        drop(held);
        asked.into_iter().for_each(|asked| asked.join().unwrap());
    });
    let lengths: Vec<usize> = spoken.parrot.prompts.lock().unwrap().iter().map(|prompt| prompt.ids.len()).collect();
    assert_eq!((lengths[1..].to_vec(), spoken.parrot.full.load(Ordering::SeqCst)), (vec![4, 4, 6], 0), "in their order");
    assert_eq!(spoken.ended(), [3, 0, 1, 0]);
}

#[test]
fn a_caller_who_is_slow_to_take_an_answer_that_is_written_holds_no_seat() {
    let spoken = Spoken::new(|_| {});
    let slow = spoken.begin("?~");
    until(|| spoken.had() == [1] && spoken.gauge("trifuse_prompts_running") == 0);
    is_right(&spoken.ask("quiet", &prompt("ab")), "ab");
    assert_eq!(spoken.ended(), [1, 0, 0, 0]);
    drop(slow);
    until(|| spoken.ended() == [1, 0, 1, 0]);
}

#[test]
fn what_waits_ends_with_its_time_and_with_its_caller() {
    let spoken = Spoken::new(|_| {});
    let held = spoken.hold();
    let headers = [("authorization", "Bearer quiet"), ("x-request-timeout-ms", "80")];
    let late = spoken.client().send("POST", "/v1/completions", &headers, prompt("late").to_string().as_bytes()).unwrap();
    assert_eq!((late.status, late.code().as_str()), (504, "deadline_exceeded"));
    let mut gone = spoken.client();
    let body = prompt("gone").to_string();
    let head =
        format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer quiet\r\ncontent-type: application/json\r\ncontent-length: {}", body.len());
    gone.write(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
    until(|| spoken.gauge("trifuse_prompts_waiting") == 1);
    drop(gone);
    until(|| spoken.gauge("trifuse_prompts_waiting") == 0);
    assert_eq!((spoken.had(), spoken.ended()), (vec![1], [0, 0, 1, 1]));
    drop(held);
    is_right(&spoken.ask("quiet", &prompt("after")), "after");
    assert_eq!(spoken.ended(), [1, 0, 2, 1]);
}

#[test]
fn what_waits_is_told_when_the_server_ends() {
    let spoken = Spoken::new(|config| config.limits.drain_timeout = Duration::from_millis(200));
    let held = spoken.hold();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| spoken.ask("quiet", &prompt("ab")));
        until(|| spoken.gauge("trifuse_prompts_waiting") == 1);
        spoken.handle().drain();
        let told = waiting.join().unwrap();
        assert_eq!((told.status, told.code().as_str()), (503, "draining"));
    });
    drop(held);
    until(|| spoken.handle().is_finished());
    assert_eq!(spoken.had(), [1]);
}
