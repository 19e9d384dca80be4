//! Sizes that rise one by one, each against the next that is a multiple of 8 elements.
//!
//! Rows whose length in bytes is no multiple of 16 cannot be fetched in the widest pieces that a GPU moves; what that costs
//! ("dimensional collapse" of compressed models, whose ranks and heads have odd sizes) shows as a slowdown against the
//! neighbour that does more work and is aligned.

use std::collections::BTreeSet;

use serde::Serialize;

use super::extent::Extent;
use super::shape::{Padding, Point, Shape, Suite};
use trifuse::device::Kind;
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};

/// Elements that a size is rounded up to: 16 bytes in a type of two bytes.
pub(super) const ALIGNED: u64 = 8;
/// The largest size of a product.
const MOST_SIZE: u64 = 1 << 20;
/// The largest head.
const MOST_HEAD: u64 = 256;

/// What is swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Axis {
    /// Rows of x in a product.
    M,
    /// Columns of y.
    N,
    /// Columns of x.
    K,
    /// Columns of y in a product with one row.
    GemvN,
    /// Columns of x in a product whose weights are packed at load, their rows on multiples of 16 bytes.
    KPadded,
    /// Columns of x in a product with one row.
    GemvK,
    /// Columns of x in a product with one row, whose weights are packed at load.
    GemvKPadded,
    /// Elements of a head.
    HeadDim,
}

impl Axis {
    /// Every axis, in the order in which they are measured.
    pub const ALL: [Self; 8] = [Self::M, Self::N, Self::K, Self::KPadded, Self::GemvN, Self::GemvK, Self::GemvKPadded, Self::HeadDim];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::M => "m",
            Self::N => "n",
            Self::K => "k",
            Self::KPadded => "k-padded",
            Self::GemvN => "gemv-n",
            Self::GemvK => "gemv-k",
            Self::GemvKPadded => "gemv-k-padded",
            Self::HeadDim => "head-dim",
        }
    }

    /// The size at which the others stay, and the first and last of its own.
    fn range(self, kind: Kind) -> (u64, u64, u64) {
        match (self, kind) {
            (Self::HeadDim, Kind::Cpu) => (64, 56, 72),
            (Self::HeadDim, _) => (128, 64, MOST_HEAD),
            (_, Kind::Cpu) => (256, 248, 264),
            _ => (4096, 3968, 4224),
        }
    }

    fn shape(self, size: u64, kind: Kind) -> Shape {
        let (others, ..) = self.range(kind);
        let product = |tokens, d_out, d_in| Shape::Linear { tokens, d_out, d_in, delta: None, padding: Padding::None, layers: 1 };
        // A size that is aligned is so without padding.
        let padding = if size.is_multiple_of(ALIGNED) { Padding::None } else { Padding::Weights };
        let padded = |tokens, d_out, d_in| Shape::Linear { tokens, d_out, d_in, delta: None, padding, layers: 1 };
        match self {
            Self::M => product(size, others, others),
            Self::N => product(others, size, others),
            Self::K => product(others, others, size),
            Self::KPadded => padded(others, others, size),
            Self::GemvN => product(1, size, others),
            Self::GemvK => product(1, others, size),
            Self::GemvKPadded => padded(1, others, size),
            Self::HeadDim => {
                let (batch, heads, length) = if kind == Kind::Cpu { (1, 2, 64) } else { (4, 32, 2048) };
                Shape::Attention { batch, heads, kv_heads: heads, q_len: length, kv_len: length, head_dim: size, causal: false, blocks: None, layers: 1 }
            }
        }
    }
}

/// The sizes of a sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// What is swept; all where empty.
    pub axes: Vec<Axis>,
    /// The first size, where it is not the axis' own.
    pub from: Option<u64>,
    /// The last.
    pub to: Option<u64>,
    /// Elements from one size to the next.
    pub step: u64,
}

impl Default for Sweep {
    fn default() -> Self {
        Self { axes: Vec::new(), from: None, to: None, step: 1 }
    }
}

impl Sweep {
    /// The sizes of an axis, with the aligned neighbour of each.
    fn sizes(&self, axis: Axis, extent: Extent) -> Result<BTreeSet<u64>> {
        let (middle, from, to) = axis.range(extent.kind);
        let (from, to) = (self.from.unwrap_or(from), self.to.unwrap_or(to));
        if from == 0 || from > to || self.step == 0 {
            return Err(Error::invalid(
                "the sweep",
                "--from of at least 1 and at most --to, and a --step of at least 1",
                format!("{from} to {to} by {}", self.step),
            ));
        }
        if to > MOST_SIZE {
            return Err(Error::invalid("--to", format!("at most {MOST_SIZE}"), to));
        }
        if axis == Axis::HeadDim && to > MOST_HEAD {
            return Err(Error::invalid("--to", format!("at most {MOST_HEAD}, the largest head"), to));
        }
        let narrowed = self.from.is_some() || self.to.is_some() || self.step > 1;
        let sizes: Vec<u64> = match extent.quick && !narrowed {
            true => vec![middle - ALIGNED, middle - 1, middle],
            false => (from..=to).step_by(usize::try_from(self.step).unwrap_or(usize::MAX)).collect(),
        };
        Ok(sizes.iter().flat_map(|&size| [size, size.next_multiple_of(ALIGNED)]).collect())
    }
}

/// The points of a sweep.
///
/// # Errors
/// A range that holds no size, or sizes that no head has.
pub fn points(sweep: &Sweep, dtype: DType, extent: Extent) -> Result<Vec<Point>> {
    let axes = if sweep.axes.is_empty() { &Axis::ALL[..] } else { &sweep.axes };
    let (mut seen, mut points) = (BTreeSet::new(), Vec::new());
    for &axis in axes {
        for size in sweep.sizes(axis, extent)? {
            let point = Point { suite: Suite::Align, dtype, captured: false, shape: axis.shape(size, extent.kind) };
            if seen.insert(point.name()) {
                points.push(point);
            }
        }
    }
    Ok(points)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn names(sweep: &Sweep, kind: Kind, quick: bool) -> Vec<String> {
        points(sweep, DType::F16, Extent { kind, quick }).unwrap().iter().map(Point::name).collect()
    }

    #[test]
    fn every_size_is_there_with_its_neighbour() {
        let all = names(&Sweep::default(), Kind::Discrete, false);
        // Three sweeps share the middle.
        assert_eq!(all.len(), 3 * 257 - 2 + 2 * 257 - 1 + 2 * (257 - 33) + 193);
        let sweep = Sweep { axes: vec![Axis::K], from: Some(4001), to: Some(4031), step: 10 };
        let sizes = [4001, 4008, 4011, 4016, 4021, 4024, 4031, 4032];
        assert_eq!(names(&sweep, Kind::Discrete, true), sizes.map(|k| format!("m4096 n4096 k{k}")));
    }

    #[test]
    fn a_range_that_holds_nothing_is_refused() {
        let refused = |axis, from, to, step| {
            let sweep = Sweep { axes: vec![axis], from: Some(from), to: Some(to), step };
            points(&sweep, DType::F16, Extent { kind: Kind::Discrete, quick: false }).is_err()
        };
        assert!(refused(Axis::M, 9, 8, 1) && refused(Axis::N, 0, 8, 1) && refused(Axis::K, 1, 8, 0) && refused(Axis::HeadDim, 64, 257, 1));
        assert!(!refused(Axis::HeadDim, 255, 256, 1));
        assert!(refused(Axis::M, 1, u64::MAX, 1) && refused(Axis::M, u64::MAX, u64::MAX, 1));
    }
}
