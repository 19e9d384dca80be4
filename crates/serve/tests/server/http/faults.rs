//! What becomes of requests where the device is slow, has no room, fails, or panics; and where their callers go away.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trifuse::model::Row;
use trifuse::{Error, Result};
use trifuse_serve::Embedder;
use trifuse_serve::queueing::ledger::Outcome;

use super::embeddings::bits;
use crate::Running;
use crate::support::faulty::before;
use crate::support::tiny::{NAME, Reference};

fn ask() -> Value {
    json!({"model": NAME, "input": "w1 w2"})
}

fn ended(server: &Running) -> [u64; 4] {
    Outcome::ALL.map(|outcome| server.handle().ledger().ended(outcome))
}

/// Waits until `holds`.
pub fn until(holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(30), "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn too_long_a_line_is_refused_at_once_with_a_time_to_come_again() {
    let slow = before(|_| {
        std::thread::sleep(Duration::from_millis(300));
        Ok(())
    });
    let server = Running::with(|config| config.queue.max_wait = Duration::from_millis(100), slow);
    // The first batch teaches the rate: some hundred tokens a second.
    assert_eq!(server.client().post("/v1/embeddings", &ask()).status, 200);
    let long = json!({"model": NAME, "input": vec!["w1 w2 w3 w4 w5 w6 w7 w8 w9 w10"; 64]});
    let statuses: Vec<(u16, Option<String>, Duration)> = std::thread::scope(|scope| {
        let one = || {
            let mut client = server.client();
            let began = Instant::now();
            let answer = client.post("/v1/embeddings", &long);
            (answer.status, answer.headers.get("retry-after").cloned(), began.elapsed())
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let refused: Vec<_> = statuses.iter().filter(|(status, ..)| *status == 429).collect();
    assert!(!refused.is_empty() && statuses.iter().any(|(status, ..)| *status == 200), "{statuses:?}");
    assert!(refused.iter().all(|(_, after, _)| after.as_ref().is_some_and(|after| after.parse::<u64>().is_ok_and(|after| after >= 1))), "{statuses:?}");
    assert_eq!(server.handle().ledger().accepted() as usize, 1 + 8 - refused.len());
}

#[test]
fn a_deadline_that_passes_in_line_is_told_and_costs_the_device_nothing() {
    let (begun, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(2)));
    let (seen, shut) = (Arc::clone(&begun), Arc::clone(&gate));
    let held = before(move |_| {
        if seen.fetch_add(1, Ordering::SeqCst) == 0 {
            shut.wait();
        }
        Ok(())
    });
    let server = Running::with(|_| {}, held);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| server.client().post("/v1/embeddings", &ask()).status);
        until(|| begun.load(Ordering::SeqCst) == 1);
        let late = scope.spawn(|| server.client().send("POST", "/v1/embeddings", &[("x-request-timeout-ms", "50")], ask().to_string().as_bytes()).unwrap());
        until(|| server.handle().ledger().accepted() == 2);
        std::thread::sleep(Duration::from_millis(80));
        gate.wait();
        assert_eq!(first.join().unwrap(), 200);
        let late = late.join().unwrap();
        assert_eq!((late.status, late.code().as_str()), (504, "deadline_exceeded"));
    });
    assert_eq!((begun.load(Ordering::SeqCst), ended(&server)), (1, [1, 0, 0, 1]));
    let bad = server.client().send("POST", "/v1/embeddings", &[("x-request-timeout-ms", "soon")], ask().to_string().as_bytes()).unwrap();
    assert_eq!(bad.status, 400);
}

#[test]
fn who_goes_away_costs_the_device_nothing() {
    let (begun, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(2)));
    let (seen, shut) = (Arc::clone(&begun), Arc::clone(&gate));
    let held = before(move |rows| {
        if seen.fetch_add(1, Ordering::SeqCst) == 0 {
            shut.wait();
        }
        assert!(rows.iter().all(|row| row.ids.len() != 7), "it is computed for nobody");
        Ok(())
    });
    let server = Running::with(|_| {}, held);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| server.client().post("/v1/embeddings", &ask()).status);
        until(|| begun.load(Ordering::SeqCst) == 1);
        let mut gone = server.client();
        let body = json!({"model": NAME, "input": [0, 3, 4, 5, 6, 7, 1]}).to_string();
        let head = format!("POST /v1/embeddings HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        gone.write(head.as_bytes()).unwrap();
        until(|| server.handle().ledger().accepted() == 2);
        drop(gone);
        // The server sees the end of the connection before the device is free.
        std::thread::sleep(Duration::from_millis(200));
        gate.wait();
        assert_eq!(first.join().unwrap(), 200);
    });
    until(|| ended(&server) == [1, 0, 1, 0]);
}

#[test]
fn a_batch_without_room_is_tried_in_halves() {
    let largest = Arc::new(AtomicUsize::new(usize::MAX));
    let most = Arc::clone(&largest);
    let full = before(move |rows| {
        let tokens: usize = rows.iter().map(|row| row.ids.len()).sum();
        match tokens > most.load(Ordering::SeqCst) {
            true => Err(Error::OutOfMemory { requested: 1, purpose: "a test".into() }),
            false => Ok(()),
        }
    });
    let server = Running::with(|_| {}, full);
    let mut reference = Reference::new(server.folder.path());
    let texts: Vec<String> = (0..24).map(|text| format!("w{text} w1 w2 w3 w4 w5 w6 w7 w8 w9")).collect();
    largest.store(200, Ordering::SeqCst);
    let body = server.client().post("/v1/embeddings", &json!({"model": NAME, "input": texts})).json();
    for (text, row) in texts.iter().zip(body["data"].as_array().unwrap()) {
        assert_eq!(bits(&row["embedding"]), reference.of(text, None));
    }
    assert_eq!(ended(&server), [1, 0, 0, 0]);
    largest.store(0, Ordering::SeqCst);
    let answer = server.client().post("/v1/embeddings", &ask());
    assert_eq!((answer.status, answer.code().as_str()), (500, "internal"));
    assert!(!answer.text().contains("out of memory"), "what is wrong inside is not told");
}

#[test]
fn a_device_that_fails_is_told_and_nothing_is_taken_from_then_on() {
    for panics in [false, true] {
        let broken = Arc::new(AtomicBool::new(false));
        let fault = Arc::clone(&broken);
        let failing = before(move |_| match (fault.load(Ordering::SeqCst), panics) {
            (false, _) => Ok(()),
            (true, false) => Err(Error::device("a launch", "gone")),
            (true, true) => panic!("a fault that is planned"),
        });
        let server = Running::with(|_| {}, failing);
        let mut client = server.client();
        assert_eq!(client.post("/v1/embeddings", &ask()).status, 200);
        assert!(!server.handle().is_lost());
        broken.store(true, Ordering::SeqCst);
        let answer = client.post("/v1/embeddings", &ask());
        assert_eq!((answer.status, answer.code().as_str()), (503, "device_lost"));
        until(|| server.handle().is_lost());
        let later = client.post("/v1/embeddings", &ask());
        assert_eq!((later.status, later.code().as_str()), (503, "device_lost"));
        assert_eq!(client.get("/health").status, 503);
        assert_eq!((server.handle().ledger().accepted(), ended(&server)), (2, [1, 1, 0, 0]));
    }
}

#[test]
fn a_vector_that_is_not_finite_is_no_answer() {
    #[derive(Default)]
    struct Odd(VecDeque<Vec<f32>>);
    impl Embedder for Odd {
        fn submit(&mut self, rows: &[Row<'_>], wanted: usize) -> Result<()> {
            self.0.push_back(rows.iter().take(wanted).flat_map(|row| [if row.ids.len() > 3 { f32::NAN } else { 0.5 }; crate::support::tiny::WIDTH]).collect());
            Ok(())
        }

        fn finish(&mut self) -> Result<Vec<f32>> {
            Ok(self.0.pop_front().unwrap())
        }
    }
    let server = Running::with(|_| {}, |opened| opened.embedder = Box::<Odd>::default());
    let mut client = server.client();
    assert_eq!(client.post("/v1/embeddings", &json!({"model": NAME, "input": "w1"})).status, 200);
    assert_eq!(client.post("/v1/embeddings", &json!({"model": NAME, "input": "w1 w2 w3"})).status, 500);
}
