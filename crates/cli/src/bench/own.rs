//! Sizes that no list has, of products, MLPs and attention, as the caller names them.

use std::str::FromStr;

use super::listed::{mlp, product};
use super::shape::{Point, Shape, Suite};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result, ensure};

/// The most of any size.
const MOST: u64 = 1 << 32;

/// Sizes of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// Rows of x, outputs and K of a product; tokens, columns of x and of the intermediate of an MLP.
    Three([u64; 3]),
    /// Sizes of attention.
    Attention {
        /// Sequences.
        batch: u64,
        /// Heads of q, and of k and v.
        heads: [u64; 2],
        /// Queries of a sequence, and its keys.
        lengths: [u64; 2],
        /// Elements of a head.
        head_dim: u64,
    },
}

impl FromStr for Sizes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wanted = "three sizes of 1 to 2^32, as 16x4096x11008, or sequences, heads, tokens and elements of a head of attention, as 1x32x2048x128, \
                      1x32/8x2048x128 (8 heads of K and V), 4x32/8x1:4096x128 (one query over 4096 keys)";
        let wrong = || Error::invalid("--sizes", wanted, format!("{text:?}"));
        let number = |text: &str| text.parse().ok().filter(|size| (1..=MOST).contains(size)).ok_or_else(wrong);
        // Two sizes, or one that is both.
        let pair = |text: &str, between| -> Result<[u64; 2]> {
            let (one, other) = text.split_once(between).unwrap_or((text, text));
            Ok([number(one)?, number(other)?])
        };
        match text.split('x').collect::<Vec<_>>()[..] {
            [one, two, three] => Ok(Self::Three([number(one)?, number(two)?, number(three)?])),
            [batch, heads, tokens, head_dim] => {
                Ok(Self::Attention { batch: number(batch)?, heads: pair(heads, '/')?, lengths: pair(tokens, ':')?, head_dim: number(head_dim)? })
            }
            _ => Err(wrong()),
        }
    }
}

impl Sizes {
    /// The shape that they are of `suite`; nothing where it has none of so many sizes.
    fn shape(self, suite: Suite, causal: bool) -> Option<Shape> {
        match (self, suite) {
            (Self::Three([rows, second, third]), Suite::Mlp) => Some(mlp(rows, second, third)),
            (Self::Three([rows, second, third]), Suite::Linear) => Some(product(rows, second, third)),
            (Self::Attention { batch, heads: [heads, kv_heads], lengths: [q_len, kv_len], head_dim }, Suite::Attention) => {
                Some(Shape::Attention { batch, heads, kv_heads, q_len, kv_len, head_dim, causal, blocks: None, layers: 1 })
            }
            _ => None,
        }
    }
}

/// What is measured in place of a suite's own list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The sizes, where there are any.
    pub sizes: Vec<Sizes>,
    /// MLPs as Llama has them, SwiGLU without biases.
    pub gated: bool,
    /// Attention in which a query of these sizes sees no later key.
    pub causal: bool,
}

impl Choice {
    /// The points of `suite`: those of these sizes, or of its list `usual`.
    ///
    /// # Errors
    /// A suite that has no shapes of such sizes.
    pub fn points(&self, suite: Suite, dtype: DType, usual: Vec<Point>) -> Result<Vec<Point>> {
        ensure(!self.gated || suite == Suite::Mlp, "--gated", "the suite mlp", suite.name())?;
        let mut own = Vec::new();
        for sizes in &self.sizes {
            let shape = sizes.shape(suite, self.causal);
            let wanted = "three sizes of the suites linear and mlp, or four of attention";
            let shape = shape.ok_or_else(|| Error::invalid("--sizes", wanted, format!("{sizes:?} of {}", suite.name())))?;
            own.push(Point { suite, dtype, captured: false, shape });
        }
        let mut points: Vec<Point> = Vec::new();
        for mut point in if self.sizes.is_empty() { usual } else { own } {
            if let Shape::FusedMlp { gated, .. } = &mut point.shape {
                *gated = self.gated;
            }
            // One may be named twice.
            if !points.contains(&point) {
                points.push(point);
            }
        }
        Ok(points)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::super::suite::{Extent, points};
    use super::*;
    use trifuse::device::Kind;

    fn names(choice: &Choice, suite: Suite) -> Result<Vec<String>> {
        let usual = points(suite, DType::F16, Extent { kind: Kind::Cpu, quick: true });
        choice.points(suite, DType::F16, usual).map(|points| points.iter().map(Point::name).collect())
    }

    fn sizes(texts: &[&str]) -> Vec<Sizes> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn three_sizes_are_a_product_or_an_mlp() {
        let own = Choice { sizes: sizes(&["24x4096x11008", "1x3x5", "24x4096x11008"]), ..Choice::default() };
        assert_eq!(names(&own, Suite::Linear).unwrap(), ["m24 n4096 k11008", "m1 n3 k5"]);
        assert_eq!(names(&Choice { gated: true, ..own.clone() }, Suite::Mlp).unwrap(), ["m24 4096-11008-4096 swiglu", "m1 3-5-3 swiglu"]);
        assert_eq!(names(&Choice { gated: true, ..Choice::default() }, Suite::Mlp).unwrap(), ["m16 512-1376-512 swiglu"]);
        assert!(names(&own, Suite::Attention).is_err() && names(&Choice { gated: true, ..own }, Suite::Linear).is_err());
    }

    #[test]
    fn four_sizes_are_attention() {
        let own = Choice { sizes: sizes(&["2x32x100x128", "1x32/8x2048x64", "4x32/8x1:4096x128"]), ..Choice::default() };
        let found = own.points(Suite::Attention, DType::F16, Vec::new()).unwrap();
        let of = |at: usize| match &found[at].shape {
            Shape::Attention { batch, heads, kv_heads, q_len, kv_len, head_dim, causal, .. } => {
                ([*batch, *heads, *kv_heads, *q_len, *kv_len, *head_dim], *causal)
            }
            other => panic!("{other:?}"),
        };
        assert_eq!([of(0), of(1), of(2)], [([2, 32, 32, 100, 100, 128], false), ([1, 32, 8, 2048, 2048, 64], false), ([4, 32, 8, 1, 4096, 128], false)]);
        assert_eq!(names(&Choice { causal: true, ..own.clone() }, Suite::Attention).unwrap()[1], "prefill b1 h32/8 d64 s2048 causal");
        assert!(names(&own, Suite::Linear).is_err());
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "1x2", "1x2x3x4x5", "0x1x1", "1x2x", "4294967297x1x1", "1X2X3", "1x8/0x2x3", "1x8/2/2x2x3", "1x8x:3x4", "1x8x1:2:3x4"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }
}
