//! A request for an answer, and the answer in HTTP.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

use super::super::app::App;
use super::super::body::Held;
use super::super::fault::Fault;
use crate::kserve::body::HEADER_LENGTH;
use crate::kserve::message::Request;
use crate::kserve::reply::Reply;
use crate::queueing::queues::Tenant;

/// A request for an answer, with all that giving it needs.
pub struct Ask {
    /// The server.
    pub app: Arc<App>,
    /// Who asks.
    pub tenant: Tenant,
    /// When the request must have reached the device.
    pub deadline: Option<Duration>,
    /// The model's name, as it was asked for.
    pub model: String,
    /// The request.
    pub request: Request,
    /// The request's body.
    pub held: Held,
}

/// The answer in HTTP.
///
/// # Errors
/// A number that JSON does not have.
pub fn response(reply: &Reply<'_>) -> Result<Response, Fault> {
    let (body, length) = reply.body()?;
    let mut response = Response::new(Body::from(body));
    let kind = if length.is_some() { "application/octet-stream" } else { "application/json" };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    if let Some(length) = length {
        response.headers_mut().insert(HeaderName::from_static(HEADER_LENGTH), length.into());
    }
    Ok(response)
}
