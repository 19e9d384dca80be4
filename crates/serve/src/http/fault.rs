//! Errors as callers get them: the body that OpenAI's clients read, and the status that they act on.

use std::time::Duration;

use axum::body::Body;
use axum::http::header::{ALLOW, CONNECTION, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use trifuse::Error;

use crate::line::Closed;
use crate::operations::regions::Full;
use crate::queueing::registry::NotThere;
use crate::queueing::ticket::Failure;

/// An error in answer to a request.
#[derive(Clone, Debug)]
pub struct Fault {
    /// The status of HTTP.
    pub status: StatusCode,
    /// What went wrong, by a name that stays the same.
    pub code: &'static str,
    kind: &'static str,
    /// What went wrong, in words.
    pub message: String,
    /// The field of the request that is at fault.
    param: Option<String>,
    /// When to ask again.
    pub retry_after: Option<Duration>,
    /// The methods that the route takes, where the router does not tell them.
    allow: Option<&'static str>,
    /// Whether what is left of the request is not read.
    close: bool,
}

/// The header by which OpenAI's clients are told not to try again.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The most characters of words about a request that is not sound, and of the field that they name. Both may have been sent: an answer does not give back as much
/// as it was given.
const LONGEST: usize = 1000;
const LONGEST_PARAM: usize = 200;

/// A text, or its first characters where there are more.
fn short(text: String, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

impl Fault {
    fn new(status: StatusCode, kind: &'static str, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code, message: message.into(), param: None, retry_after: None, allow: None, close: false }
    }

    /// The request is not sound.
    pub fn invalid(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", code, short(message.into(), LONGEST))
    }

    /// The field `param` is not sound.
    pub fn param(param: impl Into<String>, code: &'static str, message: impl Into<String>) -> Self {
        Self { param: Some(short(param.into(), LONGEST_PARAM)), ..Self::invalid(code, message) }
    }

    /// The field `param` holds something other than is expected.
    pub fn expected(param: &str, expected: &str, found: impl std::fmt::Display) -> Self {
        Self::param(param, "invalid_value", format!("{param}: expected {expected}, found {found}"))
    }

    /// The same fault, of the field that the request has in place of `param`.
    #[must_use]
    pub fn renamed(mut self, param: &str, own: &str) -> Self {
        if self.param.as_deref() == Some(param) {
            self.param = Some(own.into());
        }
        self
    }

    /// There is no such key, or none was given.
    pub fn no_key() -> Self {
        let message = "expected an API key of this server, as Authorization: Bearer KEY; found none that it knows";
        Self::new(StatusCode::UNAUTHORIZED, "authentication_error", "invalid_api_key", message)
    }

    /// The key may not do this.
    pub fn no_right() -> Self {
        let message = "expected a key that may change what is served (:admin in the file of keys), found one that may not";
        Self::new(StatusCode::FORBIDDEN, "permission_error", "permission_denied", message)
    }

    /// What is there is not what the request takes to be there.
    pub fn conflict(param: &str, code: &'static str, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(StatusCode::CONFLICT, "conflict_error", code, message) }
    }

    /// The device has no memory for it.
    pub fn no_memory(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INSUFFICIENT_STORAGE, "server_error", "out_of_memory", message)
    }

    /// The device has not answered for so long.
    pub fn hangs(running: Duration) -> Self {
        let message = format!("the device has worked on one batch for {} s", running.as_secs());
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "device_hangs", message)
    }

    /// There is no such model or adapter.
    pub fn no_model(param: &str, name: &str, there: &NotThere) -> Self {
        let name: String = name.chars().take(200).collect();
        let names = if there.names.is_empty() { "no model".to_owned() } else { there.names.join(", ") };
        let more = if there.more > 0 { format!(" and {} more", there.more) } else { String::new() };
        let message = format!("{param}: there is no {name:?} here; there is {names}{more}");
        Self { param: Some(param.into()), ..Self::new(StatusCode::NOT_FOUND, "not_found_error", "model_not_found", message) }
    }

    /// The model is here and does something else, which `route` asks for.
    pub fn other_kind(param: &str, name: &str, does: &str, route: &str) -> Self {
        let name: String = name.chars().take(200).collect();
        let message = format!("{param}: {name:?} {does}; POST {route} asks it");
        Self { param: Some(param.into()), ..Self::new(StatusCode::NOT_FOUND, "not_found_error", "model_not_found", message) }
    }

    /// There is no such route.
    pub fn no_route(path: &str) -> Self {
        let path: String = path.chars().take(200).collect();
        Self::new(StatusCode::NOT_FOUND, "not_found_error", "route_not_found", format!("there is no route {path:?} here; GET /openapi.json lists them"))
    }

    /// The route is there, and is asked by another method.
    pub fn no_method() -> Self {
        let message = "the route takes another method; GET /openapi.json tells which";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", "method_not_allowed", message)
    }

    /// The same, where the route takes only these methods.
    pub fn only(methods: &'static str) -> Self {
        Self { allow: Some(methods), ..Self::no_method() }
    }

    /// The body took longer than it may.
    pub fn slow(limit: Duration) -> Self {
        let message = format!("expected the body within {} s", limit.as_secs());
        Self { close: true, ..Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", "request_timeout", message) }
    }

    /// The body is longer than it may be.
    pub fn large(limit: usize) -> Self {
        let message = format!("expected a body of at most {limit} bytes, found more");
        Self { close: true, ..Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", "request_too_large", message) }
    }

    /// There is no room for the body beside those of others.
    pub fn full() -> Self {
        let message = "the server holds as many bytes of requests as it may; ask later";
        let fault = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "overloaded", message);
        Self { retry_after: Some(Duration::from_secs(1)), close: true, ..fault }
    }

    /// Adapters that are in use have all the room for those that come when they are asked for.
    pub fn crowded(most: usize) -> Self {
        let message = format!("requests have all of the {most} adapters that may be loaded at once; ask later");
        let fault = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "overloaded", message);
        Self { retry_after: Some(Duration::from_secs(1)), ..fault }
    }

    /// The key has asked for as much as it may a second.
    pub fn rate(most: u32, what: &str, wait: Duration) -> Self {
        let message = format!("expected at most {most} {what} a second of this key, found more; ask again in {:.1} s", wait.as_secs_f64());
        let fault = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "rate_limit_exceeded", message);
        Self { retry_after: Some(wait), ..fault }
    }

    /// The body is of another type.
    pub fn media_type(expected: &str, found: &str) -> Self {
        let found: String = found.chars().take(100).collect();
        let message = format!("content-type: expected {expected}, found {found:?}");
        Self { close: true, ..Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", "unsupported_media_type", message) }
    }

    /// There is no such memory.
    pub fn no_region(name: &str) -> Self {
        let name: String = name.chars().take(200).collect();
        let message = format!("there is no region {name:?} here; GET /v2/trifuse/regions and /v2/systemsharedmemory/status list them");
        Self::new(StatusCode::NOT_FOUND, "not_found_error", "region_not_found", message)
    }

    /// There is no room for a region beside the others.
    pub fn no_room(full: Full) -> Self {
        let message =
            format!("regions: expected at most {} bytes of all together, found more than the {} left", full.most, full.most.saturating_sub(full.used));
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", "region_quota_exceeded", message)
    }

    /// The name in the field `param` is taken.
    pub fn taken(param: &str, message: impl Into<String>) -> Self {
        Self::conflict(param, "name_taken", message)
    }

    /// The key may not do this, or the server was not told to allow it.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", "not_allowed", message)
    }

    /// The server ends.
    pub fn draining() -> Self {
        let fault = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "draining", "the server is ending; ask another, or later");
        Self { retry_after: Some(Duration::from_secs(1)), close: true, ..fault }
    }

    /// What is wrong inside is told to the log and not to callers.
    pub fn internal() -> Self {
        let message = "the server failed; its log has more under the answer's x-request-id";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "internal", message)
    }

    /// The error's body.
    pub fn body(&self) -> serde_json::Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        let soon = Some(Duration::from_secs(1));
        match failure {
            Failure::Expired => {
                let message = "the deadline passed before the request reached the device";
                Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout_error", "deadline_exceeded", message)
            }
            Failure::Draining => Self::draining(),
            Failure::DeviceLost => {
                let fault = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "device_lost", "the device failed; the server has to be started again");
                Self { retry_after: soon, ..fault }
            }
            Failure::Internal(_) => Self::internal(),
            Failure::Forgotten => Self { status: StatusCode::SERVICE_UNAVAILABLE, retry_after: soon, ..Self::internal() },
        }
    }
}

/// What the library refuses is the caller's, but for what the server and its device fail at.
impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid { .. } => Self::invalid("invalid_value", error.to_string()),
            Error::Unsupported { .. } => Self::invalid("unsupported_parameter", error.to_string()),
            Error::OutOfMemory { .. } => {
                let message = "the device has no room for this; ask for less, or later";
                let fault = Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "out_of_memory", message);
                Self { retry_after: Some(Duration::from_secs(1)), ..fault }
            }
            Error::Device { .. } => Failure::DeviceLost.into(),
            _ => Self::internal(),
        }
    }
}

impl From<Closed> for Fault {
    fn from(closed: Closed) -> Self {
        match closed {
            Closed::For(failure) => failure.into(),
            Closed::Busy(refused) => {
                let message = format!("there is work for {:.1} s before this request; ask later", refused.retry_after.as_secs_f64());
                let fault = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", "overloaded", message);
                Self { retry_after: Some(refused.retry_after), ..fault }
            }
        }
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(after) = self.retry_after {
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        match self.status {
            StatusCode::UNAUTHORIZED => drop(headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
            StatusCode::CONFLICT => drop(headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"))),
            _ => {}
        }
        if let Some(methods) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(methods));
        }
        if self.close {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        // The route counts refusals by it.
        response.extensions_mut().insert(Code(self.code));
        response.extensions_mut().insert(Message(self.message));
        response
    }
}

/// The code of an answer that is an error.
#[derive(Clone, Copy, Debug)]
pub struct Code(pub &'static str);

/// The words of an answer that is an error.
#[derive(Clone, Debug)]
pub struct Message(pub String);
