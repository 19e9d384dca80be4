//! The elements of a slice, as kernels access them.

use std::marker::PhantomData;

use super::Cpu;
use crate::device::Slice;

/// The elements of a slice. Many threads read and write pieces of it at once, so it is a pointer. Whoever takes a piece answers for it.
pub struct View<T> {
    start: *mut T,
    len: usize,
    elements: PhantomData<T>,
}

impl<T> Clone for View<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<T> {}

// SAFETY: a view gives access only through unsafe functions, whose callers answer for races.
unsafe impl<T: Send + Sync> Send for View<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for View<T> {}

impl<T: bytemuck::Pod> View<T> {
    /// A view of `slice`, whose offset is a multiple of the elements' size.
    pub fn new(slice: &Slice<Cpu>) -> Self {
        debug_assert!(slice.offset + slice.len <= slice.buffer.0.bytes && slice.offset.is_multiple_of(align_of::<T>() as u64));
        let start = slice.buffer.0.start.wrapping_add(slice.offset as usize).cast();
        Self { start, len: slice.len as usize / size_of::<T>(), elements: PhantomData }
    }

    /// `len` elements from `at`.
    ///
    /// # Safety
    /// The elements lie inside the view, the buffer is held, and nothing writes them while the result lives.
    pub unsafe fn read<'a>(self, at: usize, len: usize) -> &'a [T] {
        debug_assert!(at + len <= self.len, "{at} + {len} of {}", self.len);
        // SAFETY: as this function's contract; memory is zeroed when it is made, so every byte is initialised.
        unsafe { std::slice::from_raw_parts(self.start.add(at), len) }
    }

    /// `len` elements from `at`, to write.
    ///
    /// # Safety
    /// The elements lie inside the view, the buffer is held exclusively, and nothing else refers to them while the result lives.
    pub unsafe fn write<'a>(self, at: usize, len: usize) -> &'a mut [T] {
        debug_assert!(at + len <= self.len, "{at} + {len} of {}", self.len);
        // SAFETY: as this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }

    /// All elements of the view.
    ///
    /// # Safety
    /// The contract of [`read`](Self::read).
    pub unsafe fn all<'a>(self) -> &'a [T] {
        // SAFETY: as this function's contract.
        unsafe { self.read(0, self.len) }
    }
}
