//! A request's body, within the limits of size and time, and of what all bodies together may hold.

use std::sync::Arc;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::app::{App, UNIT};
use super::fault::Fault;

/// A body, and its part of the room for bodies.
#[derive(Debug)]
pub struct Held<R = OwnedSemaphorePermit> {
    /// The body.
    pub bytes: Bytes,
    _room: R,
}

impl<R> Held<R> {
    /// A body with its room.
    pub fn new(bytes: Bytes, room: R) -> Self {
        Self { bytes, _room: room }
    }
}

/// Reads a body of JSON, of at most that many bytes.
///
/// # Errors
/// Another type; those of [`read_any`].
pub async fn read(app: &App, headers: &HeaderMap, body: Body, most: usize) -> Result<Held, Fault> {
    if headers.get(CONTENT_TYPE).is_none() {
        return Err(Fault::media_type("application/json", "nothing"));
    }
    read_any(app, headers, body, most, &["application/json"]).await
}

/// Reads a body of at most that many bytes. It has one of these types where it has a type.
///
/// # Errors
/// Another type; more bytes or more time than is allowed; no room for it beside the bodies of others; a caller that went away.
pub async fn read_any(app: &App, headers: &HeaderMap, body: Body, most: usize, kinds: &[&str]) -> Result<Held, Fault> {
    if let Some(kind) = headers.get(CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or("bytes that are no text")) {
        let essence = kind.split(';').next().unwrap_or_default().trim();
        if !kinds.iter().any(|known| essence.eq_ignore_ascii_case(known)) {
            return Err(Fault::media_type(&kinds.join(" or "), kind));
        }
    }
    let told = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if told.is_some_and(|told| told > most as u64) {
        return Err(Fault::large(most));
    }
    // A body that does not tell its length may have as much as is allowed.
    let room = room(app, told.map_or(most, |told| told as usize))?;
    let time = app.config.limits.body;
    let read = timeout(time, to_bytes(body, most)).await.map_err(|_| Fault::slow(time))?;
    let bytes = read.map_err(|error| match std::error::Error::source(&error) {
        Some(source) if source.is::<http_body_util::LengthLimitError>() => Fault::large(most),
        _ => Fault::invalid("body_not_read", "expected the whole body, found its end before"),
    })?;
    Ok(Held::new(bytes, room))
}

/// A part of the room for bodies.
///
/// # Errors
/// There is no such room beside the bodies of others.
pub fn room(app: &App, bytes: usize) -> Result<OwnedSemaphorePermit, Fault> {
    let units = u32::try_from(bytes.div_ceil(UNIT)).ok();
    units.and_then(|units| Arc::clone(&app.room).try_acquire_many_owned(units).ok()).ok_or_else(Fault::full)
}
