//! Operands as large as a GPU wants them, drawn in no time and known to the host without being held there twice.

use std::sync::Arc;

use trifuse::device::{Device, Slice};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::session::Session;
use trifuse_testkit::cases::Draw;

/// How many numbers are drawn before they come again: a prime, so that no two rows of a matrix begin at the same one
/// until that many rows have passed, and a row read in place of another shows.
const PERIOD: u64 = 1_048_573;
/// Bytes that the host writes at most, about: the device copies the rest from there.
const CHUNK: u64 = 16 << 20;

/// Normal numbers, element after element, of one operand.
#[derive(Clone, Debug)]
pub struct Values {
    drawn: Arc<[f64]>,
    dtype: DType,
    count: u64,
}

impl Values {
    /// `count` numbers with that deviation, rounded to `dtype`.
    pub fn normal(draw: &mut Draw, dtype: DType, count: u64, deviation: f64) -> Self {
        Self { drawn: draw.normal(dtype, count.min(PERIOD), deviation).into(), dtype, count }
    }

    /// What an operand holds on the device.
    ///
    /// # Errors
    /// What the device reports.
    pub fn read<D: Device>(session: &mut Session<D>, dtype: DType, slice: &Slice<D>) -> Result<Self> {
        let drawn = dtype.decode(&session.read(slice)?);
        Ok(Self { count: drawn.len() as u64, drawn: drawn.into(), dtype })
    }

    /// Rows `rows` of a matrix with that many columns, one after another.
    pub fn rows(&self, rows: &[u64], columns: u64) -> Vec<f64> {
        let mut values = Vec::with_capacity(rows.len() * columns as usize);
        rows.iter().for_each(|row| stretches(&self.drawn, row * columns, columns).for_each(|part| values.extend_from_slice(part)));
        values
    }

    /// All elements.
    pub fn all(&self) -> Vec<f64> {
        self.rows(&[0], self.count)
    }

    /// The first `count` of these numbers, and as many more as that takes, in the same order.
    pub fn resized(&self, count: u64) -> Self {
        Self { count, ..self.clone() }
    }

    /// A copy on the device of rows of `columns`, a row every `stride` elements.
    ///
    /// # Errors
    /// The errors of [`Session::upload_rows`].
    pub fn upload_rows<D: Device>(&self, session: &mut Session<D>, columns: u64, stride: u64) -> Result<Slice<D>> {
        if stride == columns {
            return self.upload(session);
        }
        // What was drawn is encoded once, and its rows are stretches of that: a sweep uploads a matrix a size.
        let (rows, size, period) = (self.count.checked_div(columns).unwrap_or(0), self.dtype.size(), self.dtype.encode(&self.drawn));
        let slice = session.alloc(rows * stride * size)?;
        let each = (CHUNK / (stride * size).max(1)).max(1);
        for first in (0..rows).step_by(each as usize) {
            let count = each.min(rows - first);
            let mut bytes = vec![0; (count * stride * size) as usize];
            for (row, to) in (first..first + count).zip(bytes.chunks_exact_mut((stride * size) as usize)) {
                let mut at = 0;
                for part in stretches(&period, row * columns * size, columns * size) {
                    to[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
            }
            let part = slice.sub_slice(first * stride * size, bytes.len() as u64);
            session.write(&part.ok_or_else(|| Error::invalid("operand", "rows inside it", first))?, &bytes)?;
        }
        Ok(slice)
    }

    /// A copy on the device.
    ///
    /// # Errors
    /// The device has no room.
    pub fn upload<D: Device>(&self, session: &mut Session<D>) -> Result<Slice<D>> {
        let period = self.dtype.encode(&self.drawn);
        let slice = session.alloc(self.count * self.dtype.size())?;
        // An even number of periods: the device copies whole words.
        let turns = (CHUNK / period.len().max(1) as u64).max(1).next_multiple_of(2);
        if slice.len() <= period.len() as u64 * turns {
            session.write(&slice, &period.repeat(turns as usize)[..slice.len() as usize])?;
        } else {
            fill(session, &slice, &period.repeat(turns as usize))?;
        }
        Ok(slice)
    }
}

/// `len` elements from `first` of what repeats `period`: weights of gigabytes are many stretches of what was drawn.
fn stretches<T>(period: &[T], first: u64, len: u64) -> impl Iterator<Item = &[T]> {
    let (mut at, mut left) = ((first % period.len().max(1) as u64) as usize, if period.is_empty() { 0 } else { len as usize });
    std::iter::from_fn(move || {
        let part = period.get(at..)?.get(..left.min(period.len() - at))?;
        (at, left) = (0, left - part.len());
        (!part.is_empty()).then_some(part)
    })
}

/// Writes `pattern` over all of `slice`, again and again: once from the host, then from one part of the device's memory to the next.
///
/// # Errors
/// The device has no room for the pattern.
pub fn fill<D: Device>(session: &mut Session<D>, slice: &Slice<D>, pattern: &[u8]) -> Result<()> {
    let whole = pattern.len() as u64;
    let part = |at: u64, len: u64| slice.sub_slice(at, len).ok_or_else(|| Error::invalid("operand", "a part inside it", at));
    if slice.len() >= 2 * whole && whole > 0 && whole.is_multiple_of(4) && slice.offset().is_multiple_of(4) {
        let source = session.upload(pattern)?;
        for at in (0..slice.len() / whole).map(|turn| turn * whole) {
            session.copy(&source, &part(at, whole)?)?;
        }
        let rest = slice.len() / whole * whole;
        return session.write(&part(rest, slice.len() - rest)?, &pattern[..(slice.len() - rest) as usize]);
    }
    for at in (0..slice.len()).step_by(pattern.len().max(1)) {
        let len = whole.min(slice.len() - at);
        session.write(&part(at, len)?, &pattern[..len as usize])?;
    }
    Ok(())
}

/// At most `count` numbers below `of`, rising: the first, the last and one drawn from each of the parts between.
pub fn spread(draw: &mut Draw, count: u64, of: u64) -> Vec<u64> {
    if of <= count {
        return (0..of).collect();
    }
    let bound = |part: u64| (u128::from(of) * u128::from(part) / u128::from(count)) as u64;
    (0..count)
        .map(|part| match part {
            0 => 0,
            part if part + 1 == count => of - 1,
            part => bound(part) + u64::from(draw.below(u32::try_from(bound(part + 1) - bound(part)).unwrap_or(u32::MAX))),
        })
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn numbers_repeat_after_a_prime_and_not_before() {
        let values = Values::normal(&mut Draw::seeded("values"), DType::F16, 3 * PERIOD, 1.0);
        assert!((2..2000).all(|d| !PERIOD.is_multiple_of(d)));
        assert_eq!(values.rows(&[0], 10), values.rows(&[PERIOD], 1).iter().chain(&values.rows(&[0], 10)[1..]).copied().collect::<Vec<_>>());
        assert_ne!(values.rows(&[0], 64), values.rows(&[1], 64));
        assert_eq!(values.rows(&[1, 2], 4096)[4096..], values.rows(&[2], 4096));
        let around = values.rows(&[1], PERIOD - 3);
        assert_eq!(around[..3], values.rows(&[PERIOD - 3, PERIOD - 2, PERIOD - 1], 1));
        assert_eq!(around[3..100], values.rows(&[0], 97));
    }

    #[cfg(feature = "cpu")]
    #[test]
    fn the_device_repeats_what_the_host_wrote() {
        use trifuse::device::Open;
        let device = trifuse::backends::cpu::Cpu::open(0).unwrap();
        let mut session = Session::new(std::sync::Arc::new(device)).unwrap();
        for (bytes, pattern) in [(1000, 8), (1001, 8), (7, 8), (16, 8), (30, 3), (0, 4), (64, 4)] {
            let pattern: Vec<u8> = (1..=pattern).collect();
            let slice = session.alloc(bytes).unwrap();
            fill(&mut session, &slice, &pattern).unwrap();
            let expected: Vec<u8> = pattern.iter().copied().cycle().take(bytes as usize).collect();
            assert_eq!(session.read(&slice).unwrap(), expected, "{bytes} {pattern:?}");
        }
        let values = Values::normal(&mut Draw::seeded("values"), DType::F16, 40 * PERIOD + 3, 1.0);
        let slice = values.upload(&mut session).unwrap();
        assert_eq!(DType::F16.decode(&session.read(&slice).unwrap()), values.all());
        let (columns, stride) = (4095, 4096);
        let values = values.resized(columns * (PERIOD / columns + 300));
        let slice = values.upload_rows(&mut session, columns, stride).unwrap();
        let padded = DType::F16.decode(&session.read(&slice).unwrap());
        let rows: Vec<f64> = padded.chunks_exact(stride as usize).flat_map(|row| &row[..columns as usize]).copied().collect();
        assert_eq!(rows, values.all());
        assert!(padded.chunks_exact(stride as usize).all(|row| row[columns as usize..] == [0.0]));
    }

    #[test]
    fn a_spread_has_both_ends_and_rises() {
        for (count, of) in [(16, 4095), (4, 5), (8, 8), (8, 3), (1, 9), (64, 16384)] {
            let spread = spread(&mut Draw::seeded("spread"), count, of);
            assert_eq!(spread.len() as u64, count.min(of));
            assert!(spread.windows(2).all(|pair| pair[0] < pair[1]) && spread.iter().all(|&at| at < of), "{spread:?}");
            assert!(spread[0] == 0 && (count == 1 || spread.last() == Some(&(of - 1))), "{spread:?}");
        }
    }
}
