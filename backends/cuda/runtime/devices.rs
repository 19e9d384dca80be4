//! The GPUs of this machine as the driver lists them, and which of them can be used.

use std::ffi::CStr;

use cudarc::driver::sys;

use super::library::{self, absent, ok};
use crate::device::{Caps, Kind};
use crate::error::{Error, Result};

/// The compute capability that the kernels need: bf16 and asynchronous copies.
const OLDEST_ARCH: u32 = 80;

/// A device as the driver knows it.
pub(crate) struct Found {
    /// The device's number in the driver.
    pub(crate) device: i32,
    pub(crate) caps: Caps,
    /// The compute capability, major × 10 + minor.
    pub(crate) capability: u32,
}

/// The driver's version and every usable GPU, or why there is none. `compiles` says whether kernels are available at all, or why not; it looks while the
/// driver starts.
pub(crate) fn find(compiles: impl FnOnce() -> Result<()> + Send) -> Result<(i32, Vec<Found>)> {
    let (driver, compiles) = std::thread::scope(|scope| {
        let looking = scope.spawn(compiles);
        (library::driver(), looking.join())
    });
    let driver = driver?;
    compiles.unwrap_or_else(|_| Err(absent("the search for the compiler NVRTC ended in a panic")))?;
    let mut count = 0;
    // SAFETY: the driver was started; stores one number.
    ok(unsafe { sys::cuDeviceGetCount(&mut count) }, "counting GPUs")?;
    let mut unusable = Vec::new();
    let mut usable = Vec::new();
    for ordinal in 0..count {
        match describe(ordinal, driver)? {
            (found, None) => usable.push(found),
            (found, Some(reason)) => unusable.push(format!("{}: {reason}", found.caps.name)),
        }
    }
    if usable.is_empty() {
        let seen = if unusable.is_empty() { "the NVIDIA driver finds no GPU".into() } else { unusable.join("; ") };
        return Err(absent(seen));
    }
    Ok((driver, usable))
}

/// The device with number `ordinal`, and the reason if it cannot be used.
fn describe(ordinal: i32, driver: i32) -> Result<(Found, Option<String>)> {
    use sys::CUdevice_attribute_enum as Attribute;
    let mut device = 0;
    let mut name = [0; 256];
    let mut total = 0;
    // SAFETY: the driver was started; each call stores one value, the name at most as long as told.
    unsafe {
        ok(sys::cuDeviceGet(&mut device, ordinal), "looking at a GPU")?;
        ok(sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32 - 1, device), "looking at a GPU")?;
        ok(sys::cuDeviceTotalMem_v2(&mut total, device), "looking at a GPU")?;
    }
    let attribute = |which| {
        let mut value = 0;
        // SAFETY: the device exists; stores one number.
        ok(unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) }, "looking at a GPU")?;
        Ok::<u32, Error>(value.max(0) as u32)
    };
    let arch = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? * 10 + attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let integrated = attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
    let reason = if arch < OLDEST_ARCH {
        Some(format!("compute capability {}.{}, and at least {}.{} is needed", arch / 10, arch % 10, OLDEST_ARCH / 10, OLDEST_ARCH % 10))
    } else if attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED)? == 0 {
        Some("its driver offers no memory pools (a virtual GPU?)".into())
    } else {
        None
    };
    // Both clock rates are in kilohertz. A driver that does not tell leaves them out.
    let kilohertz = |which| attribute(which).ok().filter(|&value| value > 0).map(|value| f64::from(value) * 1e3);
    let clock_hz = kilohertz(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    let bus_bits = attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH).ok();
    // Memory moves a bit a wire on both edges of its clock.
    let memory_bytes_per_second =
        kilohertz(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE).zip(bus_bits).map(|(hertz, bits)| hertz * 2.0 * f64::from(bits) / 8.0);
    // SAFETY: the last byte was kept zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let caps = Caps {
        name,
        driver: format!("CUDA {}", library::version(driver)),
        kind: if integrated { Kind::Integrated } else { Kind::Discrete },
        memory_bytes: Some(total as u64),
        max_buffer_bytes: total as u64,
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_bytes: u64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?),
        f16: true,
        subgroup: Some(32),
        cuda_arch: Some(arch),
        clock_hz: clock_hz.map(|hertz| hertz as u64),
        memory_bytes_per_second: memory_bytes_per_second.map(|bytes| bytes as u64),
    };
    Ok((Found { device, caps, capability: arch }, reason))
}
