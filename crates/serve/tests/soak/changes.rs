//! The client that changes which adapters there are, while all others ask by them.

use std::fs;
use std::time::Duration;

use rand::Rng as _;
use serde_json::{Value, json};

use super::adapters::{CONTENTS, Content, NAMES, alias};
use super::life::Life;
use super::mutate::Rng;
use super::support::client::{Answer, Client};
use super::support::tiny;

/// What is asked of a name.
#[derive(Clone, Copy, Debug)]
struct Wish {
    name: usize,
    /// The content that it is to lead to; none unloads it.
    content: Option<usize>,
    /// Whether another content may be in its place before.
    replace: bool,
    /// The content that has to be in its place before.
    expected: Option<usize>,
}

/// What comes of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Changed,
    Same,
    Taken,
    Mismatch,
    Absent,
}

/// One client, and what it does.
struct Changer<'a> {
    life: &'a Life<'a>,
    rng: Rng,
    client: Client,
}

/// Whether the server goes on.
type Goes = bool;

/// Changes what names lead to until the server ends. Where the life says so it takes all names away, and leaves it at that.
pub fn change_adapters(life: &Life<'_>) {
    let client = match Client::to(life.addr()) {
        Ok(client) => client,
        Err(error) => return assert!(life.is_ending(), "no connection: {error}"),
    };
    let mut changer = Changer { life, rng: life.rng(200), client };
    while !life.is_clearing() {
        if !changer.step() {
            return;
        }
        std::thread::sleep(Duration::from_millis(changer.rng.random_range(10..80)));
    }
    for name in 0..NAMES {
        let loaded = life.history.now(name).is_some();
        if loaded && !changer.wish(Wish { name, content: None, replace: false, expected: None }) {
            return;
        }
    }
    changer.list();
}

impl Changer<'_> {
    fn step(&mut self) -> Goes {
        let (name, number) = (self.rng.random_range(0..NAMES), self.rng.random_range(0..CONTENTS));
        let (now, other) = (self.life.history.now(name), self.rng.random_range(0..CONTENTS));
        let known = self.rng.random_ratio(1, 4).then_some(other);
        let wish = Wish { name, content: Some(number), replace: true, expected: None };
        match self.rng.random_range(0..20) {
            0..3 => self.wish(Wish { content: None, expected: known, ..wish }),
            3..6 => self.wish(Wish { replace: false, ..wish }),
            6..8 => self.wish(Wish { expected: Some(other), ..wish }),
            8 => self.list(),
            9..12 => self.broken(name, now.unwrap_or(number)),
            _ => self.wish(wish),
        }
    }

    /// The answer; none where the server has ended.
    fn ask(&mut self, method: &str, route: &str, body: &Value) -> Option<Answer> {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        match self.client.send(method, route, &[("accept", "application/json")], body.as_bytes()) {
            Ok(answer) if answer.status == 503 && answer.code() == "draining" => {
                assert!(self.life.is_ending(), "{}", answer.text());
                None
            }
            Ok(answer) => Some(answer),
            Err(error) => {
                assert!(self.life.is_ending() && !self.client.begun, "a change without an answer: {error}");
                None
            }
        }
    }

    fn generation(&self, name: usize, content: usize) -> &str {
        &self.life.world.shelf.of(name)[content].generation
    }

    /// What has to come of a wish where the device takes adapters.
    fn due(&self, wish: Wish) -> Due {
        let now = self.life.history.now(wish.name);
        match (wish.content, now) {
            _ if wish.expected.is_some() && wish.expected != now => Due::Mismatch,
            (None, None) => Due::Absent,
            (Some(_), Some(_)) if !wish.replace => Due::Taken,
            (to, now) if to == now => Due::Same,
            _ => Due::Changed,
        }
    }

    fn wish(&mut self, wish: Wish) -> Goes {
        let Wish { name, content, replace, expected } = wish;
        let (life, due) = (self.life, self.due(wish));
        let mut body = json!({"lora_name": alias(name)});
        if let Some(expected) = expected {
            body["expected_generation"] = self.generation(name, expected).into();
        }
        let route = match content {
            Some(content) => {
                (body["lora_path"], body["base_model"]) = (life.world.shelf.of(name)[content].path.as_str().into(), tiny::NAME.into());
                body["load_inplace"] = replace.into();
                "/v1/load_lora_adapter"
            }
            None => "/v1/unload_lora_adapter",
        };
        if due == Due::Changed {
            life.history.begin(name, content);
        }
        // What the server did of it as it ended nobody knows.
        let Some(answer) = self.ask("POST", route, &body) else { return false };
        let told = || format!("{wish:?}, which is to be {due:?}: {}", answer.text());
        if due == Due::Changed {
            life.history.end(name, answer.status == 200);
        }
        let counts = &life.counts;
        match (answer.status, due) {
            (200, Due::Changed | Due::Same) => {
                if let Some(content) = content {
                    let body = answer.json();
                    let found = (body["adapter_generation"].as_str(), body["changed"].as_bool());
                    assert_eq!(found, (Some(self.generation(name, content)), Some(due == Due::Changed)), "{}", told());
                    counts.loaded.one();
                } else {
                    counts.unloaded.one();
                }
            }
            (409, Due::Taken) => assert_eq!(answer.code(), "name_taken", "{}", told()),
            (404, Due::Absent) => assert_eq!(answer.code(), "model_not_found", "{}", told()),
            (409, Due::Mismatch) => assert_eq!(answer.code(), "lora_generation_mismatch", "{}", told()),
            (507, Due::Changed) if content.is_some() => assert!(counts.roomless.get() > 0, "no lack of room was planned: {}", told()),
            (503, Due::Changed) if content.is_some() => assert!(answer.code() == "device_lost" && life.is_lost(), "{}", told()),
            _ => panic!("{} of {}", answer.status, told()),
        }
        if matches!(due, Due::Taken | Due::Absent | Due::Mismatch) {
            counts.kept.one();
        }
        true
    }

    /// Breaks the files of a content, and wants it all the same: the name goes on with what it has.
    fn broken(&mut self, name: usize, content: usize) -> Goes {
        let life = self.life;
        let content = &life.world.shelf.of(name)[content];
        let whole = life.world.shelf.files(content).map(|file| (fs::read(&file).unwrap(), file));
        let how = damage(&mut self.rng, life, content);
        let body = json!({"lora_name": alias(name), "lora_path": content.path, "base_model": tiny::NAME, "load_inplace": true});
        let answer = self.ask("POST", "/v1/load_lora_adapter", &body);
        whole.into_iter().for_each(|(bytes, file)| {
            if file.is_dir() {
                fs::remove_dir(&file).unwrap();
            }
            fs::write(file, bytes).unwrap();
        });
        let Some(answer) = answer else { return false };
        assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (400, Some("lora_path")), "{how}: {}", answer.text());
        life.counts.broken.one();
        true
    }

    /// Holds the server's list against what its names were told to lead to.
    fn list(&mut self) -> Goes {
        let Some(answer) = self.ask("GET", "/v1/lora_adapters", &Value::Null) else { return false };
        assert_eq!(answer.status, 200, "{}", answer.text());
        let list = answer.json();
        let mut found: Vec<(&str, &str)> = list["data"].as_array().unwrap().iter().filter_map(card).collect();
        let names: Vec<(String, usize)> = (0..NAMES).map(|name| (alias(name), name)).collect();
        let held = names.iter().filter_map(|(alias, name)| Some((alias.as_str(), self.generation(*name, self.life.history.now(*name)?))));
        let mut held: Vec<(&str, &str)> = held.collect();
        held.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, held);
        true
    }
}

/// The name and generation of an adapter of the encoder's that comes and goes.
fn card(card: &Value) -> Option<(&str, &str)> {
    let name = card["lora_name"].as_str()?;
    let late = card["parent"] == tiny::NAME && !tiny::ADAPTERS.contains(&name);
    late.then_some((name, card["adapter_generation"].as_str()?))
}

/// Does something to the files of a content with which it is no adapter any more; what that was.
fn damage(rng: &mut Rng, life: &Life<'_>, content: &Content) -> &'static str {
    let [config, tensors] = life.world.shelf.files(content);
    let cut = |rng: &mut Rng, file| {
        let bytes = fs::read(file).unwrap();
        fs::write(file, &bytes[..rng.random_range(0..bytes.len())]).unwrap();
    };
    match rng.random_range(0..6) {
        0 => {
            cut(rng, &config);
            "a configuration that was cut off"
        }
        1 => {
            cut(rng, &tensors);
            "tensors that were cut off"
        }
        2 => {
            fs::remove_file(&tensors).unwrap();
            "no tensors"
        }
        3 => {
            let mut bytes = fs::read(&tensors).unwrap();
            bytes[..8].copy_from_slice(&rng.random_range(1u64 << 20..u64::MAX).to_le_bytes());
            fs::write(&tensors, bytes).unwrap();
            "a header of a length that the file has not"
        }
        4 => {
            fs::remove_file(&config).unwrap();
            "no configuration"
        }
        _ => {
            fs::remove_file(&tensors).unwrap();
            fs::create_dir(&tensors).unwrap();
            "a folder in the place of tensors"
        }
    }
}
