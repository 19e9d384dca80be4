//! How a command ended.

use std::path::Path;
use std::process::ExitCode;

use super::interrupt::STATUS;
use super::output::Output;

/// How a command ended, where it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All it checked is right.
    Right,
    /// Something it checked is not.
    Wrong,
    /// What was given cannot be used, and the report says why.
    BadInput,
    /// There is no backend of the sort that was asked for, and the report says why.
    NoBackend,
    /// Ctrl-C; what was done until then is told.
    Interrupted,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Right => Self::SUCCESS,
            Outcome::Wrong => Self::from(1),
            Outcome::NoBackend => Self::from(3),
            Outcome::BadInput => Self::from(4),
            Outcome::Interrupted => Self::from(STATUS),
        }
    }
}

impl Outcome {
    /// Tells that Ctrl-C came before what goes to `path` was written.
    pub fn interrupted(output: &Output, path: &Path) -> Self {
        output.failure(STATUS, format!("interrupted: {} is not written", path.display()));
        Self::Interrupted
    }
}
