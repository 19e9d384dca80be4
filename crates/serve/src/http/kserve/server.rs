//! `GET /v2`, `/v2/health/…` and `POST /v2/repository/index`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use serde_json::{Value, json};

use super::super::answer::answer;
use super::super::app::{App, Phase};
use super::super::body::read_any;
use super::super::fault::Fault;
use super::super::fields::Fields;
use super::named::{Named, named, names};
use crate::kserve::reply::VERSION;
use crate::kserve::target::{Action, Target};

/// What the server is, and which extensions of the protocol it has.
///
/// # Errors
/// None in practice.
pub async fn metadata(State(app): State<Arc<App>>) -> Result<Response, Fault> {
    let mut extensions = extensions(&app);
    extensions.push("statistics");
    extensions.extend(app.config.adapter_root.is_some().then_some("model_repository"));
    answer(&json!({"name": "trifuse", "version": env!("CARGO_PKG_VERSION"), "extensions": extensions}))
}

/// The extensions of the protocol that the server has, over gRPC too.
pub fn extensions(app: &App) -> Vec<&'static str> {
    let mut extensions = vec!["binary_tensor_data", "parameters"];
    extensions.extend(app.config.client_shm.then_some("system_shared_memory"));
    extensions.extend(app.operations.is_some().then_some("trifuse_regions"));
    extensions
}

/// A sign that the server runs.
///
/// # Errors
/// None in practice.
pub async fn live() -> Result<Response, Fault> {
    answer(&json!({"live": true}))
}

/// Whether the server can answer.
///
/// # Errors
/// It cannot, or is about to end.
pub async fn ready(State(app): State<Arc<App>>) -> Result<Response, Fault> {
    is_ready(&app)?;
    answer(&json!({"ready": true}))
}

/// Whether the server can answer by the protocol.
///
/// # Errors
/// It cannot, or is about to end.
pub fn is_ready(app: &App) -> Result<(), Fault> {
    if app.phase() != Phase::Ready {
        return Err(Fault::draining());
    }
    if let Some(embeddings) = &app.embeddings {
        embeddings.is_open()?;
    }
    if let Some(operations) = &app.operations {
        operations.is_open()?;
    }
    Ok(())
}

/// The longest body of a request for the index.
const MAX_BODY: usize = 1 << 16;

/// Every name; with `"ready": true` those that answer.
///
/// # Errors
/// A body that is no such request.
pub async fn index(State(app): State<Arc<App>>, request: Request<Body>) -> Result<Response, Fault> {
    let (parts, body) = request.into_parts();
    let body = read_any(&app, &parts.headers, body, MAX_BODY, &["application/json"]).await?;
    let mut only = false;
    if !body.bytes.is_empty() {
        let mut fields = Fields::read(&body.bytes)?;
        only = fields.flag("ready")?;
        fields.end()?;
    }
    let row = |name: &String| {
        let target = Target { model: name, version: None, action: Action::Ready };
        let ready = named(&app, &target).and_then(|named: Named<'_>| named.is_open()).is_ok();
        let state = if ready { "READY" } else { "UNAVAILABLE" };
        (ready || !only).then(|| json!({"name": name, "version": VERSION, "state": state, "reason": ""}))
    };
    answer(&names(&app).iter().filter_map(row).collect::<Vec<Value>>())
}
