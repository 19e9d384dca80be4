//! Results that are read, or used on the device, while later work runs.

use super::room::zeroed;
use super::{Event, Session};
use crate::device::{Device, Slice};
use crate::error::{Error, Result, ensure};
use crate::ops::index::{Index, TokenAdapters};

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

    /// Copies ids that lie on the device over those of an index, from its token `at` on. The order of its tokens by their ids stays what it was, so
    /// that an embedding may read it and adapters may not. The caller knows the ids to be below the index's bound, or −1: a sampler wrote them.
    ///
    /// # Errors
    /// Ids beyond the index's tokens.
    #[cfg(feature = "llm")]
    pub(crate) fn copy_ids(&mut self, ids: &Slice<D>, to: &Index<TokenAdapters, D>, at: usize) -> Result<()> {
        let place = to.slice().sub_slice(TokenAdapters::first_id() + 4 * at as u64, ids.len);
        let fits = place.filter(|_| at as u64 + ids.len / 4 <= to.shape().tokens);
        let place = fits.ok_or_else(|| Error::invalid("ids", format!("tokens of {:?}", to.shape()), format!("{} from {at} on", ids.len / 4)))?;
        self.copy(ids, &place)
    }
}
