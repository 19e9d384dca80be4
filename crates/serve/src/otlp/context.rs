//! Where a request stands in a trace: what its caller says of it by the W3C's headers, or a trace of its own.

use std::hash::{BuildHasher, RandomState};

use axum::http::{HeaderMap, HeaderName};

const PARENT: HeaderName = HeaderName::from_static("traceparent");
const STATE: HeaderName = HeaderName::from_static("tracestate");
/// The longest state of a trace that is taken over.
const MAX_STATE: usize = 512;
/// The flag of a trace that is recorded.
const SAMPLED: u8 = 1;

/// A place in a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    /// The trace's id.
    pub trace: [u8; 16],
    /// The caller's span, where it has one.
    pub parent: Option<[u8; 8]>,
    /// What others know the trace by.
    pub state: String,
    /// The flags of the trace.
    pub flags: u8,
}

impl Context {
    /// The place of a request with these headers. A caller who says nothing that is sound begins a trace here.
    pub fn of(headers: &HeaderMap) -> Self {
        let mut given = headers.get_all(PARENT).iter();
        let one = given.next().filter(|_| given.next().is_none()).and_then(|value| value.to_str().ok());
        let Some((trace, parent, flags)) = one.and_then(read) else {
            let [a, b] = [drawn(), drawn()];
            return Self { trace: (u128::from(a) << 64 | u128::from(b)).to_be_bytes(), parent: None, state: String::new(), flags: SAMPLED };
        };
        let states: Vec<&str> = headers.get_all(STATE).iter().filter_map(|value| value.to_str().ok()).collect();
        let state = Some(states.join(",")).filter(|state| state.len() <= MAX_STATE).unwrap_or_default();
        Self { trace, parent: Some(parent), state, flags }
    }

    /// Whether the trace is recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

/// An id that no other span has.
pub fn span_id() -> [u8; 8] {
    drawn().to_be_bytes()
}

/// A drawn number that is not 0.
fn drawn() -> u64 {
    RandomState::new().hash_one(0u8).max(1)
}

/// `VERSION-TRACE-PARENT-FLAGS`, behind which later versions may have more.
fn read(text: &str) -> Option<([u8; 16], [u8; 8], u8)> {
    let mut parts = text.split('-');
    let [version] = hex(parts.next()?)?;
    let (trace, parent, [flags]) = (hex(parts.next()?)?, hex(parts.next()?)?, hex(parts.next()?)?);
    let ends = parts.next().is_none();
    (version != 0xff && (ends || version > 0) && trace != [0; 16] && parent != [0; 8]).then_some((trace, parent, flags))
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    let pairs = text.as_bytes().chunks_exact(2);
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(pairs) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of(parents: &[&str]) -> Context {
        let mut headers = HeaderMap::new();
        for parent in parents {
            headers.append(PARENT, parent.parse().unwrap());
        }
        headers.append(STATE, "a=1".parse().unwrap());
        headers.append(STATE, "b=2".parse().unwrap());
        Context::of(&headers)
    }

    const SOUND: &str = "00-0123456789abcdef0123456789abcdef-00f067aa0ba902b7-01";

    #[test]
    fn the_caller_s_trace_is_taken_over() {
        let context = of(&[SOUND]);
        assert_eq!(context.trace, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef_u128.to_be_bytes());
        assert_eq!((context.parent, context.state.as_str(), context.is_sampled()), (Some(0x00f0_67aa_0ba9_02b7_u64.to_be_bytes()), "a=1,b=2", true));
        assert!(!of(&[&SOUND.replace("-01", "-02")]).is_sampled());
        assert_eq!(of(&["01-0123456789abcdef0123456789abcdef-00f067aa0ba902b7-01-more"]).trace, context.trace);
    }

    #[test]
    fn what_is_no_place_in_a_trace_begins_one() {
        let none = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        for bad in [
            &[][..],
            &[""],
            &["00"],
            &[none],
            &["00-0123456789abcdef0123456789abcdef-0000000000000000-01"],
            &["ff-0123456789abcdef0123456789abcdef-00f067aa0ba902b7-01"],
            &["00-0123456789ABCDEF0123456789abcdef-00f067aa0ba902b7-01"],
            &["00-0123456789abcdef0123456789abcdef-00f067aa0ba902b7-01-more"],
            &["00-0123456789abcdef-00f067aa0ba902b7-01"],
            &[SOUND, SOUND],
        ] {
            let context = of(bad);
            assert_eq!((context.parent, context.state.as_str(), context.is_sampled()), (None, "", true), "{bad:?}");
            assert!(context.trace != [0; 16] && context.trace != of(bad).trace);
        }
    }
}
