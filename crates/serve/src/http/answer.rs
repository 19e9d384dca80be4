//! Answers in JSON.

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use serde::Serialize;

use super::fault::Fault;

/// An answer of what `value` says.
///
/// # Errors
/// None in practice: numbers are finite, and keys are strings.
pub fn answer(value: &impl Serialize) -> Result<Response, Fault> {
    let text = serde_json::to_vec(value).map_err(|_| Fault::internal())?;
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
