//! Device memory: a stream-ordered pool that keeps what it has, so that steady state asks nothing of the operating system.
//!
//! Every allocation and free goes into one stream of the device's own, which no capture ever touches. A free first makes that stream wait
//! for everything in every queue. So memory is reused only when no queue can still be using it, and nobody has to say which queues used a
//! buffer. A queue waits, on the device, for the last allocation before it runs anything (see [`Memory::join`]). The host never blocks. The
//! price is an edge between queues at a free, which only programs pay that free while they run.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{self, CUcontext, CUdeviceptr, CUevent, CUmemoryPool, CUresult, CUstream};

use crate::backends::cuda::runtime::library::{Status, check, ok};
use crate::error::{Error, Result};

/// The device's primary context, held as long as anything that was made in it.
#[derive(Debug)]
pub struct Context {
    device: i32,
    raw: CUcontext,
}

// SAFETY: a context may be used from every thread; `bind` makes it current first.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of the device with the driver's number `device`. The driver was started.
    pub fn new(device: i32) -> Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the device exists; stores one handle.
        ok(unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, device) }, "opening the device")?;
        Ok(Self { device, raw })
    }

    /// Makes the context current in this thread.
    pub fn bind(&self) -> Result<()> {
        // SAFETY: the context is alive as long as `self`.
        ok(unsafe { sys::cuCtxSetCurrent(self.raw) }, "entering the device's context")
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `new`.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// A CUDA stream, and what a free must know about it.
#[derive(Debug)]
pub struct Stream {
    /// The driver's handle.
    pub raw: CUstream,
    /// The event up to which a free must wait. Each free records it, and so does the beginning of a capture.
    mark: CUevent,
    /// Whether launches are being recorded. The lock is held while `mark` is recorded: an event recorded in a capturing stream would drag
    /// the waiting stream into the capture.
    capturing: Mutex<bool>,
}

// SAFETY: streams and events may be used from every thread.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    fn new() -> Result<Self> {
        let (mut raw, mut mark) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a context is current; each stores one handle.
        unsafe {
            ok(sys::cuStreamCreate(&mut raw, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32), "making a stream")?;
            let made = sys::cuEventCreate(&mut mark, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32);
            if made != CUresult::CUDA_SUCCESS {
                sys::cuStreamDestroy_v2(raw);
            }
            ok(made, "making an event")?;
        }
        Ok(Self { raw, mark, capturing: Mutex::new(false) })
    }

    /// Runs `change`, which begins (`now`) or ends a capture, while no free looks at this stream.
    pub fn set_capturing<T>(&self, now: bool, change: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut capturing = lock(&self.capturing);
        if now {
            // SAFETY: both handles are alive.
            ok(unsafe { sys::cuEventRecord(self.mark, self.raw) }, "beginning a capture")?;
        }
        let changed = change();
        *capturing = now && changed.is_ok();
        changed
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once; work in flight goes on.
        unsafe {
            sys::cuEventDestroy_v2(self.mark);
            sys::cuStreamDestroy_v2(self.raw);
        }
    }
}

/// Locks a mutex of this module. Each guards only handles, which a panic elsewhere leaves whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device's memory, and its queues.
#[derive(Debug)]
pub struct Memory {
    /// The streams of all queues. Everything that goes into `stream` holds this lock.
    queues: Mutex<Vec<Arc<Stream>>>,
    stream: Stream,
    pool: CUmemoryPool,
    /// The event that each allocation records.
    ready: CUevent,
    /// The count of allocations.
    generation: AtomicU64,
    /// The context in which the fields above live. It is dropped last.
    pub context: Context,
}

// SAFETY: pools, streams and events may be used from every thread.
unsafe impl Send for Memory {}
// SAFETY: as above; the order of work in `stream` is kept by the mutex.
unsafe impl Sync for Memory {}

impl Memory {
    /// Makes the memory pool of `context`'s device.
    pub fn new(context: Context) -> Result<Self> {
        context.bind()?;
        let stream = Stream::new()?;
        // SAFETY: plain data, for which zero is legal: no limit, no handles to other processes.
        let mut wanted: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        wanted.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        wanted.location.id = context.device;
        let (mut pool, mut ready) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut keep_all = u64::MAX;
        // SAFETY: a context is current; each stores one handle, or reads the one number it is given.
        unsafe {
            ok(sys::cuEventCreate(&mut ready, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32), "making an event")?;
            ok(sys::cuMemPoolCreate(&mut pool, &wanted), "making a memory pool")?;
            let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            ok(sys::cuMemPoolSetAttribute(pool, threshold, (&raw mut keep_all).cast()), "making a memory pool")?;
        }
        Ok(Self { queues: Mutex::default(), stream, pool, ready, generation: AtomicU64::new(0), context })
    }

    /// Makes a stream for a queue. Every free knows it from now on.
    pub fn open_stream(&self) -> Result<Arc<Stream>> {
        self.context.bind()?;
        let stream = Arc::new(Stream::new()?);
        lock(&self.queues).push(Arc::clone(&stream));
        Ok(stream)
    }

    /// Forgets a stream whose work is done.
    pub fn close_stream(&self, stream: &Arc<Stream>) {
        lock(&self.queues).retain(|known| !Arc::ptr_eq(known, stream));
    }

    /// Makes `stream` wait, on the device, for the allocations since `seen`.
    pub fn join(&self, stream: &Stream, seen: &mut u64) -> Result<()> {
        if self.generation.load(Ordering::Acquire) == *seen {
            return Ok(());
        }
        let _queues = lock(&self.queues);
        *seen = self.generation.load(Ordering::Acquire);
        // SAFETY: both handles are alive.
        ok(unsafe { sys::cuStreamWaitEvent(stream.raw, self.ready, 0) }, "waiting for an allocation")
    }

    /// Allocates `bytes` of memory.
    pub fn alloc(self: &Arc<Self>, bytes: u64) -> Result<Buffer> {
        self.alloc_filled(bytes, false)
    }

    /// Allocates `bytes` of memory, all zero.
    pub fn alloc_zeroed(self: &Arc<Self>, bytes: u64) -> Result<Buffer> {
        self.alloc_filled(bytes, true)
    }

    fn alloc_filled(self: &Arc<Self>, bytes: u64, zero: bool) -> Result<Buffer> {
        self.context.bind()?;
        let queues = lock(&self.queues);
        // A buffer of no bytes still has an address of its own.
        let size = bytes.max(1) as usize;
        let mut pointer = 0;
        // SAFETY: pool and stream are alive; stores one address.
        let mut allocate = || check(unsafe { sys::cuMemAllocFromPoolAsync(&mut pointer, size, self.pool, self.stream.raw) });
        let mut got = allocate();
        if got == Err(Status(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) {
            // What was freed may be in pieces too small, or its queues still at work: let it all come back, then ask again.
            // SAFETY: pool and stream are alive.
            unsafe {
                ok(sys::cuStreamSynchronize(self.stream.raw), "waiting for freed memory")?;
                ok(sys::cuMemPoolTrimTo(self.pool, 0), "returning freed memory")?;
            }
            got = allocate();
        }
        got.map_err(|status| match status {
            Status(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => Error::OutOfMemory { requested: bytes, purpose: "a buffer on the GPU".into() },
            status => Error::device("an allocation", status),
        })?;
        let id = next_id();
        let buffer = Buffer(Arc::new(Allocation { memory: Arc::clone(self), pointer, host: false, id }));
        // SAFETY: the memory was just allocated in this stream, and is as large; all handles are alive.
        let clear = || if zero { ok(unsafe { sys::cuMemsetD8Async(pointer, 0, size, self.stream.raw) }, "clearing memory") } else { Ok(()) };
        // SAFETY: both handles are alive.
        let ready = clear().and_then(|()| ok(unsafe { sys::cuEventRecord(self.ready, self.stream.raw) }, "an allocation"));
        if ready.is_ok() {
            self.generation.fetch_add(1, Ordering::Release);
        }
        // A buffer that cannot be used is dropped, which takes the lock.
        drop(queues);
        ready.map(|()| buffer)
    }

    /// Allocates `bytes` of page-locked host memory. The device knows it by the same address.
    pub fn alloc_host(self: &Arc<Self>, bytes: u64) -> Result<Buffer> {
        self.context.bind()?;
        let mut pointer = std::ptr::null_mut();
        // SAFETY: a context is current; stores one address.
        let got = check(unsafe { sys::cuMemHostAlloc(&mut pointer, bytes.max(1) as usize, 0) });
        got.map_err(|status| match status {
            Status(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => Error::OutOfMemory { requested: bytes, purpose: "page-locked memory of the host".into() },
            status => Error::device("an allocation of page-locked memory", status),
        })?;
        Ok(Buffer(Arc::new(Allocation { memory: Arc::clone(self), pointer: pointer as CUdeviceptr, host: true, id: next_id() })))
    }

    /// Makes what follows in this memory's own stream wait for everything that is in a queue now.
    fn follow_queues(&self) -> Result<MutexGuard<'_, Vec<Arc<Stream>>>> {
        self.context.bind()?;
        let queues = lock(&self.queues);
        for stream in queues.iter() {
            let capturing = lock(&stream.capturing);
            // SAFETY: every handle is alive. An event that was never recorded holds nothing up.
            unsafe {
                // What a capture records is kept alive by the graph; only work from before it can use this buffer.
                if !*capturing {
                    ok(sys::cuEventRecord(stream.mark, stream.raw), "a free")?;
                }
                ok(sys::cuStreamWaitEvent(self.stream.raw, stream.mark, 0), "a free")?;
            }
        }
        Ok(queues)
    }

    fn free(&self, pointer: CUdeviceptr) -> Result<()> {
        let _queues = self.follow_queues()?;
        // SAFETY: allocated from the pool in this stream, freed once, after all work that may use it.
        ok(unsafe { sys::cuMemFreeAsync(pointer, self.stream.raw) }, "a free")
    }

    /// Frees host memory, and blocks until no copy can still read it: the driver frees at once.
    fn free_host(&self, pointer: CUdeviceptr) -> Result<()> {
        let _queues = self.follow_queues()?;
        // SAFETY: the stream is alive; allocated by `alloc_host`, freed once, after all work that may use it.
        unsafe {
            ok(sys::cuStreamSynchronize(self.stream.raw), "a free")?;
            ok(sys::cuMemFreeHost(pointer as *mut _), "a free")
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Every buffer and queue holds this memory, so none is left. Errors here have nowhere to go, and nothing depends on them.
        if self.context.bind().is_ok() {
            // SAFETY: made in `new`, destroyed once, after their last work.
            unsafe {
                sys::cuStreamSynchronize(self.stream.raw);
                sys::cuEventDestroy_v2(self.ready);
                sys::cuMemPoolDestroy(self.pool);
            }
        }
    }
}

fn next_id() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A counted handle to device memory.
#[derive(Clone, Debug)]
pub struct Buffer(Arc<Allocation>);

impl Buffer {
    /// The buffer's address on the device.
    pub fn address(&self) -> u64 {
        self.0.pointer
    }

    /// Whether the memory is the host's, page-locked, which the host knows by the same address.
    pub fn is_host(&self) -> bool {
        self.0.host
    }

    /// The buffer's number, unique in the whole process.
    pub fn id(&self) -> usize {
        self.0.id
    }

    /// Whether `memory` made the buffer. A free of the buffer waits for that memory's queues.
    pub fn is_of(&self, memory: &Arc<Memory>) -> bool {
        Arc::ptr_eq(&self.0.memory, memory)
    }
}

#[derive(Debug)]
struct Allocation {
    memory: Arc<Memory>,
    pointer: CUdeviceptr,
    /// Whether the memory is the host's.
    host: bool,
    id: usize,
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let freed = if self.host { self.memory.free_host(self.pointer) } else { self.memory.free(self.pointer) };
        // It fails only where the device has failed already, which the next `wait` reports.
        freed.unwrap_or_default();
    }
}
