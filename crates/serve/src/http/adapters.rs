//! `POST /v1/load_lora_adapter`, `POST /v1/unload_lora_adapter` and `GET /v1/lora_adapters`: adapters that come and go while the server runs.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::ACCEPT;
use axum::http::{HeaderMap, Request};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use trifuse::Error;

use super::answer::answer;
use super::app::{App, Phase};
use super::caller::Caller;
use super::fault::Fault;
use super::fields::Fields;
use crate::keeper::{Adapters, Held, Loaded, Refused, Wish};
use crate::queueing::registry::Conflict;

/// The longest name of an adapter, in bytes.
const MAX_NAME: usize = 200;

/// The models that have adapters.
fn models(app: &App) -> Vec<&dyn Adapters> {
    let embeddings = app.embeddings.as_ref().map(|embeddings| embeddings.adapters());
    let generator = app.generator.as_ref().map(|generator| generator.keeper() as &dyn Adapters);
    embeddings.into_iter().chain(generator).collect()
}

/// The model that a request is about: the one that it names, or the only one.
///
/// # Errors
/// There is no such model, or more than one.
pub fn model<'a>(app: &'a App, base: Option<&str>) -> Result<&'a dyn Adapters, Fault> {
    let models = models(app);
    let names = || models.iter().map(|model| model.base()).collect::<Vec<_>>().join(" or ");
    match (base, models.as_slice()) {
        (None, [only]) => Ok(*only),
        (None, _) => Err(Fault::expected("base_model", &names(), "nothing")),
        (Some(base), _) => {
            models.iter().find(|model| model.base() == base).copied().ok_or_else(|| Fault::expected("base_model", &names(), format!("{base:?}")))
        }
    }
}

/// Whether a caller may change what is served, and the server lets anybody.
pub fn may(app: &App, caller: &Caller, path: &str) -> Result<(), Fault> {
    match (&app.config.adapter_root, caller.admin) {
        (None, _) => Err(Fault::no_route(path)),
        (Some(_), false) => Err(Fault::no_right()),
        (Some(_), true) => Ok(()),
    }
}

fn name(fields: &mut Fields) -> Result<String, Fault> {
    let expected = format!("a name of 1 to {MAX_NAME} bytes without control characters");
    let name = fields.string("lora_name")?.ok_or_else(|| Fault::expected("lora_name", &expected, "nothing"))?;
    let sound = (1..=MAX_NAME).contains(&name.len()) && !name.chars().any(char::is_control);
    if sound { Ok(name) } else { Err(Fault::expected("lora_name", &expected, "another")) }
}

/// Text, as clients of the route in other servers expect, or JSON where that is asked for.
fn told(headers: &HeaderMap, text: String, value: &Value) -> Result<Response, Fault> {
    let json = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).is_some_and(|accept| accept.contains("application/json"));
    if json { answer(value) } else { Ok(text.into_response()) }
}

impl From<Refused> for Fault {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Conflict(Conflict::Taken) => {
                let message =
                    "lora_name: expected a name that is not taken, or \"load_inplace\": true for another content of an adapter, found one that is taken";
                Self::taken("lora_name", message)
            }
            Refused::Conflict(Conflict::Generation(found)) => {
                let found = found.map_or_else(|| "no such adapter".to_owned(), |found| format!("generation {found}"));
                Self::conflict("expected_generation", "lora_generation_mismatch", format!("expected_generation: expected what the name leads to, {found}"))
            }
            Refused::NotThere(there) => Self::no_model("lora_name", "that adapter", &there),
            Refused::Failed(Error::OutOfMemory { .. }) => Self::no_memory("the device has no memory for one more adapter; unload another"),
            Refused::Failed(Error::Device { .. }) => crate::queueing::ticket::Failure::DeviceLost.into(),
            Refused::Failed(error) => Self::param("lora_path", "invalid_value", error.to_string()),
        }
    }
}

/// Loads an adapter, or another content of one.
///
/// # Errors
/// Loading is off; a key without the right; a request that is not sound; a name that is taken; what is no adapter of the model.
pub async fn load(State(app): State<Arc<App>>, caller: Caller, request: Request<Body>) -> Result<Response, Fault> {
    let (parts, body) = request.into_parts();
    may(&app, &caller, parts.uri.path())?;
    let body = super::body::read(&app, &parts.headers, body, app.config.limits.body_bytes).await?;
    let mut fields = Fields::read(&body.bytes)?;
    let alias = name(&mut fields)?;
    let path = fields.string("lora_path")?.ok_or_else(|| Fault::expected("lora_path", "a path below the server's adapter root", "nothing"))?;
    let entry = fields.string("entry")?.unwrap_or_else(|| alias.clone());
    let wish = Wish { alias: alias.clone(), replace: fields.flag("load_inplace")?, expected: fields.string("expected_generation")? };
    let pinned = fields.flag("pinned")?;
    let base = fields.string("base_model")?.or(fields.string("base_model_name")?);
    fields.end()?;
    let own = model(&app, base.as_deref())?.base().to_owned();
    let Loaded { content, changed } = put(&app, own, wish, (path, entry), Some(pinned), std::slice::from_ref(&alias)).await?;
    let value = json!({"lora_name": alias, "adapter_generation": content, "changed": changed});
    told(&parts.headers, format!("Success: LoRA adapter '{alias}' added successfully."), &value)
}

/// Lets a name of the model `own` lead to the adapter at a path below the server's adapter root, which of a bundle has the name that follows. Where adapters come
/// when they are asked for, another one goes that is not `wanted`, if there is no room; one that is `pinned` does not.
///
/// # Errors
/// A name that is taken; what is no adapter of the model; a device that does not take it.
pub async fn put(app: &Arc<App>, own: String, wish: Wish, (path, entry): (String, String), pinned: Option<bool>, wanted: &[String]) -> Result<Loaded, Fault> {
    // Names are those of one server, whichever model they lead to.
    let elsewhere = models(app).into_iter().filter(|model| model.base() != own).any(|model| model.has(&wish.alias));
    if elsewhere {
        return Err(Refused::Conflict(Conflict::Taken).into());
    }
    let _turn = app.changes.lock().await;
    let (held, wanted) = (Arc::clone(app), wanted.to_vec());
    let work = move || {
        let model = model(&held, Some(&own))?;
        model.check(&wish)?;
        if let (Some(most), Some(true)) = (held.config.on_demand, pinned) {
            held.demand.may_pin(most, &own, &wish.alias)?;
        }
        let root = held.config.adapter_root.as_ref().ok_or_else(Fault::internal)?;
        let found = root.read(&path, &entry).map_err(Refused::Failed)?;
        let alias = wish.alias.clone();
        let most = held.config.on_demand.filter(|_| !model.has(&alias));
        let goes = most.map_or(Ok(None), |most| held.demand.goes(model, most, &wanted))?;
        let loaded = model.load(wish, found).map_err(|refused| match refused {
            // A device that takes nothing more because the server ends is not lost.
            Refused::Failed(Error::Device { .. }) if held.phase() == Phase::Draining => Fault::draining(),
            other => Fault::from(other),
        })?;
        held.demand.loaded(&own, &alias, pinned);
        // What cannot be loaded drives nothing out.
        if let Some(goes) = goes {
            drop(model.unload(&goes, None));
            held.demand.gone(&own, &goes);
        }
        Ok(loaded)
    };
    app.aside(work).await?
}

/// Unloads an adapter. Requests that have it keep it to their end.
///
/// # Errors
/// Loading is off; a key without the right; a request that is not sound; no such adapter.
pub async fn unload(State(app): State<Arc<App>>, caller: Caller, request: Request<Body>) -> Result<Response, Fault> {
    let (parts, body) = request.into_parts();
    may(&app, &caller, parts.uri.path())?;
    let body = super::body::read(&app, &parts.headers, body, app.config.limits.body_bytes).await?;
    let mut fields = Fields::read(&body.bytes)?;
    let (alias, expected) = (name(&mut fields)?, fields.string("expected_generation")?);
    // Other servers tell the adapter's number here; names are enough.
    fields.ignore("lora_int_id");
    fields.end()?;
    let models = models(&app);
    let model = models.iter().find(|model| model.has(&alias)).or(models.first()).ok_or_else(Fault::internal)?;
    take(&app, *model, &alias, expected.as_deref()).await?;
    told(&parts.headers, format!("Success: LoRA adapter '{alias}' removed successfully."), &json!({"lora_name": alias}))
}

/// Lets a name of a model lead to nothing.
///
/// # Errors
/// There is no such adapter, or another generation than was expected.
pub async fn take(app: &App, model: &dyn Adapters, alias: &str, expected: Option<&str>) -> Result<(), Fault> {
    let _turn = app.changes.lock().await;
    model.unload(alias, expected).map_err(|refused| match refused {
        Refused::NotThere(there) => Fault::no_model("lora_name", alias, &there),
        other => other.into(),
    })?;
    app.demand.gone(model.base(), alias);
    Ok(())
}

/// The adapters, with what is known of each.
///
/// # Errors
/// None in practice.
pub async fn list(State(app): State<Arc<App>>) -> Result<Response, Fault> {
    let own = Arc::clone(&app);
    let all = move || {
        let of = |model: &dyn Adapters| {
            let parent = model.base().to_owned();
            let pinned = |held: &Held| own.demand.is_pinned(&parent, &held.alias);
            model.list().into_iter().map(|held| card(&parent, pinned(&held), held)).collect::<Vec<_>>()
        };
        models(&own).into_iter().flat_map(of).collect::<Vec<Value>>()
    };
    // The device may be busy.
    let data = app.aside(all).await?;
    answer(&json!({"object": "list", "data": data}))
}

fn card(parent: &str, pinned: bool, held: Held) -> Value {
    let Held { alias, content, about, resident, users } = held;
    json!({
        "lora_name": alias, "parent": parent, "adapter_generation": content, "resident": resident, "requests": users, "pinned": pinned,
        "bytes": about.map(|about| about.bytes), "cosine": about.map(|about| about.cosine),
    })
}
