//! What the backend says where the driver, a GPU or NVRTC is missing.

use std::path::Path;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use trifuse::Error;
use trifuse::backends::cuda::{Cuda, LIBRARY_DIR};
use trifuse::device::Open;

/// A libcuda.so that starts, or does not, as it was compiled to.
const FAKE_DRIVER: &str = r#"
    int cuInit(unsigned flags) { return INIT; }
    int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
    int cuDeviceGetCount(int *count) { *count = 0; return 0; }
    int cuGetErrorName(int status, const char **text) { *text = "CUDA_ERROR_FAKE"; return 0; }
    int cuGetErrorString(int status, const char **text) { *text = "a fake error"; return 0; }
"#;

/// Prints what `list` gives, and whether it is the right kind of error.
pub fn probe() {
    match Cuda::list() {
        Ok(devices) => println!("{} devices", devices.len()),
        Err(error @ Error::NoBackend { .. }) => println!("NoBackend: {error}"),
        Err(error) => println!("another error: {error}"),
    }
}

/// The probe's one line, run with that driver and no NVRTC but the system's own.
fn list_with(driver: Option<(i32, i32)>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut command = super::probe("list");
    if let Some((init, version)) = driver {
        build_driver(folder.path(), init, version);
        command.env("LD_LIBRARY_PATH", folder.path());
    }
    for variable in ["VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH"] {
        command.env_remove(variable);
    }
    let output = command.env(LIBRARY_DIR, folder.path()).env("TRIFUSE_CACHE_DIR", "").output().unwrap();
    let (out, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success() && errors.is_empty(), "{out}{errors}");
    assert_eq!(out.lines().count(), 1, "one line: {out}");
    out.trim_end().to_owned()
}

fn build_driver(folder: &Path, init: i32, version: i32) {
    let source = folder.join("driver.c");
    std::fs::write(&source, FAKE_DRIVER).unwrap();
    // By the first name that is looked for, so that it goes before a real driver.
    let arguments = ["-shared", "-fPIC", "-w", "-o"];
    let defines = [format!("-DINIT={init}"), format!("-DVERSION={version}")];
    let status = Command::new("cc").args(arguments).arg(folder.join("libcuda.so")).args(defines).arg(source).status().unwrap();
    assert!(status.success(), "cc");
}

fn expect(line: &str, parts: &[&str]) -> Result<(), Failed> {
    let missing: Vec<&&str> = std::iter::once(&"NoBackend: backend cuda is not available").chain(parts).filter(|part| !line.contains(**part)).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("{line:?} lacks {missing:?}").into()) }
}

pub fn trials() -> Vec<Trial> {
    let compiler = Command::new("cc").arg("--version").output().is_err().then_some("cc");
    // Asked of a child: this process may have NVRTC from elsewhere.
    let bare = list_with(None);
    let driver = (!bare.contains("libcuda")).then_some("a machine with no NVIDIA driver");
    let nvrtc = match compiler {
        None if !list_with(Some((0, 13000))).contains("NVRTC") => Some("a machine with no NVRTC of its own"),
        other => other,
    };
    let mut trials = vec![
        super::trial("driver: absent", driver, move || expect(&bare, &["no libcuda.so.1", "install the driver"])),
        super::trial("driver: nvrtc absent", nvrtc, || expect(&list_with(Some((0, 13000))), &["NVRTC is missing", "pip install", LIBRARY_DIR])),
    ];
    let cases: [(&str, (i32, i32), &[&str]); 5] = [
        ("no device", (100, 13000), &["finds no GPU", "nvidia-smi"]),
        ("too old", (0, 12020), &["too old: it offers CUDA 12.2, and at least 12.4 is needed"]),
        ("too old to start", (3, 11000), &["too old"]),
        ("stub library", (34, 13000), &["stub", "LD_LIBRARY_PATH"]),
        ("unknown fault", (999, 13000), &["does not start: a fake error (CUDA_ERROR_FAKE)"]),
    ];
    for (name, driver, parts) in cases {
        trials.push(super::trial(&format!("driver: {name}"), compiler, move || expect(&list_with(Some(driver)), parts)));
    }
    trials
}
