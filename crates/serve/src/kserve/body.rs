//! The two parts of a body: a request in JSON, and the binary data of its tensors behind it.

use bytes::Bytes;
use trifuse::{Error, Result};

/// The header that tells how many bytes of JSON a body begins with.
pub const HEADER_LENGTH: &str = "inference-header-content-length";

/// The JSON of a body and what follows it. `told` are the headers of that name; without one all of the body is JSON.
///
/// # Errors
/// A length that is no number, or that the body does not have; two of them.
pub fn split<'a>(body: &Bytes, mut told: impl Iterator<Item = &'a [u8]>) -> Result<(Bytes, Bytes)> {
    let Some(first) = told.next() else { return Ok((body.clone(), Bytes::new())) };
    let fault = |found: String| Error::invalid(HEADER_LENGTH, format!("one number of at most {} bytes, as the body has", body.len()), found);
    if told.next().is_some() {
        return Err(fault("two".into()));
    }
    let text = std::str::from_utf8(first).unwrap_or_default();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let length = text.parse::<usize>().ok().filter(|length| digits && *length <= body.len());
    let length = length.ok_or_else(|| fault(format!("{:?}", text.chars().take(40).collect::<String>())))?;
    Ok((body.slice(..length), body.slice(length..)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_length_cuts_the_body_and_one_that_it_does_not_have_is_refused() {
        let body = Bytes::from_static(b"{}1234");
        let split = |told: &[&[u8]]| split(&body, told.iter().copied());
        assert_eq!(split(&[]).unwrap(), (body.clone(), Bytes::new()));
        assert_eq!(split(&[b"2"]).unwrap(), (Bytes::from_static(b"{}"), Bytes::from_static(b"1234")));
        assert_eq!(split(&[b"6"]).unwrap().1.len(), 0);
        for bad in [&[&b"7"[..]][..], &[b"-1"], &[b"+2"], &[b""], &[b" 2"], &[b"2.0"], &[b"99999999999999999999999"], &[b"\xff"], &[b"2", b"2"]] {
            assert!(split(bad).is_err(), "{bad:?}");
        }
    }
}
