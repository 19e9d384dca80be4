//! A model on several devices: all of them work, one that fails or hangs leaves the others running, and nobody notices but by the time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use serde_json::{Value, json};
use trifuse::Error;
use trifuse::adapters::peft::LoraAdapter;
use trifuse::model::Row;
use trifuse_serve::queueing::ledger::Outcome;
use trifuse_serve::{AdapterRoot, Config, EmbeddingModel, Models, Opened, Server};

use super::embeddings::bits;
use super::faults::until;
use crate::support::faulty::before;
use crate::support::tiny::{self, ADAPTERS, NAME, Reference, WIDTH};
use crate::{Running, config};

type Deed = Box<dyn FnMut(&[Row<'_>]) -> trifuse::Result<()> + Send>;

/// A server with a device for each deed, which happens before each batch there.
fn running(set: impl FnOnce(&mut Config), deeds: Vec<Deed>) -> Running {
    let folder = tiny::folder();
    let one = |deed: Deed| ("cpu:0".to_owned(), tiny::opens(folder.path(), before(deed)));
    let model = EmbeddingModel { name: NAME.into(), devices: deeds.into_iter().map(one).collect() };
    Running::start(config(set), folder, Models { embeddings: Some(model), ..Models::default() })
}

/// A device that takes its time, so that another has some work too.
fn slow() -> Deed {
    Box::new(|_| {
        std::thread::sleep(Duration::from_millis(3));
        Ok(())
    })
}

/// Every request of a load, and the bits of its answer.
fn expected(server: &Running) -> Vec<(Value, Vec<u32>)> {
    let mut library = Reference::new(server.folder.path());
    let models = [(NAME, None), (ADAPTERS[0], Some(ADAPTERS[0])), (ADAPTERS[1], Some(ADAPTERS[1]))];
    let texts = ["w1", "w2 w3 w4", "w5 w6 w7 w8 w9 w10 w11"];
    models.iter().flat_map(|(name, adapter)| texts.map(|text| (json!({"model": name, "input": text}), library.of(text, *adapter)))).collect()
}

/// Lets six callers ask so many times each, and checks that every answer is right.
fn load(server: &Running, expected: &[(Value, Vec<u32>)], times: usize) {
    std::thread::scope(|scope| {
        for thread in 0..6 {
            scope.spawn(move || {
                let mut client = server.client();
                for turn in 0..times {
                    let (ask, wanted) = &expected[(thread * 5 + turn) % expected.len()];
                    let answer = client.post("/v1/embeddings", ask);
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    assert_eq!(&bits(&answer.json()["data"][0]["embedding"]), wanted, "{ask}");
                }
            });
        }
    });
}

fn devices(server: &Running) -> Vec<Value> {
    server.client().get("/status").json()["devices"].as_array().unwrap().clone()
}

fn count(device: &Value, what: &str) -> u64 {
    device[what].as_u64().unwrap_or_else(|| panic!("{device}"))
}

fn health(server: &Running) -> Value {
    let answer = server.client().get("/health");
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["devices"].clone()
}

fn ended(server: &Running) -> [u64; 4] {
    Outcome::ALL.map(|outcome| server.handle().ledger().ended(outcome))
}

#[test]
fn every_device_gets_work_and_each_gives_the_same_bits() {
    let server = running(|_| {}, vec![slow(), slow()]);
    load(&server, &expected(&server), 40);
    let told = devices(&server);
    assert!(told.len() == 2 && told.iter().all(|device| count(device, "tasks") > 20 && device["state"] == "working"), "{told:?}");
    assert_eq!(told.iter().map(|device| count(device, "tasks")).sum::<u64>(), 240);
    assert_eq!(health(&server), json!({"all": 2, "working": 2}));
    let metrics = server.client().get("/metrics").text();
    for line in
        [r#"trifuse_device_working{model="tiny",replica="1",device="cpu:0"} 1"#, r#"trifuse_device_tasks_total{model="tiny",replica="0",device="cpu:0"}"#]
    {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    assert_eq!(ended(&server), [240, 0, 0, 0]);
}

#[test]
fn a_device_that_fails_under_load_costs_nobody_an_answer() {
    for panics in [false, true] {
        let mut batches = 0;
        let failing: Deed = Box::new(move |_| {
            batches += 1;
            std::thread::sleep(Duration::from_millis(3));
            match (batches > 10, panics) {
                (false, _) => Ok(()),
                (true, false) => Err(Error::device("a launch", "gone, as planned")),
                (true, true) => panic!("a fault that is planned"),
            }
        });
        let server = running(|_| {}, vec![failing, slow()]);
        load(&server, &expected(&server), 40);
        until(|| health(&server) == json!({"all": 2, "working": 1}));
        let told = devices(&server);
        assert_eq!((&told[0]["state"], &told[1]["state"]), (&json!("lost"), &json!("working")), "{told:?}");
        assert!(count(&told[0], "handed_on") > 0 && count(&told[1], "handed_on") == 0, "{told:?}");
        assert_eq!(ended(&server), [240, 0, 0, 0]);
        assert!(!server.handle().is_lost());
    }
}

#[test]
fn a_device_that_hangs_is_given_up_and_what_it_says_later_is_heard_by_nobody() {
    let (gate, mut batches, over) = (Arc::new(Barrier::new(2)), 0, Arc::new(AtomicBool::new(false)));
    let (shut, told) = (Arc::clone(&gate), Arc::clone(&over));
    let hanging: Deed = Box::new(move |_| {
        batches += 1;
        if batches == 5 {
            shut.wait();
            told.store(true, Ordering::SeqCst);
        }
        std::thread::sleep(Duration::from_millis(3));
        Ok(())
    });
    let server = running(|config| config.limits.hang = Duration::from_millis(250), vec![hanging, slow()]);
    load(&server, &expected(&server), 40);
    assert_eq!(health(&server), json!({"all": 2, "working": 1}));
    assert!(count(&devices(&server)[0], "handed_on") > 0);
    let before = count(&devices(&server)[0], "tasks");
    gate.wait();
    until(|| over.load(Ordering::SeqCst));
    load(&server, &expected(&server), 5);
    assert_eq!((count(&devices(&server)[0], "tasks"), ended(&server)), (before, [270, 0, 0, 0]));
}

#[test]
fn the_last_device_that_hangs_is_told_of_and_kept() {
    let gate = Arc::new(Barrier::new(2));
    let shut = Arc::clone(&gate);
    let mut first = true;
    let hanging: Deed = Box::new(move |_| {
        if std::mem::take(&mut first) {
            shut.wait();
        }
        Ok(())
    });
    let server = running(|config| config.limits.hang = Duration::from_millis(100), vec![hanging]);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| server.client().post("/v1/embeddings", &json!({"model": NAME, "input": "w1"})).status);
        until(|| server.client().get("/health").status == 503);
        assert_eq!(server.client().get("/health").code(), "device_hangs");
        gate.wait();
        assert_eq!(asked.join().unwrap(), 200);
    });
    assert_eq!(health(&server), json!({"all": 1, "working": 1}));
}

#[test]
fn where_all_devices_fail_everybody_is_told_once() {
    let broken = Arc::new(AtomicBool::new(false));
    let failing = || -> Deed {
        let broken = Arc::clone(&broken);
        Box::new(move |_| {
            std::thread::sleep(Duration::from_millis(3));
            if broken.load(Ordering::SeqCst) { Err(Error::device("a launch", "gone, as planned")) } else { Ok(()) }
        })
    };
    let server = running(|_| {}, vec![failing(), failing()]);
    let expected = expected(&server);
    load(&server, &expected, 5);
    let asked = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut client = server.client();
                loop {
                    let answer = client.post("/v1/embeddings", &expected[0].0);
                    asked.fetch_add(1, Ordering::SeqCst);
                    match answer.status {
                        200 => assert_eq!(bits(&answer.json()["data"][0]["embedding"]), expected[0].1),
                        _ => {
                            assert_eq!((answer.status, answer.code().as_str()), (503, "device_lost"));
                            break;
                        }
                    }
                }
            });
        }
        std::thread::sleep(Duration::from_millis(50));
        broken.store(true, Ordering::SeqCst);
    });
    until(|| server.handle().is_lost());
    assert_eq!(server.client().get("/health").status, 503);
    assert!(devices(&server).iter().all(|device| device["state"] == "lost"));
    let ledger = server.handle().ledger();
    let [finished, failed, cancelled, expired] = ended(&server);
    assert_eq!((ledger.open(), cancelled, expired), (0, 0, 0));
    assert!(failed > 0 && finished + failed == ledger.accepted() && ledger.accepted() <= 30 + asked.load(Ordering::SeqCst) as u64, "{ledger:?}");
}

#[test]
fn what_breaks_devices_is_tried_on_two_of_them_and_no_more() {
    let deadly = || -> Deed {
        Box::new(|rows| match rows.iter().any(|row| row.ids.len() == 7) {
            true => Err(Error::device("a launch", "gone, as planned")),
            false => Ok(()),
        })
    };
    let server = running(|_| {}, vec![deadly(), deadly(), deadly()]);
    let answer = server.client().post("/v1/embeddings", &json!({"model": NAME, "input": [0, 3, 4, 5, 6, 7, 1]}));
    assert_eq!((answer.status, answer.code().as_str()), (503, "device_lost"));
    assert_eq!(health(&server), json!({"all": 3, "working": 1}));
    load(&server, &expected(&server)[..1], 3);
    assert_eq!(ended(&server), [18, 1, 0, 0]);
}

#[test]
fn adapters_come_and_go_on_every_device_and_one_that_is_lost_is_no_hindrance() {
    let root = tempfile::tempdir().unwrap();
    [("one", 900), ("two", 950)].into_iter().for_each(|(name, seed)| tiny::peft(&root.path().join(name), seed, 4, WIDTH));
    tiny::peft(&root.path().join("wide"), 5, 4, WIDTH * 2);
    let broken = Arc::new(AtomicBool::new(false));
    let fault = Arc::clone(&broken);
    let failing: Deed = Box::new(move |_| {
        std::thread::sleep(Duration::from_millis(3));
        if fault.load(Ordering::SeqCst) { Err(Error::device("a launch", "gone, as planned")) } else { Ok(()) }
    });
    let own = AdapterRoot::open(root.path()).unwrap();
    let server = running(|config| config.adapter_root = Some(own), vec![failing, slow()]);
    let mut library = Reference::new(server.folder.path());
    let mut wanted = |name: &str| {
        library.add(name, &LoraAdapter::open(root.path().join(name)).unwrap());
        library.of("w1 w2 w3", Some(name))
    };
    let mut client = server.client();
    for (round, name) in ["one", "two"].into_iter().enumerate() {
        let asked = json!({"lora_name": "new", "lora_path": name, "load_inplace": round > 0});
        let answer = client.post("/v1/load_lora_adapter", &asked);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let before: Vec<u64> = devices(&server).iter().map(|device| count(device, "tasks")).collect();
        load(&server, &[(json!({"model": "new", "input": "w1 w2 w3"}), wanted(name))], 20);
        let after: Vec<u64> = devices(&server).iter().map(|device| count(device, "tasks")).collect();
        // With the second content a device is lost on the way.
        assert!(after[1] > before[1] && (round > 0 || after[0] > before[0]), "{before:?}, {after:?}");
        broken.store(true, Ordering::SeqCst);
    }
    assert_eq!(health(&server), json!({"all": 2, "working": 1}));
    let answer = client.post("/v1/load_lora_adapter", &json!({"lora_name": "odd", "lora_path": "wide"}));
    assert_eq!(answer.status, 400, "{}", answer.text());
    assert_eq!(client.post("/v1/unload_lora_adapter", &json!({"lora_name": "new"})).status, 200);
    assert_eq!(client.get("/v1/lora_adapters").json()["data"].as_array().unwrap().len(), 2);
}

#[test]
fn devices_with_other_adapters_are_no_devices_of_one_model() {
    let folder = tiny::folder();
    let without = |opened: &mut Opened| drop(opened.adapters.pop());
    let model = EmbeddingModel::new(NAME, "cpu:0", tiny::opens(folder.path(), |_| {})).and("cpu:0", tiny::opens(folder.path(), without));
    let error = Server::start(config(|_| {}), Some(model), None).unwrap_err().to_string();
    assert!(error.contains("the same adapters"), "{error}");
}
