//! A CUDA event: a moment in a queue, with the device's time.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent, CUresult};

use crate::backends::cuda::runtime::library::ok;
use crate::backends::cuda::runtime::memory::Memory;
use crate::backends::cuda::runtime::queue::Queue;
use crate::error::{Error, Result};

/// A recorded event.
#[derive(Debug)]
pub struct Event {
    event: CUevent,
    /// The context that the event lives in.
    memory: Arc<Memory>,
}

// SAFETY: the handle may be used from every thread.
unsafe impl Send for Event {}

impl Event {
    /// Records an event after everything that is in `queue`.
    pub fn new(queue: &mut Queue) -> Result<Self> {
        let stream = queue.launching("record_event")?;
        let mut event = Self { event: std::ptr::null_mut(), memory: Arc::clone(queue.memory()) };
        // SAFETY: a context is current and the stream is alive; the first call stores one handle.
        unsafe {
            ok(sys::cuEventCreate(&mut event.event, sys::CUevent_flags::CU_EVENT_DEFAULT as u32), "making an event")?;
            ok(sys::cuEventRecord(event.event, stream), "marking a moment")?;
        }
        Ok(event)
    }

    /// Blocks until the event has passed.
    pub fn wait(&self) -> Result<()> {
        self.memory.context.bind()?;
        // SAFETY: the event was recorded and is alive.
        ok(unsafe { sys::cuEventSynchronize(self.event) }, "waiting for an event")
    }

    /// Device time since `earlier`, in seconds, with the driver's resolution of about half a microsecond. Blocks.
    pub fn seconds_since(&self, earlier: &Self) -> Result<f64> {
        type Elapsed = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;
        self.wait()?;
        let mut milliseconds = 0.0;
        // SAFETY: both events were recorded and are alive; stores one number. The symbol is looked up by hand because
        // cudarc binds the name `_v2`, which drivers before CUDA 12.8 lack; every driver has this one, of the same type.
        unsafe {
            let elapsed = sys::culib().get::<Elapsed>(b"cuEventElapsedTime\0").map_err(|error| Error::device("reading an event", error))?;
            ok(elapsed(&mut milliseconds, earlier.event, self.event), "reading an event")?;
        }
        Ok(f64::from(milliseconds) * 1e-3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.event.is_null() && self.memory.context.bind().is_ok() {
            // SAFETY: made in `new`, destroyed once; the driver keeps what it still needs of it.
            unsafe { sys::cuEventDestroy_v2(self.event) };
        }
    }
}
