//! NVIDIA GPUs, from compute capability 8.0 on, through the driver and NVRTC. Both are loaded at run time: it builds with
//! no CUDA toolkit and starts with no driver.

mod adapter_basis;
mod ahead;
mod attention;
mod attention_lists;
mod attention_pairs;
mod attention_repack;
mod attention_short;
mod attention_simt_tile;
mod attention_sm80;
mod attention_sm90;
mod attention_sm90_order;
mod attention_sm90_parts;
mod attention_sm90_quartet;
mod attention_sm90_ragged;
mod attention_sm90_rotated;
mod attention_sm90_runs;
mod attention_sm90_steps;
mod attention_sm90_tile;
mod attention_split;
mod attention_split_boxes;
mod building;
mod cache;
mod catalogue;
mod clocks;
mod codebook_gemm;
mod codebook_gemm_choice;
mod codebook_gemm_joint;
mod codebook_gemm_launch;
mod codebook_gemm_runs;
mod codebook_gemm_runs_sm80;
mod codebook_gemm_segments;
mod codebook_gemm_tile;
mod fused_mlp;
mod fused_mlp_ahead;
mod fused_mlp_stream;
mod fused_mlp_tensor;
mod gemm;
pub mod jit;
mod kernel;
mod library;
mod linear;
mod linear_across;
mod linear_ahead;
mod linear_norm;
mod linear_parts;
mod linear_rows;
mod linear_short;
mod linear_stationary;
mod linear_stream;
mod linear_stream_adapted;
mod linear_tensor;
mod lock;
mod mark;
mod memory;
mod module;
mod open;
mod pack;
mod pack_writer;
mod params;
mod pointwise;
mod prefix_attention;
mod prefix_attention_sm80;
mod queue;
mod repack;
mod resources;
mod sources;
mod stream;
pub mod tma;
mod wgmma;
mod wgmma_choice;
mod wgmma_rows;

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys;

pub use cache::{Built, CACHE_DIR, Cache};
pub use catalogue::{Entry, catalogue};
pub use kernel::{RunsOn, Target, TensorCores};
pub use library::{LIBRARY_DIR, nvrtc as nvrtc_version};
pub use mark::Mark;
pub use memory::Buffer;
pub use pack::{KERNELS, Pack, Packs};
pub use pack_writer::PackWriter;
pub use queue::{Graph, Queue};
pub use resources::Resources;

use crate::device::{Caps, Clock, Clocks, Device, Kind, Open, Slice};
use crate::error::{Error, Result};
use building::build_all;
use jit::{Arch, Unit};
use library::{absent, ok};
use memory::{Context, Memory};
use module::Module;

/// The compute capability that the kernels need: bf16 and asynchronous copies.
const OLDEST_ARCH: u32 = 80;

/// One NVIDIA GPU.
#[derive(Debug)]
pub struct Cuda {
    /// As the driver numbers it.
    device: i32,
    caps: Caps,
    arch: Arch,
    driver: i32,
    memory: Arc<Memory>,
    cache: Cache,
    /// What was loaded, by the hash of what it was made from.
    modules: Mutex<HashMap<String, Module>>,
}

/// A device as the driver knows it.
struct Found {
    device: i32,
    caps: Caps,
    arch: Arch,
}

/// Every usable GPU, or why there is none.
fn find() -> Result<(i32, Vec<Found>)> {
    let driver = library::driver()?;
    let nvrtc = library::nvrtc();
    if let Err(error) = nvrtc {
        let cache = Cache::from_environment();
        if cache.is_empty() {
            return Err(match error {
                // A pack that was passed over would have done instead.
                Error::NoBackend { name, reason } => Error::NoBackend { name, reason: [vec![reason], cache.refused()].concat().join("; ") },
                error => error,
            });
        }
    }
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

/// One device, and why it cannot be used, if so.
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
    // Both in kilohertz; a driver that does not tell leaves them out.
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
        units: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_bytes: u64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?),
        f16: true,
        subgroup: Some(32),
        cuda_arch: Some(arch),
        clock_hz: clock_hz.map(|hertz| hertz as u64),
        memory_bytes_per_second: memory_bytes_per_second.map(|bytes| bytes as u64),
    };
    Ok((Found { device, caps, arch: Arch(arch) }, reason))
}

impl Cuda {
    /// The device as variants see it.
    fn target(&self) -> Target {
        Target { arch: self.arch, units: self.caps.units, shared_bytes: self.caps.shared_bytes as u32 }
    }

    /// The kernels of each unit: loaded already, or built side by side and loaded now.
    fn modules(&self, units: &[&Unit]) -> Result<Vec<Module>> {
        let hashes: Vec<String> = units.iter().map(|unit| unit.hash(self.arch)).collect();
        let loaded = || self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let mut missing: Vec<(&String, &Unit)> = hashes.iter().zip(units.iter().copied()).collect();
        {
            let loaded = loaded();
            let mut met = HashSet::new();
            missing.retain(|(hash, _)| !loaded.contains_key(*hash) && met.insert(*hash));
        }
        // Not under the lock: compiling takes long, and two threads may well compile different kernels.
        let built = build_all(&missing.iter().map(|(_, unit)| *unit).collect::<Vec<_>>(), self.arch, &self.cache)?;
        for ((hash, unit), built) in missing.into_iter().zip(built) {
            let module = Module::load(&self.memory, unit, &built.cubin, self.driver)?;
            loaded().entry(hash.clone()).or_insert(module);
        }
        let loaded = loaded();
        let lost = || Error::invalid("loading", "a module for every unit", "none");
        hashes.iter().map(|hash| loaded.get(hash).cloned().ok_or_else(lost)).collect()
    }
}

impl Open for Cuda {
    fn list() -> Result<Vec<Caps>> {
        Ok(find()?.1.into_iter().map(|found| found.caps).collect())
    }

    fn open(index: usize) -> Result<Self> {
        let (driver, mut found) = find()?;
        if index >= found.len() {
            return Err(Error::NoBackend { name: format!("cuda:{index}"), reason: format!("devices are numbered from 0 to {}", found.len() - 1) });
        }
        let Found { device, caps, arch } = found.swap_remove(index);
        let memory = Arc::new(Memory::new(Context::new(device)?)?);
        Ok(Self { device, caps, arch, driver, memory, cache: Cache::from_environment(), modules: Mutex::default() })
    }
}

impl Device for Cuda {
    const NAME: &'static str = "cuda";
    type Buffer = Buffer;
    type Queue = Queue;
    type Graph = Graph;
    type Mark = Mark;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn queue(&self) -> Result<Queue> {
        Queue::new(Arc::clone(&self.memory))
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer> {
        self.memory.alloc(bytes)
    }

    fn alloc_host(&self, bytes: u64) -> Result<Buffer> {
        self.memory.alloc_host(bytes)
    }

    fn buffer_id(buffer: &Buffer) -> usize {
        buffer.id()
    }

    fn owns(&self, buffer: &Buffer) -> bool {
        buffer.is_of(&self.memory)
    }

    fn write(&self, queue: &mut Queue, dst: &Slice<Self>, src: &[u8]) -> Result<()> {
        queue.write(kernel::address(dst), src)
    }

    fn read(&self, queue: &mut Queue, src: &Slice<Self>, dst: &mut [u8]) -> Result<()> {
        queue.read(kernel::address(src), dst)
    }

    fn copy(&self, queue: &mut Queue, src: &Slice<Self>, dst: &Slice<Self>) -> Result<()> {
        queue.copy(kernel::address(src), kernel::address(dst), src.len)
    }

    fn mark(&self, queue: &mut Queue) -> Result<Mark> {
        Mark::new(queue)
    }

    fn seconds_between(&self, _queue: &mut Queue, earlier: &Mark, later: &Mark) -> Result<f64> {
        later.seconds_since(earlier)
    }

    fn clock(&self) -> Clock {
        Clock::Device
    }

    fn clocks(&self) -> Option<Clocks> {
        clocks::now(self.device)
    }

    fn wait(&self, queue: &mut Queue) -> Result<()> {
        queue.wait()
    }

    fn begin_capture(&self, queue: &mut Queue) -> Result<()> {
        queue.begin_capture()
    }

    fn end_capture(&self, queue: &mut Queue) -> Result<Graph> {
        queue.end_capture()
    }

    unsafe fn replay(&self, queue: &mut Queue, graph: &Graph) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { queue.replay(graph) }
    }
}
