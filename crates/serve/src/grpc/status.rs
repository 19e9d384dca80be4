//! How a call ended, by the codes of gRPC.

use std::fmt::Write;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::http::fault::Fault;

/// The trailers of a call.
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// When a caller that tries again may do so, in milliseconds.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// A code of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// It ended well.
    Ok = 0,
    /// The request is not sound.
    InvalidArgument = 3,
    /// The deadline passed.
    DeadlineExceeded = 4,
    /// There is no such model or region.
    NotFound = 5,
    /// The key may not do this.
    PermissionDenied = 7,
    /// There is too much of something.
    ResourceExhausted = 8,
    /// Something is not as the request takes it to be.
    Aborted = 10,
    /// There is no such method.
    Unimplemented = 12,
    /// The server failed.
    Internal = 13,
    /// The server takes nothing now.
    Unavailable = 14,
    /// There is no such key.
    Unauthenticated = 16,
}

impl Code {
    /// The code of an error over HTTP.
    fn of(status: u16) -> Self {
        match status {
            400 => Self::InvalidArgument,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::NotFound,
            405 | 415 => Self::Unimplemented,
            408 | 504 => Self::DeadlineExceeded,
            409 => Self::Aborted,
            413 | 429 | 507 => Self::ResourceExhausted,
            503 => Self::Unavailable,
            _ => Self::Internal,
        }
    }

    /// The code's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::Aborted => "ABORTED",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

/// How a call ended.
#[derive(Clone, Debug)]
pub struct Status {
    /// The code.
    pub code: Code,
    /// What went wrong, by the name that errors over HTTP have.
    pub kind: &'static str,
    message: String,
    retry_after: Option<Duration>,
}

impl Status {
    /// It ended well.
    pub fn ok() -> Self {
        Self { code: Code::Ok, kind: "", message: String::new(), retry_after: None }
    }

    /// The server does not have this.
    pub fn unimplemented(message: impl Into<String>) -> Self {
        Self { code: Code::Unimplemented, kind: "method_not_found", message: message.into(), retry_after: None }
    }

    /// The time that the caller gave is over.
    pub fn late() -> Self {
        Self { code: Code::DeadlineExceeded, kind: "deadline_exceeded", message: "the deadline passed before the answer".into(), retry_after: None }
    }

    /// Writes it where the trailers are, or the header of an answer without a message.
    pub fn write(&self, into: &mut HeaderMap) {
        into.insert(STATUS, HeaderValue::from(self.code as u16));
        if let Ok(message) = HeaderValue::from_str(&escaped(&self.message)) {
            into.insert(MESSAGE, message);
        }
        if let Some(after) = self.retry_after {
            into.insert(PUSHBACK, HeaderValue::from(u64::try_from(after.as_millis()).unwrap_or(u64::MAX).max(1)));
        }
    }
}

impl From<Fault> for Status {
    fn from(fault: Fault) -> Self {
        Self { code: Code::of(fault.status.as_u16()), kind: fault.code, message: fault.message, retry_after: fault.retry_after }
    }
}

/// The text with a percent sign and two digits for every byte that a trailer does not take.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => escaped.push(byte.into()),
            // Writing to a text does not fail.
            _ => drop(write!(escaped, "%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_code_and_its_words() {
        for (fault, code, number) in [
            (Fault::invalid("invalid_value", "x"), "INVALID_ARGUMENT", "3"),
            (Fault::no_key(), "UNAUTHENTICATED", "16"),
            (Fault::forbidden("x"), "PERMISSION_DENIED", "7"),
            (Fault::no_region("x"), "NOT_FOUND", "5"),
            (Fault::slow(Duration::ZERO), "DEADLINE_EXCEEDED", "4"),
            (Fault::large(1), "RESOURCE_EXHAUSTED", "8"),
            (Fault::full(), "RESOURCE_EXHAUSTED", "8"),
            (Fault::draining(), "UNAVAILABLE", "14"),
            (Fault::internal(), "INTERNAL", "13"),
        ] {
            let (words, after) = (fault.message.clone(), fault.retry_after);
            let status = Status::from(fault);
            let mut trailers = HeaderMap::new();
            status.write(&mut trailers);
            assert_eq!((status.code.name(), trailers[STATUS].to_str().unwrap_or_default()), (code, number), "{words}");
            assert_eq!(trailers[MESSAGE].to_str().unwrap_or_default(), words);
            assert_eq!(trailers.get(PUSHBACK).map(|value| value.to_str().unwrap_or_default()), after.map(|_| "1000"), "{words}");
        }
    }

    #[test]
    fn words_that_a_trailer_does_not_take_are_escaped() {
        assert_eq!(escaped("100 % \"é\"\n"), "100 %25 \"%C3%A9\"%0A");
    }
}
