//! Adapters that are loaded when a request first names them: each answer has the bits of the adapter that was named, whoever has to go for it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};
use trifuse::adapters::peft::LoraAdapter;
use trifuse_serve::AdapterRoot;

use super::adapters::{root, vector};
use crate::Running;
use crate::support::client::{Answer, Client};
use crate::support::tiny::{ADAPTERS, NAME, Reference};

const TEXT: &str = "w1 w2 w3";
/// Adapters that are there at once.
const MOST: usize = 2;
/// Those below the root that fit the model.
const NAMES: [&str; 3] = ["one", "two", "deep"];

fn running(root: &Path) -> Running {
    let root = AdapterRoot::open(root).unwrap();
    Running::with(move |config| (config.adapter_root, config.on_demand) = (Some(root), Some(MOST)), |_| {})
}

/// The right vector of each adapter below the root.
fn wanted(server: &Running, root: &Path) -> BTreeMap<&'static str, Vec<u32>> {
    let mut reference = Reference::new(server.folder.path());
    let one = |name: &'static str| {
        reference.add(name, &LoraAdapter::open(root.join(name)).unwrap());
        (name, reference.of(TEXT, Some(name)))
    };
    NAMES.into_iter().map(one).collect()
}

fn ask(client: &mut Client, name: &str) -> Answer {
    client.post("/v1/embeddings", &json!({"model": name, "input": TEXT}))
}

/// The adapters that are there but for those of the start, as the list of adapters tells.
fn there(client: &mut Client) -> BTreeSet<String> {
    let list = client.get("/v1/lora_adapters").json();
    let names = list["data"].as_array().unwrap().iter().map(|card| card["lora_name"].as_str().unwrap().to_owned());
    names.filter(|name| !ADAPTERS.contains(&name.as_str())).collect()
}

#[test]
fn an_adapter_is_loaded_when_it_is_first_named_and_the_one_that_was_asked_for_longest_ago_goes() {
    let root = root();
    let server = running(root.path());
    let wanted = wanted(&server, root.path());
    let mut client = server.client();
    let states = |client: &mut Client| -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        client.get("/v1/models").json()["data"].as_array().unwrap().iter().map(|card| (text(&card["id"]), text(&card["state"]))).collect()
    };
    let before = states(&mut client);
    assert_eq!(NAMES.map(|name| before[name].as_str()), ["listed"; 3]);
    assert!(there(&mut client).is_empty());
    for (name, left) in [("one", &["one"][..]), ("tiny:two", &["one", "two"]), ("one", &["one", "two"]), ("deep", &["deep", "one"]), ("two", &["deep", "two"])]
    {
        let answer = ask(&mut client, name);
        assert_eq!(vector(&answer), wanted[name.trim_start_matches("tiny:")], "{name}");
        assert!(there(&mut client).iter().eq(left), "after {name}: {:?}", there(&mut client));
    }
    assert_eq!(["two", "one"].map(|name| states(&mut client)[name].clone()), ["ready", "listed"]);
    // Each input may name its own, and as many as there is room for.
    let mixed = |names: &[&str]| json!({"model": NAME, "input": vec![TEXT; names.len()], "adapters": names});
    let answer = client.post("/v1/embeddings", &mixed(&["one", "deep"]));
    assert_eq!((answer.status, there(&mut client).iter().eq(["deep", "one"])), (200, true), "{}", answer.text());
    let answer = client.post("/v1/embeddings", &mixed(&NAMES));
    assert_eq!((answer.status, answer.code().as_str()), (429, "overloaded"));
    // The open inference protocol has the same names.
    let ids = json!({"inputs": [{"name": "ids", "datatype": "INT32", "shape": [1, 3], "data": [0, 5, 1]}]});
    let answer = client.post("/v2/models/two/infer", &ids);
    assert!(answer.status == 200 && there(&mut client).contains("two"), "{}", answer.text());
    // What is not there, or is no adapter of the model, is not answered by the base.
    for (name, status, param) in [("none", 404, "model"), ("../one", 404, "model"), ("wide", 400, "model")] {
        let answer = ask(&mut client, name);
        assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (status, Some(param)), "{name}: {}", answer.text());
    }
    assert_eq!(there(&mut client).len(), MOST);
}

#[test]
fn what_is_pinned_stays_and_leaves_a_place_for_others() {
    let root = root();
    let server = running(root.path());
    let mut client = server.client();
    let load = |client: &mut Client, name: &str, pinned: bool| {
        client.post("/v1/load_lora_adapter", &json!({"lora_name": name, "lora_path": name, "load_inplace": true, "pinned": pinned}))
    };
    assert_eq!(load(&mut client, "two", true).status, 200);
    for name in ["one", "deep", "one", "deep"] {
        assert_eq!(ask(&mut client, name).status, 200);
        assert!(there(&mut client).iter().eq(if name == "one" { ["one", "two"] } else { ["deep", "two"] }));
    }
    let list = client.get("/v1/lora_adapters").json();
    let pinned = |card: &&Value| card["pinned"] == true;
    assert!(list["data"].as_array().unwrap().iter().filter(pinned).map(|card| card["lora_name"].as_str().unwrap()).eq(["two"]), "{list}");
    let answer = load(&mut client, "deep", true);
    assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (400, Some("pinned")), "{}", answer.text());
    // Once it is no more pinned it is one of all: it goes as the one that was loaded longest ago.
    assert_eq!(load(&mut client, "two", false).status, 200);
    assert_eq!(["deep", "one"].map(|name| ask(&mut client, name).status), [200; 2]);
    assert!(there(&mut client).iter().eq(["deep", "one"]));
}

#[test]
fn many_who_ask_for_more_than_there_is_room_for_get_their_own_or_are_told_to_wait() {
    let root = root();
    let server = running(root.path());
    let wanted = wanted(&server, root.path());
    let address = server.handle().addr();
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let asking = |thread: usize| {
            let wanted = &wanted;
            scope.spawn(move || {
                let mut client = Client::to(address).unwrap();
                let one = |number: usize| {
                    let name = NAMES[(thread * 7 + number * (1 + thread % 2)) % NAMES.len()];
                    let answer = ask(&mut client, name);
                    match answer.status {
                        200 => assert_eq!(vector(&answer), wanted[name], "{name}"),
                        _ => assert_eq!((answer.status, answer.code().as_str()), (429, "overloaded"), "{}", answer.text()),
                    }
                    answer.status
                };
                (0..30).map(one).collect::<Vec<u16>>()
            })
        };
        (0..6).map(asking).collect::<Vec<_>>().into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(statuses.iter().filter(|status| **status == 200).count() > 30, "{statuses:?}");
}
