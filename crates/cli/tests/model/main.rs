//! The encoder end to end, on every backend of this build: against reference outputs, mixed batches against each row
//! alone, what it refuses, and the commands that are made of it.
//!
//! It needs the base model's weights (`scripts/get_minilm.sh`, which `./check` runs). Where they are not, every test shows as
//! ignored with that reason; so does a backend that is not there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../backends/mod.rs"]
mod backends;
mod command;
mod golden;
mod mixed;
mod serve;
#[cfg(all(unix, feature = "serve"))]
#[path = "../served/mod.rs"]
mod served;
mod support;

use std::sync::Arc;

use backends::ignored;
use libtest_mimic::{Arguments, Trial};
use trifuse::backends::{AnyDevice, Choice, NAMES};

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for name in NAMES {
        match Choice::Named(name, 0).open_any() {
            Ok(device) => trials.extend(self::trials(device)),
            Err(error) => trials.push(ignored(format!("not available: {error}")).with_kind(*name)),
        }
    }
    trials.extend(command::trials());
    if !support::weights_are_there() {
        let why = "skipped: no weights in .minilm; run scripts/get_minilm.sh";
        trials = trials.into_iter().map(|trial| ignored(format!("{}: {why}", trial.name())).with_kind(trial.kind().to_owned())).collect();
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// The trials of one backend's device. Behind one type for all of them, what is tested is compiled once.
fn trials(device: AnyDevice) -> Vec<Trial> {
    let device = Arc::new(device);
    // Never dropped: the last trial's worker could still be at it when the process exits and the driver goes.
    std::mem::forget(device.clone());
    let trials = [golden::trials(&device), mixed::trials(&device)];
    backends::in_turn(&device, trials.into_iter().flatten().collect())
}
