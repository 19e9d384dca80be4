//! A queue: one stream, pinned memory to copy through, and the names of what was launched, for error messages.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUevent, CUgraphExec, CUresult};

use crate::backends::cuda::runtime::library::{Status, check, ok};
use crate::backends::cuda::runtime::memory::{Memory, Stream};
use crate::backends::cuda::runtime::pdl::{InFlightWrites, starts_early};
use crate::backends::cuda::runtime::staging::Staging;
use crate::device::Filler;
use crate::error::{Error, Result};

/// Bytes of one slot of pinned memory. It is large enough for full speed over PCIe, and small enough that a wait for one is short.
const SLOT: usize = 512 << 10;
/// Slots of a queue.
const SLOTS: usize = 16;
/// Bytes of a piece that callers make in place, by all of their threads: so many that dividing it among them costs little.
const PIECE: usize = 8 << 20;
/// Pieces of a queue: one that is made, and others on their way.
const PIECES: usize = 4;

/// A queue, whose work runs in the order in which it was put in.
#[derive(Debug)]
pub struct Queue {
    stream: Arc<Stream>,
    /// The allocations that the stream already waits for.
    seen: u64,
    staging: Option<Staging>,
    /// Room for pieces that are made in place.
    pieces: Option<Staging>,
    journal: Journal,
    capturing: bool,
    /// Whether the next launch is the first of a capture. A graph begins when everything before it has ended.
    first: bool,
    /// The writes in flight at the end of the queue: see [`take_open`](Self::take_open).
    open: InFlightWrites,
    /// The memory, dropped last. It may be the last hold on the context, in which the fields above live.
    memory: Arc<Memory>,
}

// SAFETY: the handles inside may be used from every thread; `&mut` keeps them to one at a time.
unsafe impl Send for Queue {}

impl Queue {
    /// A new one on `memory`'s device.
    pub(crate) fn new(memory: Arc<Memory>) -> Result<Self> {
        let stream = memory.open_stream()?;
        Ok(Self {
            memory,
            stream,
            seen: 0,
            staging: None,
            pieces: None,
            journal: Journal::default(),
            capturing: false,
            first: false,
            open: InFlightWrites::default(),
        })
    }

    /// Prepares the thread and the stream for work: the context is current, and allocations are waited for.
    fn enter(&mut self) -> Result<()> {
        self.open.clear();
        self.first = false;
        self.memory.context.bind()?;
        // A recorded launch waits at replay: an edge from outside may not enter a capture.
        if self.capturing { Ok(()) } else { self.memory.join(&self.stream, &mut self.seen) }
    }

    /// The driver's stream, ready for a launch of that name.
    pub(crate) fn launching(&mut self, name: &'static str) -> Result<sys::CUstream> {
        self.enter()?;
        self.journal.add(name);
        Ok(self.stream.raw)
    }

    /// What launches write that may not have ended where the next one starts early (see `Launch::overlap`): those
    /// at the end of the queue that each let the next one start, the first of which started after all before it. Empty where the
    /// last work is of another kind. The taker puts them back with its own, unless its launch did not start early.
    pub(crate) fn take_open(&mut self) -> InFlightWrites {
        std::mem::take(&mut self.open)
    }

    /// Follows a launch that lets the next one start before it has ended: what it and those before it write.
    pub(crate) fn leave_open(&mut self, writes: InFlightWrites) {
        self.open = writes;
    }

    /// Whether a launch that reads `early` before it waits, and lets the next one start, may start before those at the end of the queue have ended;
    /// and what to leave open behind it, where it writes `writes`.
    pub(crate) fn prefetch_allowed(&mut self, early: &[Range<u64>], writes: Vec<Range<u64>>) -> (bool, InFlightWrites) {
        let (open, writes) = (self.take_open(), InFlightWrites::from_iter(writes));
        match starts_early(&open, early) {
            true => (true, open.and(writes)),
            false => (false, writes),
        }
    }

    /// What to leave open behind a launch that may start early, waits before it reads anything and writes `writes`: nothing where it is not known
    /// what may still be under way.
    pub(crate) fn behind(&mut self, writes: InFlightWrites) -> InFlightWrites {
        let open = self.take_open();
        if self.first || open.is_known() { open.and(writes) } else { InFlightWrites::default() }
    }

    /// The driver's stream, as a number, for libraries that work on it (baselines in benchmarks).
    pub fn raw(&self) -> sys::CUstream {
        self.stream.raw
    }

    /// Copies `bytes` to the device. They are taken before this returns.
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        self.enter()?;
        self.journal.add("write");
        let stream = self.stream.raw;
        let staging = self.staging()?;
        for (index, chunk) in bytes.chunks(SLOT).enumerate() {
            let slot = staging.take().map_err(|status| Error::device("waiting for an earlier copy", status))?;
            // SAFETY: the slot has room for a chunk and no copy uses it; the caller's memory lies on the device.
            unsafe {
                std::ptr::copy_nonoverlapping(chunk.as_ptr(), slot.pointer, chunk.len());
                let to = address + (index * SLOT) as u64;
                ok(sys::cuMemcpyHtoDAsync_v2(to, slot.pointer.cast(), chunk.len(), stream), "a write")?;
                ok(sys::cuEventRecord(slot.done, stream), "a write")?;
            }
        }
        Ok(())
    }

    /// Copies to the device what `fill` makes, piece by piece, in the pinned memory that it is copied from.
    pub(crate) fn write_with(&mut self, address: u64, bytes: u64, fill: &mut Filler<'_>) -> Result<()> {
        self.enter()?;
        self.journal.add("write");
        let stream = self.stream.raw;
        // What one slot has room for needs no larger ones.
        let staging = if bytes <= SLOT as u64 { self.staging()? } else { Staging::in_place(&mut self.pieces, PIECE, PIECES)? };
        let piece = staging.slot_bytes() as u64;
        for at in (0..bytes).step_by(piece as usize) {
            let count = piece.min(bytes - at) as usize;
            let slot = staging.take().map_err(|status| Error::device("waiting for an earlier copy", status))?;
            // SAFETY: the slot has room for a piece, and no copy uses it.
            fill(at, unsafe { std::slice::from_raw_parts_mut(slot.pointer, count) })?;
            // SAFETY: the slot holds the piece; the caller's memory lies on the device.
            unsafe {
                ok(sys::cuMemcpyHtoDAsync_v2(address + at, slot.pointer.cast(), count, stream), "a write")?;
                ok(sys::cuEventRecord(slot.done, stream), "a write")?;
            }
        }
        Ok(())
    }

    /// Copies from the device, after all earlier work. Blocks.
    pub(crate) fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<()> {
        self.enter()?;
        self.journal.add("read");
        let stream = self.stream.raw;
        let failed = |journal: &Journal, status: Status| Error::device(journal.to_string(), status);
        self.staging()?;
        let Some(staging) = &mut self.staging else { return Ok(()) };
        for (first, window) in bytes.chunks_mut(SLOT * SLOTS).enumerate() {
            let mut slots = [None; SLOTS];
            for (index, chunk) in window.chunks(SLOT).enumerate() {
                let slot = staging.take().map_err(|status| failed(&self.journal, status))?;
                let from = address + ((first * SLOTS + index) * SLOT) as u64;
                // SAFETY: the slot has room for a chunk and no copy uses it; the caller's memory lies on the device.
                unsafe {
                    check(sys::cuMemcpyDtoHAsync_v2(slot.pointer.cast(), from, chunk.len(), stream)).map_err(|s| failed(&self.journal, s))?;
                    check(sys::cuEventRecord(slot.done, stream)).map_err(|s| failed(&self.journal, s))?;
                }
                slots[index] = Some(slot);
            }
            for (chunk, slot) in window.chunks_mut(SLOT).zip(slots.into_iter().flatten()) {
                // SAFETY: the event is alive; after it the slot holds the chunk.
                unsafe {
                    check(sys::cuEventSynchronize(slot.done)).map_err(|s| failed(&self.journal, s))?;
                    std::ptr::copy_nonoverlapping(slot.pointer, chunk.as_mut_ptr(), chunk.len());
                }
            }
        }
        self.wait()
    }

    /// Copies `bytes` from one address to another, either of which may be page-locked memory of the host; the ranges lie apart.
    pub(crate) fn copy(&mut self, from: u64, to: u64, bytes: u64) -> Result<()> {
        let stream = self.launching("copy")?;
        // SAFETY: the caller's ranges lie apart from each other, on the device or in page-locked memory: addresses tell which.
        ok(unsafe { sys::cuMemcpyAsync(to, from, bytes as usize, stream) }, "a copy")
    }

    /// The device's memory, whose context the handles of this queue belong to.
    pub(crate) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Blocks until all is done, and reports what failed.
    pub(crate) fn wait(&mut self) -> Result<()> {
        self.memory.context.bind()?;
        // SAFETY: the stream is alive.
        let done = check(unsafe { sys::cuStreamSynchronize(self.stream.raw) });
        let result = done.map_err(|status| Error::device(self.journal.to_string(), status));
        self.journal = Journal::default();
        result
    }

    /// From here launches are recorded.
    pub(crate) fn begin_capture(&mut self) -> Result<()> {
        self.enter()?;
        let stream = self.stream.raw;
        // Relaxed: other calls of this thread, such as an allocation in the device's own stream, are not the capture's
        // business, and are not recorded.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is alive and captures nothing yet.
        self.stream.set_capturing(true, || ok(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) }, "beginning a capture"))?;
        (self.capturing, self.first) = (true, true);
        Ok(())
    }

    /// What was recorded since; the queue runs things again, whatever this returns.
    pub(crate) fn end_capture(&mut self) -> Result<Graph> {
        // What was recorded has not run: the next launch follows what ran before.
        self.open.clear();
        self.first = false;
        self.memory.context.bind()?;
        let stream = self.stream.raw;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is alive; stores one handle. Even where it fails, the stream captures no longer.
        let ended = self.stream.set_capturing(false, || ok(unsafe { sys::cuStreamEndCapture(stream, &mut graph) }, "ending a capture"));
        self.capturing = false;
        ended?;
        let mut replay = Graph { exec: std::ptr::null_mut(), done: std::ptr::null_mut(), memory: Arc::clone(&self.memory) };
        // SAFETY: the graph was just made and is destroyed once; each call stores one handle.
        unsafe {
            let made = check(sys::cuGraphInstantiateWithFlags(&mut replay.exec, graph, 0));
            let event = check(sys::cuEventCreate(&mut replay.done, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32));
            sys::cuGraphDestroy(graph);
            made.and(event).map_err(|status| match status {
                Status(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => Error::OutOfMemory { requested: 0, purpose: "a captured graph".into() },
                status => Error::device("making a graph of a capture", status),
            })?;
        }
        Ok(replay)
    }

    /// Runs recorded work again.
    ///
    /// # Safety
    /// Every buffer that the graph names is alive.
    pub unsafe fn replay(&mut self, graph: &Graph) -> Result<()> {
        let stream = self.launching("a captured graph")?;
        // SAFETY: graph, event and stream are alive, and the caller keeps what the graph names.
        unsafe {
            ok(sys::cuGraphLaunch(graph.exec, stream), "replaying a captured graph")?;
            ok(sys::cuEventRecord(graph.done, stream), "replaying a captured graph")
        }
    }

    fn staging(&mut self) -> Result<&mut Staging> {
        Staging::in_place(&mut self.staging, SLOT, SLOTS)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.memory.context.bind().is_ok() {
            if self.capturing {
                drop(self.end_capture());
            }
            // The pinned memory is freed with the queue, so copies through it must be over.
            // SAFETY: the stream is alive.
            unsafe { sys::cuStreamSynchronize(self.stream.raw) };
        }
        self.memory.close_stream(&self.stream);
    }
}

/// Recorded launches, ready to run again.
#[derive(Debug)]
pub struct Graph {
    exec: CUgraphExec,
    /// The event that each replay records.
    done: CUevent,
    memory: Arc<Memory>,
}

// SAFETY: the handles inside may be used from every thread.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.memory.context.bind().is_err() {
            return;
        }
        // SAFETY: handles made in `end_capture`, destroyed once, after the last replay.
        unsafe {
            if !self.done.is_null() {
                sys::cuEventSynchronize(self.done);
                sys::cuEventDestroy_v2(self.done);
            }
            if !self.exec.is_null() {
                sys::cuGraphExecDestroy(self.exec);
            }
        }
    }
}

/// The names of the last launches. The device tells that something failed, but not what.
#[derive(Debug, Default)]
struct Journal {
    last: [&'static str; 4],
    count: usize,
}

impl Journal {
    fn add(&mut self, name: &'static str) {
        self.last[self.count % self.last.len()] = name;
        self.count += 1;
    }
}

impl std::fmt::Display for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known = self.count.min(self.last.len());
        if known == 0 {
            return f.write_str("waiting for the queue");
        }
        let names: Vec<&str> = (self.count - known..self.count).map(|at| self.last[at % self.last.len()]).collect();
        write!(f, "one of {} launches (the last: {})", self.count, names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::Journal;

    #[test]
    fn the_journal_names_the_last_launches_in_order() {
        let mut journal = Journal::default();
        assert_eq!(journal.to_string(), "waiting for the queue");
        for name in ["a", "b", "c", "d", "e"] {
            journal.add(name);
        }
        assert_eq!(journal.to_string(), "one of 5 launches (the last: b, c, d, e)");
    }
}
