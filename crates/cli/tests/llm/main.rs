//! A language model end to end, on every backend of this build: reference logits and planted faults, and a tiny model of every family
//! against the definition in float64, and the engine that serves many requests at once.
//!
//! The reference logits need the weights of SmolLM2 (`scripts/get_smollm2.sh`, which `./check` runs). Where they are not, their tests show as
//! ignored with that reason; so does a backend that is not there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adapted;
mod ahead;
#[path = "../backends/mod.rs"]
mod backends;
#[cfg(all(unix, feature = "serve"))]
#[path = "../../../serve/tests/support/client.rs"]
#[allow(dead_code, reason = "the server's own tests use the rest")]
mod client;
mod coming;
mod command;
mod engine;
mod filled;
mod golden;
mod latent;
mod ruled;
mod serve;
#[cfg(all(unix, feature = "serve"))]
#[path = "../served/mod.rs"]
mod served;
mod shrink;
#[cfg(all(unix, feature = "serve"))]
mod signal;
mod soak;
mod steady;
mod support;
mod timed;
mod tiny;
mod told;
mod warm;

use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};
use trifuse::backends::{AnyDevice, Choice, NAMES};

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for name in NAMES {
        match Choice::Named(name, 0).open_any() {
            Ok(device) => {
                trials.extend(self::trials(device));
                trials.extend(warm::trials(name));
            }
            Err(error) => trials.push(backends::ignored(format!("not available: {error}")).with_kind(*name)),
        }
    }
    trials.extend(command::trials());
    trials.extend(shrink::commands());
    trials.extend(adapted::commands());
    trials.extend(filled::commands());
    trials.extend(latent::commands());
    trials.extend(timed::commands());
    #[cfg(all(unix, feature = "serve"))]
    trials.push(libtest_mimic::Trial::test("serve answers as the library says", || {
        serve::answers_as_the_library_says();
        Ok(())
    }));
    #[cfg(all(unix, feature = "serve"))]
    trials.push(libtest_mimic::Trial::test("a signal under load costs nobody an answer", || {
        signal::a_signal_under_load_costs_nobody_an_answer();
        Ok(())
    }));
    libtest_mimic::run(&arguments, trials).exit();
}

/// The trials of one backend's device. Behind one type for all of them, what is tested is compiled once.
fn trials(device: AnyDevice) -> Vec<Trial> {
    let device = Arc::new(device);
    // Never dropped: the last trial's worker could still be at it when the process exits and the driver goes.
    std::mem::forget(device.clone());
    let trials = [
        golden::trials(&device),
        tiny::trials(&device),
        engine::trials(&device),
        ahead::trials(&device),
        coming::trials(&device),
        ruled::trials(&device),
        told::trials(&device),
        shrink::trials(&device),
        soak::trials(&device),
        steady::trials(&device),
        filled::trials(&device),
        latent::trials(&device),
        timed::trials(&device),
    ];
    backends::in_turn(&device, trials.into_iter().flatten().collect())
}
