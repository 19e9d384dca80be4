//! Memory of the device.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::Wgpu;
use crate::error::{Error, Result};

/// Device memory. A clone is the same memory.
#[derive(Clone)]
pub struct Buffer {
    pub(super) raw: wgpu::Buffer,
    pub(super) id: usize,
    /// The number of the buffer's device.
    pub(super) owner: usize,
}

/// A number that nothing else in the process has.
pub(super) fn number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Buffer {
    /// Bytes of a word, the unit in which wgpu sizes, copies and binds.
    pub(super) const WORD: u64 = 4;
}

impl Wgpu {
    /// Allocates `bytes` of memory that shaders and copies may use.
    pub(super) fn allocate(&self, bytes: u64) -> Result<Buffer> {
        self.faults.check("allocating")?;
        let most = self.caps.max_buffer_bytes;
        let size = bytes.max(1).checked_next_multiple_of(Buffer::WORD).filter(|&size| size <= most);
        let Some(size) = size else {
            return Err(Error::OutOfMemory { requested: bytes, purpose: format!("one buffer (the device allows {most})") });
        };
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        match self.create(size, usage) {
            Err(wgpu::Error::OutOfMemory { .. }) => {
                // Dropped buffers are freed only after the work that named them is done.
                self.poll("allocating", None)?;
                self.create(size, usage).map(|raw| self.buffer(raw)).map_err(|error| Self::refused(error, bytes, "one buffer"))
            }
            other => other.map(|raw| self.buffer(raw)).map_err(|error| Self::refused(error, bytes, "one buffer")),
        }
    }

    /// The buffer `raw`, which this device made, with a number of its own.
    pub(super) fn buffer(&self, raw: wgpu::Buffer) -> Buffer {
        Buffer { raw, id: number(), owner: self.number }
    }

    pub(super) fn create(&self, size: u64, usage: wgpu::BufferUsages) -> std::result::Result<wgpu::Buffer, wgpu::Error> {
        self.guard(|| self.raw.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false }))
    }

    pub(super) fn refused(error: wgpu::Error, requested: u64, purpose: &str) -> Error {
        match error {
            wgpu::Error::OutOfMemory { .. } => Error::OutOfMemory { requested, purpose: purpose.into() },
            other => Error::device("allocating", other),
        }
    }
}
