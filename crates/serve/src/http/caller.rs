//! Who asks, and until when the answer is wanted.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::app::App;
use super::fault::Fault;
use crate::account::Account;
use crate::embeddings::Shared;
use crate::keys::Keys;
use crate::queueing::queues::Tenant;

/// The header that bounds the time in the queue, in milliseconds.
const TIMEOUT: HeaderName = HeaderName::from_static("x-request-timeout-ms");

/// The header of a request's id.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id of a request that is taken over.
const MAX_ID: usize = 128;

/// The id of a request: its own, or one that is made.
pub fn request_id(app: &App, headers: &HeaderMap) -> Option<HeaderValue> {
    let given = headers.get(REQUEST_ID).filter(|id| id.len() <= MAX_ID && id.to_str().is_ok_and(|id| !id.is_empty())).cloned();
    given.or_else(|| HeaderValue::try_from(app.request_id()).ok())
}

/// Who asks, as the request's key says.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// Whose part of the device it is.
    pub tenant: Tenant,
    /// Whether it may change what is served.
    pub admin: bool,
    /// The most time until the request reaches the device.
    pub timeout: Option<Duration>,
    /// What is known of the request.
    pub account: Account,
}

impl Caller {
    /// Who asks by these headers; `account` is of the request.
    ///
    /// # Errors
    /// Keys are needed, and none that is known is given; a time that is no number of milliseconds.
    pub fn of(keys: &Keys, headers: &HeaderMap, account: Account) -> Result<Self, Fault> {
        let (tenant, admin) = tenant(keys, headers)?;
        Ok(Self { tenant, admin, timeout: timeout(headers)?, account })
    }

    /// When the request must have reached the device.
    pub fn deadline(&self, shared: &Shared) -> Option<Duration> {
        self.timeout.and_then(|timeout| shared.clock.now().checked_add(timeout))
    }
}

fn tenant(keys: &Keys, headers: &HeaderMap) -> Result<(Tenant, bool), Fault> {
    if keys.are_open() {
        return Ok((Tenant::default(), true));
    }
    let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let key = given.and_then(|given| given.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, key)| key.trim());
    key.and_then(|key| keys.tenant(key)).ok_or_else(Fault::no_key)
}

/// The routes' handlers take it as an argument; the router has put it there.
impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned().unwrap_or_default())
    }
}

fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Fault> {
    let Some(value) = headers.get(TIMEOUT) else { return Ok(None) };
    let given = value.to_str().ok().and_then(|value| value.trim().parse::<u64>().ok()).filter(|given| *given > 0);
    let given = given.ok_or_else(|| Fault::expected(TIMEOUT.as_str(), "a whole number of milliseconds", "another value"))?;
    Ok(Some(Duration::from_millis(given)))
}
