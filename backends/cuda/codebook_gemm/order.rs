//! The order in which the sums of many tokens run. Variants of one order give the same bits, so among them the choice may look at the number of
//! tokens. Which order a row is summed in may not depend on who is beside it: it is chosen by the slices and the adapters.

use super::launch::may_be_whole;
use super::tile::{MANY_SLICES, rank_of, supports as supports_tiles};
use crate::backends::cuda::jit::Arch;
use crate::backends::cuda::variant::Target;
use crate::ops::CodebookGemm;
use crate::ops::codebook_gemm::{CodebookSlice, ScaledBy};

/// The fewest tokens that are many. Beyond it, the number of tokens decides nothing about the order.
pub(crate) const LEAST_TOKENS: u64 = 129;
/// The most adapters that are few.
pub(crate) const MOST_ADAPTERS: u32 = 31;
/// The largest rank for which `sgmv_long` is faster than `sm80`.
pub(crate) const LONGEST_RANK: u64 = 16;
/// Elements of an encoder's largest factor product, BERT's 1,024 × 1,024.
pub(crate) const ENCODERS: u64 = 1 << 20;

/// The most elements of a decoded factor, outputs by rank, and of a product of factors, inputs by outputs, for which the blocks of `sm80` are
/// faster on many tokens. They decode the factor for every 16 tokens, and are the only ones that nothing waits for.
#[derive(Clone, Copy)]
struct Small {
    decoded: u64,
    product: u64,
}

/// One slice of few adapters, several slices of few adapters, and many adapters.
const ALONE: Small = Small { decoded: 1 << 16, product: ENCODERS };
const TOGETHER: Small = Small { decoded: 1 << 15, product: ENCODERS / 2 };
const CROWDED: Small = Small { decoded: 3 << 13, product: 3 * ENCODERS / 4 };

impl Small {
    fn holds(self, op: &CodebookGemm, slice: &CodebookSlice) -> bool {
        slice.d_out.saturating_mul(slice.rank) <= self.decoded && op.d_in.saturating_mul(slice.d_out) <= self.product
    }
}

/// An order of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// By eighths of d_in: `sgmv`, `sgmv:fused`, and the clusters of eight of `sm90`.
    Eighths,
    /// By halves of d_in: the clusters of two of `sm90`, for several slices.
    Halves,
    /// By the warps of a block of `sm80`.
    Warps,
    /// By the warps of `sgmv_long`, for runs of tokens of one adapter.
    Runs,
}

/// Whether clusters of `sm90`, with 16 tokens each, take tokens with the bits of `sgmv`. They do unless there are many slices.
pub(crate) fn has_clusters(op: &CodebookGemm, target: &Target) -> bool {
    target.arch >= Arch(90) && op.slices.len() < MANY_SLICES && op.scaled_by == ScaledBy::Adapter
}

/// The order for an operation in S2LC's form on a device with clusters; nothing for others, of which each form has its variants.
pub(crate) fn order(op: &CodebookGemm, target: &Target) -> Option<Order> {
    (has_clusters(op, target) && supports_tiles(op, target, false).is_ok()).then(|| of_clusters(op))
}

/// The order for an operation that [`order`] has one for.
fn of_clusters(op: &CodebookGemm) -> Order {
    if op.tokens < LEAST_TOKENS || op.batch_invariant {
        return Order::Eighths;
    }
    let (several, few) = (op.slices.len() > 1, op.adapters <= MOST_ADAPTERS);
    let all = |holds: &dyn Fn(&CodebookSlice) -> bool| op.slices.iter().all(holds);
    // Tokens of one adapter are neighbours wherever they lie.
    if op.adapters <= 1 && rank_of(op) <= LONGEST_RANK && all(&|slice| op.d_in.saturating_mul(slice.d_out) <= ENCODERS) {
        return Order::Runs;
    }
    let small = match (few, several) {
        (false, _) => CROWDED,
        (true, true) => TOGETHER,
        (true, false) => ALONE,
    };
    // Of ranks above 16, clusters decode large slices for longer than `sgmv` takes with two launches.
    let seldom = |slice: &CodebookSlice| slice.rank <= LONGEST_RANK || slice.d_out.saturating_mul(slice.rank) <= ALONE.decoded;
    if all(&|slice| small.holds(op, slice)) {
        Order::Warps
    } else if several && few && all(&|slice| may_be_whole(op, slice) && seldom(slice)) {
        Order::Halves
    } else {
        Order::Eighths
    }
}

/// Whether clusters of two take the slices of a launch of several, in an operation that `sm90` computes.
pub(crate) fn in_halves(op: &CodebookGemm) -> bool {
    op.slices.len() >= MANY_SLICES || op.scaled_by == ScaledBy::Adapter && of_clusters(op) == Order::Halves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::ops::CodeWidth;

    fn op(tokens: u64, adapters: u32, dims: [u64; 3], slices: usize) -> CodebookGemm {
        let one = CodebookGemm::s2lc(DType::F16, tokens, dims, adapters, CodeWidth::FourThree);
        let slices = vec![one.slices[0].clone(); slices];
        one.with_slices(slices)
    }

    #[test]
    fn many_tokens_are_summed_in_one_order_however_many_they_are() {
        for adapters in [1, 2, 31, 32, 100, 600] {
            for dims in [[384, 384, 16], [1536, 384, 16], [640, 896, 16], [4096, 4096, 16], [171, 768, 16], [896, 896, 64], [192, 3584, 32]] {
                for slices in [1, 3, 16] {
                    let of = |tokens| order(&op(tokens, adapters, dims, slices), &Target::H200);
                    assert!([130, 257, 2000, 131_072].into_iter().all(|tokens| of(tokens) == of(129)), "{adapters} {dims:?} {slices}");
                    assert_eq!((of(1), of(128)), (Some(Order::Eighths), Some(Order::Eighths)));
                    let invariant = op(2000, adapters, dims, slices).with_batch_invariant(true);
                    assert_eq!(order(&invariant, &Target::H200), Some(Order::Eighths));
                }
            }
        }
        assert_eq!(order(&op(2000, 4, [4096, 4096, 16], MANY_SLICES), &Target::H200), None);
        assert_eq!(order(&op(2000, 4, [4096, 4096, 16], 1), &Target::A100), None);
    }

    /// Measured: see `lab/choice.md`.
    #[test]
    fn an_order_is_the_fastest_over_most_batches() {
        for (adapters, dims, slices, expected) in [
            (1, [256, 480, 16], 1, Order::Runs),
            (22, [512, 1024, 16], 1, Order::Warps),
            (24, [192, 384, 16], 3, Order::Warps),
            (2, [640, 896, 16], 4, Order::Halves),
            (9, [896, 896, 64], 3, Order::Halves),
            (3, [4096, 2048, 16], 2, Order::Halves),
            (23, [192, 3584, 32], 2, Order::Eighths),
            (2, [4800, 13_824, 32], 3, Order::Eighths),
            (34, [4096, 2816, 64], 3, Order::Eighths),
            (281, [768, 768, 32], 8, Order::Warps),
            (81, [1024, 1024, 16], 1, Order::Eighths),
            (16, [4096, 4096, 16], 1, Order::Eighths),
        ] {
            assert_eq!(order(&op(1000, adapters, dims, slices), &Target::H200), Some(expected), "{adapters} {dims:?} {slices}");
        }
    }
}
