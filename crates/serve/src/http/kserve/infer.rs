//! `POST /v2/models/{model}[/versions/{version}]/infer`.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue, Request as Asked};
use axum::response::Response;

use super::super::app::App;
use super::super::body::read_any;
use super::super::caller::Caller;
use super::super::fault::Fault;
use super::answer::answer;
use super::ask::Ask;
use super::named::asked;
use crate::kserve::body::{HEADER_LENGTH, split};
use crate::kserve::json;
use crate::kserve::message::Request;
use crate::kserve::reply::Reply;
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
    let named = asked(&app, &target).await?;
    let (text, binary) = split(&held.bytes, parts.headers.get_all(HEADER_LENGTH).iter().map(HeaderValue::as_bytes))?;
    let request = read(&app, text, binary).await?;
    let ask = Ask::new(&app, caller, began, target.model, request, held);
    answer(ask, named, began, |reply| response(&reply)).await
}

/// The answer in HTTP.
fn response(reply: &Reply) -> Result<Response, Fault> {
    let (body, length) = reply.body()?;
    let mut response = Response::new(Body::from(body));
    let kind = if length.is_some() { "application/octet-stream" } else { "application/json" };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Some(length) = length {
        response.headers_mut().insert(HeaderName::from_static(HEADER_LENGTH), length.into());
    }
    Ok(response)
}

async fn read(app: &App, text: Bytes, binary: Bytes) -> Result<Request, Fault> {
    if text.len() <= SMALL {
        return Ok(json::read(&text, binary)?);
    }
    Ok(app.aside(move || json::read(&text, binary)).await??)
}
