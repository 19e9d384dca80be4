//! One GPU as a [`Device`]: its memory, queues, and loaded kernels.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::jit::building::build_all;
use super::jit::{Arch, Cache, Module, Unit};
use super::runtime::devices::{Found, find};
use super::runtime::event::Event;
use super::runtime::memory::{Buffer, Context, Memory};
use super::runtime::queue::{Graph, Queue};
use super::runtime::{clocks, library};
use crate::device::{Caps, Clock, Clocks, Device, Filler, Hints, Open, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result, ensure};
use crate::ops::strange;

/// One NVIDIA GPU.
#[derive(Debug)]
pub struct Cuda {
    /// The device's number in the driver.
    device: i32,
    caps: Caps,
    arch: Arch,
    driver: i32,
    pub(crate) memory: Arc<Memory>,
    cache: Cache,
    /// Loaded modules, by the hash of their unit.
    modules: Mutex<HashMap<String, Module>>,
}

/// What a plan is made for: the device, as far as choice and tiling depend on it, and one of a variant's configurations.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The architecture that code is compiled for.
    pub arch: Arch,
    /// SMs of the device.
    pub units: u32,
    /// Shared memory that one thread block may use, in bytes.
    pub shared_bytes: u32,
    /// The number, within its variant, of the configuration that was chosen or named.
    pub config: Option<u16>,
}

/// Whether kernels are available: compiled now, or ahead of time.
fn kernels() -> Result<()> {
    let Err(error) = library::nvrtc() else { return Ok(()) };
    let cache = Cache::from_environment();
    match error {
        _ if !cache.is_empty() => Ok(()),
        // A pack that was refused would have been enough.
        Error::NoBackend { name, reason } => Err(Error::NoBackend { name, reason: [vec![reason], cache.refused()].concat().join("; ") }),
        error => Err(error),
    }
}

impl Target {
    /// The one of `all` that the target's configuration numbers, where there is a configuration.
    pub fn configured<T>(&self, mut all: impl Iterator<Item = T>) -> Option<T> {
        all.nth(self.config?.into())
    }

    /// Whether the configuration's one of `all` is able; without a configuration, whether any of `all` is; or why not.
    pub fn any<T>(&self, mut all: impl Iterator<Item = T>, can: impl Fn(&T) -> std::result::Result<(), String>) -> std::result::Result<(), String> {
        if self.config.is_some() {
            return self.configured(all).map_or_else(|| Err("no such configuration".into()), |one| can(&one));
        }
        let mut reason = "no configuration".into();
        let found = all.any(|one| can(&one).map_err(|why| reason = why).is_ok());
        if found { Ok(()) } else { Err(reason) }
    }
}

/// The chips on which choices are tested.
#[cfg(test)]
impl Target {
    pub(crate) const H200: Self = Self::hopper(132);
    pub(crate) const A100: Self = Self { arch: Arch(80), units: 108, shared_bytes: 163 << 10, config: None };
    pub(crate) const RTX_3090: Self = Self { arch: Arch(86), units: 82, shared_bytes: 99 << 10, config: None };
    /// An H20, an H100 PCIe, an H200, a Hopper with every SM, and two of Ampere.
    pub(crate) const TESTED: [Self; 6] = [Self::hopper(78), Self::hopper(114), Self::H200, Self::hopper(144), Self::A100, Self::RTX_3090];

    const fn hopper(units: u32) -> Self {
        Self { arch: Arch(90), units, shared_bytes: 227 << 10, config: None }
    }
}

impl Cuda {
    /// What variants see of the device.
    pub(crate) fn target(&self) -> Target {
        Target { arch: self.arch, units: self.caps.multiprocessors, shared_bytes: self.caps.shared_bytes as u32, config: None }
    }

    /// The modules of the units. Those that are missing are built in parallel and loaded.
    pub(crate) fn modules(&self, units: &[&Unit]) -> Result<Vec<Module>> {
        let hashes: Vec<String> = units.iter().map(|unit| unit.hash(self.arch)).collect();
        let loaded = || self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let mut missing: Vec<(&String, &Unit)> = hashes.iter().zip(units.iter().copied()).collect();
        {
            let loaded = loaded();
            let mut met = HashSet::new();
            missing.retain(|(hash, _)| !loaded.contains_key(*hash) && met.insert(*hash));
        }
        // The lock is not held here: compiling takes long, and two threads may compile different kernels.
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

impl Cuda {
    /// Refuses bytes that do not all lie in `slice`, and a slice of another device: the driver takes addresses, and checks none.
    fn inside(&self, what: &str, slice: &Slice<Self>, bytes: u64) -> Result<()> {
        if !self.owns(&slice.buffer) {
            return Err(strange(what));
        }
        ensure(bytes <= slice.len, what, format_args!("at most {} bytes", slice.len), bytes)
    }
}

impl Open for Cuda {
    fn list() -> Result<Vec<Caps>> {
        Ok(find(kernels)?.1.into_iter().map(|found| found.caps).collect())
    }

    fn open(index: usize) -> Result<Self> {
        let (driver, mut found) = find(kernels)?;
        if index >= found.len() {
            return Err(Error::NoBackend { name: format!("cuda:{index}"), reason: format!("devices are numbered from 0 to {}", found.len() - 1) });
        }
        let Found { device, caps, capability } = found.swap_remove(index);
        let memory = Arc::new(Memory::new(Context::new(device)?)?);
        Ok(Self { device, caps, arch: Arch(capability), driver, memory, cache: Cache::from_environment(), modules: Mutex::default() })
    }
}

impl Device for Cuda {
    const NAME: &'static str = "cuda";
    type Buffer = Buffer;
    type Queue = Queue;
    type Graph = Graph;
    type Event = Event;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn queue(&self) -> Result<Queue> {
        Queue::new(Arc::clone(&self.memory))
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer> {
        // What another session, and so another tenant, left there is not shown.
        self.memory.alloc_zeroed(bytes)
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

    fn compiled(&self) -> u64 {
        self.modules.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    fn write(&self, queue: &mut Queue, dst: &Slice<Self>, src: &[u8]) -> Result<()> {
        self.inside("write", dst, src.len() as u64)?;
        queue.write(address(dst), src)
    }

    fn write_with(&self, queue: &mut Queue, dst: &Slice<Self>, fill: &mut Filler<'_>) -> Result<()> {
        self.inside("write_with", dst, dst.len)?;
        queue.write_with(address(dst), dst.len, fill)
    }

    fn read(&self, queue: &mut Queue, src: &Slice<Self>, dst: &mut [u8]) -> Result<()> {
        self.inside("read", src, dst.len() as u64)?;
        queue.read(address(src), dst)
    }

    fn read_after(&self, queue: &mut Queue, event: &Event, src: &Slice<Self>, dst: &mut [u8]) -> Result<()> {
        self.inside("read", src, dst.len() as u64)?;
        if !src.buffer.is_host() {
            return queue.read(address(src), dst);
        }
        event.wait()?;
        // SAFETY: the bytes lie inside page-locked memory, which the host knows by the same address, and `src` keeps it. The work that wrote them is over.
        unsafe { std::ptr::copy_nonoverlapping(address(src) as *const u8, dst.as_mut_ptr(), dst.len()) };
        Ok(())
    }

    fn copy(&self, queue: &mut Queue, src: &Slice<Self>, dst: &Slice<Self>) -> Result<()> {
        self.inside("copy", src, src.len)?;
        self.inside("copy", dst, src.len)?;
        let apart = src.buffer.id() != dst.buffer.id() || src.offset + src.len <= dst.offset || dst.offset + src.len <= src.offset;
        ensure(apart, "copy", "ranges apart", "overlapping ones")?;
        queue.copy(address(src), address(dst), src.len)
    }

    fn record_event(&self, queue: &mut Queue) -> Result<Event> {
        Event::new(queue)
    }

    fn elapsed(&self, _queue: &mut Queue, earlier: &Event, later: &Event) -> Result<f64> {
        later.seconds_since(earlier)
    }

    fn clock(&self) -> Clock {
        Clock::Device
    }

    fn clocks(&self) -> Option<Clocks> {
        clocks::now(self.device)
    }

    /// The hints are an H200's. 131,072 rows of 384 → 1536 → 384 in f16 take 1.15 ms as two products and 1.77 ms as `fused_mlp`, whose
    /// chunks are small for so short a K. 4,096 rows take 43 µs both ways.
    fn hints(&self) -> Hints {
        // TMA boxes of `sm90_decode`.
        let page_rows = (self.arch.0 == 90).then_some(128);
        let (split_mlp, norm_in_product, slices_in_product, dense_adapters) = (true, true, true, true);
        let (dtype, batch_tokens) = (Some(DType::F16), Some(131_072));
        // Four blocks an SM of `sm80_gemv`, of eight outputs each.
        let normed_outputs = Some(32 * u64::from(self.target().units));
        Hints { split_mlp, norm_in_product, normed_outputs, slices_in_product, dense_adapters, dtype, batch_tokens, page_rows, beside_host: true }
    }

    fn synchronize(&self, queue: &mut Queue) -> Result<()> {
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

/// Where an operand starts on the device.
pub fn address(slice: &Slice<Cuda>) -> u64 {
    slice.buffer.address() + slice.offset
}

/// Where an operand starts on the device; 0 where there is none.
pub fn address_of(slice: Option<&Slice<Cuda>>) -> u64 {
    slice.map_or(0, address)
}

/// The address range of an operand.
pub fn range(slice: &Slice<Cuda>) -> Range<u64> {
    address(slice)..address(slice) + slice.len
}
