//! Block-sparse attention of rising shares of the blocks.

use super::layout::Layout;
use super::pattern::Blocks;
use super::shape::Shape;
use trifuse::device::Kind;

/// Heads, elements of a head and length of the sweeps over shares and layouts.
const SIZES: [u64; 3] = [8, 128, 8192];
/// Heads, elements of a head and length of those sweeps on a processor.
const SMALL: [u64; 3] = [2, 64, 1024];
/// Every layout but the one that the sweep over shares has.
const OTHERS: [Layout; 3] = [Layout::Banded, Layout::Clustered, Layout::PowerLaw];

/// The dense shape, shares of random blocks, other layouts, smaller blocks, and longer sequences.
pub(super) fn shapes(kind: Kind) -> Vec<Shape> {
    let small = kind == Kind::Cpu;
    let [heads, head_dim, usual] = if small { SMALL } else { SIZES };
    let shape =
        |length, blocks| Shape::Attention { batch: 1, heads, kv_heads: heads, q_len: length, kv_len: length, head_dim, causal: false, blocks, layers: 1 };
    let listed = |size, percent, layout, length| shape(length, Some(Blocks { size, one_in: 1, count: None, percent: Some(percent), layout, map: false }));
    let dense = std::iter::once(shape(usual, None));
    if small {
        let random = [25, 50, 100].map(|percent| listed(128, percent, Layout::Random, usual));
        return dense.chain(random).chain(OTHERS.map(|layout| listed(128, 50, layout, usual))).collect();
    }
    let random = [5, 10, 20, 35, 50, 70, 85, 100].map(|percent| listed(128, percent, Layout::Random, usual));
    let others = OTHERS.into_iter().flat_map(|layout| [5, 20, 50].map(|percent| listed(128, percent, layout, usual)));
    let narrow = [Layout::Random, Layout::Banded].into_iter().flat_map(|layout| [5, 20, 50].map(|percent| listed(64, percent, layout, usual)));
    let lengths = [4096, 16_384, 32_768, 65_536, 131_072].map(|length| listed(128, 10, Layout::Random, length));
    dense.chain(random).chain(others).chain(narrow).chain(lengths).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_of_the_sweep_has_a_name_of_its_own() {
        let mut names: Vec<String> = shapes(Kind::Discrete).iter().map(Shape::name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), shapes(Kind::Discrete).len(), "{names:?}");
        assert!(names.contains(&"20 % power-law blocks of 128 b1 h8 d128 s8192".to_owned()), "{names:?}");
    }
}
