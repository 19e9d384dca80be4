//! The routes, and what is the same for all: ids of requests, keys, the end of the server, and faults that nobody foresaw.

use std::pin::pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::DefaultBodyLimit;
use axum::http::header::{CONNECTION, CONTENT_LENGTH};
use axum::http::{HeaderValue, Request, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tower_service::Service;

use super::app::{About, App, Phase};
use super::caller::{Caller, REQUEST_ID, request_id};
use super::caught::{Caught, Panicked};
use super::fault::{Code, Fault, Message};
use super::paths::{METRICS, PAGE, STATUS, route};
use super::{adapters, chat, completions, embeddings, health, kserve, models, page, status};
use crate::account::{Account, Answer};

/// The router of a server.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route(PAGE, get(page::page))
        .route(STATUS, get(status::status))
        .route("/health", get(health::health))
        .route(METRICS, get(health::metrics))
        .route("/version", get(health::version))
        .route("/openapi.json", get(health::openapi))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/v1/lora_adapters", get(adapters::list))
        .route("/v1/load_lora_adapter", post(adapters::load))
        .route("/v1/unload_lora_adapter", post(adapters::unload))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::chat))
        .merge(kserve::router())
        .fallback(|uri: Uri| async move { Fault::no_route(uri.path()) })
        .method_not_allowed_fallback(|| async { Fault::no_method() })
        .layer(DefaultBodyLimit::disable())
        .with_state(app)
}

/// Whether a request to that path asks a model for something that a key may have a bounded number of.
fn asks_a_model(path: &str) -> bool {
    matches!(path, "/v1/embeddings" | "/v1/completions" | "/v1/chat/completions") || (path.starts_with("/v2/models/") && path.ends_with("/infer"))
}

/// What a request is called in traces.
fn about(request: &Request<Body>) -> About {
    let (method, route) = (request.method().as_str(), route(request.uri().path()));
    let labels = vec![("http.request.method", method.to_owned()), ("http.route", route.to_owned())];
    About { name: format!("{method} {route}"), labels }
}

/// Answers a request.
pub async fn answer(app: &Arc<App>, mut router: Router, mut request: Request<Body>) -> Response {
    let began = app.shared.clock.now();
    let id = request_id(app, request.headers());
    let path = request.uri().path();
    let route = route(path);
    let open_inference = path == "/v2" || path.starts_with("/v2/");
    let guarded = path.starts_with("/v1/") || (path.starts_with("/v2/") && !path.starts_with("/v2/health/"));
    let asks = asks_a_model(path);
    let account = if guarded { app.account(request.headers(), || about(&request)) } else { Account::default() };
    let let_in = |request: &mut Request<Body>| {
        if !guarded && route != STATUS && !(route == METRICS && app.config.metrics_key) {
            return Ok(());
        }
        if guarded && app.phase() == Phase::Draining {
            return Err(Fault::draining());
        }
        let caller = Caller::of(&app.keys(), request.headers(), account.clone())?;
        if asks {
            app.meter(caller.tenant).map_or(Ok(()), |meter| meter.request())?;
        }
        request.extensions_mut().insert(caller);
        Ok(())
    };
    let mut response = match let_in(&mut request) {
        // The router is always ready, and never fails but by a panic of a handler.
        Ok(()) => match Caught(pin!(router.call(request))).await {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(Panicked) => Fault::internal().into_response(),
        },
        Err(fault) => fault.into_response(),
    };
    if let Some(Code(code)) = response.extensions().get::<Code>() {
        app.shared.metrics.refused(code);
        account.failed(code);
    }
    account.answered(Answer::Http(response.status().as_u16()));
    if let Some(Message(message)) = response.extensions().get::<Message>().filter(|_| open_inference) {
        // The open inference protocol has errors of its own form.
        let body = serde_json::json!({"error": message}).to_string();
        *response.body_mut() = Body::from(body);
        // The router has told the length of the other form.
        response.headers_mut().remove(CONTENT_LENGTH);
    }
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    if app.phase() == Phase::Draining {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    app.shared.metrics.answered(route, response.status().as_u16(), app.shared.clock.now() - began);
    response
}
