//! The sizes of a shape that a search moves, one at a time.

use serde::Serialize;

use crate::bench::padding::Padding;
use crate::bench::sequences::{Sequences, lengths};
use crate::bench::shape::Shape;

/// Bytes of a row that most kernels want to be a multiple, in elements of 16 bits.
const ALIGNED: u64 = 8;
/// Elements of a head, at most.
const WIDEST_HEAD: u64 = 256;

/// A size that may be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Rows of x.
    Tokens,
    /// Columns of y.
    DOut,
    /// Columns of x.
    DIn,
    /// Columns of an MLP's x and y.
    DModel,
    /// Columns of an MLP's intermediate.
    DFf,
    /// Sequences.
    Batch,
    /// Keys of a sequence, and its queries where they are as many.
    Length,
    /// Elements of a head.
    HeadDim,
}

impl Axis {
    /// Every axis.
    pub const ALL: [Self; 8] = [Self::Tokens, Self::DOut, Self::DIn, Self::DModel, Self::DFf, Self::Batch, Self::Length, Self::HeadDim];

    /// The name in tables: that of the field in a shape.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::DOut => "d_out",
            Self::DIn => "d_in",
            Self::DModel => "d_model",
            Self::DFf => "d_ff",
            Self::Batch => "batch",
            Self::Length => "length",
            Self::HeadDim => "head_dim",
        }
    }

    /// Whether it is the length of rows in memory.
    pub const fn is_columns(self) -> bool {
        matches!(self, Self::DOut | Self::DIn | Self::DModel | Self::DFf | Self::HeadDim)
    }

    /// The size of `shape` on this axis, where it has one that may be moved.
    pub fn of(self, shape: &Shape) -> Option<u64> {
        match (shape, self) {
            (Shape::Ragged(all), Self::Length) => Some(all.longest()),
            (Shape::Ragged(all), Self::Batch) => Some(all.lengths.len() as u64),
            _ => places(&mut shape.clone(), self).first().map(|size| **size),
        }
    }

    /// `shape` with that size on this axis; nothing where there is no such shape.
    pub fn with(self, shape: &Shape, size: u64) -> Option<Shape> {
        let mut moved = shape.clone();
        match (&mut moved, self) {
            (Shape::Ragged(all), Self::Length) => resize(all, all.lengths.len() as u64, size),
            (Shape::Ragged(all), Self::Batch) => resize(all, size, all.longest()),
            _ => {
                let places = places(&mut moved, self);
                if places.is_empty() {
                    return None;
                }
                places.into_iter().for_each(|place| *place = size);
            }
        }
        let whole = match &mut moved {
            Shape::Linear { tokens, d_in, padding, .. } => {
                if *d_in % ALIGNED == 0 {
                    *padding = Padding::None;
                } else if *tokens == 1 && *padding == Padding::Both {
                    // The stride of a single row means nothing.
                    *padding = Padding::Weights;
                }
                true
            }
            Shape::Attention { q_len, kv_len, head_dim, .. } => q_len <= kv_len && *head_dim <= WIDEST_HEAD,
            Shape::Ragged(all) => all.head_dim <= WIDEST_HEAD,
            _ => true,
        };
        (whole && size > 0).then_some(moved)
    }

    /// What sizes on this axis are multiples of, where those of `shape` and of what is compared with it are: a shape moves among those that are
    /// as well aligned as it is.
    pub fn unit(self, shape: &Shape) -> u64 {
        match (shape, self) {
            (Shape::Linear { delta: Some(_), .. }, Self::DIn) => 128,
            (Shape::CodebookGemm { .. }, Self::DIn) | (Shape::Projection(_), Self::DOut) => 32,
            (Shape::Attention { blocks: Some(blocks), .. }, Self::Length) => u64::from(blocks.size).max(1),
            (shape, axis) if axis.is_columns() => axis.of(shape).map_or(1, |size| 1 << size.trailing_zeros().min(ALIGNED.trailing_zeros())),
            _ => 1,
        }
    }

    /// The size nearest to `size` that is aligned as that of `shape`: an odd one where that is odd.
    pub fn like(self, shape: &Shape, size: u64) -> u64 {
        let unit = self.unit(shape);
        if !self.is_columns() || unit >= ALIGNED {
            return (size / unit).max(1) * unit;
        }
        // An odd number of units: no better aligned than the shape is.
        ((size / unit) | 1) * unit
    }
}

/// All that an axis moves, of the same size each.
fn places(shape: &mut Shape, axis: Axis) -> Vec<&mut u64> {
    match (shape, axis) {
        // Adapters on top are of as many columns of x as of y.
        (Shape::Linear { delta: Some(_), d_out, d_in, .. }, Axis::DIn) => vec![d_in, d_out],
        (Shape::Linear { delta: Some(_), .. }, Axis::DOut) => Vec::new(),
        (Shape::Linear { d_out, .. }, Axis::DOut) => vec![d_out],
        (Shape::Linear { d_in, .. }, Axis::DIn) => vec![d_in],
        (Shape::Linear { tokens, .. } | Shape::FusedMlp { tokens, .. } | Shape::CodebookGemm { tokens, .. }, Axis::Tokens) => vec![tokens],
        (Shape::FusedMlp { d_model, .. }, Axis::DModel) => vec![d_model],
        (Shape::FusedMlp { d_ff, .. }, Axis::DFf) => vec![d_ff],
        (Shape::CodebookGemm { d, .. }, Axis::DIn) => vec![d],
        (Shape::Attention { batch, .. }, Axis::Batch) => vec![batch],
        (Shape::Attention { q_len, kv_len, .. }, Axis::Length) => {
            if q_len == kv_len {
                vec![q_len, kv_len]
            } else {
                vec![kv_len]
            }
        }
        (Shape::Attention { head_dim, .. }, Axis::HeadDim) => vec![head_dim],
        (Shape::Ragged(all), Axis::HeadDim) => vec![&mut all.head_dim],
        (Shape::Projection(sizes), Axis::Tokens) => vec![&mut sizes.tokens],
        (Shape::Projection(sizes), Axis::DIn) => vec![&mut sizes.d_in],
        (Shape::Projection(sizes), Axis::DOut) => vec![&mut sizes.d_out],
        _ => Vec::new(),
    }
}

/// So many sequences up to that length, with as many queries at least as each had.
fn resize(all: &mut Sequences, count: u64, longest: u64) {
    let least = all.chunk.map_or(1, |chunk| chunk.queries);
    all.lengths = lengths(count, longest.max(least)).into_iter().map(|length| length.max(least)).collect();
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bench::regret::draw;
    use crate::bench::shape::{Delta, Suite};
    use trifuse::DType;
    use trifuse::device::Kind;

    fn product(tokens: u64, d_out: u64, d_in: u64, padding: Padding) -> Shape {
        Shape::Linear { tokens, d_out, d_in, delta: None, padding, layers: 1 }
    }

    #[test]
    fn an_axis_moves_one_size_and_what_hangs_on_it() {
        let odd = product(16, 4096, 4095, Padding::Both);
        assert_eq!(Axis::DIn.with(&odd, 4097).unwrap(), product(16, 4096, 4097, Padding::Both));
        assert_eq!(Axis::DIn.with(&odd, 4096).unwrap(), product(16, 4096, 4096, Padding::None), "packed rows are aligned already");
        assert_eq!(Axis::Tokens.with(&odd, 1).unwrap(), product(1, 4096, 4095, Padding::Weights));
        let adapted = Shape::Linear { tokens: 4, d_out: 256, d_in: 256, delta: Some(Delta { adapters: 2, rank: 16 }), padding: Padding::None, layers: 1 };
        assert_eq!((Axis::DOut.of(&adapted), Axis::DIn.unit(&adapted)), (None, 128));
        assert_eq!(Axis::DIn.with(&adapted, 512).unwrap().name(), "m4 n512 k512 + r16 adapters2");
        assert_eq!(Axis::DFf.with(&odd, 8), None);
    }

    #[test]
    fn sizes_keep_their_alignment() {
        for (size, near, expected) in [(4095, 2047, 2047), (4095, 2048, 2049), (4096, 2050, 2048), (4098, 2048, 2050), (4100, 2048, 2052), (8, 3, 8)] {
            assert_eq!(Axis::DIn.like(&product(16, 64, size, Padding::None), near), expected, "{size} {near}");
        }
        assert_eq!(Axis::Tokens.like(&product(16, 64, 64, Padding::None), 7), 7);
    }

    #[test]
    fn every_shape_that_is_drawn_can_be_moved_and_read_again() {
        for suite in [Suite::Linear, Suite::Mlp, Suite::Attention, Suite::Sparse, Suite::Adapters] {
            for number in 0..60 {
                let point = draw::point(suite, DType::F16, Kind::Discrete, 3, number);
                let again: crate::bench::shape::Point = serde_json::from_value(serde_json::to_value(&point).unwrap()).unwrap();
                assert_eq!(again, point);
                let axes = Axis::ALL.into_iter().filter_map(|axis| Some((axis, axis.of(&point.shape)?)));
                let moved: Vec<_> = axes.filter_map(|(axis, size)| axis.with(&point.shape, axis.like(&point.shape, size * 2))).collect();
                assert!(!moved.is_empty() && moved.iter().all(|shape| *shape != point.shape), "{}: {moved:?}", point.name());
            }
        }
    }
}
