//! The heap, with a count of what each thread asks of it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

/// The system's heap, counted.
pub struct Counted;

// SAFETY: every call goes to the system's heap as it came; the count is a number of the thread's own, which allocates nothing.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the one asked for here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the one asked for here.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the one asked for here.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the one asked for here.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// A thread that ends has no number any more, and is not counted.
fn count() {
    let _ = ASKED.try_with(|asked| asked.set(asked.get() + 1));
}

/// How often this thread has asked the heap for memory.
pub fn asked() -> u64 {
    ASKED.with(Cell::get)
}
