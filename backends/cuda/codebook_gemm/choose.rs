//! Which of the codebook GEMM's variants takes many tokens: what their `supports` have in common.

use std::ops::RangeInclusive;

use crate::backends::cuda::codebook_gemm::tile::supports as supports_tiles;
use crate::backends::cuda::codebook_gemm::tile::{MANY_SLICES, ROWS};
use crate::backends::cuda::jit::unit::Arch;
use crate::backends::cuda::variant::Target;
use crate::ops::CodebookGemm;
use crate::ops::codebook_gemm::{CodebookSlice, ScaledBy};

/// The fewest tokens, and the most adapters of `runs_sm80`: with more adapters a run is short, and each run decodes its columns anew. The rule does
/// not look at how many tokens there are beyond the fewest: a row is to get the same from this variant whoever is beside it.
const LEAST_TOKENS: u64 = 129;
const MOST_ADAPTERS: u32 = 31;
/// Of `segments_sm80`. Fewer have many tokens each. More than 512 are more than a block's threads read at once.
const ADAPTERS: RangeInclusive<u32> = 32..=512;
/// Of it, too: fewer are decoded about as often, and in one kernel, by clusters that have 16 tokens each, as long as there is a multiprocessor for each of their
/// blocks.
const MANY: u32 = 96;
/// Elements of an encoder's largest factor product, 4,096 × 1,024.
const ENCODERS: u64 = 1 << 22;

/// Whether tokens are many and adapters few, or why it is not worth it.
pub(crate) fn few_adapters(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    if op.tokens < LEAST_TOKENS || op.adapters > MOST_ADAPTERS {
        return Err(format!("{} tokens over {} adapters: it is for many tokens of each", op.tokens, op.adapters));
    }
    if takes_few_adapters(op, target) {
        return Err(format!("{} inputs, and outputs of no encoder: tokens of an adapter may lie anywhere", op.d_in));
    }
    Ok(())
}

/// Whether clusters of `sm90`, that have 16 tokens each, take tokens of as few adapters, and with the same bits: it sums in the order of
/// `segments_sm80` unless there are many slices.
fn has_clusters(op: &CodebookGemm, target: &Target) -> bool {
    target.arch >= Arch(90) && op.slices.len() < MANY_SLICES && op.scaled_by == ScaledBy::Adapter
}

/// Whether so many tokens are done sooner than by tiles of 16 in clusters, of which up to `places` are as fast, or why not. Only here does the rule
/// look at how many tokens there are: a row is to get the same whoever is beside it.
pub(crate) fn beats_clusters(op: &CodebookGemm, target: &Target, places: u64) -> std::result::Result<(), String> {
    if op.adapters < MANY && (!has_clusters(op, target) || op.tokens.div_ceil(ROWS) <= places) {
        return Err(format!("{} tokens over {} adapters, fewer than {MANY}: tiles of 16 tokens are sooner done", op.tokens, op.adapters));
    }
    Ok(())
}

/// Whether many tokens of few adapters are `segments_sm80`'s, which `runs_sm80` takes else. That wants the tokens of an adapter to be neighbours, as
/// those of an encoder's sentences are; where they are not, as those of a decoder's batch, it takes up to eight times as long. An encoder's products
/// are not as large.
fn takes_few_adapters(op: &CodebookGemm, target: &Target) -> bool {
    let large = |slice: &CodebookSlice| op.d_in.saturating_mul(slice.d_out) > ENCODERS;
    has_clusters(op, target) && op.slices.iter().all(large) && supports_tiles(op, target, false).is_ok()
}

/// Whether tokens are many, and of as many adapters as `segments_sm80` takes, or why it is not worth it. Few adapters have that variant and those of
/// the same bits, or `runs_sm80`, whatever number of tokens there is.
pub(crate) fn takes_adapters(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    let few = op.adapters < *ADAPTERS.start() && takes_few_adapters(op, target);
    if op.tokens < LEAST_TOKENS || !(few || ADAPTERS.contains(&op.adapters)) {
        return Err(format!("{} tokens over {} adapters: it is for many tokens over {ADAPTERS:?} adapters", op.tokens, op.adapters));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::ops::CodeWidth;

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10 };

    #[test]
    fn few_adapters_of_a_decoder_and_of_an_encoder_are_one_variants_each_whatever_the_tokens() {
        for tokens in [129, 200, 256, 1000, 16_384] {
            for (dims, decoder) in [([4096, 4096, 16], true), ([1536, 384, 16], false), ([1024, 4096, 16], false)] {
                let op = CodebookGemm::s2lc(DType::F16, tokens, dims, 16, CodeWidth::FourThree);
                assert_eq!((takes_adapters(&op, &H200).is_ok(), few_adapters(&op, &H200).is_err()), (decoder, decoder), "{tokens} {dims:?}");
                let ampere = Target { arch: Arch(80), ..H200 };
                assert!(few_adapters(&op, &ampere).is_ok() && takes_adapters(&op, &ampere).is_err(), "{tokens} {dims:?}");
            }
        }
    }
}
