//! The search for adapters, and their opening.

use std::sync::Mutex;

use super::buffer::number;
use super::compiled::Cache;
use super::fault::Faults;
use super::{Buffer, Wgpu};
use crate::device::{Caps, Device, Kind, Open};
use crate::error::{Error, Result};

/// The interfaces to drivers that shaders are tested for. wgpu has those of the platform it is built for.
const INTERFACES: wgpu::Backends = wgpu::Backends::VULKAN.union(wgpu::Backends::METAL).union(wgpu::Backends::DX12);
/// The features that every shader relies on. Every driver for Vulkan, Metal and DX12 has them.
const REQUIRED: wgpu::Features = wgpu::Features::IMMEDIATES;
/// The features that a variant may use where they are there.
const OPTIONAL: wgpu::Features = wgpu::Features::SHADER_F16.union(wgpu::Features::SUBGROUP).union(super::event::FEATURES);

impl Open for Wgpu {
    fn list() -> Result<Vec<Caps>> {
        Ok(adapters()?.iter().map(|adapter| caps(adapter, adapter.features(), &adapter.limits())).collect())
    }

    fn open(index: usize) -> Result<Self> {
        let adapters = adapters()?;
        let Some(adapter) = adapters.get(index) else {
            return Err(Error::NoBackend {
                name: format!("wgpu:{index}"),
                reason: format!("devices are numbered from 0 to {}", adapters.len().saturating_sub(1)),
            });
        };
        // wgpu's default limits are those of browsers: a seventh of the memory of one large weight.
        Self::request(adapter, REQUIRED | (adapter.features() & OPTIONAL), adapter.limits())
    }
}

impl Wgpu {
    /// Opens the adapter's device with these features and limits, which the adapter has.
    fn request(adapter: &wgpu::Adapter, features: wgpu::Features, limits: wgpu::Limits) -> Result<Self> {
        let caps = caps(adapter, features, &limits);
        let descriptor = wgpu::DeviceDescriptor { label: Some("trifuse"), required_features: features, required_limits: limits, ..Default::default() };
        let (raw, queue) = pollster::block_on(adapter.request_device(&descriptor)).map_err(|error| Error::device("opening the device", error))?;
        let faults = Faults::watch(&raw);
        Ok(Self { number: number(), limits: raw.limits(), caps, raw, queue, faults, pipelines: Mutex::new(Cache::default()), behind: 0 })
    }

    /// Opens the best adapter's device as a lesser one would be: without optional features, and with lowered limits. For tests of this
    /// backend.
    #[doc(hidden)]
    pub fn lesser(lower: impl FnOnce(&mut wgpu::Limits)) -> Result<Self> {
        let adapters = adapters()?;
        let adapter = adapters.first().ok_or_else(|| Error::NoBackend { name: Self::NAME.into(), reason: "there is no adapter".into() })?;
        let mut limits = adapter.limits();
        lower(&mut limits);
        Self::request(adapter, REQUIRED, limits)
    }

    /// Binds `bytes` more bytes behind each operand, for tests of this backend. A shader that reads past what is bound gets the last
    /// element there, which no case would show.
    #[doc(hidden)]
    #[must_use]
    pub fn binding_behind(mut self, bytes: u64) -> Self {
        self.behind = bytes;
        self
    }
}

/// The usable adapters, best first, those of `WGPU_BACKEND` and of `WGPU_ADAPTER_NAME` where these are set.
fn adapters() -> Result<Vec<wgpu::Adapter>> {
    let interfaces = wgpu::Backends::from_env().map_or(INTERFACES, |asked| asked & INTERFACES);
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = interfaces;
    descriptor.flags = wgpu::InstanceFlags::empty().with_env();
    let all = pollster::block_on(wgpu::Instance::new(descriptor).enumerate_adapters(interfaces));
    let refuse = |reason: String| Err(Error::NoBackend { name: Wgpu::NAME.into(), reason });
    if all.is_empty() {
        return refuse(missing().into());
    }
    let mut found: Vec<_> = all.into_iter().filter(|adapter| adapter.features().contains(REQUIRED)).collect();
    if found.is_empty() {
        return refuse("no adapter has push constants; update the driver".into());
    }
    if let Ok(wanted) = std::env::var("WGPU_ADAPTER_NAME") {
        let names: Vec<_> = found.iter().map(|adapter| adapter.get_info().name).collect();
        found.retain(|adapter| adapter.get_info().name.to_lowercase().contains(&wanted.to_lowercase()));
        if found.is_empty() {
            return refuse(format!("no adapter has WGPU_ADAPTER_NAME, {wanted:?}, in its name; there are {names:?}"));
        }
    }
    found.sort_by_key(|adapter| rank(&adapter.get_info()));
    Ok(found)
}

/// What there is no driver for, and what to do.
const fn missing() -> &'static str {
    if cfg!(windows) {
        "there is no driver for DX12 or Vulkan; install the GPU's"
    } else if cfg!(target_vendor = "apple") {
        "there is no Metal device"
    } else {
        "there is no Vulkan driver; install the GPU's (its package for Vulkan, and libvulkan1), or for the software driver, \
         `apt-get install mesa-vulkan-drivers libvulkan1`"
    }
}

/// The place of an adapter among others. Where one GPU has drivers for two interfaces, the one for Vulkan, which is measured, comes first.
fn rank(info: &wgpu::AdapterInfo) -> (u8, bool) {
    let place = match kind(info) {
        Kind::Discrete => 0,
        Kind::Integrated => 1,
        Kind::Other => 2,
        Kind::Cpu => 3,
    };
    (place, info.backend == wgpu::Backend::Dx12)
}

/// The interface, where it is not Vulkan, and what the driver says of itself.
fn driver(info: &wgpu::AdapterInfo) -> String {
    let interface = match info.backend {
        wgpu::Backend::Metal => "Metal",
        wgpu::Backend::Dx12 => "DX12",
        _ => "",
    };
    [interface, &info.driver, &info.driver_info].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

fn kind(info: &wgpu::AdapterInfo) -> Kind {
    match info.device_type {
        wgpu::DeviceType::DiscreteGpu => Kind::Discrete,
        wgpu::DeviceType::IntegratedGpu => Kind::Integrated,
        wgpu::DeviceType::VirtualGpu | wgpu::DeviceType::Other => Kind::Other,
        wgpu::DeviceType::Cpu => Kind::Cpu,
    }
}

fn caps(adapter: &wgpu::Adapter, features: wgpu::Features, limits: &wgpu::Limits) -> Caps {
    let info = adapter.get_info();
    Caps {
        driver: driver(&info),
        kind: kind(&info),
        name: info.name,
        memory_bytes: None,
        max_buffer_bytes: limits.max_buffer_size - limits.max_buffer_size % Buffer::WORD,
        multiprocessors: 0,
        shared_bytes: u64::from(limits.max_compute_workgroup_storage_size),
        f16: features.contains(wgpu::Features::SHADER_F16),
        subgroup: features.contains(wgpu::Features::SUBGROUP).then_some(info.subgroup_min_size),
        cuda_arch: None,
        clock_hz: None,
        memory_bytes_per_second: None,
    }
}
