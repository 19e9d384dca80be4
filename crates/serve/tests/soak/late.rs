//! Callers who ask by adapters that come and go: each vector is of the content that its answer names, and its name led there meanwhile.

use std::time::Instant;

use rand::Rng as _;
use serde_json::{Value, json};

use super::adapters::{NAMES, alias};
use super::callers::{May, Next, any, bits, judge};
use super::life::Life;
use super::mutate::Rng;
use super::support::client::{Answer, Client};
use super::support::tiny;
use super::world::World;

/// Whose vector is wanted.
#[derive(Clone, Copy, Debug)]
pub enum Whose {
    Base,
    /// An adapter of the start, which stays.
    Stays(usize),
    /// An adapter that comes and goes.
    Late(usize),
}

impl Whose {
    /// Any of them, mostly those that come and go.
    pub fn drawn(rng: &mut Rng) -> Self {
        match rng.random_range(0..10) {
            0 => Self::Base,
            1 => Self::Stays(rng.random_range(0..tiny::ADAPTERS.len())),
            _ => Self::Late(rng.random_range(0..NAMES)),
        }
    }

    /// Its name in requests; none of the base.
    pub fn name(self) -> Option<String> {
        match self {
            Self::Base => None,
            Self::Stays(number) => Some(tiny::ADAPTERS[number].into()),
            Self::Late(name) => Some(alias(name)),
        }
    }
}

/// Whether one of these names can have led to nothing since `asked`.
pub fn may_be_absent(life: &Life<'_>, asked: Instant, whose: impl IntoIterator<Item = Whose>) -> bool {
    whose.into_iter().any(|whose| matches!(whose, Whose::Late(name) if life.history.may_have(name, None, asked)))
}

/// Holds a vector against that of the generation which the answer names.
pub fn check(life: &Life<'_>, asked: Instant, whose: Whose, text: usize, generation: Option<&str>, found: &[u32]) {
    let world: &World = life.world;
    let told = || format!("text {text} of {whose:?}, whose generation is said to be {generation:?}");
    match whose {
        Whose::Base => {
            assert_eq!(generation, None, "{}", told());
            assert_eq!(found, world.of_text(text)[0].bits, "{}", told());
        }
        Whose::Stays(number) => {
            assert_eq!(generation, Some(format!("{}-1", tiny::ADAPTERS[number]).as_str()), "{}", told());
            assert_eq!(found, world.of_text(text)[1 + number].bits, "{}", told());
        }
        Whose::Late(name) => {
            let contents = world.shelf.of(name);
            let number = contents.iter().position(|content| Some(content.generation.as_str()) == generation);
            let number = number.unwrap_or_else(|| panic!("no generation of that name: {}", told()));
            assert!(life.history.may_have(name, Some(number), asked), "the name did not lead there while it was asked: {}", told());
            assert_eq!(found, contents[number].bits[text], "{}", told());
        }
    }
}

/// Asks for vectors of one name, or of several in one request.
pub fn embed(life: &Life<'_>, client: &mut Client, rng: &mut Rng) -> Next {
    let count = if rng.random_ratio(1, 4) { rng.random_range(2..9) } else { 1 };
    let texts: Vec<usize> = (0..count).map(|_| rng.random_range(0..super::world::LATE_TEXTS)).collect();
    let mixed = rng.random_ratio(1, 3);
    let one = Whose::drawn(rng);
    let whose: Vec<Whose> = texts.iter().map(|_| if mixed { Whose::drawn(rng) } else { one }).collect();
    let input: Value = match rng.random_range(0..2) {
        0 => texts.iter().map(|text| life.world.of_text(*text)[0].text.as_str()).collect(),
        _ => texts.iter().map(|text| json!(life.world.of_text(*text)[0].ids)).collect(),
    };
    let mut body = json!({"model": tiny::NAME, "input": input, "encoding_format": any(rng, &["base64", "float"])});
    if mixed {
        body["adapters"] = whose.iter().map(|whose| whose.name()).collect();
    } else if let Some(name) = one.name() {
        body["model"] = if rng.random_ratio(1, 4) { format!("{}:{name}", tiny::NAME) } else { name }.into();
    }
    let asked = Instant::now();
    let answer = client.send("POST", "/v1/embeddings", &[], body.to_string().as_bytes());
    let may = May { be_absent: may_be_absent(life, asked, whose.iter().copied()), ..May::default() };
    judge(life, client, answer, may, |answer: &Answer| {
        let body = answer.json();
        let rows = body["data"].as_array().unwrap();
        assert_eq!(rows.len(), texts.len());
        for ((row, whose), text) in rows.iter().zip(&whose).zip(&texts) {
            check(life, asked, *whose, *text, row["adapter_generation"].as_str(), &bits(&row["embedding"]));
        }
        life.counts.late.one();
    })
}
