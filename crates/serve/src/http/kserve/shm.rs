//! `/v2/systemsharedmemory/…`: names for shared memory of this machine, where the server was told to allow them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::Request;
use axum::response::Response;
use serde_json::{Value, json};

use super::super::answer::answer;
use super::super::app::App;
use super::super::body::read_any;
use super::super::caller::Caller;
use super::super::fault::Fault;
use super::super::fields::Fields;
use crate::shm::Refused;

/// The longest body of a request to register.
const MAX_BODY: usize = 1 << 16;

fn allowed(app: &App) -> Result<(), Fault> {
    match app.config.client_shm {
        true => Ok(()),
        false => Err(Fault::forbidden("the server takes no shared memory of its callers; serve with --allow-client-shm")),
    }
}

/// Every name of the caller.
///
/// # Errors
/// The server does not allow them.
pub async fn status(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Fault> {
    allowed(&app)?;
    answer(&cards(&app, caller, None))
}

fn cards(app: &App, caller: Caller, only: Option<&str>) -> Vec<Value> {
    let list = app.shm.list(caller.tenant.number, only);
    list.iter().map(|(name, own)| json!({"name": name, "key": own.key, "offset": own.offset, "byte_size": own.bytes})).collect()
}

/// One name.
///
/// # Errors
/// It is not there.
pub async fn status_of(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>) -> Result<Response, Fault> {
    allowed(&app)?;
    let cards = cards(&app, caller, Some(&name));
    if cards.is_empty() { Err(Fault::no_region(&name)) } else { answer(&cards) }
}

/// Gives a part of shared memory a name.
///
/// # Errors
/// A name that is taken; memory that is not there.
pub async fn register(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>, request: Request<Body>) -> Result<Response, Fault> {
    allowed(&app)?;
    let (parts, body) = request.into_parts();
    let body = read_any(&app, &parts.headers, body, MAX_BODY, &["application/json"]).await?;
    let mut fields = Fields::read(&body.bytes)?;
    let key = fields.string("key")?.ok_or_else(|| Fault::expected("key", "the name of shared memory", "nothing"))?;
    let offset = fields.count("offset", 0)?.unwrap_or(0);
    let bytes = fields.count("byte_size", 1)?.ok_or_else(|| Fault::expected("byte_size", "a whole number of at least 1", "nothing"))?;
    fields.end()?;
    let tenant = caller.tenant.number;
    let taken = || Fault::taken("name", format!("the name {name:?} is taken; unregister it first"));
    if name.is_empty() || name.len() > 256 || app.operations.as_ref().is_some_and(|operations| operations.regions.get(tenant, &name).is_some()) {
        return Err(taken());
    }
    match app.shm.register(tenant, &name, &key, offset, bytes) {
        Ok(()) => answer(&json!({})),
        Err(Refused::Taken) => Err(taken()),
        Err(Refused::Many(most)) => Err(Fault::expected("name", &format!("at most {most} names at once"), "one more")),
        // Where it lies is no secret of the caller's, but no more is told than that.
        Err(Refused::Unsound(error)) => Err(Fault::expected("key", "shared memory that is there, with as many bytes", error)),
    }
}

/// Takes all names of the caller away.
///
/// # Errors
/// The server does not allow them.
pub async fn unregister(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, Fault> {
    allowed(&app)?;
    app.shm.unregister(caller.tenant.number, None);
    answer(&json!({}))
}

/// Takes a name away; it is no error where it is not there, as clients of the protocol expect.
///
/// # Errors
/// The server does not allow them.
pub async fn unregister_one(State(app): State<Arc<App>>, caller: Caller, Path(name): Path<String>) -> Result<Response, Fault> {
    allowed(&app)?;
    app.shm.unregister(caller.tenant.number, Some(&name));
    answer(&json!({}))
}
