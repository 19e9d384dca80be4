//! What everything else is made of: copies, and launches of a kernel that does next to nothing.

use super::Judge;
use super::operand::{Values, fill, spread};
use super::report::Outcome;
use super::sample::{Checked, Placed, Sample};
use crate::backend::Backend;
use crate::cases::{Draw, Posed};
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::pointwise::Kind;
use crate::ops::{Activation, Cost, Pointwise, PointwiseArgs};
use crate::oracle::pointwise::Host;
use crate::session::Session;

/// Elements of a launch that does next to nothing.
const ELEMENTS: u64 = 64;
/// Bytes of a copy's pattern.
const PATTERN: usize = 4 << 20;

/// The operation of least work that every backend has. Applied again it changes nothing, so a chain has one answer.
pub fn least(dtype: DType) -> Pointwise {
    Pointwise { dtype, rows: 1, columns: ELEMENTS, kind: Kind::Activation(Activation::Relu) }
}

/// `count` launches of [`least`], each on what the one before wrote.
pub fn launches<D: Device>(session: &mut Session<D>, count: u64, dtype: DType, draw: &mut Draw) -> Result<Placed<Pointwise, D>> {
    let values = Values::normal(draw, dtype, ELEMENTS, 1.0);
    let turns = [session.alloc(ELEMENTS * dtype.size())?, session.alloc(ELEMENTS * dtype.size())?];
    let (mut x, mut launches) = (values.upload(session)?, Vec::new());
    for number in 0..count {
        let y = turns[number as usize % 2].clone();
        launches.push(PointwiseArgs::new(x, y.clone()));
        x = y;
    }
    let samples = move |_: &mut Session<D>| {
        let problem = Posed { op: least(dtype), host: Host::new(values.all()) };
        Ok(vec![Sample::new(problem, (0..ELEMENTS).collect())])
    };
    let probes = vec![super::sample::Probe { output: x, samples: Box::new(samples), before: None }];
    Ok(Placed { launches, probes, copies: Vec::new(), before: None, memory: None })
}

/// Measures a copy of `bytes` from one buffer to another, after a look at what it leaves.
///
/// # Errors
/// What the device reports.
pub fn copy_point<D: Backend>(session: &mut Session<D>, bytes: u64, judge: &Judge<'_, D>) -> Result<Outcome> {
    if bytes > session.caps().max_buffer_bytes {
        return Ok(Outcome::Unsupported { why: format!("a buffer holds {} bytes at the most", session.caps().max_buffer_bytes) });
    }
    let (from, to) = (filled(session, bytes)?, session.alloc(bytes)?);
    session.copy(&from, &to)?;
    let checked = match copied(session, &to)? {
        Ok(checked) => checked,
        Err(why) => return Ok(Outcome::Wrong { why }),
    };
    let cost = Cost { executed_flops: 0.0, useful_flops: 0.0, dense_flops: 0.0, bytes: 2.0 * bytes as f64 };
    judge.times(session, ("copy", 1), (checked, cost, None), |session| session.copy(&from, &to))
}

/// Words that differ from their neighbours: memory that was never written may cost nothing to read.
fn pattern(bytes: u64) -> Vec<u8> {
    let words = (PATTERN as u64).min(bytes).div_ceil(4) as u32;
    (0..words).flat_map(|word| word.wrapping_add(1).wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

/// A buffer full of [`pattern`].
pub fn filled<D: Device>(session: &mut Session<D>, bytes: u64) -> Result<Slice<D>> {
    let slice = session.alloc(bytes)?;
    fill(session, &slice, &pattern(bytes))?;
    Ok(slice)
}

/// Compares parts of a copy from its first to its last bytes; the inner error says what is wrong.
fn copied<D: Device>(session: &mut Session<D>, to: &Slice<D>) -> Result<Result<Checked, String>> {
    let pattern = pattern(to.len);
    let part_bytes = pattern.len() as u64;
    let mut checked = Checked { of: to.len / 4, ..Checked::default() };
    for number in spread(&mut Draw::seeded("copy"), 8, to.len.div_ceil(part_bytes)) {
        let at = number * part_bytes;
        let Some(part) = to.part(at, part_bytes.min(to.len - at)) else { continue };
        let found = session.read(&part)?;
        if let Some(place) = found.iter().zip(&pattern).position(|(found, expected)| found != expected) {
            return Ok(Err(format!("byte {} is not what was copied", at + place as u64)));
        }
        checked.elements += part.len / 4;
    }
    Ok(Ok(checked))
}
