//! What every device must do, run on every backend of this build. A backend that is not there shows as an ignored
//! test with the reason.
//! They are reached through [`AnyDevice`], so that the contract is compiled once for all of them; `cpu` by its own type as well.

use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Conclusion, Failed, Trial};
use trifuse::Error;
use trifuse::backend::Backend;
use trifuse::backends::{AnyDevice, Choice, NAMES};
use trifuse::device::Device;
#[cfg(feature = "cpu")]
use trifuse::device::Open;
use trifuse_testkit::contract::{Test, tests};

pub fn run(arguments: &Arguments) -> Conclusion {
    let mut arguments = arguments.clone();
    // One test takes all the memory there is.
    arguments.test_threads = Some(1);
    let mut trials = Vec::new();
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    trials.extend(super::devices::trials());
    for name in NAMES {
        match Choice::Named(name, 0).open_any() {
            Ok(device) => trials.extend(of_device(device, if *name == "cpu" { AnyDevice::NAME } else { name })),
            Err(error) => {
                let absent = Trial::test(format!("not available: {error}"), || Err("this backend is not there".into()));
                trials.push(absent.with_kind(*name).with_ignored_flag(true));
            }
        }
    }
    #[cfg(feature = "cpu")]
    match trifuse::backends::cpu::Cpu::open(0) {
        Ok(device) => trials.extend(of_device(device, "cpu")),
        Err(error) => trials.push(Trial::test(format!("not available: {error}"), || Err("cpu is not there".into())).with_kind("cpu").with_ignored_flag(true)),
    }
    libtest_mimic::run(&arguments, trials)
}

/// Makes the trials of one device.
fn of_device<B: Backend>(device: B, kind: &str) -> Vec<Trial> {
    let device = Arc::new(device);
    // Never dropped: the last trial's worker could still be at it when the process exits and the driver goes.
    std::mem::forget(device.clone());
    tests::<B>().into_iter().map(|(name, test)| trial(name, test, &device).with_kind(kind)).collect()
}

fn trial<B: Backend>(name: &str, test: Test<B>, device: &Arc<B>) -> Trial {
    let device = device.clone();
    let run = move || match test(&device) {
        Ok(()) => Ok(Completion::Completed),
        Err(Error::Unsupported { subject, reason }) => Ok(Completion::ignored_with(format!("{subject}: {reason}"))),
        Err(error) => Err(Failed::from(error)),
    };
    Trial::ignorable_test(name, run)
}
