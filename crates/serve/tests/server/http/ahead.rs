//! A device gets the next batch while one runs, where enough waits; each vector is its sentence's own, and faults come to all whom they concern.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trifuse::Error;
use trifuse_serve::queueing::ledger::Outcome;
use trifuse_serve::{EmbeddingModel, Models, Opened};

use super::embeddings::bits;
use crate::support::faulty::around;
use crate::support::tiny::{self, ADAPTERS, NAME, Reference};
use crate::{Running, config};

/// What a device was asked, in order: `b` for a batch, `w` for a wait.
type Asked = Arc<Mutex<String>>;

/// An encoder of batches of 256 tokens that keeps what it is asked, and fails with what is asked first as `fails` says, given all that was asked.
fn kept(asked: &Asked, fails: impl Fn(&str) -> Option<Error> + Clone + Send + 'static) -> impl FnOnce(&mut Opened) + Send + 'static {
    let keep = |what: char| {
        let (asked, fails) = (Arc::clone(asked), fails.clone());
        move || {
            let mut asked = asked.lock().unwrap();
            asked.push(what);
            fails(&asked).map_or(Ok(()), Err)
        }
    };
    let (batch, wait) = (keep('b'), keep('w'));
    let set = around(move |_| batch(), wait);
    move |opened| {
        opened.batch_tokens = 256;
        set(opened);
    }
}

/// A request that fills three batches and a part of a fourth, with the bits of its answer.
fn long(library: &mut Reference, model: &str) -> (Value, Vec<Vec<u32>>) {
    let texts: Vec<String> = (0..60).map(|text| format!("w{} w{} w3 w{}", text % 50, text / 2, text % 7)).collect();
    let adapter = (model != NAME).then_some(model);
    let wanted = texts.iter().map(|text| library.of(text, adapter)).collect();
    (json!({"model": model, "input": texts}), wanted)
}

fn vectors(body: &Value) -> Vec<Vec<u32>> {
    body["data"].as_array().unwrap().iter().map(|row| bits(&row["embedding"])).collect()
}

fn ended(server: &Running) -> [u64; 4] {
    Outcome::ALL.map(|outcome| server.handle().ledger().ended(outcome))
}

#[test]
fn the_next_batch_is_there_before_one_is_waited_for() {
    let asked = Asked::default();
    let server = Running::with(|_| {}, kept(&asked, |_| None));
    let mut library = Reference::new(server.folder.path());
    for model in [NAME, ADAPTERS[0], ADAPTERS[1]] {
        asked.lock().unwrap().clear();
        let (ask, wanted) = long(&mut library, model);
        let answer = server.client().post("/v1/embeddings", &ask);
        assert_eq!(vectors(&answer.json()), wanted, "{model}");
        // The last one is not full, and is taken when the device is free.
        assert_eq!(*asked.lock().unwrap(), "bbwbwwbw", "{model}");
    }
    // One alone is not held back, and nothing is taken before it is done.
    asked.lock().unwrap().clear();
    assert_eq!(server.client().post("/v1/embeddings", &json!({"model": NAME, "input": "w1"})).status, 200);
    assert_eq!(*asked.lock().unwrap(), "bw");
    assert_eq!(ended(&server), [4, 0, 0, 0]);
}

#[test]
fn a_batch_that_the_device_has_no_room_for_is_tried_again_behind_the_others() {
    let asked = Asked::default();
    let full = |asked: &str| (asked == "bb").then(|| Error::OutOfMemory { requested: 1, purpose: "a test".into() });
    let server = Running::with(|_| {}, kept(&asked, full));
    let (ask, wanted) = long(&mut Reference::new(server.folder.path()), ADAPTERS[0]);
    let answer = server.client().post("/v1/embeddings", &ask);
    assert_eq!(vectors(&answer.json()), wanted);
    assert!(asked.lock().unwrap().starts_with("bbwbwbw"), "the first one, and two halves");
    assert_eq!(ended(&server), [1, 0, 0, 0]);
}

#[test]
fn a_device_that_fails_fails_all_that_it_had_and_another_does_it() {
    // With the batch that runs, with the one behind it, and where that was to be put there.
    for fault in ["bbw", "bbwbw", "bb"] {
        for devices in [1, 2] {
            let lost = move |asked: &str| asked.contains(fault).then(|| Error::device("a launch", "gone, as planned"));
            let (folder, asked) = (tiny::folder(), Asked::default());
            let mut model = EmbeddingModel::new(NAME, "cpu:0", tiny::opens(folder.path(), kept(&asked, lost)));
            if devices == 2 {
                model = model.and("cpu:0", tiny::opens(folder.path(), kept(&Asked::default(), |_| None)));
            }
            let server = Running::start(config(|_| {}), folder, Models { embeddings: Some(model), ..Models::default() });
            let (ask, wanted) = long(&mut Reference::new(server.folder.path()), NAME);
            if devices == 2 {
                let began = Instant::now();
                let caller = || {
                    let mut client = server.client();
                    while !asked.lock().unwrap().contains(fault) {
                        assert!(began.elapsed() < Duration::from_secs(60), "the other device does all");
                        assert_eq!(vectors(&client.post("/v1/embeddings", &ask).json()), wanted, "{fault}");
                    }
                    assert_eq!(vectors(&client.post("/v1/embeddings", &ask).json()), wanted, "{fault}");
                };
                std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(caller))));
                assert_eq!(server.client().get("/health").json()["devices"], json!({"all": 2, "working": 1}));
            } else {
                let answer = server.client().post("/v1/embeddings", &ask);
                assert_eq!((answer.status, answer.code().as_str()), (503, "device_lost"), "{fault}");
                assert_eq!(ended(&server), [0, 1, 0, 0]);
            }
            assert_eq!(server.handle().ledger().open(), 0);
        }
    }
}
