//! The clock rates of a GPU at this moment, from NVIDIA's management library (NVML), which comes with the driver.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cudarc::driver::sys;

use crate::device::Clocks;

const LIBRARY: &str = "libnvidia-ml.so.1";
/// Kinds of clocks, as nvml.h numbers them.
const MULTIPROCESSORS: c_int = 1;
const MEMORY: c_int = 2;
/// The status that every call returns on success.
const SUCCESS: c_int = 0;

type Plain = unsafe extern "C" fn() -> c_int;
type HandleByBus = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
type ClockInfo = unsafe extern "C" fn(*mut c_void, c_int, *mut c_uint) -> c_int;

/// The clock rates of a device of the driver; none where the library or a figure is missing.
pub fn now(device: sys::CUdevice) -> Option<Clocks> {
    let mut bus = [0 as c_char; 32];
    // SAFETY: the device exists; writes a name of at most that length, with a zero at its end.
    let named = unsafe { sys::cuDeviceGetPCIBusId(bus.as_mut_ptr(), bus.len() as c_int, device) };
    if named != sys::CUresult::CUDA_SUCCESS {
        return None;
    }
    // SAFETY: its initialisers do nothing but prepare it, and the types of its functions are those of nvml.h, which are stable.
    unsafe {
        let library = libloading::Library::new(LIBRARY).ok()?;
        let start = *library.get::<Plain>(b"nvmlInit_v2\0").ok()?;
        let stop = *library.get::<Plain>(b"nvmlShutdown\0").ok()?;
        let handle_by_bus = *library.get::<HandleByBus>(b"nvmlDeviceGetHandleByPciBusId_v2\0").ok()?;
        let clock_info = *library.get::<ClockInfo>(b"nvmlDeviceGetClockInfo\0").ok()?;
        if start() != SUCCESS {
            return None;
        }
        let clocks = read(CStr::from_ptr(bus.as_ptr()), handle_by_bus, clock_info);
        stop();
        clocks
    }
}

/// Asks a started library for the clock rates of the device on `bus`.
///
/// # Safety
/// The library was started, and the functions are its own.
unsafe fn read(bus: &CStr, handle_by_bus: HandleByBus, clock_info: ClockInfo) -> Option<Clocks> {
    let mut handle = std::ptr::null_mut();
    // SAFETY: the name ends with a zero; stores one handle.
    if unsafe { handle_by_bus(bus.as_ptr(), &mut handle) } != SUCCESS {
        return None;
    }
    let hertz = |which| {
        let mut megahertz = 0;
        // SAFETY: the handle is of a device; stores one number.
        let told = unsafe { clock_info(handle, which, &mut megahertz) } == SUCCESS;
        told.then_some(u64::from(megahertz) * 1_000_000)
    };
    Some(Clocks { multiprocessors_hz: hertz(MULTIPROCESSORS)?, memory_hz: hertz(MEMORY)? })
}
