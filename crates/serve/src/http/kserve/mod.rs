//! The routes of the open inference protocol, version 2, and those for memory that has a name.

pub mod answer;
pub mod ask;
mod attend;
pub mod embed;
mod infer;
pub mod models;
pub mod named;
mod places;
mod regions;
mod repository;
pub mod server;
mod shm;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Method, Request};
use axum::response::Response;
use axum::routing::{any, get, post};

use super::app::App;
use super::caller::Caller;
use super::fault::Fault;
use crate::kserve::target::{Action, Target};

/// One path of a model, each with its own methods.
async fn model(State(app): State<Arc<App>>, caller: Caller, Path(path): Path<String>, request: Request<Body>) -> Result<Response, Fault> {
    let infers = path != "stats" && Target::read(&path).action == Action::Infer;
    match (request.method(), infers) {
        (&Method::POST, true) => infer::infer(State(app), caller, Path(path), request).await,
        (&Method::GET | &Method::HEAD, false) => models::get(State(app), Path(path)).await,
        (_, true) => Err(Fault::only("POST")),
        (_, false) => Err(Fault::only("GET,HEAD")),
    }
}

/// The routes below `/v2`.
pub fn router() -> Router<Arc<App>> {
    Router::new()
        .route("/v2", get(server::metadata))
        .route("/v2/health/live", get(server::live))
        .route("/v2/health/ready", get(server::ready))
        .route("/v2/repository/index", post(server::index))
        .route("/v2/repository/models/{*path}", post(repository::change))
        .route("/v2/models/{*path}", any(model))
        .route("/v2/trifuse/regions", get(regions::list))
        .route("/v2/trifuse/regions/{name}", get(regions::one).put(regions::put).delete(regions::delete))
        .route("/v2/trifuse/regions/{name}/bytes", get(regions::bytes))
        .route("/v2/systemsharedmemory/status", get(shm::status))
        .route("/v2/systemsharedmemory/unregister", post(shm::unregister))
        .route("/v2/systemsharedmemory/region/{name}/status", get(shm::status_of))
        .route("/v2/systemsharedmemory/region/{name}/register", post(shm::register))
        .route("/v2/systemsharedmemory/region/{name}/unregister", post(shm::unregister_one))
}
