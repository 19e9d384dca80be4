//! The encoder end to end, on every backend of this build: against reference outputs, mixed batches against each row
//! alone, what it refuses, and the commands that are made of it.
//!
//! It needs the base model's weights (`scripts/get_minilm.sh`, which `./check` runs). Where they are not, every test shows as
//! ignored with that reason; so does a backend that is not there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod command;
mod golden;
mod mixed;
mod support;

use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use trifuse::Result;
use trifuse::backend::Backend;
use trifuse::backends::{Choice, NAMES, Visit};
use trifuse::device::Kind;

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for name in NAMES {
        match Choice::Named(name, 0).open(Collect) {
            Ok(found) => trials.extend(found),
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

fn ignored(name: String) -> Trial {
    Trial::test(name, || Err("what it needs is not there".into())).with_ignored_flag(true)
}

/// Why a trial is left to real devices.
const SLOW: &str = "skipped: minutes on a software driver; TRIFUSE_ALL_ROWS=1 runs it";

/// Whether the device is a graphics driver written in software, where a trial takes up to a minute.
fn slow<D: Backend>(device: &D) -> bool {
    D::NAME == "wgpu" && device.caps().kind == Kind::Cpu && std::env::var_os("TRIFUSE_ALL_ROWS").is_none()
}

/// Makes the trials of one backend.
struct Collect;

impl Visit for Collect {
    type Out = Vec<Trial>;

    fn visit<B: Backend>(self, backend: B) -> Result<Vec<Trial>> {
        let device = Arc::new(backend);
        // Never dropped: the last trial's worker could still be at it when the process exits and the driver goes.
        std::mem::forget(device.clone());
        Ok([golden::trials(&device), mixed::trials(&device)].into_iter().flatten().map(|trial| trial.with_kind(B::NAME)).collect())
    }
}
