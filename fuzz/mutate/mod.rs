//! Changes of an input that keep most of its form: what is only broken is refused by the first check, and nothing behind that is reached.

mod bytes;
mod json;
mod tensors;

pub use bytes::change as bytes;
pub use json::{change as value, text as json_text};
pub use tensors::{change as tensors, store};

use rand::Rng as _;
pub use rand_chacha::ChaCha8Rng as Rng;

/// JSON text with a change: of a key, a value or a number mostly, of the text at times, of a byte seldom.
pub fn json(rng: &mut Rng, input: &[u8]) -> Vec<u8> {
    match serde_json::from_slice(input) {
        Ok(mut parsed) if rng.random_ratio(7, 8) => {
            for _ in 0..few(rng) {
                value(rng, &mut parsed);
            }
            json_text(rng, &parsed)
        }
        _ => bytes(rng, input.to_vec()),
    }
}

/// The number of changes of one input: one mostly.
pub fn few(rng: &mut Rng) -> usize {
    [1, 1, 1, 2, 3, 6][rng.random_range(0..6)]
}

/// One of some things.
pub fn one<'a, T>(rng: &mut Rng, of: &'a [T]) -> &'a T {
    &of[rng.random_range(0..of.len())]
}

/// The first part of one input and the last of another.
pub fn splice(rng: &mut Rng, first: &[u8], last: &[u8]) -> Vec<u8> {
    let (end, start) = (rng.random_range(0..=first.len()), rng.random_range(0..=last.len()));
    [&first[..end], &last[start..]].concat()
}
