//! The trait that backends implement for their devices: memory, an in-order queue, capture. It has no validation and no policy;
//! [`crate::session`] is the safe front end.

use std::num::NonZeroU64;

use derive_where::derive_where;

use crate::dtype::DType;
use crate::error::Result;

/// A device of one backend. Each backend implements it once.
///
/// Work goes into a queue and runs in the order in which it was put there. Only [`read`](Device::read), [`read_after`](Device::read_after),
/// [`elapsed`](Device::elapsed) and [`synchronize`](Device::synchronize) block. Methods trust their arguments: slices lie inside their buffers.
pub trait Device: Sized + Send + Sync + 'static {
    /// The backend's name in errors, test names and on the command line.
    const NAME: &'static str;
    /// A counted handle to untyped device memory, aligned to 256 bytes. A clone is the same memory.
    type Buffer: Clone + Send + Sync + 'static;
    /// A queue, whose work runs in the order in which it was put in.
    type Queue: Send + 'static;
    /// Captured work: a CUDA graph on CUDA, elsewhere the resolved launches.
    type Graph: Send + 'static;
    /// A moment between two pieces of work of a queue.
    type Event: Send + 'static;

    /// The name of the backend: [`NAME`](Device::NAME), or of a device that hides another's backend, the other's name.
    fn backend(&self) -> &'static str {
        Self::NAME
    }
    /// What this device can do.
    fn caps(&self) -> &Caps;
    /// A new queue.
    fn queue(&self) -> Result<Self::Queue>;
    /// Allocates `bytes` of memory, contents unspecified. Zero is legal.
    fn alloc(&self, bytes: u64) -> Result<Self::Buffer>;
    /// Allocates `bytes` of host memory that the device [copies](Device::copy) from on its own, at the speed of the bus. A device without
    /// such memory returns what [`alloc`](Device::alloc) does.
    fn alloc_host(&self, bytes: u64) -> Result<Self::Buffer> {
        self.alloc(bytes)
    }
    /// A number that is equal for clones of a buffer, and different for any two buffers alive at once.
    fn buffer_id(buffer: &Self::Buffer) -> usize;
    /// Whether work of this device may use `buffer`. That is any buffer where all devices work in host memory, and elsewhere the device's
    /// own.
    fn owns(&self, _buffer: &Self::Buffer) -> bool {
        true
    }
    /// Copies `src` to the start of `dst`. The caller may reuse `src` when this returns.
    fn write(&self, queue: &mut Self::Queue, dst: &Slice<Self>, src: &[u8]) -> Result<()>;
    /// Writes all of `dst`, piece by piece, as `fill` makes it: a device that copies on its own gives it the memory that it copies from, and has one piece on
    /// its way while another is made. Where `fill` fails, `dst` may hold anything.
    fn write_with(&self, queue: &mut Self::Queue, dst: &Slice<Self>, fill: &mut Filler<'_>) -> Result<()> {
        let mut piece = vec![0; dst.len.min(PIECE) as usize];
        for at in (0..dst.len).step_by(PIECE as usize) {
            let part = Slice { offset: dst.offset + at, len: PIECE.min(dst.len - at), ..dst.clone() };
            let piece = &mut piece[..part.len as usize];
            fill(at, piece)?;
            self.write(queue, &part, piece)?;
        }
        Ok(())
    }
    /// Copies the start of `src` to the whole of `dst`, after all earlier work of the queue. Blocks.
    fn read(&self, queue: &mut Self::Queue, src: &Slice<Self>, dst: &mut [u8]) -> Result<()>;
    /// Copies the start of `src`, which is [memory of the host](Device::alloc_host), to the whole of `dst`, after the work before `event`. A device whose
    /// work goes on beside the host waits for nothing behind `event`; another may.
    fn read_after(&self, queue: &mut Self::Queue, _event: &Self::Event, src: &Slice<Self>, dst: &mut [u8]) -> Result<()> {
        self.read(queue, src, dst)
    }
    /// Copies `src` to the start of `dst`, another buffer. Offsets and length are multiples of 4 bytes.
    fn copy(&self, queue: &mut Self::Queue, src: &Slice<Self>, dst: &Slice<Self>) -> Result<()>;
    /// Records the moment when all earlier work of the queue is done and later work has not begun.
    fn record_event(&self, queue: &mut Self::Queue) -> Result<Self::Event>;
    /// Seconds from `earlier` to `later`, events of this queue, by [`clock`](Device::clock). Blocks until both have passed.
    fn elapsed(&self, queue: &mut Self::Queue, earlier: &Self::Event, later: &Self::Event) -> Result<f64>;
    /// The clock from which events are read.
    fn clock(&self) -> Clock;
    /// The clock rates at this moment, where the driver tells.
    fn clocks(&self) -> Option<Clocks> {
        None
    }
    /// What a model is best built of here.
    fn hints(&self) -> Hints {
        Hints::default()
    }
    /// How many pieces of code were compiled or loaded since the device was opened: modules, pipelines. It never falls. A device that compiles nothing says 0.
    fn compiled(&self) -> u64 {
        0
    }
    /// Blocks until the queue is empty and reports what failed in it.
    fn synchronize(&self, queue: &mut Self::Queue) -> Result<()>;
    /// Starts a capture: launches are recorded from here on, and do not run.
    fn begin_capture(&self, queue: &mut Self::Queue) -> Result<()>;
    /// Ends a capture. The queue is usable afterwards, also on an error.
    fn end_capture(&self, queue: &mut Self::Queue) -> Result<Self::Graph>;
    /// Runs captured work again.
    ///
    /// # Safety
    /// Every buffer named while the graph was recorded is alive.
    unsafe fn replay(&self, queue: &mut Self::Queue, graph: &Self::Graph) -> Result<()>;
}

/// Makes the bytes of a slice piece by piece ([`Device::write_with`]): it is given the place of each, a multiple of 4096, and the memory for it, which holds anything.
/// They come in order, and all are made.
pub type Filler<'a> = dyn FnMut(u64, &mut [u8]) -> Result<()> + 'a;

/// Bytes of a piece, where a device has no memory of its own to copy from.
const PIECE: u64 = 8 << 20;

/// A device that can be listed and opened by number.
pub trait Open: Device {
    /// The devices present, best first, or why there are none and what to install.
    fn list() -> Result<Vec<Caps>>;
    /// Opens the device at `index` of [`list`](Open::list).
    fn open(index: usize) -> Result<Self>;
}

/// A range of bytes inside a buffer. Only a [`Session`](crate::session::Session) makes slices and only [`sub_slice`](Self::sub_slice) cuts them, so
/// that backends may trust them.
#[derive_where(Clone)]
pub struct Slice<D: Device> {
    pub(crate) buffer: D::Buffer,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// What its elements are, where that is known.
    dtype: Option<DType>,
    /// The session that it belongs to, where that alone may use it.
    session: Option<NonZeroU64>,
}

impl<D: Device> Slice<D> {
    /// A slice of no known type. The caller knows that the bytes lie in the buffer.
    pub(crate) const fn new(buffer: D::Buffer, offset: u64, len: u64) -> Self {
        Self { buffer, offset, len, dtype: None, session: None }
    }

    /// This slice, for one session alone. Sessions count from 1.
    pub(crate) fn bound(self, session: u64) -> Self {
        Self { session: NonZeroU64::new(session), ..self }
    }

    /// Whether a session may use these bytes.
    pub(crate) fn is_for(&self, session: u64) -> bool {
        self.session.is_none_or(|own| own.get() == session)
    }

    /// This slice as elements of another type, or of no known type, for memory that is used for something else from here on.
    #[must_use]
    pub fn with_dtype(self, dtype: impl Into<Option<DType>>) -> Self {
        Self { dtype: dtype.into(), ..self }
    }

    /// The type of its elements, where that is known: of what was uploaded, or as
    /// [`alloc_elements`](crate::session::Session::alloc_elements) was told. An operation that expects another type refuses the slice.
    pub fn dtype(&self) -> Option<DType> {
        self.dtype
    }

    /// The memory in which the slice lies.
    pub fn buffer(&self) -> &D::Buffer {
        &self.buffer
    }

    /// Bytes from the buffer's start to the slice.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of the slice.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the slice has no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The `len` bytes of this slice from `offset`, of its type, or `None` where they reach past its end.
    pub fn sub_slice(&self, offset: u64, len: u64) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Self { offset: self.offset + offset, len, ..self.clone() })
    }
}

impl<D: Device> std::fmt::Debug for Slice<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} buffer {:#x} [{} + {}]", D::NAME, D::buffer_id(&self.buffer), self.offset, self.len)
    }
}

/// The kind of hardware that runs the work. A time measured on [`Cpu`](Kind::Cpu) is not a GPU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A processor, directly or through a graphics driver written in software.
    Cpu,
    /// A graphics processor that shares the host's memory.
    Integrated,
    /// A graphics processor with memory of its own.
    Discrete,
    /// A graphics processor seen through a virtual machine, or one that does not say.
    Other,
}

/// The clock that the time of an event comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Clock {
    /// The device's own clock. What the host does meanwhile is not counted.
    Device,
    /// The host's clock. The time to enqueue work is counted too.
    Host,
}

/// The clock rates at which a device runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Clocks {
    /// Clock of the SMs, in hertz.
    pub multiprocessors_hz: u64,
    /// Clock of the memory, in hertz.
    pub memory_hz: u64,
}

/// What a model is best built of on a device, where several ways compute the same. Hints are about time. Every device takes every way, or
/// returns [`Unsupported`](crate::Error::Unsupported).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hints {
    /// Whether an MLP is faster as two products than as one [`FusedMlp`](crate::ops::FusedMlp).
    pub split_mlp: bool,
    /// Whether a product is faster with the norm that follows it ([`Linear::norm`](crate::ops::Linear::norm)).
    pub norm_in_product: bool,
    /// The most outputs of a product of few rows that is faster with the norm before it ([`Linear::input_norm`](crate::ops::Linear::input_norm)); none where
    /// no product is.
    pub normed_outputs: Option<u64>,
    /// Whether a product in f16 or bf16 is faster with the adapters' part of several projections ([`Linear::delta`](crate::ops::Linear::delta)).
    pub slices_in_product: bool,
    /// Whether adapters in f16 or bf16 are faster as two dense factors each than in the other forms of an encoder, but for codes over shared
    /// input bases (`adapters::engine::Unpack`).
    pub dense_adapters: bool,
    /// The type in which models are served where nobody asks for another.
    pub dtype: Option<DType>,
    /// Tokens of an encoder's batch above which more of them are no faster.
    pub batch_tokens: Option<u32>,
    /// Rows of a page of keys that attention reads at once: heads of tokens. Pages of as many tokens as heads that are read together leave room for
    /// are the fastest.
    pub page_rows: Option<u32>,
    /// Whether work goes on beside the host, and what was done before an event can be read without a wait for what follows.
    pub beside_host: bool,
}

/// A device's name and capabilities.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Caps {
    /// The product's name.
    pub name: String,
    /// The driver and its version.
    pub driver: String,
    /// Processor, or the kind of GPU.
    pub kind: Kind,
    /// Device memory in bytes, where the driver tells.
    pub memory_bytes: Option<u64>,
    /// The largest single buffer in bytes.
    pub max_buffer_bytes: u64,
    /// SMs, or threads on a processor; 0 where the driver does not tell.
    pub multiprocessors: u32,
    /// Shared (workgroup) memory that one block may use, in bytes.
    pub shared_bytes: u64,
    /// Whether kernels may compute in f16.
    pub f16: bool,
    /// Lanes of a subgroup (warp), where kernels may use subgroup operations.
    pub subgroup: Option<u32>,
    /// CUDA compute capability, major × 10 + minor.
    pub cuda_arch: Option<u32>,
    /// The highest clock of the SMs, in hertz.
    pub clock_hz: Option<u64>,
    /// The highest rate of its memory, in bytes a second: the memory's clock times the width of its bus.
    pub memory_bytes_per_second: Option<u64>,
}
