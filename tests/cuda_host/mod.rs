//! The CUDA backend as far as it can be judged without a GPU: what it says where something is missing, its cache of
//! compiled kernels, every variant's machine code, and the suites of every backend on an emulated GPU.
//!
//! What a test needs and does not find is in its name, which then shows as ignored: NVRTC (`pip install
//! 'nvidia-cuda-nvrtc==13.0.*'` into `.cuda`, which `./check` does), `cc`, `g++`, `nvdisasm`.

mod cache;
mod compile;
mod driver;
mod emulated;
mod house;
mod ledger;
mod ptx;
mod waits;

use libtest_mimic::{Arguments, Conclusion, Failed, Trial};

/// A test, or its name with what it lacks, ignored.
fn trial(name: &str, lacks: Option<&str>, body: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    match lacks {
        None => Trial::test(name, body),
        Some(lacks) => Trial::test(format!("{name} (needs {lacks})"), body).with_ignored_flag(true),
    }
}

/// The variable that names a [`probe`].
const PROBE: &str = "TRIFUSE_TEST_PROBE";

/// Runs what the environment asks this program for as a [`probe`]; false where it asks for nothing.
pub fn is_probe() -> bool {
    let Ok(probe) = std::env::var(PROBE) else { return false };
    match probe.as_str() {
        "list" => driver::probe(),
        "build" => cache::probe(),
        "ledger" => ledger::probe(),
        other => panic!("unknown probe {other}"),
    }
    true
}

/// Names the folder of NVRTC that `./check` installs, where the environment names none.
pub fn find_compiler() {
    if std::env::var_os(trifuse::backends::cuda::LIBRARY_DIR).is_none()
        && let Some(folder) = compile::python_folders("lib").into_iter().find(|folder| compile::holds(folder, "libnvrtc.so"))
    {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(trifuse::backends::cuda::LIBRARY_DIR, folder) };
    }
}

pub fn run(arguments: &Arguments) -> Conclusion {
    let mut trials = driver::trials();
    trials.extend(cache::trials());
    trials.extend(compile::trials());
    trials.extend(ptx::trials());
    trials.extend(house::trials());
    trials.extend(emulated::trials());
    libtest_mimic::run(arguments, trials)
}

/// This program again, to run the named probe.
fn probe(name: &str) -> std::process::Command {
    let mut command = this_program();
    command.env(PROBE, name);
    command
}

fn this_program() -> std::process::Command {
    std::process::Command::new(std::env::current_exe().unwrap())
}
