//! What a server says of itself before it is measured: that it is there, and what it serves.

use std::time::Duration;

use serde_json::Value;
use trifuse::{Error, Result};

use super::args::{Args, Which};
use super::attention;
use super::caller::{Answer, Ask, Caller, Stop};
use super::questions::Model;
use super::wire::{Lost, Wire};

/// How long what a server says of itself may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The names that are to be asked.
///
/// # Errors
/// A server that is not there, that is another one, or that has no such names.
pub fn models(args: &Args, caller: &Caller<'_>) -> Result<Vec<Model>, Stop> {
    let answer = told(caller, "/v1/models", "the models of a server by OpenAI's routes")?;
    // A server without the list is measured all the same where the names are given.
    let cards = if answer.status == 200 { cards(&answer.body) } else { None };
    let named = || {
        let parent = |name: &String| cards.iter().flatten().find(|card| card.name == *name).and_then(|card| card.parent.clone());
        args.models.iter().map(|name| Model { name: name.clone(), parent: parent(name) }).collect::<Vec<_>>()
    };
    if !args.models.is_empty() {
        return Ok(named());
    }
    let Some(cards) = cards else {
        return Err(wrong("a server that lists its models, or --model NAME", format!("{} for GET /v1/models", answer.words())));
    };
    let asked: Vec<Model> = match args.adapters {
        Some(Which::Mixed) => cards,
        None => cards.into_iter().filter(|card| card.parent.is_none()).take(1).collect(),
    };
    if asked.is_empty() { Err(wrong("a server with a model", "none in its list".into())) } else { Ok(asked) }
}

/// Attention, where the server has it.
///
/// # Errors
/// A server that is not there, or that has no operations.
pub fn operation(caller: &Caller<'_>) -> Result<Vec<Model>, Stop> {
    let answer = told(caller, &format!("/v2/models/{}", attention::NAME), "a server of the open inference protocol")?;
    match answer.status {
        200 => Ok(vec![Model { name: attention::NAME.into(), parent: None }]),
        _ => Err(wrong("a server of op.attention, as `trifuse serve --operations` is one", answer.words())),
    }
}

fn wrong(expected: &str, found: String) -> Stop {
    Error::invalid("URL", expected, found).into()
}

/// The first answer of a server.
fn told(caller: &Caller<'_>, path: &str, expected: &str) -> Result<Answer, Stop> {
    let host = &caller.address.host;
    let unreachable = |error: std::io::Error| {
        let words = format!("{error}; `trifuse serve --model MODEL` starts a server");
        Error::io(host, "connect to")(std::io::Error::new(error.kind(), words))
    };
    drop(Wire::open(caller.addresses).map_err(unreachable)?);
    let answer = match caller.ask(path, Ask::Get, PATIENCE) {
        Ok(answer) => answer,
        Err(Lost::Interrupted) => return Err(Stop::Interrupted),
        Err(lost) => return Err(Error::input(host, format!("expected {expected}, found none: {lost}")).into()),
    };
    match answer.status {
        300..=399 => {
            let place = answer.location.unwrap_or_else(|| "nowhere".into());
            Err(wrong("the server itself, as redirects are not followed", format!("{} to {place}", answer.status)))
        }
        401 | 403 => Err(Error::invalid("--api-key-file", "a key of this server", answer.words()).into()),
        _ => Ok(answer),
    }
}

/// The names of a list of models.
fn cards(body: &[u8]) -> Option<Vec<Model>> {
    let list: Value = serde_json::from_slice(body).ok()?;
    let card = |card: &Value| Some(Model { name: card["id"].as_str()?.to_owned(), parent: card["parent"].as_str().map(str::to_owned) });
    list["data"].as_array()?.iter().map(card).collect()
}
