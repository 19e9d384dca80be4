//! What a device gives: memory, an in-order queue, capture. No validation and no policy; [`crate::session`]
//! is the safe front door.

use derive_where::derive_where;

use crate::dtype::DType;
use crate::error::Result;

/// A device of one backend. Implemented once per backend.
///
/// Work goes into a queue and runs in the order it was put there; only [`read`](Device::read) and
/// [`synchronize`](Device::synchronize) block. Methods trust their arguments: slices lie inside their buffers.
pub trait Device: Sized + Send + Sync + 'static {
    /// The backend's name in errors, test names and on the command line.
    const NAME: &'static str;
    /// A counted handle to untyped device memory, aligned to 256 bytes; a clone aliases.
    type Buffer: Clone + Send + Sync + 'static;
    /// Work runs in the order it was put in.
    type Queue: Send + 'static;
    /// Captured work: a CUDA graph; elsewhere the resolved launches.
    type Graph: Send + 'static;
    /// A moment between two pieces of work of a queue.
    type Event: Send + 'static;

    /// What this device can do.
    fn caps(&self) -> &Caps;
    /// A new queue.
    fn queue(&self) -> Result<Self::Queue>;
    /// `bytes` of memory, contents unspecified. Zero is legal.
    fn alloc(&self, bytes: u64) -> Result<Self::Buffer>;
    /// `bytes` of the host's memory that the device [copies](Device::copy) from on its own, at the speed of the bus. A device
    /// without such a thing gives what [`alloc`](Device::alloc) does.
    fn alloc_host(&self, bytes: u64) -> Result<Self::Buffer> {
        self.alloc(bytes)
    }
    /// Tells buffers apart: equal for clones, different for any two that live at once.
    fn buffer_id(buffer: &Self::Buffer) -> usize;
    /// Whether work of this device may use `buffer`: every one where all devices work in the host's memory, elsewhere its own.
    fn owns(&self, _buffer: &Self::Buffer) -> bool {
        true
    }
    /// Copies `src` to the start of `dst`. The bytes are taken before the call returns.
    fn write(&self, queue: &mut Self::Queue, dst: &Slice<Self>, src: &[u8]) -> Result<()>;
    /// Copies the start of `src` to the whole of `dst`, after all earlier work of the queue. Blocks.
    fn read(&self, queue: &mut Self::Queue, src: &Slice<Self>, dst: &mut [u8]) -> Result<()>;
    /// Copies `src` to the start of `dst`, another buffer. Offsets and length are multiples of 4 bytes.
    fn copy(&self, queue: &mut Self::Queue, src: &Slice<Self>, dst: &Slice<Self>) -> Result<()>;
    /// Records the moment when all earlier work of the queue is done and later work has not begun.
    fn record_event(&self, queue: &mut Self::Queue) -> Result<Self::Event>;
    /// Seconds from `earlier` to `later`, events of this queue, by [`clock`](Device::clock). Blocks until both have passed.
    fn elapsed(&self, queue: &mut Self::Queue, earlier: &Self::Event, later: &Self::Event) -> Result<f64>;
    /// Whose clock events are read from.
    fn clock(&self) -> Clock;
    /// The clocks at which it runs now, where its driver tells.
    fn clocks(&self) -> Option<Clocks> {
        None
    }
    /// What a model is best built of here.
    fn hints(&self) -> Hints {
        Hints::default()
    }
    /// Blocks until the queue is empty and reports what failed in it.
    fn synchronize(&self, queue: &mut Self::Queue) -> Result<()>;
    /// Starts a capture: launches are recorded from here on, not run.
    fn begin_capture(&self, queue: &mut Self::Queue) -> Result<()>;
    /// Ends a capture; the queue is usable afterwards, also on an error.
    fn end_capture(&self, queue: &mut Self::Queue) -> Result<Self::Graph>;
    /// Runs captured work again.
    ///
    /// # Safety
    /// Every buffer named while the graph was recorded is alive.
    unsafe fn replay(&self, queue: &mut Self::Queue, graph: &Self::Graph) -> Result<()>;
}

/// A device that can be looked for and opened by number.
pub trait Open: Device {
    /// The devices present, best first, or why there are none and what to install.
    fn list() -> Result<Vec<Caps>>;
    /// Opens the device at `index` of [`list`](Open::list).
    fn open(index: usize) -> Result<Self>;
}

/// A range of bytes of a buffer, inside it: a [`Session`](crate::session::Session) makes slices, [`sub_slice`](Self::sub_slice) cuts them, and nothing
/// else does, so that backends may trust them.
#[derive_where(Clone)]
pub struct Slice<D: Device> {
    pub(crate) buffer: D::Buffer,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// What its elements are, where that is known.
    dtype: Option<DType>,
}

impl<D: Device> Slice<D> {
    /// The bytes of a buffer that the caller knows to lie in it, of no known type.
    pub(crate) const fn new(buffer: D::Buffer, offset: u64, len: u64) -> Self {
        Self { buffer, offset, len, dtype: None }
    }

    /// The same bytes as elements of a type, or of none: memory that is used for something else from here on.
    #[must_use]
    pub fn with_dtype(self, dtype: impl Into<Option<DType>>) -> Self {
        Self { dtype: dtype.into(), ..self }
    }

    /// What its elements are, where that is known: what was uploaded, or what [`alloc_elements`](crate::session::Session::alloc_elements) was told.
    /// An operation that wants another type refuses it.
    pub fn dtype(&self) -> Option<DType> {
        self.dtype
    }

    /// The memory it lies in.
    pub fn buffer(&self) -> &D::Buffer {
        &self.buffer
    }

    /// Bytes from the buffer's start.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `len` bytes of this slice from `offset`, of the same type, or nothing where they reach past its end.
    pub fn sub_slice(&self, offset: u64, len: u64) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Self { buffer: self.buffer.clone(), offset: self.offset + offset, len, dtype: self.dtype })
    }
}

impl<D: Device> std::fmt::Debug for Slice<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} buffer {:#x} [{} + {}]", D::NAME, D::buffer_id(&self.buffer), self.offset, self.len)
    }
}

/// What kind of hardware runs the work. A time measured on [`Cpu`](Kind::Cpu) is not a GPU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A processor, be it through a graphics driver written in software.
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
    /// The device's own: what the host does meanwhile is not counted.
    Device,
    /// The host's: the work of putting work into the queue is counted too.
    Host,
}

/// The clocks at which a device runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Clocks {
    /// Clock of the SMs, in hertz.
    pub multiprocessors_hz: u64,
    /// Clock of the memory, in hertz.
    pub memory_hz: u64,
}

/// What a model is best built of on a device, where several ways compute the same. Hints are about time: every device takes every way, or says
/// [`Unsupported`](crate::Error::Unsupported).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hints {
    /// An MLP is faster as two products than as one [`FusedMlp`](crate::ops::FusedMlp).
    pub split_mlp: bool,
    /// A product is faster with the norm that follows it ([`Linear::norm`](crate::ops::Linear::norm)).
    pub norm_in_product: bool,
    /// A product in halves is faster with what adapters add to several projections ([`Linear::delta`](crate::ops::Linear::delta)).
    pub slices_in_product: bool,
    /// Models are served in this type where nobody asks for another.
    pub dtype: Option<DType>,
    /// Tokens that a batch of an encoder needs before more of them are no faster.
    pub batch_tokens: Option<u32>,
}

/// What a device can do, and who it is.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Caps {
    /// The product's name.
    pub name: String,
    /// The driver and its version.
    pub driver: String,
    /// Processor, or what sort of GPU.
    pub kind: Kind,
    /// Device memory in bytes, where the driver tells.
    pub memory_bytes: Option<u64>,
    /// The largest single buffer in bytes.
    pub max_buffer_bytes: u64,
    /// SMs, or threads on a processor; 0 where the driver does not tell.
    pub multiprocessors: u32,
    /// Shared (workgroup) memory that one block may use, in bytes.
    pub shared_bytes: u64,
    /// Arithmetic on f16 in kernels.
    pub f16: bool,
    /// Lanes of a subgroup (warp), where kernels may use subgroup operations.
    pub subgroup: Option<u32>,
    /// CUDA compute capability, major × 10 + minor.
    pub cuda_arch: Option<u32>,
    /// The highest clock of the SMs, in hertz.
    pub clock_hz: Option<u64>,
    /// The most its memory can move, in bytes a second: its clock times the width of its bus.
    pub memory_bytes_per_second: Option<u64>,
}
