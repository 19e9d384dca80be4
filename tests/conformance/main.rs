//! Everything that a backend must do, in three suites of one program, so that what they share is compiled once: `cases` (every case on every variant),
//! `contract` (what every device must do), and `cuda_host` (the CUDA backend without a GPU). All are run, one after the other; `TRIFUSE_SUITE=contract` runs that
//! one alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cases;
mod contract;
#[cfg(feature = "cuda")]
#[path = "../cuda_host/mod.rs"]
mod cuda_host;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod devices;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Conclusion};

/// The variable that names the only suite to run.
const SUITE: &str = "TRIFUSE_SUITE";

/// A suite's name, and what runs it.
type Suite = (&'static str, fn(&Arguments) -> Conclusion);

const SUITES: &[Suite] = &[
    ("cases", cases::run),
    ("contract", contract::run),
    #[cfg(feature = "cuda")]
    ("cuda_host", cuda_host::run),
];

fn main() -> ExitCode {
    #[cfg(feature = "cuda")]
    {
        if cuda_host::is_probe() {
            return ExitCode::SUCCESS;
        }
        cuda_host::find_compiler();
    }
    let only = std::env::var(SUITE).ok();
    if let Some(name) = only.as_ref().filter(|name| SUITES.iter().all(|(suite, _)| suite != name)) {
        eprintln!("{SUITE}: expected one of {}, found {name:?}", SUITES.iter().map(|(suite, _)| *suite).collect::<Vec<_>>().join(", "));
        return ExitCode::from(2);
    }
    let arguments = Arguments::from_args();
    let asked = SUITES.iter().filter(|(suite, _)| only.as_ref().is_none_or(|name| name == suite));
    let ends: Vec<Conclusion> = asked.map(|(_, run)| run(&arguments)).collect();
    if ends.iter().any(Conclusion::has_failed) { ExitCode::from(101) } else { ExitCode::SUCCESS }
}
