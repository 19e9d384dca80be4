//! Sizes that no list has, of products and of MLPs, as the caller names them.

use std::str::FromStr;

use super::listed::{mlp, product};
use super::shape::{Point, Shape, Suite};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result, ensure};

/// Three sizes: rows of x, outputs and K of a product; tokens, columns of x and of the intermediate of an MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes(pub [u64; 3]);

impl FromStr for Sizes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::invalid("--sizes", "three sizes of 1 to 2^32, as 16x4096x11008", format!("{text:?}"));
        let sizes: Vec<u64> = text.split('x').map(str::parse).collect::<std::result::Result<_, _>>().map_err(|_| wrong())?;
        let sizes: [u64; 3] = sizes.try_into().map_err(|_| wrong())?;
        if sizes.iter().all(|size| (1..=1 << 32).contains(size)) { Ok(Self(sizes)) } else { Err(wrong()) }
    }
}

/// What is measured in place of a suite's own list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The sizes, where there are any.
    pub sizes: Vec<Sizes>,
    /// MLPs as Llama has them, SwiGLU without biases.
    pub gated: bool,
}

impl Choice {
    /// The points of `suite`: those of these sizes, or of its list `usual`.
    ///
    /// # Errors
    /// A suite that is no list of products or MLPs.
    pub fn points(&self, suite: Suite, dtype: DType, usual: Vec<Point>) -> Result<Vec<Point>> {
        ensure(self.sizes.is_empty() || matches!(suite, Suite::Linear | Suite::Mlp), "--sizes", "the suites linear and mlp", suite.name())?;
        ensure(!self.gated || suite == Suite::Mlp, "--gated", "the suite mlp", suite.name())?;
        let shape = |&Sizes([rows, second, third]): &Sizes| if suite == Suite::Mlp { mlp(rows, second, third) } else { product(rows, second, third) };
        let own = self.sizes.iter().map(|sizes| Point { suite, dtype, captured: false, shape: shape(sizes) });
        let mut points: Vec<Point> = Vec::new();
        for mut point in if self.sizes.is_empty() { usual } else { own.collect() } {
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::suite::{Extent, points};
    use super::*;
    use trifuse::device::Kind;

    #[test]
    fn three_sizes_are_a_product_or_an_mlp() {
        let sizes = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<Sizes>>();
        let names = |choice: &Choice, suite| {
            let usual = points(suite, DType::F16, Extent { kind: Kind::Cpu, quick: true });
            choice.points(suite, DType::F16, usual).map(|points| points.iter().map(Point::name).collect::<Vec<_>>())
        };
        let own = Choice { sizes: sizes(&["24x4096x11008", "1x3x5", "24x4096x11008"]), gated: false };
        assert_eq!(names(&own, Suite::Linear).unwrap(), ["m24 n4096 k11008", "m1 n3 k5"]);
        assert_eq!(names(&Choice { gated: true, ..own.clone() }, Suite::Mlp).unwrap(), ["m24 4096-11008-4096 swiglu", "m1 3-5-3 swiglu"]);
        assert_eq!(names(&Choice { sizes: Vec::new(), gated: true }, Suite::Mlp).unwrap(), ["m16 512-1376-512 swiglu"]);
        assert!(names(&own, Suite::Attention).is_err() && names(&Choice { gated: true, ..own }, Suite::Linear).is_err());
        for text in ["", "1x2", "1x2x3x4", "0x1x1", "1x2x", "4294967297x1x1", "1X2X3"] {
            assert!(text.parse::<Sizes>().is_err(), "{text}");
        }
    }
}
