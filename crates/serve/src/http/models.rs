//! `GET /v1/models` and `GET /v1/models/{id}`: every name that a request may give.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};

use super::answer::answer;
use super::app::App;
use super::fault::Fault;
use super::missing::not_there;

/// The adapters below the adapter root that are loaded when a request names them, and are not there yet. Of which model they are shows when they are loaded, where
/// there are two.
fn listed(app: &App, there: &[Value]) -> Vec<Value> {
    let (Some(root), Some(_)) = (&app.config.adapter_root, app.config.on_demand) else { return Vec::new() };
    let most = there.first().map_or(Value::Null, |card| card["max_model_len"].clone());
    let bases: Vec<&Value> = there.iter().filter(|card| card["parent"].is_null()).collect();
    let parent = if let [only] = bases[..] { only["id"].clone() } else { Value::Null };
    let names = root.names().into_iter().filter(|name| there.iter().all(|card| card["id"] != **name));
    names
        .map(|name| json!({"id": name, "object": "model", "created": app.started, "owned_by": "trifuse", "root": name, "parent": parent, "max_model_len": most, "state": "listed"}))
        .collect()
}

fn card(app: &App, id: &str, parent: Option<&str>, generation: Option<&str>, max_tokens: usize) -> Value {
    let mut card = json!({
        "id": id, "object": "model", "created": app.started, "owned_by": "trifuse", "root": id, "parent": parent, "max_model_len": max_tokens, "state": "ready",
    });
    if let Some(generation) = generation {
        card["adapter_generation"] = generation.into();
    }
    card
}

/// A card for every name: those of the model that embeds come first.
pub fn cards(app: &App) -> Vec<Value> {
    let mut cards = Vec::new();
    if let Some(embeddings) = &app.embeddings {
        let (registry, most) = (embeddings.registry(), embeddings.text().max_tokens());
        cards.push(card(app, registry.base(), None, None, most));
        cards.extend(registry.adapters().map(|own| card(app, &own.alias, Some(registry.base()), Some(&own.content), most)));
    }
    if let Some(generator) = &app.generator {
        let (names, most) = (generator.keeper().names(), generator.max_tokens());
        cards.push(card(app, names.base(), None, None, most));
        cards.extend(names.adapters().map(|own| card(app, &own.alias, Some(names.base()), Some(&own.content), most)));
    }
    let listed = listed(app, &cards);
    cards.extend(listed);
    cards
}

/// All of them.
///
/// # Errors
/// None in practice.
pub async fn list(State(app): State<Arc<App>>) -> Result<Response, Fault> {
    answer(&json!({"object": "list", "data": cards(&app)}))
}

/// One of them.
///
/// # Errors
/// It is not there.
pub async fn one(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Fault> {
    let cards = cards(&app);
    let text = |card: &Value, key: &str| card[key].as_str().unwrap_or_default().to_owned();
    let is = |card: &&Value| text(card, "id") == id || (!card["parent"].is_null() && format!("{}:{}", text(card, "parent"), text(card, "id")) == id);
    match cards.iter().find(is) {
        Some(card) => answer(card),
        None => Err(Fault::no_model("id", &id, &not_there(&app))),
    }
}
