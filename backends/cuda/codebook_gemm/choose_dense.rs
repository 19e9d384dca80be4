//! The speed rules of the kernels for dense factors.

use super::dense::{self, most_units};
use super::order::{ENCODERS, LEAST_TOKENS, LONGEST_RANK, MOST_ADAPTERS};
use crate::backends::cuda::variant::Target;
use crate::ops::CodebookGemm;
use crate::ops::codebook_gemm::{CodebookSlice, ScaledBy};

/// Units of `sgmv_dense:fused` up to which its clusters are all on the device at once, and are sooner done than two launches.
const FEW_UNITS: u64 = 64;

/// Whether the kernels for dense factors are worth taking, or why `sgmv_long` is faster: an encoder's tokens of one adapter are neighbours, and
/// they are many.
pub(crate) fn trained(op: &CodebookGemm, _target: &Target) -> std::result::Result<(), String> {
    let of_encoder = |slice: &CodebookSlice| op.d_in.saturating_mul(slice.d_out) <= ENCODERS && slice.rank <= LONGEST_RANK;
    let long = op.tokens >= LEAST_TOKENS && op.adapters <= MOST_ADAPTERS && op.scaled_by == ScaledBy::Adapter;
    if long && !op.batch_invariant && op.slices.iter().all(of_encoder) {
        return Err("many tokens of few adapters, in products of an encoder's size".into());
    }
    Ok(())
}

/// Whether one launch for dense factors is worth taking, or why two are faster. Their bits are the same, so the rule may look at the tokens.
pub(crate) fn trained_by_few(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    trained(op, target)?;
    let (units, rank) = (most_units(op), dense::rank_of(op));
    if units * op.slices.len() as u64 * rank > FEW_UNITS * 16 {
        return Err(format!("{units} units of rank {rank}, more than there are at once"));
    }
    Ok(())
}
