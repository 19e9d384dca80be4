//! What is fuzzed: for each parser of data from outside, inputs that it takes, changes that keep their form, and what holds of whatever
//! it takes. The targets of cargo-fuzz and the runner of `./check fuzz` use the same.

#[cfg(feature = "serve")]
mod bodies;
mod bundle;
mod calibration;
mod case_file;
mod lines;
mod model;
mod peft;
mod report;
mod safetensors_file;
mod scratch;

use super::mutate::{Rng, splice};
use rand::{Rng as _, SeedableRng};
use trifuse::Error;

pub use bundle::support;
pub use model::Model;

/// Nothing where the input was taken, or why not.
pub type Answer = Result<(), String>;

/// A parser, and how it is fuzzed.
#[derive(Clone, Copy)]
pub struct Subject {
    /// The target's name.
    pub name: &'static str,
    /// An input that is taken.
    pub sound: fn(&mut Rng) -> Vec<u8>,
    /// A changed input.
    pub change: fn(&mut Rng, &[u8]) -> Vec<u8>,
    /// Parses an input and uses what was read. It panics where something does not hold.
    pub parse: fn(&[u8]) -> Answer,
}

/// Every parser of data from outside.
pub const ALL: &[Subject] = &[
    bundle::SUBJECT,
    peft::CONFIG,
    peft::FOLDER,
    safetensors_file::SUBJECT,
    case_file::SUBJECT,
    lines::SUBJECT,
    model::CONFIG,
    model::TOKENIZER,
    model::WEIGHTS,
    report::REPORT,
    report::PEERS,
    calibration::SUBJECT,
    #[cfg(feature = "serve")]
    bodies::EMBEDDINGS,
    #[cfg(feature = "serve")]
    bodies::COMPLETIONS,
    #[cfg(feature = "serve")]
    bodies::CHAT,
    #[cfg(feature = "serve")]
    bodies::INFERENCE,
];

impl Subject {
    /// A changed form of `input`, or of it and `other` in one.
    pub fn next(&self, rng: &mut Rng, input: &[u8], other: &[u8]) -> Vec<u8> {
        if rng.random_ratio(1, 32) { splice(rng, input, other) } else { (self.change)(rng, input) }
    }
}

/// A generator whose numbers `seed` and `number` decide.
pub fn rng(seed: u64, number: u64) -> Rng {
    Rng::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number))
}

/// The answer where data were refused.
///
/// # Panics
/// The error is none of a file: a stranger's fault would be told as the user's.
fn refused(error: &Error) -> String {
    assert!(matches!(error, Error::Input { .. } | Error::OutOfMemory { .. }), "expected a fault of the file, found {error:?}");
    error.to_string()
}
