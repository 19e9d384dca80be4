//! Host memory that launches share. It is counted, aligned, and watched, so that misuse is an error and no data race.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// The alignment of every buffer, in bytes.
const ALIGN: usize = 256;
/// The alignment up to which the allocator returns zeroed pages without touching them.
const ALLOCATOR_ALIGN: usize = 16;

/// How much memory the buffers of one device may take together. Systems promise more memory than they have, and then kill the process that
/// uses it. With a budget that is an error.
pub struct Budget {
    used: AtomicU64,
    limit: u64,
}

impl Budget {
    pub fn new(limit: u64) -> Self {
        Self { used: AtomicU64::new(0), limit }
    }

    fn take(&self, bytes: u64) -> bool {
        let room = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A counted handle to host memory; a clone aliases.
#[derive(Clone)]
pub struct Buffer(pub(super) Arc<Memory>);

pub(super) struct Memory {
    /// The allocator's memory, and its layout; none for zero bytes.
    allocation: Option<(*mut u8, Layout)>,
    /// The first aligned byte.
    pub(super) start: *mut u8,
    pub(super) bytes: u64,
    budget: Arc<Budget>,
    /// The number of launches that read, or −1 while one writes.
    holds: AtomicIsize,
}

// SAFETY: the pointers are to heap memory that no thread owns; `holds` governs who may touch it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Buffer {
    /// Allocates `bytes` of zeroed memory.
    pub fn new(bytes: u64, budget: &Arc<Budget>) -> Result<Self> {
        let refused = |purpose: &str| Error::OutOfMemory { requested: bytes, purpose: purpose.into() };
        let mut memory =
            Memory { allocation: None, start: std::ptr::without_provenance_mut(ALIGN), bytes: 0, budget: Arc::clone(budget), holds: AtomicIsize::new(0) };
        if bytes > 0 {
            let size = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_add(ALIGN));
            let layout = size.and_then(|size| Layout::from_size_align(size, ALLOCATOR_ALIGN).ok());
            let layout = layout.ok_or_else(|| refused("one buffer (more than can be addressed)"))?;
            if !budget.take(bytes) {
                return Err(refused(&format!("one buffer (all buffers together may take {})", budget.limit)));
            }
            // From here a drop of `memory` gives the bytes back to the budget.
            memory.bytes = bytes;
            // SAFETY: the layout's size is at least ALIGN.
            let raw = unsafe { alloc_zeroed(layout) };
            if raw.is_null() {
                return Err(refused("one buffer"));
            }
            memory.allocation = Some((raw, layout));
            memory.start = raw.map_addr(|address| address.next_multiple_of(ALIGN));
        }
        Ok(Self(Arc::new(memory)))
    }

    /// A number that is equal for clones, and different for any two buffers alive at once.
    pub fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
        if let Some((raw, layout)) = self.allocation {
            // SAFETY: this is what `alloc_zeroed` gave for this layout, freed once.
            unsafe { dealloc(raw, layout) };
        }
    }
}

/// Buffers that are held while work runs on them, and released when this is dropped.
pub struct Held<'a>(Vec<(&'a Memory, bool)>);

/// Holds every `(buffer, exclusively, name)`. Many launches may hold a buffer to read it, or one to write it.
///
/// # Errors
/// Another thread is using one of the buffers. There is no wait for it: the holder may be a frame further up this thread's own stack, where
/// the pool ran one piece of work while another waited. That wait would never end.
pub fn hold<'a>(wanted: impl IntoIterator<Item = (&'a Buffer, bool, &'static str)>) -> Result<Held<'a>> {
    let mut held = Held(Vec::new());
    for (Buffer(memory), exclusive, name) in wanted {
        let free = |holds: isize| match (holds, exclusive) {
            (0, true) => Some(-1),
            (0.., false) => Some(holds + 1),
            _ => None,
        };
        if memory.holds.fetch_update(Ordering::Acquire, Ordering::Relaxed, free).is_err() {
            return Err(Error::invalid(name, "memory that no other thread is using (one of the two writes)", "memory in use"));
        }
        held.0.push((memory, exclusive));
    }
    Ok(held)
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        for (memory, exclusive) in &self.0 {
            memory.holds.fetch_add(if *exclusive { 1 } else { -1 }, Ordering::Release);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_counted_against_the_budget() {
        let budget = Arc::new(Budget::new(1000));
        let first = Buffer::new(600, &budget).unwrap();
        assert_eq!(first.0.start.addr() % ALIGN, 0);
        assert!(matches!(Buffer::new(600, &budget), Err(Error::OutOfMemory { requested: 600, .. })));
        let empty = [Buffer::new(0, &budget).unwrap(), Buffer::new(0, &budget).unwrap()];
        assert_ne!(empty[0].id(), empty[1].id());
        drop(first);
        Buffer::new(1000, &budget).unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri ends where memory does")]
    fn an_allocation_that_the_system_refuses_is_given_back() {
        let budget = Arc::new(Budget::new(u64::MAX));
        assert!(matches!(Buffer::new(1 << 62, &budget), Err(Error::OutOfMemory { .. })));
        assert!(matches!(Buffer::new(u64::MAX, &budget), Err(Error::OutOfMemory { .. })));
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn many_may_read_and_one_may_write() {
        let buffer = Buffer::new(8, &Arc::new(Budget::new(8))).unwrap();
        let readers = [hold([(&buffer, false, "a")]).unwrap(), hold([(&buffer, false, "b")]).unwrap()];
        assert!(hold([(&buffer, true, "c")]).is_err());
        drop(readers);
        let writer = hold([(&buffer, true, "d")]).unwrap();
        assert!(hold([(&buffer, false, "e")]).is_err());
        drop(writer);
        hold([(&buffer, true, "f")]).unwrap();
    }

    /// Miri runs it too (fuzz/hold), which sees every race and not only those that change a byte.
    #[test]
    fn what_is_held_is_not_written_by_another_thread() {
        let (buffer, rounds) = (Buffer::new(64, &Arc::new(Budget::new(64))).unwrap(), if cfg!(miri) { 40u32 } else { 20_000 });
        let work = |own: u8| {
            let mut seen = 0;
            for round in 0..rounds {
                let exclusive = (round + u32::from(own)).is_multiple_of(3);
                let Ok(_held) = hold([(&buffer, exclusive, "a")]) else { continue };
                seen += 1;
                let start = buffer.0.start;
                if exclusive {
                    // SAFETY: 64 bytes that this thread alone holds.
                    unsafe { start.write_bytes(own, 64) };
                } else {
                    // SAFETY: 64 bytes that threads hold to read alone.
                    let bytes = unsafe { std::slice::from_raw_parts(start, 64) };
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "{bytes:?}");
                }
            }
            seen
        };
        let work = &work;
        let held: i32 = std::thread::scope(|scope| [1, 2, 3].map(|own| scope.spawn(move || work(own))).map(|thread| thread.join().unwrap()).iter().sum());
        assert!(held > 0);
        assert_eq!(buffer.0.holds.load(Ordering::Relaxed), 0);
    }
}
