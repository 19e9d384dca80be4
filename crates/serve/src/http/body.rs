//! A request's body, within the limits of size and time.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use tokio::time::timeout;

use super::fault::Fault;

/// Reads a body of JSON.
///
/// # Errors
/// Another type; more bytes or more time than is allowed; a caller that went away.
pub async fn read(headers: &HeaderMap, body: Body, most: usize, time: Duration) -> Result<Bytes, Fault> {
    let kind = headers.get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or("bytes that are no text"));
    let essence = kind.unwrap_or("nothing").split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return Err(Fault::media_type(kind.unwrap_or("nothing")));
    }
    let told = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if told.is_some_and(|told| told > most as u64) {
        return Err(Fault::large(most));
    }
    let read = timeout(time, to_bytes(body, most)).await.map_err(|_| Fault::slow(time))?;
    read.map_err(|error| match std::error::Error::source(&error) {
        Some(source) if source.is::<http_body_util::LengthLimitError>() => Fault::large(most),
        _ => Fault::invalid("body_not_read", "expected the whole body, found its end before"),
    })
}
