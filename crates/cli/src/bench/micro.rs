//! What everything else is made of: copies, and launches of a kernel that does next to nothing.

use super::operand::{Values, fill};
use super::sample::{Placed, Sample};
use trifuse::device::{Device, Slice};
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::ops::pointwise::Kind;
use trifuse::ops::{Activation, Pointwise, PointwiseArgs};
use trifuse::session::Session;
use trifuse_testkit::cases::{Draw, Posed};
use trifuse_testkit::oracle::pointwise::Host;

/// Elements of a launch that does next to nothing.
const ELEMENTS: u64 = 64;
/// Bytes of a copy's pattern.
const PATTERN: usize = 4 << 20;

/// The operation of least work that every backend has. Applied again it changes nothing, so a chain has one answer.
pub fn least(dtype: DType) -> Pointwise {
    Pointwise::new(dtype, 1, ELEMENTS, Kind::Activation(Activation::Relu))
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

/// Words that differ from their neighbours: memory that was never written may cost nothing to read.
pub fn pattern(bytes: u64) -> Vec<u8> {
    let words = (PATTERN as u64).min(bytes).div_ceil(4) as u32;
    (0..words).flat_map(|word| word.wrapping_add(1).wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

/// A buffer full of [`pattern`].
pub fn filled<D: Device>(session: &mut Session<D>, bytes: u64) -> Result<Slice<D>> {
    let slice = session.alloc(bytes)?;
    fill(session, &slice, &pattern(bytes))?;
    Ok(slice)
}
