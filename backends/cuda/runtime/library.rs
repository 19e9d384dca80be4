//! The search for NVIDIA's libraries at run time. One line says what is missing and what to install.
//!
//! cudarc panics when a library that it loads is absent, and when the driver lacks a function that it binds. So every entry into it comes
//! after a check here.

use std::ffi::{CStr, OsString};
use std::path::PathBuf;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};
use cudarc::nvrtc::sys as nvrtc;

use crate::error::{Error, Result};

/// The oldest driver that has every function used here, as CUDA writes versions: 12.4.
pub const OLDEST_DRIVER: i32 = 12040;

/// A folder that is searched first for NVIDIA's libraries.
pub const LIBRARY_DIR: &str = "TRIFUSE_CUDA_LIB_DIR";

/// The driver's own word for a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} ({})", text(*.0, Name::Words), text(*.0, Name::Symbol))]
pub struct Status(pub CUresult);

enum Name {
    Symbol,
    Words,
}

/// The driver's text for a status. cudarc's own Display asks libcuda too, but panics where that is absent.
fn text(status: CUresult, name: Name) -> String {
    // SAFETY: only looks for the library.
    if !unsafe { sys::is_culib_present() } {
        return format!("{status:?}");
    }
    let mut pointer = std::ptr::null();
    // SAFETY: the library is there; both functions store a pointer to static text, or nothing.
    unsafe {
        match name {
            Name::Symbol => sys::cuGetErrorName(status, &mut pointer),
            Name::Words => sys::cuGetErrorString(status, &mut pointer),
        };
    }
    if pointer.is_null() {
        return format!("{status:?}");
    }
    // SAFETY: not null, so it points to the driver's static, terminated text.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// `Ok` for success, else the status.
pub fn check(status: CUresult) -> std::result::Result<(), Status> {
    if status == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Status(status)) }
}

/// `Ok` for success, else the device's failure during `during`.
pub fn ok(status: CUresult, during: &str) -> Result<()> {
    check(status).map_err(|status| Error::device(during, status))
}

/// The error that this backend is absent.
pub fn absent(reason: impl Into<String>) -> Error {
    Error::NoBackend { name: "cuda".into(), reason: reason.into() }
}

/// A version as people write it: 13000 is 13.0.
pub fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// Starts the driver, once a process, and returns its CUDA version.
pub fn driver() -> Result<i32> {
    // SAFETY: only looks for the library.
    if !unsafe { sys::is_culib_present() } {
        return Err(absent("the NVIDIA driver is missing (no libcuda.so.1); install the driver, and in a container pass the GPU through"));
    }
    // SAFETY: the library is there, and the flags are the only legal ones.
    let started = check(unsafe { sys::cuInit(0) });
    let mut found = 0;
    // SAFETY: stores one number; legal before and without a successful start.
    let told = check(unsafe { sys::cuDriverGetVersion(&mut found) });
    if told.is_ok() && found < OLDEST_DRIVER {
        return Err(absent(format!(
            "the NVIDIA driver is too old: it offers CUDA {}, and at least {} is needed; install driver 550 or newer",
            version(found),
            version(OLDEST_DRIVER)
        )));
    }
    started.and(told).map_err(|Status(status)| match status {
        CUresult::CUDA_ERROR_NO_DEVICE => absent("the NVIDIA driver finds no GPU; check that `nvidia-smi` lists one, and CUDA_VISIBLE_DEVICES"),
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            absent("libcuda.so is the toolkit's stub, not a driver; take its folder out of LD_LIBRARY_PATH and install the NVIDIA driver")
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => absent("the NVIDIA kernel module and libcuda.so are of different versions; restart the machine"),
        status => absent(format!("the NVIDIA driver does not start: {}", Status(status))),
    })?;
    Ok(found)
}

/// NVRTC's version, major and minor, or what to install.
pub fn nvrtc() -> Result<(i32, i32)> {
    static FOUND: OnceLock<Option<(i32, i32)>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        preload_nvrtc();
        // SAFETY: only looks for the library.
        if !unsafe { nvrtc::is_culib_present() } {
            return None;
        }
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library is there; stores two numbers.
        let status = unsafe { nvrtc::nvrtcVersion(&mut major, &mut minor) };
        (status == nvrtc::nvrtcResult::NVRTC_SUCCESS).then_some((major, minor))
    });
    found.ok_or_else(|| {
        absent(format!(
            "the compiler NVRTC is missing (no libnvrtc.so); pip install 'nvidia-cuda-nvrtc==13.0.*', or set {LIBRARY_DIR} to the folder that holds it"
        ))
    })
}

/// Folders that may hold the libraries, most specific first. `LD_LIBRARY_PATH` comes after them, by the loader itself.
fn folders() -> Vec<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut all: Vec<PathBuf> = set(LIBRARY_DIR).into_iter().collect();
    all.extend(["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(set).map(|home| home.join("lib64")));
    all.push("/usr/local/cuda/lib64".into());
    for prefix in ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(set) {
        for python in std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten() {
            let packages = python.path().join("site-packages/nvidia");
            all.extend(["cu13/lib", "cuda_nvrtc/lib"].map(|part| packages.join(part)));
        }
        all.push(prefix.join("lib"));
    }
    all
}

/// Loads NVRTC by its full path, and keeps it. A later load by name then finds it by its SONAME.
///
/// NVRTC's builtins are loaded first. NVRTC 13 has no RUNPATH, and looks for them by name only when it compiles.
fn preload_nvrtc() {
    let named = |name: &OsString, start: &str| name.to_str().is_some_and(|name| name.starts_with(start) && !name.contains(".alt."));
    for folder in folders() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        let names: Vec<OsString> = entries.flatten().map(|entry| entry.file_name()).collect();
        if !names.iter().any(|name| named(name, "libnvrtc.so")) {
            continue;
        }
        let mut found = false;
        for start in ["libnvrtc-builtins.so", "libnvrtc.so"] {
            for name in names.iter().filter(|name| named(name, start)) {
                // SAFETY: NVIDIA's libraries have no initialisers that could break this process.
                if let Ok(library) = unsafe { libloading::Library::new(folder.join(name)) } {
                    found |= start == "libnvrtc.so";
                    std::mem::forget(library);
                }
            }
        }
        if found {
            return;
        }
    }
}
