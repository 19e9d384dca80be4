//! A part of a slice, and its values on the host.

use crate::backend::Backend;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::session::Session;

/// `len` bytes of a slice from `offset` on.
pub fn part<D: Device>(slice: &Slice<D>, offset: u64, len: u64) -> Result<Slice<D>> {
    slice.sub_slice(offset, len).ok_or_else(|| Error::invalid("pass", format!("{len} bytes from byte {offset} on"), format!("{} bytes", slice.len)))
}

/// Values on the device as f32.
pub fn read<D: Backend>(session: &mut Session<D>, dtype: DType, slice: &Slice<D>) -> Result<Vec<f32>> {
    if dtype == DType::F32 {
        return session.download(slice);
    }
    Ok(dtype.decode(&session.read(slice)?).into_iter().map(|value| value as f32).collect())
}
