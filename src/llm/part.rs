//! A part of a slice.

use crate::device::{Device, Slice};
use crate::error::{Error, Result};

/// `len` bytes of a slice from `offset` on.
pub fn part<D: Device>(slice: &Slice<D>, offset: u64, len: u64) -> Result<Slice<D>> {
    slice.sub_slice(offset, len).ok_or_else(|| Error::invalid("pass", format!("{len} bytes from byte {offset} on"), format!("{} bytes", slice.len)))
}
