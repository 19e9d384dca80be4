//! Pinned memory of the host, through which a queue copies.

use cudarc::driver::sys::{self, CUevent, CUresult};

use crate::backends::cuda::runtime::library::{Status, check, ok};
use crate::error::{Error, Result};

/// A ring of pinned memory, from and to which the device copies asynchronously.
#[derive(Debug)]
pub struct Staging {
    pointer: *mut u8,
    /// Bytes of a slot.
    bytes: usize,
    /// The event of each slot.
    done: Vec<CUevent>,
    next: usize,
}

/// A part of the ring.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    pub pointer: *mut u8,
    /// The event to record behind the copy that uses the slot.
    pub done: CUevent,
}

impl Staging {
    /// The ring in its place, made now where there is none: `slots` of `bytes` each.
    pub fn in_place(place: &mut Option<Self>, bytes: usize, slots: usize) -> Result<&mut Self> {
        match place {
            Some(staging) => Ok(staging),
            none => Ok(none.insert(Self::new(bytes, slots)?)),
        }
    }

    fn new(bytes: usize, slots: usize) -> Result<Self> {
        let mut staging = Self { pointer: std::ptr::null_mut(), bytes, done: vec![std::ptr::null_mut(); slots], next: 0 };
        let mut pointer = std::ptr::null_mut();
        // SAFETY: a context is current; each call stores one handle.
        unsafe {
            match check(sys::cuMemHostAlloc(&mut pointer, bytes * slots, 0)) {
                Err(Status(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                    return Err(Error::OutOfMemory { requested: (bytes * slots) as u64, purpose: "pinned memory on the host".into() });
                }
                got => got.map_err(|status| Error::device("an allocation of pinned memory", status))?,
            }
            staging.pointer = pointer.cast();
            for done in &mut staging.done {
                ok(sys::cuEventCreate(done, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32), "making an event")?;
            }
        }
        Ok(staging)
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.bytes
    }

    /// The next slot, once the copy that used it last is over.
    pub fn take(&mut self) -> Result<Slot, Status> {
        let index = self.next % self.done.len();
        self.next += 1;
        // SAFETY: the event is alive; one that was never recorded counts as done. The slot lies inside the ring.
        unsafe {
            check(sys::cuEventSynchronize(self.done[index]))?;
            Ok(Slot { pointer: self.pointer.add(index * self.bytes), done: self.done[index] })
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once; the queue has waited for its copies.
        unsafe {
            for &done in self.done.iter().filter(|done| !done.is_null()) {
                sys::cuEventDestroy_v2(done);
            }
            if !self.pointer.is_null() {
                sys::cuMemFreeHost(self.pointer.cast());
            }
        }
    }
}
