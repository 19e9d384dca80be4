//! What the server tells of itself: `/health`, `/version`, `/metrics` and `/openapi.json`.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Uri};
use axum::response::Response;
use serde_json::json;

use super::answer::answer;
use super::app::{App, Phase};
use super::embeddings::probe;
use super::fault::Fault;
use super::writing::one_token;

/// The description of every route.
pub const OPENAPI: &str = include_str!("openapi.json");

/// Whether the server can answer, and by how many of its devices; with `?deep=1` the device embeds one token for it, or draws one.
///
/// # Errors
/// It cannot, or is about to end.
pub async fn health(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Fault> {
    if app.phase() != Phase::Ready {
        return Err(Fault::draining());
    }
    let deep = uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "deep=1"));
    let hangs = |running: Option<Duration>| running.filter(|running| *running > app.config.limits.hang).map_or(Ok(()), |running| Err(Fault::hangs(running)));
    if let Some(embeddings) = &app.embeddings {
        embeddings.is_open()?;
        hangs(embeddings.running())?;
        if deep {
            probe(&app, embeddings).await?;
        }
    }
    if let Some(generator) = &app.generator {
        generator.is_open()?;
        hangs(generator.running())?;
        if deep {
            one_token(&app, generator).await?;
        }
    }
    if let Some(operations) = &app.operations {
        operations.is_open()?;
        hangs(operations.running())?;
    }
    let devices = app.shared.metrics.devices();
    let working = devices.iter().filter(|device| !device.replica.is_lost()).count();
    answer(&json!({"status": "ready", "devices": {"all": devices.len(), "working": working}}))
}

/// The server's version.
///
/// # Errors
/// None in practice.
pub async fn version() -> Result<Response, Fault> {
    answer(&json!({"version": env!("CARGO_PKG_VERSION")}))
}

/// The metrics in OpenMetrics.
///
/// # Errors
/// None in practice.
pub async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Fault> {
    let text = app.shared.metrics.text().map_err(|_| Fault::internal())?;
    Ok(typed(text, "application/openmetrics-text; version=1.0.0; charset=utf-8"))
}

/// The description of every route.
pub async fn openapi() -> Response {
    typed(OPENAPI.into(), "application/json")
}

fn typed(text: String, kind: &'static str) -> Response {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
