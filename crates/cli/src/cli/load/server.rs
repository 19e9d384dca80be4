//! What a server says of itself before it is measured: that it is there, and the names that it serves.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use trifuse::{Error, Result};

use super::address::Address;
use super::args::{Args, Which};
use super::questions::{Model, head};
use super::said::fault;
use super::wire::{Lost, Patience, Wire};
use crate::cli::interrupt::Interrupt;

/// How long the list of names may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// The names that are to be asked.
///
/// # Errors
/// A server that is not there, that is another one, or that has no such names; `None` where the program is to end.
pub fn models(args: &Args, address: &Address, addresses: &[SocketAddr], key: Option<&str>, interrupt: &Interrupt) -> Result<Option<Vec<Model>>> {
    let request = format!("{}\r\n", head("GET", address, "/v1/models", key));
    let unreachable = |error: std::io::Error| {
        let words = format!("{error}; `trifuse serve --model MODEL` starts a server");
        Error::io(&address.host, "connect to")(std::io::Error::new(error.kind(), words))
    };
    let mut wire = Wire::open(addresses).map_err(unreachable)?;
    let mut body = Vec::new();
    let patience = Patience { until: Instant::now() + PATIENCE, interrupt };
    let answer = match wire.ask(request.as_bytes(), &patience, &mut |part| body.extend_from_slice(part)) {
        Ok(answer) => answer,
        Err(Lost::Interrupted) => return Ok(None),
        Err(lost) => return Err(Error::input(&address.host, format!("expected the models of a server by OpenAI's routes, found none: {lost}"))),
    };
    let wrong = |expected: &str, found: String| Err(Error::invalid("URL", expected, found));
    let cards = match answer.status {
        200 => cards(&body),
        300..=399 => {
            let place = answer.location.unwrap_or_else(|| "nowhere".into());
            return wrong("the server itself, as redirects are not followed", format!("{} to {place}", answer.status));
        }
        401 | 403 => return Err(Error::invalid("--api-key-file", "a key of this server", format!("{}: {}", answer.status, fault(&body)))),
        // A server without the list is measured all the same where the names are given.
        _ => None,
    };
    let named = || {
        let parent = |name: &String| cards.iter().flatten().find(|card| card.name == *name).and_then(|card| card.parent.clone());
        args.models.iter().map(|name| Model { name: name.clone(), parent: parent(name) }).collect::<Vec<_>>()
    };
    if !args.models.is_empty() {
        return Ok(Some(named()));
    }
    let Some(cards) = cards else {
        return wrong("a server that lists its models, or --model NAME", format!("{} for GET /v1/models: {}", answer.status, fault(&body)));
    };
    let asked: Vec<Model> = match args.adapters {
        Some(Which::Mixed) => cards,
        None => cards.into_iter().filter(|card| card.parent.is_none()).take(1).collect(),
    };
    if asked.is_empty() { wrong("a server with a model", "none in its list".into()) } else { Ok(Some(asked)) }
}

/// The names of a list of models.
fn cards(body: &[u8]) -> Option<Vec<Model>> {
    let list: Value = serde_json::from_slice(body).ok()?;
    let card = |card: &Value| Some(Model { name: card["id"].as_str()?.to_owned(), parent: card["parent"].as_str().map(str::to_owned) });
    list["data"].as_array()?.iter().map(card).collect()
}
