//! Which of the codebook GEMM's variants takes many tokens: what `suits` says of them. Nothing here says what a kernel can compute.

use std::ops::RangeInclusive;

use super::tile::{CLUSTER, MANY_SLICES, ROWS, supports as supports_tiles};
use crate::backends::cuda::jit::Arch;
use crate::backends::cuda::variant::Target;
use crate::ops::CodebookGemm;
use crate::ops::codebook_gemm::{CodebookSlice, ScaledBy};

/// The fewest tokens, and the most adapters of `sgmv_long`: with more adapters a run is short, and each run decodes its columns anew. The rule does
/// not look at how many tokens there are beyond the fewest: a row is to get the same from this variant whoever is beside it.
const LEAST_TOKENS: u64 = 129;
const MOST_ADAPTERS: u32 = 31;
/// Adapters of `sgmv`. Fewer have many tokens each.
const ADAPTERS: RangeInclusive<u32> = 32..=512;
/// Adapters from which on that variant is faster for any number of tokens. Fewer are decoded about as often, and in one kernel, by clusters that have 16
/// tokens each, as long as there is an SM for each of their blocks.
const MANY: u32 = 96;
/// Elements of an encoder's largest factor product, 4,096 × 1,024.
const ENCODERS: u64 = 1 << 22;

/// Whether `sgmv_long`, or `sgmv_simt` where that does not serve, is worth taking: tokens are many and adapters few.
pub(crate) fn few_adapters(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    if op.tokens < LEAST_TOKENS || op.adapters > MOST_ADAPTERS {
        return Err(format!("{} tokens over {} adapters: it is for many tokens of each", op.tokens, op.adapters));
    }
    if takes_few_adapters(op, target) {
        return Err(format!("{} inputs, and outputs of no encoder: tokens of an adapter may lie anywhere", op.d_in));
    }
    Ok(())
}

/// Whether `sgmv` is worth taking: tokens are many, adapters too, and not all clusters of 16 tokens have a place.
pub(crate) fn many_adapters(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    takes_adapters(op, target)?;
    beats_clusters(op, target, places(target))
}

/// Whether `sgmv_fused` is worth taking. One of 16 clusters, on 132 SMs, finds no place beside the launch before.
pub(crate) fn many_adapters_at_once(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    takes_adapters(op, target)?;
    beats_clusters(op, target, places(target) * 15 / 16)
}

/// Clusters that the device has SMs for.
fn places(target: &Target) -> u64 {
    u64::from(target.units) / CLUSTER
}

/// Whether clusters of `sm90`, that have 16 tokens each, take tokens of as few adapters, and with the same bits: it sums in the order of
/// `sgmv` unless there are many slices.
fn has_clusters(op: &CodebookGemm, target: &Target) -> bool {
    target.arch >= Arch(90) && op.slices.len() < MANY_SLICES && op.scaled_by == ScaledBy::Adapter
}

/// Whether so many tokens are done sooner than by tiles of 16 in clusters, of which up to `places` are as fast, or why not. Only here does the rule
/// look at how many tokens there are: a row is to get the same whoever is beside it.
fn beats_clusters(op: &CodebookGemm, target: &Target, places: u64) -> std::result::Result<(), String> {
    if op.adapters < MANY && (!has_clusters(op, target) || op.tokens.div_ceil(ROWS) <= places) {
        return Err(format!("{} tokens over {} adapters, fewer than {MANY}: tiles of 16 tokens are sooner done", op.tokens, op.adapters));
    }
    Ok(())
}

/// Whether many tokens of few adapters are `sgmv`'s, which `sgmv_long` takes else. That wants the tokens of an adapter to be neighbours, as
/// those of an encoder's sentences are; where they are not, as those of a decoder's batch, it takes up to eight times as long. An encoder's products
/// are not as large.
fn takes_few_adapters(op: &CodebookGemm, target: &Target) -> bool {
    let large = |slice: &CodebookSlice| op.d_in.saturating_mul(slice.d_out) > ENCODERS;
    has_clusters(op, target) && op.slices.iter().all(large) && supports_tiles(op, target, false).is_ok()
}

/// Whether tokens are many, and of as many adapters as `sgmv` takes, or why it is not worth it. Few adapters have that variant and those of
/// the same bits, or `sgmv_long`, whatever number of tokens there is.
fn takes_adapters(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    let few = op.adapters < *ADAPTERS.start() && takes_few_adapters(op, target);
    if op.tokens < LEAST_TOKENS || !(few || ADAPTERS.contains(&op.adapters)) {
        return Err(format!("{} tokens over {} adapters: it is for many tokens over {ADAPTERS:?} adapters", op.tokens, op.adapters));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::backends::cuda::codebook_gemm::entry::reach::TARGETS;
    use crate::backends::cuda::variant::{Table, choose};
    use crate::dtype::DType;
    use crate::ops::CodeWidth;

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };

    fn op(tokens: u64, adapters: u32, dims: [u64; 3]) -> CodebookGemm {
        CodebookGemm::s2lc(DType::F16, tokens, dims, adapters, CodeWidth::FourThree)
    }

    #[test]
    fn few_adapters_of_a_decoder_and_of_an_encoder_are_one_variants_each_whatever_the_tokens() {
        for tokens in [129, 200, 256, 1000, 16_384] {
            for (dims, decoder) in [([4096, 4096, 16], true), ([1536, 384, 16], false), ([1024, 4096, 16], false)] {
                let op = op(tokens, 16, dims);
                assert_eq!((takes_adapters(&op, &H200).is_ok(), few_adapters(&op, &H200).is_err()), (decoder, decoder), "{tokens} {dims:?}");
                let ampere = Target { arch: Arch(80), ..H200 };
                assert!(few_adapters(&op, &ampere).is_ok() && takes_adapters(&op, &ampere).is_err(), "{tokens} {dims:?}");
            }
        }
    }

    /// By the device, in the order of [`TARGETS`]: 78, 114, 132 and 144 SMs of Hopper, A100, RTX 3090.
    #[test]
    fn every_shape_has_a_variant_that_supports_it() {
        let square = [4096, 4096, 16];
        let over = |op: CodebookGemm| CodebookGemm { accumulate: false, ..op };
        let full = |op: CodebookGemm| CodebookGemm { dtype: DType::F32, ..op };
        let gated = |op: CodebookGemm| CodebookGemm { scaled_by: ScaledBy::Token, ..op };
        let slices = |count: usize, op: CodebookGemm| CodebookGemm { slices: vec![op.slices[0].clone(); count], ..op };
        let tiles = ["sm90", "sm90", "sm90", "sm90", "sm80", "sm80"];
        let (long, short, segments, simt) = (["sgmv_long"; 6], ["sgmv_simt"; 6], ["sgmv"; 6], ["simt"; 6]);
        let joint = ["sgmv", "sgmv", "sgmv_fused", "sgmv_fused", "sgmv", "sgmv"];
        let table = [
            (op(1, 1, square), tiles),
            (op(16, 16, square), tiles),
            (op(128, 100, square), tiles),
            (op(200, 16, square), ["sgmv", "sm90", "sm90", "sm90", "sgmv_long", "sgmv_long"]),
            (op(256, 31, square), ["sgmv", "sgmv", "sm90", "sm90", "sgmv_long", "sgmv_long"]),
            (op(1024, 24, [1536, 384, 16]), long),
            (slices(3, op(1024, 24, [384, 384, 16])), long),
            (slices(20, op(200, 8, square)), long),
            (over(op(256, 100, square)), joint),
            (op(256, 100, square), segments),
            (over(op(1024, 87, square)), ["sgmv", "sgmv", "sgmv_fused", "sgmv_fused", "sm80", "sm80"]),
            (op(1000, 64, square), ["sgmv", "sgmv", "sgmv", "sgmv", "sm80", "sm80"]),
            (op(1000, 600, square), tiles),
            (full(op(1000, 8, square)), short),
            (gated(op(1000, 8, square)), short),
            (full(op(10, 8, square)), simt),
            (op(1000, 8, [4096, 4096, 128]), simt),
        ];
        let mut wrong = Vec::new();
        for (op, names) in &table {
            for (target, name) in TARGETS.iter().zip(names) {
                let (chosen, target) = &choose(CodebookGemm::VARIANTS, op, target, None).unwrap();
                assert!((chosen.supports)(op, target).is_ok() && chosen.runs_on.accept(target.arch).is_ok());
                if chosen.name != *name {
                    wrong.push(format!("{} for {name}, {target:?}: {} tokens, {} adapters, {:?}", chosen.name, op.tokens, op.adapters, op.slices[0]));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// What is named runs wherever its kernels can compute it.
    #[test]
    fn a_variant_that_does_not_suit_may_be_named() {
        for name in ["sgmv_fused", "sgmv", "sgmv_simt", "sgmv_long"] {
            let op = CodebookGemm { accumulate: false, ..op(17, 5, [4096, 512, 16]) };
            let (named, _) = choose(CodebookGemm::VARIANTS, &op, &H200, Some(name)).unwrap();
            assert!((named.suits)(&op, &H200).is_err(), "{name}");
        }
    }
}
