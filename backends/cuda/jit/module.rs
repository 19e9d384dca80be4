//! Loaded machine code on the device, and the kernels in it.

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::{self, CUfunction, CUmodule, CUresult};

use crate::backends::cuda::jit::unit::Unit;
use crate::backends::cuda::runtime::library::{self, Status, check, ok};
use crate::backends::cuda::runtime::memory::Memory;
use crate::error::{Error, Result};

/// Compiled kernels, loaded on the device.
#[derive(Clone, Debug)]
pub struct Module(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    raw: CUmodule,
    functions: Vec<Function>,
    memory: Arc<Memory>,
}

/// A kernel of a module.
#[derive(Debug)]
pub struct Function {
    entry: &'static str,
    raw: CUfunction,
    /// Whether [`most_shared`](Self::most_shared) was called. It has a lasting effect.
    most_shared: AtomicBool,
}

// SAFETY: modules and functions may be used from every thread.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl Module {
    /// Loads the machine code of `unit`, and prepares its kernels, so that a first launch may be captured.
    pub fn load(memory: &Arc<Memory>, unit: &Unit, cubin: &[u8], driver: i32) -> Result<Self> {
        memory.context.bind()?;
        let during = |what: &str| format!("{what} {}", unit.name);
        let mut raw = std::ptr::null_mut();
        // SAFETY: the image is a CUBIN, which tells its own length; stores one handle.
        check(unsafe { sys::cuModuleLoadData(&mut raw, cubin.as_ptr().cast()) }).map_err(|status| load_error(unit, driver, status))?;
        let mut loaded = Loaded { raw, functions: Vec::new(), memory: Arc::clone(memory) };
        for &entry in unit.entries {
            let name = CString::new(entry).map_err(|error| Error::device(during("loading"), error))?;
            let mut function = std::ptr::null_mut();
            let shared = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the module is loaded; stores one handle, sets one attribute of it. Setting it also makes the driver
            // load the code now, where it would otherwise wait for the first launch, and fail inside a capture.
            unsafe {
                ok(sys::cuModuleGetFunction(&mut function, raw, name.as_ptr()), &during("finding a kernel of"))?;
                ok(sys::cuFuncSetAttribute(function, shared, unit.shared_bytes as i32), &during("setting the shared memory of"))?;
            }
            loaded.functions.push(Function { entry, raw: function, most_shared: AtomicBool::new(false) });
        }
        Ok(Self(Arc::new(loaded)))
    }

    /// The kernel named `entry`, if the module has it.
    pub fn function(&self, entry: &str) -> Option<&Function> {
        self.0.functions.iter().find(|function| function.entry == entry)
    }

    /// The names of the module's kernels.
    pub fn entries(&self) -> impl Iterator<Item = &'static str> {
        self.0.functions.iter().map(|function| function.entry)
    }
}

impl Function {
    /// The driver's handle of the kernel, alive as long as the module.
    pub const fn raw(&self) -> CUfunction {
        self.raw
    }

    /// Gives blocks of the kernel all shared memory of an SM.
    pub fn most_shared(&self) -> Result<()> {
        if self.most_shared.load(Ordering::Relaxed) {
            return Ok(());
        }
        let share = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // SAFETY: the function is loaded.
        ok(unsafe { sys::cuFuncSetAttribute(self.raw, share, 100) }, "dividing the memory of multiprocessors")?;
        self.most_shared.store(true, Ordering::Relaxed);
        Ok(())
    }
}

fn load_error(unit: &Unit, driver: i32, status: Status) -> Error {
    let newer = library::nvrtc().ok().filter(|(major, _)| *major > driver / 1000);
    match (status, newer) {
        (Status(CUresult::CUDA_ERROR_OUT_OF_MEMORY), _) => Error::OutOfMemory { requested: 0, purpose: format!("the code of {}", unit.name) },
        (status, Some((major, minor))) => {
            let offered = library::version(driver);
            Error::unsupported(
                &unit.name,
                format!("the driver (CUDA {offered}) does not load code of NVRTC {major}.{minor}: {status}; install NVRTC {} or a newer driver", driver / 1000),
            )
        }
        (status, None) => Error::device(format!("loading {}", unit.name), status),
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if self.memory.context.bind().is_ok() {
            // SAFETY: loaded once, unloaded once. The driver waits for kernels that still run.
            unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}
