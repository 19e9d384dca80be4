//! The speed rules of codebook GEMM: which variant takes many tokens, and the fastest configuration of each variant. Nothing here says what
//! a kernel can compute.

use std::ops::RangeInclusive;

use super::launch::may_be_whole;
use super::long_tile::LongWay;
use super::order::{ENCODERS, LEAST_TOKENS, LONGEST_RANK, MOST_ADAPTERS, Order, has_clusters, order};
use super::segments::Way;
use super::tile::{CLUSTER, ROWS, rank_of, supports as supports_tiles};
use crate::backends::cuda::jit::Arch;
use crate::backends::cuda::variant::Target;
use crate::ops::CodebookGemm;
use crate::ops::codebook_gemm::CodebookSlice;

/// Adapters for `sgmv`. Fewer have many tokens each.
const ADAPTERS: RangeInclusive<u32> = 32..=512;
/// The fewest adapters for which `sgmv` is faster with any number of tokens. With fewer, clusters of 16 tokens decode about as often, in
/// one kernel, while there is an SM for each of their blocks.
const MANY_ADAPTERS: u32 = 96;
/// The most elements of a slice's decoded factor, outputs by rank, for which `sm80` is faster on many tokens than two launches, in forms that
/// have no [`Order`]: with few adapters, and with many.
const DECODED: [u64; 2] = [1 << 16, 3 << 13];
/// Elements that clusters of 16 tokens decode, from which on `sgmv` is faster with fewer tokens too: of ranks above 16, and of several slices.
const MUCH_DECODED: [u64; 2] = [3_000_000, 5_000_000];
/// Tokens up to which rows that start on any bytes are faster in clusters.
const FEW_UNALIGNED: u64 = 8;

/// Whether `sgmv_long`, or `sgmv_simt` where that does not serve, is worth taking: tokens are many and adapters few.
pub(crate) fn few_adapters(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    few_adapters_in_product(op, target)?;
    match order(op, target) {
        None | Some(Order::Runs) => Ok(()),
        Some(order) => Err(format!("{} adapters of such slices are summed by {order:?}", op.adapters)),
    }
}

/// Whether a product leaves its adapters to `sgmv_long`, whose factors it takes. The rows are those of an encoder's sentences, where the tokens
/// of an adapter are neighbours.
pub(crate) fn few_adapters_in_product(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    if op.tokens < LEAST_TOKENS || op.adapters > MOST_ADAPTERS {
        return Err(format!("{} tokens over {} adapters: it is for many tokens of each", op.tokens, op.adapters));
    }
    if op.batch_invariant {
        return Err("sums in an order of its own, which fewer tokens would not have".into());
    }
    if of_decoder(op, target) {
        return Err(format!("{} inputs, and outputs of no encoder: tokens of an adapter may lie anywhere", op.d_in));
    }
    if op.slices.iter().any(|slice| slice.rank > LONGEST_RANK) {
        seldom_decoded(op, target)?;
    }
    Ok(())
}

/// Whether `sm90` is worth taking, or what is faster.
pub(crate) fn clusters(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    decoded_often(op, target)
}

/// Whether segments or clusters are worth taking for many tokens, or why the blocks of `sm80` are faster.
fn decoded_often(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    match order(op, target) {
        Some(Order::Warps) => Err("small slices: blocks that decode them for every 16 tokens are sooner done".into()),
        Some(_) => Ok(()),
        None => seldom_decoded(op, target),
    }
}

/// Whether blocks that decode seldom suit forms without an [`Order`]. The rule asks only whether tokens are many, so that what a row gets does not depend on the rest of
/// the batch.
fn seldom_decoded(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    let most = DECODED[usize::from(op.adapters > MOST_ADAPTERS)];
    let small = |slice: &CodebookSlice| slice.d_out.saturating_mul(slice.rank) <= most && op.d_in.saturating_mul(slice.d_out) <= ENCODERS;
    if target.arch >= Arch(90) && op.tokens >= LEAST_TOKENS && !op.batch_invariant && op.slices.iter().all(small) && supports_tiles(op, target, false).is_ok() {
        return Err(format!("slices of at most {most} decoded elements: blocks that decode them for every 16 tokens are sooner done"));
    }
    Ok(())
}

/// Whether `sgmv` is worth taking: there are many tokens, many adapters, and not all clusters of 16 tokens are resident at once; or clusters
/// would decode much, or read rows that start on any bytes.
pub(crate) fn many_adapters(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    if order(op, target) == Some(Order::Eighths) && op.adapters <= *ADAPTERS.end() && (decodes_much(op) || crowded(op, places(target)) || unaligned(op)) {
        return Ok(());
    }
    takes_adapters(op, target)?;
    beats_clusters(op, target, places(target))
}

/// Whether `sgmv:fused` is worth taking. One of 16 clusters, on 132 SMs, finds no place beside the launch before.
pub(crate) fn many_adapters_at_once(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    takes_adapters(op, target)?;
    beats_clusters(op, target, places(target) * 15 / 16)
}

/// Clusters for which the device has SMs.
fn places(target: &Target) -> u64 {
    u64::from(target.units) / CLUSTER
}

/// Whether clusters of 16 tokens decode so much that two launches are sooner done. In a chain that writes y over, one tile decodes before x is
/// there.
fn decodes_much(op: &CodebookGemm) -> bool {
    let columns = op.slices.iter().fold(0, |sum: u64, slice| sum.saturating_add(slice.d_out.saturating_mul(slice.rank)));
    let decoded = columns.saturating_mul(op.tokens.div_ceil(ROWS)).saturating_mul(ROWS.min(op.tokens).min(op.adapters.into()));
    let wide = rank_of(op) > 16 && (op.accumulate || op.tokens > ROWS);
    let several = op.slices.len() > 1 && op.adapters >= *ADAPTERS.start() && op.tokens > 2 * ROWS;
    wide && decoded >= MUCH_DECODED[0] || several && decoded >= MUCH_DECODED[1]
}

/// Whether several slices of ranks above 16, which leave an SM no room for a second block, have more clusters than there are `places` for.
fn crowded(op: &CodebookGemm, places: u64) -> bool {
    rank_of(op) > 16 && op.slices.len() > 1 && op.tokens.div_ceil(ROWS) * op.slices.len() as u64 > places
}

/// Whether rows of one slice start on any bytes, and there are more of them than clusters read as fast.
fn unaligned(op: &CodebookGemm) -> bool {
    matches!(op.slices.as_slice(), [slice] if !may_be_whole(op, slice)) && op.tokens > FEW_UNALIGNED
}

/// Whether this many tokens are faster than in clusters of 16 tokens, of which up to `places` are as fast, or why not. The bits are the same,
/// so the rule may look at the number of tokens.
fn beats_clusters(op: &CodebookGemm, target: &Target, places: u64) -> std::result::Result<(), String> {
    decoded_often(op, target)?;
    if op.adapters < MANY_ADAPTERS && (!has_clusters(op, target) || op.tokens.div_ceil(ROWS) <= places) {
        return Err(format!("{} tokens over {} adapters, fewer than {MANY_ADAPTERS}: tiles of 16 tokens are sooner done", op.tokens, op.adapters));
    }
    Ok(())
}

/// Whether products of factors are larger than an encoder's. `sgmv_long` needs the tokens of an adapter to be neighbours, as those of an
/// encoder's sentences are. Where they are not, as in a decoder's batch, it takes up to eight times as long.
fn of_decoder(op: &CodebookGemm, target: &Target) -> bool {
    let large = |slice: &CodebookSlice| op.d_in.saturating_mul(slice.d_out) > ENCODERS;
    has_clusters(op, target) && op.slices.iter().all(large) && supports_tiles(op, target, false).is_ok()
}

/// Whether there are many tokens, with as many adapters as `sgmv` takes, or why it is not worth taking.
fn takes_adapters(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    let adapters = match order(op, target) {
        Some(Order::Eighths) => 1..=*ADAPTERS.end(),
        Some(order) => return Err(format!("{} adapters of such slices are summed by {order:?}", op.adapters)),
        None => ADAPTERS,
    };
    if op.tokens < LEAST_TOKENS || !adapters.contains(&op.adapters) {
        return Err(format!("{} tokens over {} adapters: it is for many tokens over {adapters:?} adapters", op.tokens, op.adapters));
    }
    Ok(())
}

/// The fastest configuration of `sgmv`: the first that its operands allow.
pub(crate) fn way(op: &CodebookGemm) -> Way {
    Way::ALL.into_iter().find(|way| way.computes(op).is_ok()).unwrap_or(Way::Any)
}

/// The fastest configuration of `sgmv_long`: the first that its operands allow.
pub(crate) fn long_way(op: &CodebookGemm) -> LongWay {
    LongWay::ALL.into_iter().find(|way| way.computes(op).is_ok()).unwrap_or(LongWay::Any)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use trifuse_testkit::cases::Draw;

    use super::*;
    use crate::backends::cuda::codebook_gemm::entry::reach::TARGETS;
    use crate::backends::cuda::jit::Unit;
    use crate::backends::cuda::variant::{Table, Variant, choose};
    use crate::dtype::DType;
    use crate::ops::CodeWidth;
    use crate::ops::codebook_gemm::{Factor, ScaledBy};

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };

    fn op(tokens: u64, adapters: u32, dims: [u64; 3]) -> CodebookGemm {
        CodebookGemm::s2lc(DType::F16, tokens, dims, adapters, CodeWidth::FourThree)
    }

    #[test]
    fn few_adapters_of_a_decoder_and_of_an_encoder_are_one_variants_each_whatever_the_tokens() {
        for tokens in [129, 200, 256, 1000, 16_384] {
            for (dims, decoder) in [([4096, 4096, 16], true), ([2048, 2048, 16], true), ([1536, 384, 16], false), ([1024, 1024, 16], false)] {
                let op = op(tokens, 16, dims);
                let of =
                    |target: &Target| [takes_adapters(&op, target), few_adapters_in_product(&op, target), few_adapters(&op, target)].map(|worth| worth.is_ok());
                assert_eq!(of(&H200), [decoder, !decoder, false], "{tokens} {dims:?}");
                assert_eq!(of(&Target { arch: Arch(80), ..H200 }), [false, true, true], "{tokens} {dims:?}");
            }
        }
    }

    /// Choices by device, in the order of [`TARGETS`]: 78, 114, 132 and 144 SMs of Hopper, A100, RTX 3090.
    #[test]
    fn every_shape_has_a_variant_that_supports_it() {
        let square = [4096, 4096, 16];
        let over = |op: CodebookGemm| CodebookGemm { accumulate: false, ..op };
        let full = |op: CodebookGemm| CodebookGemm { dtype: DType::F32, ..op };
        let gated = |op: CodebookGemm| CodebookGemm { scaled_by: ScaledBy::Token, ..op };
        let slices = |count: usize, op: CodebookGemm| CodebookGemm { slices: vec![op.slices[0].clone(); count], ..op };
        let lora = |op: CodebookGemm| {
            let own = Factor::Dense { bases: op.adapters };
            let slices = op.slices.iter().map(|slice| slice.clone().with_input(own).with_output(own)).collect();
            op.with_slices(slices)
        };
        let tiles = ["sm90", "sm90", "sm90", "sm90", "sm80", "sm80"];
        let (long, short, segments, simt) = (["sgmv_long"; 6], ["sgmv_simt"; 6], ["sgmv"; 6], ["simt"; 6]);
        let trained = ["sgmv_dense"; 6];
        let few = ["sgmv_dense:fused", "sgmv_dense:fused", "sgmv_dense:fused", "sgmv_dense:fused", "sgmv_dense", "sgmv_dense"];
        let anew = ["sm80", "sm80", "sm80", "sm80", "sgmv_long", "sgmv_long"];
        let joint = ["sgmv", "sgmv", "sgmv:fused", "sgmv:fused", "sgmv", "sgmv"];
        let table = [
            (op(1, 1, square), tiles),
            (op(16, 16, square), tiles),
            (op(128, 100, square), tiles),
            (op(200, 16, square), ["sgmv", "sm90", "sm90", "sm90", "sgmv_long", "sgmv_long"]),
            (op(256, 31, square), ["sgmv", "sgmv", "sm90", "sm90", "sgmv_long", "sgmv_long"]),
            (op(1024, 1, [1536, 384, 16]), long),
            (op(1024, 24, [1536, 384, 16]), anew),
            (slices(3, op(1024, 24, [384, 384, 16])), anew),
            (op(1024, 24, [1536, 384, 32]), anew),
            (slices(3, op(1024, 24, [4096, 4096, 16])), ["sm90", "sm90", "sm90", "sm90", "sgmv_long", "sgmv_long"]),
            (op(15, 100, [4096, 4096, 64]), ["sgmv", "sgmv", "sgmv", "sgmv", "sm80", "sm80"]),
            (op(1024, 64, [1536, 384, 16]), ["sm80"; 6]),
            (slices(20, op(200, 8, square)), long),
            (over(op(256, 100, square)), joint),
            (op(256, 100, square), segments),
            (over(op(1024, 87, square)), ["sgmv", "sgmv", "sgmv:fused", "sgmv:fused", "sm80", "sm80"]),
            (op(1000, 64, square), ["sgmv", "sgmv", "sgmv", "sgmv", "sm80", "sm80"]),
            (op(1000, 600, square), tiles),
            (full(op(1000, 8, square)), short),
            (gated(op(1000, 8, square)), short),
            (full(op(10, 8, square)), simt),
            (lora(op(16, 16, square)), few),
            (lora(op(256, 32, square)), few),
            (lora(op(256, 100, square)), trained),
            (lora(op(16, 16, [4096, 4096, 64])), trained),
            (lora(op(16, 16, [4096, 11_008, 16])), trained),
            (lora(op(16, 16, [4090, 4096, 16])), trained),
            (lora(op(16, 24, [1536, 384, 16])), few),
            (lora(op(1024, 24, [1536, 384, 16])), long),
            (lora(op(16, 16, [4096, 4096, 300])), simt),
            (op(1000, 8, [4096, 4096, 128]), simt),
        ];
        let mut wrong = Vec::new();
        for (op, names) in &table {
            for (target, name) in TARGETS.iter().zip(names) {
                let (chosen, target) = &choose(CodebookGemm::VARIANTS, op, target, None).unwrap();
                assert!((chosen.supports)(op, target).is_ok() && chosen.runs_on.accept(target.arch).is_ok());
                let fused = if (chosen.unit)(op, target).source.path.ends_with("fused.cu") { ":fused" } else { "" };
                let found = format!("{}{fused}", chosen.name);
                if found != *name {
                    wrong.push(format!("{found} for {name}, {target:?}: {} tokens, {} adapters, {:?}", op.tokens, op.adapters, op.slices[0]));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn the_first_way_that_operands_allow_is_the_fastest() {
        let slices = |count: usize, op: CodebookGemm| CodebookGemm { slices: vec![op.slices[0].clone(); count], ..op };
        let odd = |op: CodebookGemm| CodebookGemm { x_stride: op.x_stride + 1, ..op };
        for (op, short, long) in [
            (op(256, 100, [4096, 4096, 16]), Way::Once, LongWay::Alone),
            (op(256, 100, [11_008, 4096, 16]), Way::Long, LongWay::Alone),
            (odd(op(256, 100, [4096, 4096, 16])), Way::Any, LongWay::Alone),
            (odd(op(256, 100, [4096, 4100, 16])), Way::Any, LongWay::Any),
            (slices(3, op(256, 100, [384, 384, 16])), Way::Grouped, LongWay::Together),
            (slices(3, op(256, 100, [4096, 384, 16])), Way::Grouped, LongWay::Alone),
        ] {
            assert_eq!((way(&op), long_way(&op)), (short, long), "{} {:?}", op.d_in, op.slices[0]);
        }
    }

    /// A variant that is named runs wherever its kernels can compute the operation.
    #[test]
    fn a_variant_that_does_not_suit_may_be_named() {
        for name in ["sgmv:fused", "sgmv", "sgmv_simt", "sgmv_long"] {
            let op = CodebookGemm { accumulate: false, ..op(17, 5, [4096, 512, 16]) };
            let (named, _) = choose(CodebookGemm::VARIANTS, &op, &H200, Some(name)).unwrap();
            assert!((named.suits)(&op, &H200).is_err(), "{name}");
        }
    }

    /// Operations of every form, with sizes of models and odd ones.
    pub(crate) fn random(draw: &mut Draw) -> CodebookGemm {
        let mut one = |of: &[u64]| of[draw.below(of.len() as u32) as usize];
        let dtype = if one(&[0, 0, 0, 1]) == 0 { DType::F16 } else { DType::BF16 };
        let dims = [one(&[384, 384, 4096, 1024, 100, 11008]), one(&[32, 384, 1024, 4096, 1000, 11008, 100]), one(&[16, 16, 16, 8, 32, 64, 12])];
        let (tokens, adapters) = (one(&[0, 1, 4, 16, 17, 100, 129, 200, 1000, 5000]), one(&[1, 2, 16, 31, 32, 100, 513]) as u32);
        let widths = [CodeWidth::FourThree, CodeWidth::Four, CodeWidth::Three, CodeWidth::Bytes];
        let mut op = CodebookGemm::s2lc(dtype, tokens, dims, adapters, widths[one(&[0, 0, 0, 1, 2, 3]) as usize]);
        op.slices = vec![op.slices[0].clone(); one(&[1, 1, 1, 2, 3, 4, 20, 60]) as usize];
        op.accumulate = one(&[0, 1]) == 0;
        if one(&[0, 0, 0, 1]) == 1 {
            op.slices[0].input = Factor::Dense { bases: 3 };
        }
        if one(&[0, 0, 0, 1]) == 1 {
            let own = Factor::Dense { bases: op.adapters };
            op.slices.iter_mut().for_each(|slice| (slice.input, slice.output) = (own, own));
        }
        if one(&[0, 0, 0, 1]) == 1 {
            op.scaled_by = ScaledBy::Token;
        }
        if one(&[0, 0, 0, 1]) == 1 {
            op.x_stride += 1;
        }
        op
    }

    /// What tells a unit from the others.
    fn key(unit: &Unit) -> String {
        format!("{} {:?} {:?} {}", unit.name, unit.entries, unit.defines, unit.shared_bytes)
    }

    #[test]
    fn what_is_chosen_can_be_forced_and_all_that_can_is_compiled_ahead() {
        let mut draw = Draw::seeded("configurations");
        let known: Vec<Vec<BTreeSet<String>>> = TARGETS
            .iter()
            .map(|target| {
                let units = |variant: &Variant<CodebookGemm>| (variant.units)(target.arch).iter().flat_map(Unit::all).map(key).collect();
                CodebookGemm::VARIANTS.iter().map(units).collect()
            })
            .collect();
        let mut met = BTreeSet::new();
        for _ in 0..80 {
            let op = random(&mut draw);
            for (target, known) in TARGETS.iter().zip(&known) {
                for (variant, known) in CodebookGemm::VARIANTS.iter().zip(known).filter(|(variant, _)| variant.accepts(&op, target).is_ok()) {
                    let (able, chosen) = (variant.able(&op, target), variant.cheapest(&op, target));
                    assert_eq!(able.iter().any(|(target, _)| target.config == chosen.config), chosen.config.is_some(), "{} {chosen:?} {op:?}", variant.name);
                    let plans = able.into_iter().chain([(chosen, "chosen".into())]);
                    let missing = |(target, config): (Target, String)| {
                        met.insert(format!("{}:{config}", variant.name));
                        (variant.unit)(&op, &target).all().into_iter().map(key).find(|key| !known.contains(key)).map(|key| (config, key))
                    };
                    assert_eq!(plans.filter_map(missing).next(), None, "{} {op:?}", variant.name);
                }
            }
        }
        for name in ["sm90:balanced-8", "sm90:icache_warm-32", "sm90:many-2", "sm80:any-4", "sgmv:once", "sgmv:grouped", "sgmv_long:slices3", "sgmv_long:any"] {
            assert!(met.contains(name), "{name}: {met:?}");
        }
    }
}
