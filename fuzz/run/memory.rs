//! Memory that is counted, of all threads together.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Asked for at once or in all, past which the system is not asked: the machine would suffer.
const REFUSED: usize = 8 << 30;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with a count.
pub struct Counting;

/// Begins anew with what is held now, which is given back.
pub fn begin() -> usize {
    let held = HELD.load(Relaxed);
    PEAK.store(held, Relaxed);
    held
}

/// The most that was held since [`begin`] gave `before`, past that.
pub fn since(before: usize) -> usize {
    PEAK.load(Relaxed).saturating_sub(before)
}

fn take(bytes: usize) -> bool {
    let held = HELD.fetch_add(bytes, Relaxed).saturating_add(bytes);
    PEAK.fetch_max(held, Relaxed);
    if held > REFUSED {
        HELD.fetch_sub(bytes, Relaxed);
    }
    held <= REFUSED
}

// SAFETY: every call goes on to the system's allocator as it came; a refusal is a null pointer, as the trait has it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        if take(layout.size()) { unsafe { System.alloc(layout) } } else { std::ptr::null_mut() }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        if take(layout.size()) { unsafe { System.alloc_zeroed(layout) } } else { std::ptr::null_mut() }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !take(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        let moved = unsafe { System.realloc(pointer, layout, size) };
        HELD.fetch_sub(if moved.is_null() { size } else { layout.size() }, Relaxed);
        moved
    }
}
