//! What every device must do, run on every backend of this build. A backend that is not there shows as an ignored
//! test with the reason.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[cfg(any(feature = "cuda", feature = "wgpu"))]
#[path = "contract/devices.rs"]
mod devices;

use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use trifuse::backend::Backend;
use trifuse::backends::{Choice, NAMES, Visit};
use trifuse::{Error, Result};
use trifuse_testkit::contract::{Test, tests};

pub fn main() {
    let mut arguments = Arguments::from_args();
    // One test takes all the memory there is.
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    trials.extend(devices::trials());
    for name in NAMES {
        match Choice::Named(name, 0).open(Collect) {
            Ok(found) => trials.extend(found),
            Err(error) => {
                let absent = Trial::test(format!("not available: {error}"), || Err("this backend is not there".into()));
                trials.push(absent.with_kind(*name).with_ignored_flag(true));
            }
        }
    }
    // The same through a device that does not say which it is.
    match Choice::Named("cpu", 0).open_any().and_then(|device| Collect.visit(device)) {
        Ok(found) => trials.extend(found),
        Err(error) => trials.push(Trial::test(format!("not available: {error}"), || Err("cpu is not there".into())).with_kind("any").with_ignored_flag(true)),
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// Makes the trials of one backend.
struct Collect;

impl Visit for Collect {
    type Out = Vec<Trial>;

    fn visit<B: Backend>(self, backend: B) -> Result<Vec<Trial>> {
        let device = Arc::new(backend);
        // Never dropped: the last trial's worker could still be at it when the process exits and the driver goes.
        std::mem::forget(device.clone());
        Ok(tests::<B>().into_iter().map(|(name, test)| trial(name, test, &device)).collect())
    }
}

fn trial<B: Backend>(name: &str, test: Test<B>, device: &Arc<B>) -> Trial {
    let device = device.clone();
    let run = move || match test(&device) {
        Ok(()) => Ok(Completion::Completed),
        Err(Error::Unsupported { subject, reason }) => Ok(Completion::ignored_with(format!("{subject}: {reason}"))),
        Err(error) => Err(Failed::from(error)),
    };
    Trial::ignorable_test(name, run).with_kind(B::NAME)
}
