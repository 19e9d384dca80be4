//! The time that a caller gives to a call.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};

use crate::http::fault::Fault;

/// The header of that time.
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// The most digits of it.
const DIGITS: usize = 8;

/// The time until the answer, where the caller bounds it.
///
/// # Errors
/// A text that is no such time.
pub fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Fault> {
    let Some(value) = headers.get(TIMEOUT) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let fault = || Fault::expected(TIMEOUT.as_str(), "at most eight digits and one of H, M, S, m, u and n", format_args!("{text:?}"));
    read(text).map(Some).ok_or_else(fault)
}

fn read(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > DIGITS || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_is_read_and_what_is_no_time_is_refused() {
        for (text, micros) in [("2H", 7_200_000_000), ("1M", 60_000_000), ("3S", 3_000_000), ("99999999m", 99_999_999_000), ("7u", 7), ("5000n", 5), ("0S", 0)]
        {
            assert_eq!(read(text), Some(Duration::from_micros(micros)), "{text}");
        }
        for bad in ["", "S", "1", "1s", "-1S", "+1S", "1.5S", "123456789S", " 1S", "1 S", "1é"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
}
