//! A device whose backend is chosen while the program runs, with one type for all backends.

mod parts;

use crate::backend::{Backend, Kernel};
use crate::device::{Caps, Clock, Clocks, Device, Filler, Hints, Slice};
use crate::error::Result;
use crate::ops::{Attention, Checksum, CodebookGemm, FusedMlp, GroupedLinear, Linear, Op, Pointwise, PrefixAttention, Sample, Translate};
use parts::other_device;
pub use parts::{AnyBuffer, AnyPart, AnyPlan};

/// A device of any backend, the crate's own or another's. A [`Session<AnyDevice>`](crate::session::Session), and everything made of it, has
/// one type, whatever runs the work. [`Choice::open_any`](super::Choice::open_any) opens one by its name.
///
/// ```no_run
/// use std::sync::Arc;
/// use trifuse::backends::{AnyDevice, Choice};
/// use trifuse::session::Session;
///
/// # fn main() -> trifuse::Result<()> {
/// let name = std::env::args().nth(1).unwrap_or("auto".into()); // or cpu, wgpu, cuda, wgpu:1
/// let device: AnyDevice = name.parse::<Choice>()?.open_any()?;
/// let mut session = Session::new(Arc::new(device))?; // of one type, whatever was asked for
/// # session.upload(&[0.5f32; 8]).map(drop)
/// # }
/// ```
///
/// A launch costs a call through a table, and copies of the operands' handles, more than on the device behind.
pub struct AnyDevice {
    device: Box<dyn Erased>,
}

impl AnyDevice {
    /// Wraps the device `backend`.
    pub fn new<B: Backend>(backend: B) -> Self {
        Self { device: Box::new(backend) }
    }

    /// The name of the backend behind.
    pub fn backend(&self) -> &'static str {
        self.device.backend()
    }
}

impl std::fmt::Debug for AnyDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.backend(), Device::caps(self).name)
    }
}

/// The slice in the terms of the device behind.
fn inner<D: Device>(slice: &Slice<AnyDevice>) -> Result<Slice<D>> {
    slice.buffer.buffer.downcast_ref().map(|buffer: &D::Buffer| Slice::new(buffer.clone(), slice.offset, slice.len)).ok_or_else(other_device)
}

/// [`Device`] without its types.
trait ErasedDevice: Send + Sync {
    fn backend(&self) -> &'static str;
    fn caps(&self) -> &Caps;
    fn clock(&self) -> Clock;
    fn clocks(&self) -> Option<Clocks>;
    fn hints(&self) -> Hints;
    fn compiled(&self) -> u64;
    fn owns(&self, buffer: &AnyBuffer) -> bool;
    fn queue(&self) -> Result<AnyPart>;
    fn alloc(&self, bytes: u64, host: bool) -> Result<AnyBuffer>;
    fn write(&self, queue: &mut AnyPart, dst: &Slice<AnyDevice>, src: &[u8]) -> Result<()>;
    fn write_with(&self, queue: &mut AnyPart, dst: &Slice<AnyDevice>, fill: &mut Filler<'_>) -> Result<()>;
    fn read(&self, queue: &mut AnyPart, src: &Slice<AnyDevice>, dst: &mut [u8]) -> Result<()>;
    fn read_after(&self, queue: &mut AnyPart, event: &AnyPart, src: &Slice<AnyDevice>, dst: &mut [u8]) -> Result<()>;
    fn copy(&self, queue: &mut AnyPart, src: &Slice<AnyDevice>, dst: &Slice<AnyDevice>) -> Result<()>;
    fn record_event(&self, queue: &mut AnyPart) -> Result<AnyPart>;
    fn elapsed(&self, queue: &mut AnyPart, earlier: &AnyPart, later: &AnyPart) -> Result<f64>;
    fn synchronize(&self, queue: &mut AnyPart) -> Result<()>;
    fn begin_capture(&self, queue: &mut AnyPart) -> Result<()>;
    fn end_capture(&self, queue: &mut AnyPart) -> Result<AnyPart>;
    /// # Safety
    /// The contract of [`Device::replay`].
    unsafe fn replay(&self, queue: &mut AnyPart, graph: &AnyPart) -> Result<()>;
}

impl<D: Device> ErasedDevice for D {
    fn backend(&self) -> &'static str {
        Device::backend(self)
    }

    fn caps(&self) -> &Caps {
        Device::caps(self)
    }

    fn clock(&self) -> Clock {
        Device::clock(self)
    }

    fn clocks(&self) -> Option<Clocks> {
        Device::clocks(self)
    }

    fn hints(&self) -> Hints {
        Device::hints(self)
    }

    fn compiled(&self) -> u64 {
        Device::compiled(self)
    }

    fn owns(&self, buffer: &AnyBuffer) -> bool {
        buffer.buffer.downcast_ref().is_some_and(|buffer| Device::owns(self, buffer))
    }

    fn queue(&self) -> Result<AnyPart> {
        Device::queue(self).map(AnyPart::new)
    }

    fn alloc(&self, bytes: u64, host: bool) -> Result<AnyBuffer> {
        let made = if host { Device::alloc_host(self, bytes) } else { Device::alloc(self, bytes) };
        made.map(AnyBuffer::new::<D>)
    }

    fn write(&self, queue: &mut AnyPart, dst: &Slice<AnyDevice>, src: &[u8]) -> Result<()> {
        Device::write(self, queue.get_mut()?, &inner(dst)?, src)
    }

    fn write_with(&self, queue: &mut AnyPart, dst: &Slice<AnyDevice>, fill: &mut Filler<'_>) -> Result<()> {
        Device::write_with(self, queue.get_mut()?, &inner(dst)?, fill)
    }

    fn read(&self, queue: &mut AnyPart, src: &Slice<AnyDevice>, dst: &mut [u8]) -> Result<()> {
        Device::read(self, queue.get_mut()?, &inner(src)?, dst)
    }

    fn read_after(&self, queue: &mut AnyPart, event: &AnyPart, src: &Slice<AnyDevice>, dst: &mut [u8]) -> Result<()> {
        Device::read_after(self, queue.get_mut()?, event.get()?, &inner(src)?, dst)
    }

    fn copy(&self, queue: &mut AnyPart, src: &Slice<AnyDevice>, dst: &Slice<AnyDevice>) -> Result<()> {
        Device::copy(self, queue.get_mut()?, &inner(src)?, &inner(dst)?)
    }

    fn record_event(&self, queue: &mut AnyPart) -> Result<AnyPart> {
        Device::record_event(self, queue.get_mut()?).map(AnyPart::new)
    }

    fn elapsed(&self, queue: &mut AnyPart, earlier: &AnyPart, later: &AnyPart) -> Result<f64> {
        Device::elapsed(self, queue.get_mut()?, earlier.get()?, later.get()?)
    }

    fn synchronize(&self, queue: &mut AnyPart) -> Result<()> {
        Device::synchronize(self, queue.get_mut()?)
    }

    fn begin_capture(&self, queue: &mut AnyPart) -> Result<()> {
        Device::begin_capture(self, queue.get_mut()?)
    }

    fn end_capture(&self, queue: &mut AnyPart) -> Result<AnyPart> {
        Device::end_capture(self, queue.get_mut()?).map(AnyPart::new)
    }

    unsafe fn replay(&self, queue: &mut AnyPart, graph: &AnyPart) -> Result<()> {
        let (queue, graph) = (queue.get_mut()?, graph.get()?);
        // SAFETY: the caller's promise, that every buffer named in the graph is alive, is the one asked for here.
        unsafe { Device::replay(self, queue, graph) }
    }
}

/// [`Kernel`] without its types.
trait ErasedKernel<O: Op> {
    fn variants(&self) -> &'static [&'static str];
    fn configs(&self, op: &O) -> Vec<String>;
    fn plan(&self, op: &O, only: Option<&str>) -> Result<AnyPlan>;
    fn workspace(&self, plan: &AnyPlan) -> Result<AnyBuffer>;
    /// # Safety
    /// The contract of [`Kernel::prepare`].
    unsafe fn prepare(&self, queue: &mut AnyPart, plan: &AnyPlan, prepared: &Slice<AnyDevice>, args: &O::Args<AnyDevice>) -> Result<()>;
    /// # Safety
    /// The contract of [`Kernel::launch`].
    unsafe fn launch(&self, queue: &mut AnyPart, plan: &AnyPlan, workspace: &Slice<AnyDevice>, args: &O::Args<AnyDevice>) -> Result<()>;
}

impl<O: Op, D: Kernel<O>> ErasedKernel<O> for D {
    fn variants(&self) -> &'static [&'static str] {
        Kernel::<O>::variants(self)
    }

    fn configs(&self, op: &O) -> Vec<String> {
        Kernel::configs(self, op)
    }

    fn plan(&self, op: &O, only: Option<&str>) -> Result<AnyPlan> {
        let plan = Kernel::plan(self, op, only)?;
        Ok(AnyPlan {
            workspace_bytes: D::workspace_bytes(&plan),
            prepared_bytes: D::prepared_bytes(&plan),
            variant: D::variant(&plan),
            config: D::config(&plan),
            plan: AnyPart::new(plan),
        })
    }

    fn workspace(&self, plan: &AnyPlan) -> Result<AnyBuffer> {
        Kernel::<O>::workspace(self, plan.plan.get()?).map(AnyBuffer::new::<D>)
    }

    unsafe fn prepare(&self, queue: &mut AnyPart, plan: &AnyPlan, prepared: &Slice<AnyDevice>, args: &O::Args<AnyDevice>) -> Result<()> {
        let args = O::translate(args, &Translate(&inner::<D>))?;
        let (queue, plan, prepared) = (queue.get_mut()?, plan.plan.get()?, inner(prepared)?);
        // SAFETY: the caller's promise holds of these: they are the same memory, under the names that the device behind gave it.
        unsafe { Kernel::<O>::prepare(self, queue, plan, &prepared, &args) }
    }

    unsafe fn launch(&self, queue: &mut AnyPart, plan: &AnyPlan, workspace: &Slice<AnyDevice>, args: &O::Args<AnyDevice>) -> Result<()> {
        let args = O::translate(args, &Translate(&inner::<D>))?;
        let (queue, plan, workspace) = (queue.get_mut()?, plan.plan.get()?, inner(workspace)?);
        // SAFETY: the caller's promise holds of these: they are the same memory, under the names that the device behind gave it.
        unsafe { Kernel::<O>::launch(self, queue, plan, &workspace, &args) }
    }
}

/// [`Backend`] without its types.
trait Erased:
    ErasedDevice
    + ErasedKernel<CodebookGemm>
    + ErasedKernel<Attention>
    + ErasedKernel<PrefixAttention>
    + ErasedKernel<FusedMlp>
    + ErasedKernel<Linear>
    + ErasedKernel<GroupedLinear>
    + ErasedKernel<Pointwise>
    + ErasedKernel<Sample>
    + ErasedKernel<Checksum>
{
}

impl<B: Backend> Erased for B {}

impl Device for AnyDevice {
    const NAME: &'static str = "any";
    type Buffer = AnyBuffer;
    type Queue = AnyPart;
    type Graph = AnyPart;
    type Event = AnyPart;

    fn backend(&self) -> &'static str {
        self.device.backend()
    }

    fn caps(&self) -> &Caps {
        self.device.caps()
    }

    fn queue(&self) -> Result<AnyPart> {
        self.device.queue()
    }

    fn alloc(&self, bytes: u64) -> Result<AnyBuffer> {
        self.device.alloc(bytes, false)
    }

    fn alloc_host(&self, bytes: u64) -> Result<AnyBuffer> {
        self.device.alloc(bytes, true)
    }

    fn buffer_id(buffer: &AnyBuffer) -> usize {
        buffer.id
    }

    fn owns(&self, buffer: &AnyBuffer) -> bool {
        self.device.owns(buffer)
    }

    fn write(&self, queue: &mut AnyPart, dst: &Slice<Self>, src: &[u8]) -> Result<()> {
        self.device.write(queue, dst, src)
    }

    fn write_with(&self, queue: &mut AnyPart, dst: &Slice<Self>, fill: &mut Filler<'_>) -> Result<()> {
        self.device.write_with(queue, dst, fill)
    }

    fn read(&self, queue: &mut AnyPart, src: &Slice<Self>, dst: &mut [u8]) -> Result<()> {
        self.device.read(queue, src, dst)
    }

    fn read_after(&self, queue: &mut AnyPart, event: &AnyPart, src: &Slice<Self>, dst: &mut [u8]) -> Result<()> {
        self.device.read_after(queue, event, src, dst)
    }

    fn copy(&self, queue: &mut AnyPart, src: &Slice<Self>, dst: &Slice<Self>) -> Result<()> {
        self.device.copy(queue, src, dst)
    }

    fn record_event(&self, queue: &mut AnyPart) -> Result<AnyPart> {
        self.device.record_event(queue)
    }

    fn elapsed(&self, queue: &mut AnyPart, earlier: &AnyPart, later: &AnyPart) -> Result<f64> {
        self.device.elapsed(queue, earlier, later)
    }

    fn clock(&self) -> Clock {
        self.device.clock()
    }

    fn clocks(&self) -> Option<Clocks> {
        self.device.clocks()
    }

    fn hints(&self) -> Hints {
        self.device.hints()
    }

    fn compiled(&self) -> u64 {
        self.device.compiled()
    }

    fn synchronize(&self, queue: &mut AnyPart) -> Result<()> {
        self.device.synchronize(queue)
    }

    fn begin_capture(&self, queue: &mut AnyPart) -> Result<()> {
        self.device.begin_capture(queue)
    }

    fn end_capture(&self, queue: &mut AnyPart) -> Result<AnyPart> {
        self.device.end_capture(queue)
    }

    unsafe fn replay(&self, queue: &mut AnyPart, graph: &AnyPart) -> Result<()> {
        // SAFETY: the caller's promise, that every buffer named in the graph is alive, is the one asked for here.
        unsafe { self.device.replay(queue, graph) }
    }
}

impl<O: Op> Kernel<O> for AnyDevice
where
    dyn Erased: ErasedKernel<O>,
{
    type Plan = AnyPlan;

    fn variants(&self) -> &'static [&'static str] {
        ErasedKernel::<O>::variants(&*self.device)
    }

    fn configs(&self, op: &O) -> Vec<String> {
        ErasedKernel::configs(&*self.device, op)
    }

    fn plan(&self, op: &O, only: Option<&str>) -> Result<AnyPlan> {
        ErasedKernel::plan(&*self.device, op, only)
    }

    fn workspace_bytes(plan: &AnyPlan) -> u64 {
        plan.workspace_bytes
    }

    fn workspace(&self, plan: &AnyPlan) -> Result<AnyBuffer> {
        ErasedKernel::<O>::workspace(&*self.device, plan)
    }

    fn prepared_bytes(plan: &AnyPlan) -> u64 {
        plan.prepared_bytes
    }

    unsafe fn prepare(&self, queue: &mut AnyPart, plan: &AnyPlan, prepared: &Slice<Self>, args: &O::Args<Self>) -> Result<()> {
        // SAFETY: the caller's promise is the one asked for here.
        unsafe { ErasedKernel::<O>::prepare(&*self.device, queue, plan, prepared, args) }
    }

    fn variant(plan: &AnyPlan) -> &'static str {
        plan.variant
    }

    fn config(plan: &AnyPlan) -> Option<String> {
        plan.config.clone()
    }

    unsafe fn launch(&self, queue: &mut AnyPart, plan: &AnyPlan, workspace: &Slice<Self>, args: &O::Args<Self>) -> Result<()> {
        // SAFETY: the caller's promise is the one asked for here.
        unsafe { ErasedKernel::<O>::launch(&*self.device, queue, plan, workspace, args) }
    }
}
