//! The safe front end: allocate, plan, run, capture, replay. It is generic over the backend, and written once.

mod counters;
mod later;
mod launched;
mod memory;
mod plan;
mod record;
mod room;
mod timing;
mod traits;
mod wait;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::backend::Kernel;
use crate::device::{Caps, Clock, Device, Filler, Slice};
use crate::dtype::DType;
use crate::error::{Result, ensure};
use crate::ops::index::{AdapterCodes, Codes, HostIndex, Index, Pinned};
use crate::ops::{Op, check, strange};
use counters::Counted;
pub use counters::Counters;
pub use plan::Plan;
use room::zeroed;
pub use timing::Launched;
use timing::Timing;

/// One in-order queue on a device. Several sessions may share a device, each on its own thread.
///
/// A session, its plans, graphs and events are [`Send`]: they may move to another thread together. Its methods take it as `&mut`, so one
/// thread at a time uses it. Slices and indices are [`Sync`] too, and clones of them name the same memory.
///
/// Plans, graphs, events and indices belong to the session that made them: another refuses them. Memory may be shared, and nothing but the host orders
/// the queues of two sessions: [`synchronize`](Self::synchronize) the one that writes before the other reads, else it reads bytes of before or of between.
///
/// # Errors
/// Every method may return these. [`Invalid`](crate::Error::Invalid) is for what breaks a rule, such as a call inside a [capture](Self::capture)
/// that cannot be recorded. [`OutOfMemory`](crate::Error::OutOfMemory) is for a device without room; what was allocated before stays usable.
/// [`Device`](crate::Error::Device) is for what the driver reports, also about work that an earlier call enqueued.
pub struct Session<D: Device> {
    id: u64,
    queue: D::Queue,
    device: Arc<D>,
    /// Buffers that were named since the capture began; `None` outside one.
    recording: Option<Vec<D::Buffer>>,
    /// The launches that are timed; `None` but in [`time_launches`](Self::time_launches).
    timing: Option<Timing<Event<D>>>,
    counted: Counted,
}

/// Captured work, with a hold on every buffer that it names. A replay cannot outlive its memory.
pub struct Graph<D: Device> {
    raw: D::Graph,
    session: u64,
    _retained: Vec<D::Buffer>,
}

/// A moment between two pieces of a session's work, for [`Session::elapsed`].
pub struct Event<D: Device> {
    raw: D::Event,
    session: u64,
}

impl<D: Device> Session<D> {
    /// A new queue on `device`.
    pub fn new(device: Arc<D>) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let queue = device.queue()?;
        Ok(Self { id: NEXT.fetch_add(1, Ordering::Relaxed), device, queue, recording: None, timing: None, counted: Counted::default() })
    }

    /// The device of the session.
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// What this session has made so far. It waits for nothing.
    pub fn counters(&self) -> Counters {
        self.counted.read(self.device.compiled())
    }

    /// The device's name and capabilities.
    pub fn caps(&self) -> &Caps {
        self.device.caps()
    }

    /// Copies `bytes` to the start of `dst`.
    pub fn write(&mut self, dst: &Slice<D>, bytes: &[u8]) -> Result<()> {
        self.outside_capture("write")?;
        self.own("write", dst)?;
        ensure(bytes.len() as u64 <= dst.len, "write", format_args!("at most {} bytes", dst.len), bytes.len())?;
        self.device.write(&mut self.queue, dst, bytes)
    }

    /// Writes all of `dst`, piece by piece, as `fill` makes it from a place on ([`Filler`]). What is made goes to the device while more is made, so that large
    /// data has no other copy on the host.
    ///
    /// # Errors
    /// What `fill` fails with; `dst` then may hold anything.
    pub fn write_with(&mut self, dst: &Slice<D>, fill: &mut Filler<'_>) -> Result<()> {
        self.outside_capture("write_with")?;
        self.own("write_with", dst)?;
        self.device.write_with(&mut self.queue, dst, fill)
    }

    /// The bytes of `src`, after all earlier work. Blocks.
    pub fn read(&mut self, src: &Slice<D>) -> Result<Vec<u8>> {
        self.download(src)
    }

    /// The elements of `src`, after all earlier work. Blocks.
    ///
    /// # Errors
    /// A length that is no whole number of elements; a `src` that is known to hold another [`DType`] than `T`.
    pub fn download<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(&mut self, src: &Slice<D>) -> Result<Vec<T>> {
        self.outside_capture("read")?;
        self.own("read", src)?;
        if let (Some(found), Some(expected)) = (src.dtype(), DType::of::<T>()) {
            ensure(found == expected, "download", format_args!("a slice of {expected}"), found)?;
        }
        let size = size_of::<T>() as u64;
        let count = src.len.checked_div(size).unwrap_or(0);
        ensure(count * size == src.len, "download", format_args!("a multiple of {size} bytes"), src.len)?;
        let mut values = zeroed(count)?;
        self.device.read(&mut self.queue, src, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    /// Copies `src` to the start of `dst`, which lies in another buffer. Does not block.
    ///
    /// # Errors
    /// Slices of one buffer, a `dst` that is shorter, and offsets or a length that are no multiples of 4 bytes.
    pub fn copy(&mut self, src: &Slice<D>, dst: &Slice<D>) -> Result<()> {
        self.outside_capture("copy")?;
        [src, dst].into_iter().try_for_each(|slice| self.own("copy", slice))?;
        ensure(D::buffer_id(&src.buffer) != D::buffer_id(&dst.buffer), "copy", "two buffers", "one buffer")?;
        ensure(src.len <= dst.len, "copy", format_args!("at most {} bytes", dst.len), src.len)?;
        let words = [src.offset, dst.offset, src.len].iter().all(|bytes| bytes % 4 == 0);
        ensure(words, "copy", "offsets and a length that are multiples of 4", format_args!("{src:?} to {dst:?}"))?;
        if src.len == 0 { Ok(()) } else { self.device.copy(&mut self.queue, src, dst) }
    }

    /// Records this moment of the queue: after everything in it, before everything to come. Does not block if the device has its own clock.
    pub fn record_event(&mut self) -> Result<Event<D>> {
        self.outside_capture("record_event")?;
        Ok(Event { raw: self.device.record_event(&mut self.queue)?, session: self.id })
    }

    /// Seconds that the work between two events of this session took, by [`clock`](Self::clock). Blocks.
    pub fn elapsed(&mut self, earlier: &Event<D>, later: &Event<D>) -> Result<f64> {
        self.outside_capture("elapsed")?;
        let own = earlier.session == self.id && later.session == self.id;
        ensure(own, "events", "two of this session", "another session's")?;
        self.device.elapsed(&mut self.queue, &earlier.raw, &later.raw)
    }

    /// The clock of [`elapsed`](Self::elapsed).
    pub fn clock(&self) -> Clock {
        self.device.clock()
    }

    /// Blocks until all work is done, and reports what failed in it.
    pub fn synchronize(&mut self) -> Result<()> {
        self.outside_capture("synchronize")?;
        self.device.synchronize(&mut self.queue)
    }

    /// Copies checked index data to the device.
    pub fn index<H: HostIndex>(&mut self, host: &H) -> Result<Index<H, D>> {
        self.outside_capture("index")?;
        let index = Index::new(&*self.device, &mut self.queue, host)?;
        self.counted.buffer(index.device_bytes());
        Ok(index.bound(self.id))
    }

    /// Replaces index data. Captured graphs see it at their next replay.
    pub fn update_index<H: HostIndex>(&mut self, index: &Index<H, D>, host: &H) -> Result<()> {
        self.outside_capture("update_index")?;
        self.own(H::NAME, index.slice())?;
        index.update(&self.device, &mut self.queue, host)
    }

    /// The words of an index on the device, laid out as by [`HostIndex::words`], after all earlier work. Blocks.
    pub fn read_index<H: HostIndex>(&mut self, index: &Index<H, D>) -> Result<Vec<i32>> {
        self.download(index.slice())
    }

    /// Copies several indices to one allocation, so that [`update_indices`](Self::update_indices) replaces them together.
    pub fn indices<H: HostIndex>(&mut self, hosts: &[H]) -> Result<Vec<Index<H, D>>> {
        self.outside_capture("indices")?;
        let indices = Index::packed(&*self.device, &mut self.queue, hosts)?;
        self.counted.buffer(indices.last().map_or(0, |last| last.offset() + last.device_bytes()));
        Ok(indices.into_iter().map(|index| index.bound(self.id)).collect())
    }

    /// Replaces, in one copy, the indices that [`indices`](Self::indices) made.
    pub fn update_indices<H: HostIndex>(&mut self, indices: &[Index<H, D>], hosts: &[H]) -> Result<()> {
        self.outside_capture("update_indices")?;
        indices.iter().try_for_each(|index| self.own(H::NAME, index.slice()))?;
        Index::update_packed(&*self.device, &mut self.queue, indices, hosts)
    }

    /// Copies index data for [`update_indices_pinned`](Self::update_indices_pinned) to host memory (see [`alloc_host`](Self::alloc_host)).
    pub fn pin_indices<H: HostIndex>(&mut self, hosts: &[H]) -> Result<Pinned<H, D>> {
        self.outside_capture("pin_indices")?;
        let pinned = Pinned::new(&*self.device, &mut self.queue, hosts)?;
        self.counted.buffer(pinned.bytes());
        Ok(pinned.bound(self.id))
    }

    /// Replaces the indices that [`indices`](Self::indices) made, as [`update_indices`](Self::update_indices) does, from memory that the
    /// device copies from on its own. Does not block.
    pub fn update_indices_pinned<H: HostIndex>(&mut self, indices: &[Index<H, D>], pinned: &Pinned<H, D>) -> Result<()> {
        self.outside_capture("update_indices_pinned")?;
        indices.iter().map(Index::slice).chain([pinned.slice()]).try_for_each(|slice| self.own(H::NAME, slice))?;
        Index::update_pinned(&*self.device, &mut self.queue, indices, pinned)
    }

    /// Codes of `adapters` adapters, those of `codes` again and again, from adapter `first` on.
    ///
    /// # Errors
    /// No device memory; no adapter to repeat.
    pub fn repeat_codes(&mut self, codes: &Index<Codes, D>, adapters: u32, first: u32) -> Result<Index<Codes, D>> {
        self.outside_capture("repeat_codes")?;
        self.own(Codes::NAME, codes.slice())?;
        let repeated = codes.repeated(&*self.device, &mut self.queue, adapters, first)?;
        self.counted.buffer(repeated.device_bytes());
        Ok(repeated.bound(self.id))
    }

    /// Replaces the codes of the adapter in `slot`.
    pub fn update_adapter(&mut self, codes: &Index<Codes, D>, slot: u32, adapter: &AdapterCodes) -> Result<()> {
        self.outside_capture("update_adapter")?;
        self.own(Codes::NAME, codes.slice())?;
        codes.update_adapter(&self.device, &mut self.queue, slot, adapter)
    }

    /// Chooses the best variant for `op` and compiles it. This is slow; keep the plan.
    ///
    /// # Errors
    /// An `op` that breaks its own rules; [`Unsupported`](crate::Error::Unsupported) with every variant's reason; [`Compile`](crate::Error::Compile).
    pub fn plan<O: Op>(&self, op: O) -> Result<Plan<O, D>>
    where
        D: Kernel<O>,
    {
        self.plan_variant(op, None)
    }

    /// The names of what can compute `op`, whatever is faster, as [`plan_variant`](Self::plan_variant) takes them: each variant, or
    /// `variant:config` for each configuration of a variant that has several.
    pub fn configs<O: Op>(&self, op: &O) -> Vec<String>
    where
        D: Kernel<O>,
    {
        self.device.configs(op)
    }

    /// Plans as [`plan`](Self::plan) does, with the named variant alone, or with its configuration, named as `variant:config`.
    pub fn plan_variant<O: Op>(&self, op: O, only: Option<&str>) -> Result<Plan<O, D>>
    where
        D: Kernel<O>,
    {
        op.validate()?;
        if let Some(name) = only {
            let known = Kernel::<O>::variants(&*self.device);
            let variant = name.split_once(':').map_or(name, |(variant, _)| variant);
            ensure(known.contains(&variant), format_args!("{} variant", O::NAME), format_args!("one of {known:?}"), name)?;
        }
        let plan = || self.device.plan(&op, only).and_then(|inner| self.device.workspace(&inner).map(|workspace| (inner, workspace)));
        let (inner, workspace) = self.counted.plan_time.on(plan)?;
        let workspace = Slice::new(workspace, 0, D::workspace_bytes(&inner));
        self.counted.plan(workspace.len);
        Ok(Plan { op, inner, workspace, session: self.id })
    }

    /// Enqueues `plan` on `args`. Does not block. Inside [`capture`](Self::capture) the launch is recorded instead.
    ///
    /// # Errors
    /// Operands that are too short, that start where their type cannot, that overlap what is written, or that the descriptor does not ask
    /// for; a plan of another session.
    pub fn run<O: Op>(&mut self, plan: &Plan<O, D>, args: &O::Args<D>) -> Result<()>
    where
        D: Kernel<O>,
    {
        ensure(plan.session == self.id, "plan", "one made by this session", "another session's")?;
        self.accept(&plan.op, args)?;
        if let Some(buffers) = &mut self.recording {
            buffers.push(plan.workspace.buffer.clone());
            plan.op.operands(args, &mut |operand| buffers.push(operand.slice.buffer.clone()))?;
        }
        // SAFETY: `check` accepted the operands; the workspace is the plan's own, of the size it asked for, and this
        // session's queue runs in order, so that no other launch uses it meanwhile.
        unsafe { self.device.launch(&mut self.queue, &plan.inner, &plan.workspace, args) }?;
        if self.timing.is_some() { self.launched(plan) } else { Ok(()) }
    }

    /// Records the launches of `body` instead of running them. The session is usable afterwards, also on an error or a panic in `body`.
    pub fn capture(&mut self, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<Graph<D>> {
        let mut body = Some(body);
        self.record(&mut |session| body.take().map_or(Ok(()), |body| body(session)))
    }

    /// Runs captured work again, on what its operands hold now. Does not block.
    pub fn replay(&mut self, graph: &Graph<D>) -> Result<()> {
        self.outside_capture("replay")?;
        ensure(graph.session == self.id, "graph", "one captured by this session", "another session's")?;
        // SAFETY: the graph retains every buffer that was named while it was recorded.
        unsafe { self.device.replay(&mut self.queue, &graph.raw) }
    }

    /// Allocates memory for the result of [`prepare`](Self::prepare) for a plan; `None` where there is nothing to prepare.
    ///
    /// # Errors
    /// No device memory.
    pub fn alloc_prepared<O: Op>(&self, plan: &Plan<O, D>) -> Result<Option<Slice<D>>>
    where
        D: Kernel<O>,
    {
        match D::prepared_bytes(&plan.inner) {
            0 => Ok(None),
            bytes => self.alloc(bytes).map(Some),
        }
    }

    /// Does now the work that does not depend on the rows of `plan`'s operands. Launches take its result from `prepared`
    /// ([`CodebookGemmArgs`](crate::ops::CodebookGemmArgs)). Does not block, and may be captured.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run); a `prepared` that is not from [`alloc_prepared`](Self::alloc_prepared).
    pub fn prepare<O: Op>(&mut self, plan: &Plan<O, D>, prepared: &Slice<D>, args: &O::Args<D>) -> Result<()>
    where
        D: Kernel<O>,
    {
        ensure(plan.session == self.id, "plan", "one made by this session", "another session's")?;
        self.accept(&plan.op, args)?;
        let bytes = D::prepared_bytes(&plan.inner);
        self.own("prepared", prepared)?;
        ensure(prepared.len == bytes, "prepared", format_args!("{bytes} bytes"), prepared.len)?;
        if let Some(buffers) = &mut self.recording {
            buffers.push(prepared.buffer.clone());
            plan.op.operands(args, &mut |operand| buffers.push(operand.slice.buffer.clone()))?;
        }
        // SAFETY: `check` accepted the operands; `prepared` is as large as the plan asks for, and the queue runs in order.
        unsafe { self.device.prepare(&mut self.queue, &plan.inner, prepared, args) }
    }

    /// Refuses memory of another device: its work would end up in whatever this one has there. And another session's index, whose words that one's
    /// queue may be writing.
    fn own(&self, what: &str, slice: &Slice<D>) -> Result<()> {
        if !self.device.owns(&slice.buffer) {
            return Err(strange(what));
        }
        ensure(slice.is_for(self.id), what, "an index that this session made", "another session's: make one here of the same host data")
    }

    /// Checks operands, and that the indices among them are this session's.
    fn accept<O: Op>(&self, op: &O, args: &O::Args<D>) -> Result<()> {
        check(&*self.device, op, args)?;
        let mut bound = Ok(());
        op.operands(args, &mut |operand| {
            if bound.is_ok() && !operand.slice.is_for(self.id) {
                bound = self.own(operand.name(), operand.slice);
            }
        })?;
        bound
    }

    /// The number by which what belongs to this session knows it.
    #[cfg(feature = "adapters")]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    fn outside_capture(&self, what: &str) -> Result<()> {
        ensure(self.recording.is_none(), what, "a call outside capture (inside, only run)", "a call inside")
    }
}
