//! Descriptors of any size are validated or refused, and never panic. Costs are counted by hand.

use proptest::prelude::*;

use super::index::{BlockShape, MapShape, PageShape, VarlenShape};
use super::*;
use crate::dtype::DType;
use crate::ops::attention::Form;
use crate::ops::codebook_gemm::{CodebookSlice, Factor, ScaledBy};
use crate::ops::prefix_attention::Factors;

/// Small sizes, and every power of two with its neighbours.
fn size() -> impl Strategy<Value = u64> {
    prop_oneof![0..40u64, (0..64u32, 0..3u64).prop_map(|(bits, off)| (1u64 << bits).wrapping_add(off).wrapping_sub(1))]
}

fn word() -> impl Strategy<Value = u32> {
    size().prop_map(|size| size as u32)
}

fn factor() -> impl Strategy<Value = Factor> {
    let width = proptest::option::of(proptest::sample::select(CodeWidth::ALL.to_vec()));
    prop_oneof![
        word().prop_map(|bases| Factor::Dense { bases }),
        (width, word()).prop_map(|(width, words_per_adapter)| Factor::Coded { width, words_per_adapter })
    ]
}

fn form() -> impl Strategy<Value = Form> {
    let varlen =
        [size(), size(), size(), size(), size()].prop_map(|[batch, total_q, total_kv, max_q, max_kv]| VarlenShape { batch, total_q, total_kv, max_q, max_kv });
    let blocks = [word(), word(), word(), word(), word(), word()].prop_map(|[block, q_blocks, kv_blocks, patterns, capacity, masks]| BlockShape {
        block,
        q_blocks,
        kv_blocks,
        patterns,
        capacity,
        masks,
    });
    let maps = [word(), word(), word(), word()].prop_map(|[block, q_blocks, kv_blocks, patterns]| MapShape { block, q_blocks, kv_blocks, patterns });
    let paged = [size(), size(), size(), size()].prop_map(|[batch, pages, page, pool_pages]| PageShape { batch, pages, page, pool_pages });
    prop_oneof![Just(Form::Dense), varlen.prop_map(Form::Varlen), blocks.prop_map(Form::Blocks), maps.prop_map(Form::BlockMap), paged.prop_map(Form::Paged)]
}

/// The cost of whatever passes validation is finite and not negative.
fn sane<O: Op>(op: &O) -> Result<(), TestCaseError> {
    if op.validate().is_ok() {
        let cost = op.cost();
        for value in [cost.executed_flops, cost.useful_flops, cost.dense_flops, cost.bytes] {
            prop_assert!(value.is_finite() && value >= 0.0, "{op:?}: {cost:?}");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn attention_of_any_size_is_accepted_or_refused(
        [batch, heads, kv_heads, q_len, kv_len] in [size(), size(), size(), size(), size()],
        head_dim in 0..300u64, causal: bool, window in proptest::option::of(size()), form in form(), strides in [size(), size(), size()],
        slots in proptest::option::of(word()),
    ) {
        sane(&Attention::dense(DType::F16, batch, [heads, kv_heads], [q_len, kv_len], head_dim))?;
        let mut op = Attention::dense(DType::F16, 1, [1, 1], [1, 1], 1);
        op = Attention { batch, heads, kv_heads, q_len, kv_len, head_dim, causal, window, form, slots, ..op };
        let [batch, token, head] = strides;
        op.q = attention::Strides { batch, token, head };
        sane(&op)?;
    }

    #[test]
    fn products_of_any_size_are_accepted_or_refused(
        [tokens, d_in, d_out, rank, x_stride] in [size(), size(), size(), size(), size()],
        adapters in word(), input in factor(), output in factor(), core: bool, flag: bool,
    ) {
        let slice = CodebookSlice { d_out, y_stride: x_stride, rank, input, core, output };
        let delta = CodebookGemm { dtype: DType::BF16, tokens, d_in, x_stride, adapters, scaled_by: if core { ScaledBy::Token } else { ScaledBy::Adapter }, accumulate: flag, slices: vec![slice], batch_invariant: flag };
        sane(&delta)?;
        let linear = Linear::new(DType::BF16, [tokens, d_in, d_out]);
        sane(&Linear { bias: flag, residual: core, ..linear.clone() })?;
        sane(&Linear { delta: Some(delta), ..linear.clone() })?;
        sane(&linear.clone().with_padded_weights())?;
        sane(&Linear { bias: flag, residual: core, ..linear.clone() }.with_wide_outputs(true))?;
        let pair = [linear.clone().with_x_stride(x_stride), Linear::new(DType::BF16, [tokens, rank, d_out])];
        sane(&GroupedLinear::new(pair.to_vec()).with_gate(flag.then_some(Activation::Silu)))?;
        sane(&linear.clone().with_gated(flag).with_input_norm(core.then_some(adapters)))?;
        sane(&Linear { x_stride, w_stride: rank, ..linear })?;
        let mlp = FusedMlp::new(DType::F32, [tokens, d_in, rank, d_out], Activation::Relu);
        let mlp = FusedMlp { gated: flag, bias1: core, bias2: flag, residual: core, ..mlp };
        sane(&mlp)?;
        sane(&mlp.clone().with_padded_weights())?;
        sane(&FusedMlp { x_stride, w1_stride: x_stride, w2_stride: x_stride, ..mlp })?;
        let turn = if flag { pointwise::Turn::Table } else { pointwise::Turn::base(1e4) };
        let in_place = pointwise::Kind::RopeInPlace { head_dim: rank, turn, stride: x_stride };
        let embedding = pointwise::Kind::Embedding { vocabulary: adapters };
        let sum = pointwise::Kind::EmbeddingNorm { vocabulary: adapters, places: rank as u32, eps: 0 };
        let cache = PageShape { batch: rank, pages: x_stride, page: d_out, pool_pages: d_in };
        let append = pointwise::Kind::Append { cache, stride: x_stride };
        let [store, gates] = [pointwise::Kind::Store { slots: adapters, stride: x_stride }, pointwise::Kind::Glu(Activation::Silu)];
        let to = if core { pointwise::Places::Pages(cache) } else { pointwise::Places::Slots(adapters) };
        let heads = pointwise::Kind::Heads(pointwise::Heads::new(rank, turn, x_stride, to).with_first(d_out).with_kept(d_in));
        let apart = pointwise::Heads::new(rank, turn, x_stride, to).with_first(d_out).with_kept(x_stride.saturating_sub(d_out)).with_apart(true);
        for kind in [heads, pointwise::Kind::Heads(apart), pointwise::Kind::L2Normalise, pointwise::Kind::Rope { head_dim: rank, turn }, in_place, embedding, sum, append, store, gates] {
            sane(&Pointwise { dtype: DType::F16, rows: tokens, columns: d_in, kind })?;
        }
        sane(&Sample { dtype: if flag { DType::F16 } else { DType::F32 }, rows: tokens, vocabulary: d_in, stride: x_stride, mask: flag })?;
        sane(&Sample::new(tokens, d_in))?;
        sane(&Checksum { ranges: tokens, bytes: d_in, stride: x_stride })?;
        let factors = Factors { rank: rank % 1100, coefficients: input, basis: output };
        sane(&PrefixAttention::new(DType::F16, tokens, [u64::from(adapters % 9), 1], [d_in, d_out], x_stride % 300, [factors; 2]))?;
    }

    #[test]
    fn pairs_of_query_and_key_are_counted_as_the_masks_say(q_len in 0..20u64, kv_len in 0..20u64, causal: bool, window in proptest::option::of(0..25u64)) {
        let op = Attention { causal, window, ..Attention::dense(DType::F32, 1, [1, 1], [q_len, kv_len], 1) };
        let sees = |i: i64, j: i64| {
            let position = i + kv_len as i64 - q_len as i64;
            let window = window.map_or(i64::MAX / 4, |window| window as i64);
            j >= position - window && j <= if causal { position } else { position + window }
        };
        let pairs = (0..q_len as i64).flat_map(|i| (0..kv_len as i64).map(move |j| (i, j))).filter(|&(i, j)| sees(i, j)).count();
        prop_assert_eq!(op.cost().useful_flops, 4.0 * pairs as f64);
    }
}

#[test]
fn flops_of_toy_shapes_are_those_counted_by_hand() {
    // There are 3 × 5 scores of 7 products each, a multiply and an add apiece, and as many for the values; 2 sequences of 4 heads.
    let dense = Attention::dense(DType::F16, 2, [4, 2], [3, 5], 7);
    assert_eq!(dense.cost().useful_flops, 2.0 * 4.0 * 15.0 * 7.0 * 4.0);
    // A causal mask leaves 3 + 4 + 5 keys.
    let causal = Attention { causal: true, ..dense };
    assert_eq!((causal.cost().useful_flops, causal.cost().dense_flops), (2.0 * 4.0 * 12.0 * 7.0 * 4.0, 2.0 * 4.0 * 15.0 * 7.0 * 4.0));
    // There is room for two blocks of 64 × 64, of 2 × 2.
    let shape = BlockShape { block: 64, q_blocks: 2, kv_blocks: 2, patterns: 1, capacity: 2, masks: 0 };
    let sparse = Attention { form: Form::Blocks(shape), ..Attention::dense(DType::F16, 1, [1, 1], [128, 128], 32) };
    assert_eq!((sparse.cost().executed_flops, sparse.cost().dense_flops), (2.0 * 64.0 * 64.0 * 32.0 * 4.0, 128.0 * 128.0 * 32.0 * 4.0));
    assert_eq!(Linear::new(DType::F32, [2, 4, 3]).cost().useful_flops, 48.0);
    // Traffic is x, a basis, y read and written, and codes and codebooks of the two adapters that two tokens can have.
    let adapted = CodebookGemm::s2lc(DType::F16, 2, [32, 64, 4], 1000, CodeWidth::Four);
    assert_eq!(adapted.cost().bytes, 2.0 * (2.0 * 32.0 + 32.0 * 4.0 + 2.0 * 2.0 * 64.0) + 2.0 * (64.0 * 4.0 / 2.0 + 52.0 * 4.0));
    let mut cored = adapted.clone();
    cored.slices[0].core = true;
    assert_eq!(cored.cost().bytes - adapted.cost().bytes, 2.0 * 16.0 * 4.0);
    assert_eq!(Linear::new(DType::F32, [2, 4, 3]).cost().bytes, 4.0 * (8.0 + 12.0 + 6.0));
}

#[test]
fn a_row_is_bounded_where_there_is_none() {
    let far = u64::MAX / 2;
    assert!(Linear { x_stride: far, ..Linear::new(DType::F16, [0, 4, 4]) }.validate().is_err());
    assert!(FusedMlp { x_stride: far, ..FusedMlp::new(DType::F16, [0, 4, 4, 4], Activation::Relu) }.validate().is_err());
    assert!(CodebookGemm { x_stride: far, ..CodebookGemm::s2lc(DType::F16, 0, [4, 4, 2], 1, CodeWidth::Four) }.validate().is_err());
    let kind = pointwise::Kind::RopeInPlace { head_dim: 4, turn: pointwise::Turn::base(1e4), stride: far };
    assert!(Pointwise { dtype: DType::F16, rows: 0, columns: 4, kind }.validate().is_err());
}

#[test]
fn sums_and_products_of_legal_sizes_stay_in_range() {
    let dense = Factor::Dense { bases: 1 };
    let factors = Factors { rank: 1024, coefficients: dense, basis: dense };
    let prefix = PrefixAttention::new(DType::F16, 1, [1, 1], [1, (1 << 52) - 1], 1, [factors; 2]);
    assert!(prefix.validate().is_ok());
    assert!(prefix.cost().bytes > 1e19, "each factor is below 2^63, all four are not");
    // The second table is the larger one: 2^32 rows of 2^33 columns.
    let kind = pointwise::Kind::EmbeddingNorm { vocabulary: 1, places: u32::MAX, eps: 0 };
    assert!(Pointwise { dtype: DType::F16, rows: 1, columns: 1 << 33, kind }.validate().is_err());
}

#[test]
fn no_heads_are_refused_as_what_they_are() {
    for heads in [[0, 0], [4, 0], [0, 4]] {
        let refused = Attention::dense(DType::F16, 1, heads, [1, 1], 64).validate();
        let told = format!("{} and {}", heads[0], heads[1]);
        assert!(matches!(&refused, Err(Error::Invalid { expected, found, .. }) if expected == "at least 1" && *found == told), "{refused:?}");
    }
}

#[test]
fn rows_that_lie_apart_are_whole_heads_and_then_all_that_is_left() {
    let to = pointwise::Places::Slots(3);
    let heads = |first, kept, stride| pointwise::Heads::new(8, pointwise::Turn::base(1e4), stride, to).with_first(first).with_kept(kept).with_apart(true);
    let validate = |heads| Pointwise::new(DType::F16, 2, 24, pointwise::Kind::Heads(heads)).validate();
    assert!(validate(heads(16, 16, 32)).is_ok() && validate(heads(24, 5, 29)).is_ok() && validate(heads(0, 24, 24)).is_ok());
    // A head in two blocks, more in front than turn, columns that nobody keeps behind those that are kept, and less than turns.
    for [first, kept, stride] in [[12, 20, 32], [32, 8, 40], [16, 16, 40], [8, 8, 24]] {
        assert!(validate(heads(first, kept, stride)).is_err(), "{first}, {kept}, {stride}");
    }
    let blocks = heads(16, 16, 32).blocks(5, 24).map(|block| (block.columns, block.start, block.stride));
    assert_eq!(blocks, [(0..16, 0, 16), (16..24, 80, 8), (24..32, 120, 8)]);
    let packed = heads(16, 16, 40).with_apart(false).blocks(5, 24).map(|block| (block.columns, block.start, block.stride));
    assert_eq!(packed[0], (0..32, 0, 40));
    assert!(packed[1].0.is_empty() && packed[2].0.is_empty());
}

#[test]
fn a_gate_is_two_bare_products_of_as_many_outputs() {
    let product = |d_in, d_out| Linear::new(DType::F16, [3, d_in, d_out]);
    let gated = |problems: &[Linear]| GroupedLinear::new(problems.to_vec()).with_gate(Activation::Silu);
    let pair = gated(&[product(8, 24), product(16, 24)]);
    assert!(pair.validate().is_ok() && pair.sizes() == [3, 24, 16]);
    // Both weights and rows are read, and one y is written.
    assert_eq!(pair.cost().bytes, 2.0 * (24.0 * 24.0 + 3.0 * 24.0 + 3.0 * 24.0));
    for problems in [
        vec![product(8, 24)],
        vec![product(8, 24), product(8, 16)],
        vec![product(8, 24), product(8, 24).with_bias(true)],
        vec![product(8, 24).with_residual(true), product(8, 24)],
        vec![product(8, 24), product(8, 24).with_activation(Activation::Relu)],
        vec![product(8, 24); 3],
    ] {
        let refused = gated(&problems).validate();
        assert!(matches!(&refused, Err(Error::Invalid { subject, .. }) if subject == "grouped_linear: gate"), "{refused:?}");
    }
}
