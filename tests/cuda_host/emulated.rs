//! The backend on an emulated GPU (`tests/cuda_emulator`): the suites of every backend, on its host side and kernels.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use libtest_mimic::{Failed, Trial};
use trifuse::backends::cuda::LIBRARY_DIR;

/// The most operations of a case: nine in ten are below it.
const MOST_FLOPS: &str = "2e6";

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda_emulator")
}

/// The emulated driver and compiler, in a folder that goes when this does.
struct Emulator(tempfile::TempDir);

impl Emulator {
    fn build() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let build = |name: &str, files: &[&str], more: &[String]| {
            let mut command = Command::new("g++");
            command.args(["-std=c++17", "-O2", "-shared", "-fPIC"]).arg(format!("-Wl,-soname,{name}")).args(more);
            command.args(files.iter().map(|file| sources().join(file))).arg("-o").arg(folder.path().join(name)).arg("-ldl");
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        build("libcuda.so", &["driver.cpp", "fibre.cpp"], &[]);
        build("libnvrtc.so.13", &["compiler.cpp"], &[format!("-DEMULATOR=\"{}\"", sources().display())]);
        Self(folder)
    }

    /// Runs a suite's tests of this backend on it. Of the cases those of the `simt` variants: g++ takes seconds for each
    /// tile of the others, and they are compiled by NVRTC elsewhere and run on a GPU by `scripts/gpu.sh`.
    fn run(&self, suite: &str, settings: &[&str]) -> Output {
        let mut command = crate::probe(suite);
        command.arg(if suite == "conformance" { "(simt" } else { "[cuda]" }).env("LD_LIBRARY_PATH", self.0.path()).env(LIBRARY_DIR, self.0.path());
        // The emulated GPU runs a thread after the other: cases of more work take minutes, and show nothing more.
        command.env("TRIFUSE_BACKEND", "cuda").env("TRIFUSE_MOST_FLOPS", MOST_FLOPS);
        command.env("TRIFUSE_CACHE_DIR", self.0.path()).env("RUST_BACKTRACE", "0").envs(settings.iter().map(|&name| (name, "1")));
        command.output().unwrap()
    }
}

/// How many tests a suite says it passed and failed.
fn counts(output: &Output) -> (usize, usize) {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with("test result:")).unwrap_or_default();
    let before = |word: &str| line.split_once(word).and_then(|(head, _)| head.rsplit(' ').nth(1)?.parse().ok()).unwrap_or(0);
    (before("passed"), before("failed;"))
}

fn expect_success(output: &Output, least: usize) -> Result<(), Failed> {
    let (passed, failed) = counts(output);
    if output.status.success() && failed == 0 && passed >= least {
        return Ok(());
    }
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    Err(format!("{passed} passed, {failed} failed, {}\n{}", output.status, String::from_utf8_lossy(&text)).into())
}

pub fn trials() -> Vec<Trial> {
    let compiler = Command::new("g++").arg("--version").output().is_ok();
    let lacks = (!compiler || !cfg!(all(target_os = "linux", target_arch = "x86_64"))).then_some("g++ on Linux, x86-64");
    // Every case takes a quarter of an hour here, and seconds on a GPU.
    let long = lacks.or_else(|| std::env::var_os("TRIFUSE_EMULATE").is_none().then_some("TRIFUSE_EMULATE=1: it is long"));
    let trial = |name: &str, body: fn(&Emulator) -> Result<(), Failed>| {
        let lacks = if name.starts_with("the contract") { lacks } else { long };
        crate::trial(&format!("emulated: {name}"), lacks, move || body(&Emulator::build()))
    };
    vec![
        trial("the contract of a device", |emulator| expect_success(&emulator.run("contract", &[]), 20)),
        trial("every case on the simt variants", |emulator| {
            expect_success(&emulator.run("conformance", &[]), 300)?;
            expect_success(&emulator.run("conformance", &["TRIFUSE_EMULATOR_BACKWARDS"]), 300)
        }),
        // The suite is worth something only if it fails where a kernel is wrong.
        trial("a missing barrier is found", |emulator| {
            let output = emulator.run("conformance", &["TRIFUSE_EMULATOR_SKIP_BARRIERS"]);
            let (passed, failed) = counts(&output);
            let text = String::from_utf8_lossy(&output.stdout);
            let faults = |op: &str| text.lines().any(|line| line.starts_with("test [cuda]") && line.contains(op) && line.contains("FAILED"));
            let all = ["attention", "codebook_gemm", "fused_mlp", "linear"].iter().all(|op| faults(op));
            if all { Ok(()) } else { Err(format!("{passed} passed, {failed} failed\n{text}").into()) }
        }),
    ]
}
