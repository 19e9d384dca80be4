//! Tensors on their straight way to the device, and what the way of all of them takes.

use std::time::{Duration, Instant};

use super::weights::{Elements, WeightSource};
use crate::backend::Backend;
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::session::Session;

/// What the way of a model's weights to a device took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loading {
    /// The time in which values were read or drawn, and rounded.
    pub read: Duration,
    /// The time in which the host waited for copies besides.
    pub copied: Duration,
}

/// Uploads tensors, one behind the other, from a source that writes their elements where copies start from; none, where it has those of one in no such way.
///
/// # Errors
/// What the source refuses; no device memory.
pub fn straight<D: Backend>(
    session: &mut Session<D>,
    (source, dtype): (&dyn WeightSource, DType),
    tensors: &[(&str, Vec<u64>)],
    copied: &mut Duration,
) -> Result<Option<Slice<D>>> {
    let size = dtype.size();
    let part = |(name, shape): &(&str, Vec<u64>)| {
        // No memory is asked for that no file fills.
        let there = source.shape(name).as_ref() == Some(shape);
        Some((source.elements(name, shape, dtype).filter(|_| there)?, shape.iter().product::<u64>() * size))
    };
    let Some(parts) = tensors.iter().map(part).collect::<Option<Vec<_>>>() else { return Ok(None) };
    let slice = session.alloc(parts.iter().map(|(_, bytes)| bytes).sum())?;
    let (began, mut read) = (Instant::now(), Duration::ZERO);
    session.write_with(&slice, &mut |at, to| {
        let began = Instant::now();
        let written = piece(&parts, size, at, to);
        read += began.elapsed();
        written
    })?;
    *copied += began.elapsed().saturating_sub(read);
    Ok(Some(slice))
}

/// Writes the bytes of `parts`, which lie one behind the other, from `at` on over all of `to`.
fn piece(parts: &[(Elements<'_>, u64)], size: u64, mut at: u64, mut to: &mut [u8]) -> Result<()> {
    let mut start = 0;
    for (elements, bytes) in parts {
        let end = start + bytes;
        if at < end && !to.is_empty() {
            let (now, rest) = to.split_at_mut(to.len().min((end - at) as usize));
            elements((at - start) / size, now)?;
            (at, to) = (at + now.len() as u64, rest);
        }
        start = end;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cross_the_ends_of_tensors() {
        // Each element tells of its tensor and its place there.
        let tensor = |number: u8, count: u64| -> (Elements<'static>, u64) {
            let write = move |from: u64, to: &mut [u8]| {
                to.chunks_exact_mut(2).enumerate().for_each(|(at, element)| element.copy_from_slice(&[number, from as u8 + at as u8]));
                Ok(())
            };
            (Box::new(write), 2 * count)
        };
        let parts = [tensor(7, 5), tensor(8, 1), tensor(9, 6)];
        let all: Vec<u8> = [(7, 5), (8, 1), (9, 6)].into_iter().flat_map(|(number, count)| (0..count).flat_map(move |at| [number, at])).collect();
        for (from, len) in [(0, 24), (0, 2), (8, 4), (8, 16), (10, 2), (22, 2), (24, 0)] {
            let mut to = vec![0xff; len];
            piece(&parts, 2, from as u64, &mut to).unwrap();
            assert_eq!(to, all[from..from + len], "{len} bytes from {from}");
        }
    }
}
