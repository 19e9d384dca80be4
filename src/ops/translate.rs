//! Operands of one device as operands of another, for a device that wraps others.

use super::index::{HostIndex, Index};
use crate::device::{Device, Slice};
use crate::error::Result;

/// How memory of a wrapping device is expressed as memory of the device behind it. Only this crate makes it: it is shown index data, which
/// kernels trust.
pub struct Translate<'a, A: Device, B: Device>(pub(crate) &'a dyn Fn(&Slice<A>) -> Result<Slice<B>>);

impl<A: Device, B: Device> Translate<'_, A, B> {
    pub(super) fn slice(&self, slice: &Slice<A>) -> Result<Slice<B>> {
        (self.0)(slice)
    }

    pub(super) fn if_any(&self, slice: &Option<Slice<A>>) -> Result<Option<Slice<B>>> {
        slice.as_ref().map(self.0).transpose()
    }

    pub(super) fn index<H: HostIndex>(&self, index: &Index<H, A>) -> Result<Index<H, B>> {
        Ok(Index::over(index.shape().clone(), self.slice(index.slice())?))
    }

    pub(super) fn index_if_any<H: HostIndex>(&self, index: &Option<Index<H, A>>) -> Result<Option<Index<H, B>>> {
        index.as_ref().map(|index| self.index(index)).transpose()
    }
}
