//! Results that are read, or used on the device, while later work runs.

use super::room::zeroed;
use super::{Event, Session};
use crate::device::{Device, Slice};
use crate::error::{Result, ensure};

impl<D: Device> Session<D> {
    /// The elements of `src`, memory of [`alloc_host`](Self::alloc_host), after the work before `event`. Blocks until then, and on a device whose
    /// work goes on beside the host ([`Hints::beside_host`](crate::device::Hints)) no longer. Where later work writes them too, they may be of either.
    ///
    /// # Errors
    /// A length that is no whole number of elements; an event of another session.
    pub fn read_after<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(&mut self, event: &Event<D>, src: &Slice<D>) -> Result<Vec<T>> {
        self.outside_capture("read_after")?;
        self.own("read_after", src)?;
        ensure(event.session == self.id, "event", "one of this session", "another session's")?;
        let size = size_of::<T>() as u64;
        let count = src.len.checked_div(size).unwrap_or(0);
        ensure(count * size == src.len, "read_after", format_args!("a multiple of {size} bytes"), src.len)?;
        let mut values = zeroed(count)?;
        self.device.read_after(&mut self.queue, &event.raw, src, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }
}
