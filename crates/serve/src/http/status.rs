//! `GET /status`: what the server does now, as data. The page shows it.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::answer::answer;
use super::app::{App, Phase};
use super::fault::Fault;
use super::models::cards;
use super::paths::ROUTES;
use crate::metrics::{Device, SECONDS};
use crate::queueing::ledger::Outcome;
use crate::replica::Done;

/// How far the server is, and whether it has a device.
fn state(app: &App) -> &'static str {
    match app.phase() {
        Phase::Ending => "ending",
        Phase::Draining => "draining",
        Phase::Ready if app.embeddings.as_ref().is_some_and(|embeddings| embeddings.is_open().is_err()) => "lost",
        Phase::Ready if app.generator.as_ref().is_some_and(|generator| generator.is_open().is_err()) => "lost",
        Phase::Ready => "ready",
    }
}

/// Every name, with what it makes and how often it was asked for.
fn models(app: &App) -> Vec<Value> {
    let base = app.embeddings.as_ref().map(|embeddings| embeddings.adapters().base());
    let one = |card: Value| {
        let vectors = base.is_some_and(|base| card["id"] == base || card["parent"] == base);
        let makes = if vectors { "vectors" } else { "text" };
        let requests = card["id"].as_str().map_or(0, |id| app.shared.metrics.models.count(id));
        let mut told = json!({"id": card["id"], "parent": card["parent"], "makes": makes, "requests": requests});
        if let Some(content) = card.get("adapter_generation") {
            told["adapter_generation"] = content.clone();
        }
        told
    };
    cards(app).into_iter().map(one).collect()
}

/// Every device of every model, whether it works, and what it has done.
fn devices(app: &App) -> Vec<Value> {
    let one = |device: Device| {
        let Done { tasks, tokens, handed_on } = device.replica.done();
        let state = if device.replica.is_lost() { "lost" } else { "working" };
        json!({
            "model": device.model, "replica": device.number, "device": device.replica.device(), "state": state,
            "tasks": tasks, "tokens": tokens, "handed_on": handed_on,
        })
    };
    app.shared.metrics.devices().into_iter().map(one).collect()
}

/// What the server does.
///
/// # Errors
/// None in practice.
pub async fn status(State(app): State<Arc<App>>) -> Result<Response, Fault> {
    let (metrics, ledger) = (&app.shared.metrics, &app.shared.ledger);
    let mut requests: Map<String, Value> = Outcome::ALL.iter().map(|outcome| (outcome.name().to_owned(), ledger.ended(*outcome).into())).collect();
    requests.insert("accepted".into(), ledger.accepted().into());
    requests.insert("open".into(), ledger.open().into());
    let routes: Map<String, Value> = ROUTES.iter().filter_map(|route| Some(((*route).to_owned(), metrics.route_seconds(route)?.into()))).collect();
    answer(&json!({
        "state": state(&app),
        "version": env!("CARGO_PKG_VERSION"),
        "uptime_seconds": app.now().saturating_sub(app.started),
        "requests": requests,
        "tokens": {"waiting": metrics.queued_tokens.get(), "prompt": metrics.prompt_tokens.get(), "generated": metrics.generated_tokens.get()},
        "connections": metrics.connections.get(),
        "models": models(&app),
        "devices": devices(&app),
        "seconds": {
            "bounds": SECONDS,
            "routes": routes,
            "queue": metrics.waited.counts(),
            "batch": metrics.computed.counts(),
            "first_token": metrics.written.first_token.counts(),
            "next_token": metrics.written.next_token.counts(),
        },
    }))
}
