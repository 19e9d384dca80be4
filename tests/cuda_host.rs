//! The CUDA backend as far as it can be judged without a GPU: what it says where something is missing, its cache of
//! compiled kernels, every variant's machine code, and the suites of every backend on an emulated GPU.
//!
//! What a test needs and does not find is in its name, which then shows as ignored: NVRTC (`pip install
//! 'nvidia-cuda-nvrtc==13.0.*'` into `.cuda`, which `./check` does), `cc`, `g++`, `nvdisasm`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[cfg(feature = "cuda")]
#[path = "cuda_host/cache.rs"]
mod cache;
#[cfg(feature = "cuda")]
#[path = "cuda_host/compile.rs"]
mod compile;
#[cfg(feature = "cuda")]
#[path = "conformance.rs"]
mod conformance;
#[cfg(feature = "cuda")]
#[path = "contract.rs"]
mod contract;
#[cfg(feature = "cuda")]
#[path = "cuda_host/driver.rs"]
mod driver;
#[cfg(feature = "cuda")]
#[path = "cuda_host/emulated.rs"]
mod emulated;
#[cfg(feature = "cuda")]
#[path = "cuda_host/house.rs"]
mod house;
#[cfg(feature = "cuda")]
#[path = "cuda_host/ledger.rs"]
mod ledger;
#[cfg(feature = "cuda")]
#[path = "cuda_host/ptx.rs"]
mod ptx;
#[cfg(feature = "cuda")]
#[path = "cuda_host/waits.rs"]
mod waits;

use libtest_mimic::{Arguments, Failed, Trial};

/// A test, or its name with what it lacks, ignored.
fn trial(name: &str, lacks: Option<&str>, body: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    match lacks {
        None => Trial::test(name, body),
        Some(lacks) => Trial::test(format!("{name} (needs {lacks})"), body).with_ignored_flag(true),
    }
}

#[cfg(not(feature = "cuda"))]
fn main() {
    let trials = vec![trial("cuda_host", Some("--features cuda"), || Ok(()))];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

#[cfg(feature = "cuda")]
fn main() {
    if let Ok(probe) = std::env::var("TRIFUSE_TEST_PROBE") {
        match probe.as_str() {
            "list" => driver::probe(),
            "build" => cache::probe(),
            "ledger" => ledger::probe(),
            // The suites of every backend, in a process that sees the emulated one.
            "contract" => contract::main(),
            "conformance" => conformance::main(),
            other => panic!("unknown probe {other}"),
        }
        return;
    }
    if std::env::var_os(trifuse::backends::cuda::LIBRARY_DIR).is_none()
        && let Some(folder) = compile::python_folders("lib").into_iter().find(|folder| compile::holds(folder, "libnvrtc.so"))
    {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(trifuse::backends::cuda::LIBRARY_DIR, folder) };
    }
    let mut trials = driver::trials();
    trials.extend(cache::trials());
    trials.extend(compile::trials());
    trials.extend(ptx::trials());
    trials.extend(house::trials());
    trials.extend(emulated::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// This program again, to run the named probe.
#[cfg(feature = "cuda")]
fn probe(name: &str) -> std::process::Command {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.env("TRIFUSE_TEST_PROBE", name);
    command
}
