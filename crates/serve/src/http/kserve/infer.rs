//! `POST /v2/models/{model}[/versions/{version}]/infer`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderValue, Request as Asked};
use axum::response::Response;

use super::super::app::App;
use super::super::body::read_any;
use super::super::caller::Caller;
use super::super::fault::Fault;
use super::ask::Ask;
use super::named::{Named, named};
use super::{attend, embed};
use crate::kserve::body::{HEADER_LENGTH, split};
use crate::kserve::message::Request;
use crate::kserve::target::Target;

/// Types that a body may have. Clients of the protocol often give none.
const KINDS: [&str; 2] = ["application/json", "application/octet-stream"];
/// Bytes of JSON that are read where they come in; more of them are read beside the connections.
const SMALL: usize = 64 << 10;

/// Answers.
///
/// # Errors
/// A request that is not sound, or that is not let in; a device that fails.
pub async fn infer(State(app): State<Arc<App>>, caller: Caller, Path(path): Path<String>, request: Asked<Body>) -> Result<Response, Fault> {
    let began = app.shared.clock.now();
    let target = Target::read(&path);
    let (parts, body) = request.into_parts();
    let held = read_any(&app, &parts.headers, body, app.config.limits.body_bytes, &KINDS).await?;
    let named = named(&app, &target)?;
    let (json, binary) = split(&held.bytes, parts.headers.get_all(HEADER_LENGTH).iter().map(HeaderValue::as_bytes))?;
    let request = read(json, binary).await?;
    let own = request.timeout.map(Duration::from_micros);
    let timeout = [caller.timeout, own].into_iter().flatten().min();
    let deadline = timeout.and_then(|timeout| began.checked_add(timeout));
    let ask = Ask { app: Arc::clone(&app), tenant: caller.tenant, deadline, model: target.model.to_owned(), request, held };
    let result = match named {
        Named::Embeds(embeddings, lease) => embed::embed(ask, embeddings, lease).await,
        Named::Attends(operations) => attend::attend(ask, operations).await,
    };
    app.stats.add(target.model, result.is_ok(), app.shared.clock.now().saturating_sub(began));
    result
}

async fn read(json: Bytes, binary: Bytes) -> Result<Request, Fault> {
    if json.len() <= SMALL {
        return Ok(Request::read(&json, binary)?);
    }
    let read = tokio::task::spawn_blocking(move || Request::read(&json, binary)).await;
    Ok(read.map_err(|_| Fault::internal())??)
}
