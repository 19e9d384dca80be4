//! A weight's place on the device.

use rayon::prelude::*;

use crate::backend::Backend;
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Result, ensure};
use crate::session::Session;

/// Elements that a thread takes at a time.
const MANY: usize = 1 << 16;

/// Uploads a weight, given as rows of `columns` elements of `dtype`, a row every `stride` elements.
///
/// # Errors
/// A value that is not finite, as where `dtype` has no room for it: `name` tells whose; no device memory.
pub fn upload<D: Backend>(session: &mut Session<D>, name: &str, dtype: DType, bytes: &[u8], [columns, stride]: [u64; 2]) -> Result<Slice<D>> {
    let many = MANY * dtype.size() as usize;
    let check = |finite| ensure(finite, name, format_args!("values that {dtype} can hold"), "one that it cannot; take bf16 or f32");
    if columns != stride {
        check(bytes.par_chunks(many).all(|some| dtype.all_finite(some)))?;
        return session.upload_rows(bytes, columns * dtype.size(), stride * dtype.size());
    }
    let slice = session.alloc(bytes.len() as u64)?;
    session.write_with(&slice, &mut |at, to| {
        let from = &bytes[at as usize..][..to.len()];
        let copy = |(to, from): (&mut [u8], &[u8])| {
            to.copy_from_slice(from);
            dtype.all_finite(from)
        };
        check(to.par_chunks_mut(many).zip(from.par_chunks(many)).map(copy).all(|finite| finite))
    })?;
    Ok(slice)
}
