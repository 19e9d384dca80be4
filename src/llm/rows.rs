//! A weight on its way to the device.

use rayon::prelude::*;

use crate::backend::Backend;
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::model::upload;
use crate::session::Session;

/// Elements that a thread takes at a time, at least.
const MANY: usize = 1 << 16;

/// Rows of a weight as the device is to have them: elements of one type, a row every so many elements, with zeros between. The memory is kept for the
/// next weight, since what the system gives anew it clears page by page.
#[derive(Debug)]
pub struct Rows {
    dtype: DType,
    bytes: Vec<u8>,
    /// Bytes of the weight that is being made.
    used: usize,
}

impl Rows {
    /// No rows yet, of elements of `dtype`.
    pub fn new(dtype: DType) -> Self {
        Self { dtype, bytes: Vec::new(), used: 0 }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Begins another weight.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Adds a row every `stride` elements: the first `columns` of every `pitch` values, each rounded once, by all threads.
    pub fn add(&mut self, values: &[f32], [pitch, columns, stride]: [u64; 3]) {
        let (pitch, columns) = (pitch.max(1) as usize, columns as usize);
        let (dtype, row) = (self.dtype, (stride * self.dtype.size()) as usize);
        let (together, taken) = ((MANY / pitch).max(1), columns * dtype.size() as usize);
        let to = self.more(values.len() / pitch * row);
        to.par_chunks_mut(together * row).zip(values.par_chunks(together * pitch)).for_each(|(to, from)| {
            for (to, from) in to.chunks_exact_mut(row).zip(from.chunks_exact(pitch)) {
                let (elements, rest) = to.split_at_mut(taken);
                dtype.encode_f32_into(&from[..columns], elements);
                rest.fill(0);
            }
        });
    }

    /// Adds a row every `stride` elements: the first `columns` of every `pitch` elements of this type, by all threads.
    pub fn add_elements(&mut self, elements: &[u8], [pitch, columns, stride]: [u64; 3]) {
        let size = self.dtype.size();
        let [pitch, columns, row] = [pitch.max(1) * size, columns * size, stride * size].map(|bytes| bytes as usize);
        let together = (MANY / pitch).max(1);
        let to = self.more(elements.len() / pitch * row);
        to.par_chunks_mut(together * row).zip(elements.par_chunks(together * pitch)).for_each(|(to, from)| {
            for (to, from) in to.chunks_exact_mut(row).zip(from.chunks_exact(pitch)) {
                let (taken, rest) = to.split_at_mut(columns);
                taken.copy_from_slice(&from[..columns]);
                rest.fill(0);
            }
        });
    }

    /// Adds rows that `write` writes in place.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn add_written(&mut self, elements: u64, write: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<()> {
        let bytes = (elements * self.dtype.size()) as usize;
        write(self.more(bytes))
    }

    /// Adds rows of zeros.
    pub fn add_zeros(&mut self, rows: u64, stride: u64) {
        let bytes = (rows * stride * self.dtype.size()) as usize;
        self.more(bytes).fill(0);
    }

    /// The next bytes, which hold anything.
    fn more(&mut self, bytes: usize) -> &mut [u8] {
        let from = self.used;
        self.used += bytes;
        if self.bytes.len() < self.used {
            self.bytes.resize(self.used, 0);
        }
        &mut self.bytes[from..self.used]
    }

    /// The rows on the device.
    ///
    /// # Errors
    /// A value that is not finite, as where the type has no room for it: `name` tells whose; no device memory.
    pub fn place<D: Backend>(&self, session: &mut Session<D>, name: &str) -> Result<Slice<D>> {
        let bytes = &self.bytes[..self.used];
        upload(session, name, self.dtype, bytes, [bytes.len() as u64 / self.dtype.size(); 2])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_rounded_padded_and_made_anew_in_the_same_memory() {
        let values: Vec<f32> = (0..200_000).map(|at| at as f32 / 7.0).collect();
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            let mut rows = Rows::new(dtype);
            // What stays of a weight before is never seen.
            rows.add(&vec![1.0; 300_000], [3, 3, 3]);
            for ([pitch, columns, stride], zeros) in [([5, 5, 8], 2), ([7, 4, 4], 0), ([199_999, 199_998, 200_000], 1), ([200_000; 3], 0)] {
                rows.clear();
                assert!(rows.is_empty());
                rows.add(&values, [pitch, columns, stride]);
                rows.add_zeros(zeros, stride);
                let mut expected: Vec<f32> = values
                    .chunks_exact(pitch as usize)
                    .flat_map(|row| row[..columns as usize].iter().copied().chain(std::iter::repeat_n(0.0, (stride - columns) as usize)))
                    .collect();
                expected.resize(expected.len() + (zeros * stride) as usize, 0.0);
                let expected = dtype.encode_f32(&expected);
                assert!(rows.bytes[..rows.used] == expected, "{dtype}: {columns} of {pitch} every {stride}");
                rows.clear();
                rows.add_elements(&dtype.encode_f32(&values), [pitch, columns, stride]);
                let zero = |to: &mut [u8]| {
                    to.fill(0);
                    Ok(())
                };
                rows.add_written(zeros * stride, zero).unwrap();
                assert!(rows.bytes[..rows.used] == expected, "{dtype}: {columns} of {pitch} every {stride}, as they are stored");
            }
        }
    }
}
