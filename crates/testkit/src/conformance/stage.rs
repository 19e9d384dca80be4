use crate::tolerance::{Expected, Metrics};
use trifuse::device::{Device, Slice};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::session::Session;

/// The bytes around every operand: as f16, bf16 and f32 a NaN, and none that arithmetic gives.
const GUARD: [u8; 4] = 0xffc5_7fa3u32.to_le_bytes();
/// The bytes in every output before a run: another such NaN.
const POISON: [u8; 4] = 0xffd9_7fb1u32.to_le_bytes();
/// Bytes of guard on either side, at least.
const MARGIN: usize = 192;

/// The operands of one run on a device, each in a guarded buffer of its own.
pub struct Stage<D: Device> {
    buffers: Vec<Guarded<D>>,
    outputs: Vec<Place>,
    aligned: bool,
}

struct Guarded<D: Device> {
    name: String,
    whole: Slice<D>,
    /// Every byte as it is before a run.
    image: Vec<u8>,
    /// Where in the image the operand lies.
    range: std::ops::Range<usize>,
    written: bool,
}

/// Where an output lies: from which byte of which buffer.
struct Place {
    buffer: usize,
    offset: usize,
}

impl<D: Device> Default for Stage<D> {
    fn default() -> Self {
        Self { buffers: Vec::new(), outputs: Vec::new(), aligned: false }
    }
}

impl<D: Device> Stage<D> {
    /// One whose operands start on multiples of 256 bytes, as allocators give them: kernels that move many bytes at once, and
    /// copy engines, are for those alone.
    #[must_use]
    pub fn aligned() -> Self {
        Self { aligned: true, ..Self::default() }
    }

    /// An operand that is only read.
    pub fn input(&mut self, session: &mut Session<D>, name: &str, dtype: DType, values: &[f64]) -> Result<Slice<D>> {
        self.place(session, name, &dtype.encode(values), dtype.size() as usize, false)
    }

    /// Puts an input on the device as [`input`](Self::input) does, in rows of `columns` values, a row every `stride`: between rows is NaN.
    pub fn rows(&mut self, session: &mut Session<D>, name: &str, dtype: DType, values: &[f64], [columns, stride]: [u64; 2]) -> Result<Slice<D>> {
        let apart: Vec<f64> = values.chunks(columns as usize).flat_map(|row| row.iter().copied().chain((columns..stride).map(|_| f64::NAN))).collect();
        // No memory behind the last row is the operand's.
        let between = if values.is_empty() { 0 } else { (stride - columns) as usize };
        self.input(session, name, dtype, &apart[..apart.len() - between])
    }

    /// Puts an operand that may be absent on the device, as [`input`](Self::input) does.
    pub fn optional(&mut self, session: &mut Session<D>, name: &str, dtype: DType, values: Option<&[f64]>) -> Result<Option<Slice<D>>> {
        values.map(|values| self.input(session, name, dtype, values)).transpose()
    }

    /// Puts 32-bit integers on the device, as [`input`](Self::input) does.
    pub fn integers(&mut self, session: &mut Session<D>, name: &str, values: &[i32]) -> Result<Slice<D>> {
        self.place(session, name, bytemuck::cast_slice(values), 4, false)
    }

    /// Puts bytes on the device, as [`input`](Self::input) does: at an odd one unless the stage is aligned.
    pub fn bytes(&mut self, session: &mut Session<D>, name: &str, bytes: &[u8]) -> Result<Slice<D>> {
        self.bytes_by(session, name, bytes, 1)
    }

    /// Puts bytes on the device, as [`input`](Self::input) does: at an odd multiple of so many unless the stage is aligned.
    pub fn bytes_by(&mut self, session: &mut Session<D>, name: &str, bytes: &[u8], align: usize) -> Result<Slice<D>> {
        self.place(session, name, bytes, align, false)
    }

    /// An output of `count` elements, poisoned. It is the next in the order of [`crate::oracle::Define::evaluate`].
    pub fn output(&mut self, session: &mut Session<D>, name: &str, dtype: DType, count: usize) -> Result<Slice<D>> {
        let size = dtype.size() as usize;
        let bytes = POISON.repeat((count * size).div_ceil(POISON.len()));
        self.output_bytes(session, name, &bytes[..count * size], size)
    }

    /// Makes an output as [`output`](Self::output) does, holding `values` before each run.
    pub fn updated(&mut self, session: &mut Session<D>, name: &str, dtype: DType, values: &[f64]) -> Result<Slice<D>> {
        self.output_bytes(session, name, &dtype.encode(values), dtype.size() as usize)
    }

    fn output_bytes(&mut self, session: &mut Session<D>, name: &str, bytes: &[u8], size: usize) -> Result<Slice<D>> {
        let slice = self.place(session, name, bytes, size, true)?;
        self.outputs.push(Place { buffer: self.buffers.len() - 1, offset: slice.offset() as usize });
        Ok(slice)
    }

    /// Several outputs inside one buffer, `bytes` before each run; the parts are `(offset, length)` in bytes.
    pub(super) fn shared(&mut self, session: &mut Session<D>, name: &str, bytes: &[u8], size: usize, parts: &[(usize, usize)]) -> Result<Vec<Slice<D>>> {
        let whole = self.place(session, name, bytes, size, true)?;
        let mut slices = Vec::new();
        for &(offset, length) in parts {
            let part = whole.sub_slice(offset as u64, length as u64);
            let part = part.ok_or_else(|| Error::invalid(name, format!("parts inside {} bytes", whole.len()), format!("{length} at {offset}")))?;
            self.outputs.push(Place { buffer: self.buffers.len() - 1, offset: part.offset() as usize });
            slices.push(part);
        }
        Ok(slices)
    }

    /// Puts `bytes` into a guarded buffer, at an odd multiple of the element's size unless the stage is aligned.
    fn place(&mut self, session: &mut Session<D>, name: &str, bytes: &[u8], size: usize, written: bool) -> Result<Slice<D>> {
        let offset = if self.aligned { 256 } else { MARGIN + size * (2 * (self.buffers.len() % 4) + 1) };
        let mut image = GUARD.repeat((offset + bytes.len() + MARGIN).div_ceil(GUARD.len()));
        image[offset..offset + bytes.len()].copy_from_slice(bytes);
        let whole = session.alloc(image.len() as u64)?;
        session.write(&whole, &image)?;
        let slice = whole.sub_slice(offset as u64, bytes.len() as u64).ok_or_else(|| Error::invalid(name, "an operand inside its buffer", bytes.len()))?;
        self.buffers.push(Guarded { name: name.into(), whole, image, range: offset..offset + bytes.len(), written });
        Ok(slice)
    }

    /// Puts back what the outputs hold before a run.
    pub fn reset(&self, session: &mut Session<D>) -> Result<()> {
        self.buffers.iter().filter(|buffer| buffer.written).try_for_each(|buffer| session.write(&buffer.whole, &buffer.image))
    }

    /// Every byte of every buffer.
    pub fn read(&self, session: &mut Session<D>) -> Result<Vec<Vec<u8>>> {
        self.buffers.iter().map(|buffer| session.read(&buffer.whole)).collect()
    }

    /// Compares what [`read`](Self::read) gave: outputs with what is expected, all other bytes with what was there.
    /// The inner error says what is wrong.
    pub fn compare(&self, found: &[Vec<u8>], expected: &[Expected]) -> Result<Result<Vec<(String, Metrics)>, String>> {
        if expected.len() != self.outputs.len() {
            return Err(Error::invalid("outputs", format!("{}", self.outputs.len()), expected.len()));
        }
        let mut images: Vec<Vec<u8>> = self.buffers.iter().map(|buffer| buffer.image.clone()).collect();
        let mut all = Vec::new();
        let mut wrong = None;
        for (place, expected) in self.outputs.iter().zip(expected) {
            let size = expected.dtype.size() as usize;
            let range = place.offset..place.offset + expected.elements.len() * size;
            let bytes = found[place.buffer].get(range.clone()).ok_or_else(|| Error::invalid(&expected.name, "an output inside its buffer", range.end))?;
            let integers = || bytes.chunks_exact(4).map(|word| f64::from(i32::from_le_bytes([word[0], word[1], word[2], word[3]]))).collect();
            let values: Vec<f64> = if expected.integers { integers() } else { expected.dtype.decode(bytes) };
            let metrics = expected.tolerance.compare(&expected.elements, &values)?;
            if !metrics.accepted() && wrong.is_none() {
                wrong = Some(format!("{}: {metrics}", expected.name));
            }
            for (index, _) in expected.elements.iter().enumerate().filter(|(_, element)| element.is_some()) {
                let at = place.offset + index * size;
                images[place.buffer][at..at + size].copy_from_slice(&found[place.buffer][at..at + size]);
            }
            all.push((expected.name.clone(), metrics));
        }
        if let Some(place) = self.first_difference(&images, found) {
            return Ok(Err(format!("wrote where it must not: {place}")));
        }
        Ok(match wrong {
            Some(why) => Err(why),
            None => Ok(all),
        })
    }

    /// Says in words where the first byte lies in which two readings differ.
    pub fn first_difference(&self, a: &[Vec<u8>], b: &[Vec<u8>]) -> Option<String> {
        // Whole readings first: that is as quick as memory, and they seldom differ.
        for (buffer, (a, b)) in self.buffers.iter().zip(a.iter().zip(b)).filter(|(_, (a, b))| a != b) {
            if let Some(at) = a.iter().zip(b).position(|(a, b)| a != b) {
                let Guarded { name, range, .. } = buffer;
                let place = match at {
                    at if at < range.start => format!("{} bytes before {name}", range.start - at),
                    at if at >= range.end => format!("{} bytes after the end of {name}", at - range.end),
                    at => format!("{name}, byte {} of {}", at - range.start, range.len()),
                };
                return Some(place);
            }
        }
        None
    }
}
