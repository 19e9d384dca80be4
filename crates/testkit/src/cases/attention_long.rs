//! Attention whose keys several blocks of a GPU share, and grids with more tiles than a GPU has SMs.

use super::attention::{Scores, case_with};
use super::attention_forms::{ALL, Blocks, FULL, RowLengths, block_case, block_rows_case, paged_case, varlen_case};
use super::case::{Case, dtype_in_turn};
use crate::oracle::attention::HostForm;
use trifuse::dtype::DType;
use trifuse::ops::attention::{Attention, Scale, Strides};

fn case(name: impl std::fmt::Display, op: Attention) -> Case {
    case_with(name, op.with_lse(true), Scores::Normal, |_, _| Ok(HostForm::None))
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = few_queries();
    cases.extend(ragged());
    cases.extend(many_steps());
    cases.extend(tiles());
    cases.extend(wide_tiles());
    cases.extend(uneven_rows());
    cases
}

/// One cache of many steps, for groups of every width.
fn few_queries() -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, group) in [1, 4, 8, 12, 24].into_iter().enumerate() {
        let op = |d| Attention::dense(dtype_in_turn(n), 1, [2 * group, 2], [1, 3001 + 128 * n as u64], d);
        cases.push(case(format!("decode_group{group}"), op(64)));
        cases.push(case(format!("decode_group{group}_d128"), op(128).with_batch(2)));
    }
    for dtype in [DType::F16, DType::BF16] {
        let op = Attention::dense(dtype, 1, [4, 2], [3, 2600], 80);
        cases.push(case("decode_q3_causal", op.clone().with_causal(true)));
        cases.push(case("decode_q3_window", op.clone().with_causal(true).with_window(Some(1700))));
        cases.push(case("decode_scale_negative", op.clone().with_scale(Scale::from(-0.1))));
        cases.push(case("decode_scale_zero", op.with_scale(Scale::from(0.0))));
        cases.push(case("decode_head_dim107", Attention::dense(dtype, 1, [4, 1], [1, 2100], 107)));
        cases.push(case("decode_head_dim256", Attention::dense(dtype, 1, [3, 3], [1, 1500], 256)));
        let heads_first = Strides::bhsd(2500, 2, 96);
        let op = Attention::dense(dtype, 2, [8, 2], [2, 2500], 96);
        cases.push(case("decode_heads_first", op.with_k(heads_first).with_v(heads_first)));
    }
    cases
}

/// Decoding with as many steps as TMA boxes pay for: on four SMs, then on as many as a large GPU has.
fn many_steps() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::BF16] {
        let op = |heads, lengths, d| Attention::dense(dtype, 2, heads, lengths, d);
        cases.push(case("decode_boxes", op([8, 8], [1, 400], 64)));
        cases.push(case("decode_boxes_rows12", op([12, 1], [1, 260], 64).with_batch(22)));
        cases.push(case("decode_boxes_q2_window", op([5, 5], [2, 850], 80).with_causal(true).with_window(Some(170))));
        cases.push(case("decode_boxes_scale_negative", op([16, 16], [1, 150], 96).with_scale(Scale::from(-0.1))));
        cases.push(case("decode_boxes_scale_zero", op([11, 11], [1, 270], 64).with_scale(Scale::from(0.0))));
        let heads_first = Strides::bhsd(135, 16, 112);
        cases.push(case("decode_boxes_heads_first", op([16, 16], [1, 135], 112).with_k(heads_first).with_v(heads_first)));
        // So many that no item is cut: in boxes of two heads, and of one, on four SMs.
        cases.push(case("decode_boxes_whole", op([8, 8], [1, 1500], 64)));
        cases.push(case("decode_boxes_whole_odd", op([8, 4], [1, 2000], 64).with_batch(3)));
        cases.push(paged_case("paged16_boxes", dtype, 16, [8, 8], [1, 64], &[190, 0, 1, 33, 16]));
        cases.push(paged_case("paged64_boxes", dtype, 64, [6, 6], [1, 64], &[65, 600]));
        cases.extend(varlen_case("varlen_boxes", dtype, [4, 4], 64, [&[1, 1, 0, 1, 2], &[0, 1, 40, 400, 20]], |op| op.causal = true));
    }
    cases.push(case("decode_boxes_large", Attention::dense(DType::F16, 9, [32, 16], [1, 1851], 64)));
    cases.push(case("decode_boxes_whole_large", Attention::dense(DType::BF16, 16, [16, 16], [1, 3200], 64)));
    cases.push(paged_case("paged16_boxes_large", DType::BF16, 16, [16, 8], [1, 64], LARGE));
    cases
}

const LARGE: &[i32] = &[1000, 3, 5, 900, 1, 640, 2, 7, 0, 0, 330, 31, 1, 1, 8, 129, 6, 0, 65, 2, 9, 4, 1, 700, 0, 12, 3, 3, 17, 80, 1, 0, 5, 400, 1, 2, 0, 30];

/// Lengths that the device reads: some empty, some of one step, some of many.
fn ragged() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::BF16] {
        cases.push(paged_case("paged16_split", dtype, 16, [8, 2], [1, 64], &[2100, 0, 1, 513, 64]));
        cases.push(paged_case("paged256_split_d128", dtype, 256, [8, 1], [1, 128], &[1, 1900, 0, 300]));
        cases.push(paged_case("paged7_split", dtype, 7, [12, 1], [1, 40], &[1200, 6, 0]));
    }
    // More sequences than a warp has lanes, and rows for two tiles.
    const MANY: &[i32] = &[0, 3, 5, 900, 1, 64, 2, 7, 0, 0, 33, 31, 1, 1, 8, 129, 6, 0, 65, 2, 9, 4, 1, 700, 0, 12, 3, 3, 17, 80, 1, 0, 5, 400, 1, 2, 0, 30];
    cases.push(paged_case("paged16_many", DType::F16, 16, [4, 2], [1, 32], MANY));
    cases.push(paged_case("paged32_two_tiles", DType::BF16, 32, [20, 1], [1, 64], &[600, 0, 1, 2000]));
    cases.extend(varlen_case("varlen_split", DType::F16, [4, 2], 64, [&[1, 1, 0, 1, 2], &[0, 1, 40, 1700, 900]], |op| op.causal = true));
    cases.extend(varlen_case("varlen_split_window", DType::BF16, [4, 1], 128, [&[2, 1, 1], &[1500, 3, 0]], |op| op.window = Some(600)));
    cases
}

/// Tiles of many queries: shared by clusters where they are few, taken one after the other where they are many.
fn tiles() -> Vec<Case> {
    let mut cases = Vec::new();
    let base = |dtype, heads, d| Attention::dense(dtype, 1, heads, [1, 1], d);
    for dtype in [DType::F16, DType::BF16] {
        let causal = |op: Attention| op.with_causal(true);
        cases.push(case("q130_kv2100", Attention::dense(dtype, 1, [2, 1], [130, 2100], 64)));
        cases.push(case("q130_kv2100_causal_d128", causal(Attention::dense(dtype, 1, [1, 1], [130, 2100], 128))));
        cases.push(case("many_heads", Attention::dense(dtype, 2, [70, 70], [65, 130], 16)));
        cases.push(case("many_heads_causal", causal(Attention::dense(dtype, 1, [150, 150], [130, 65], 16))));
        cases.push(case("many_heads_causal_late_first", causal(Attention::dense(dtype, 1, [70, 35], [200, 1096], 16))));
        let long = |patterns, kinds| Blocks { lengths: [300, 2100], block: 128, patterns, kinds };
        cases.push(block_case("blocks128_long", base(dtype, [2, 2], 64), long(1, ALL)));
        cases.push(block_case("blocks128_long_d128", causal(base(dtype, [2, 1], 128)), long(2, FULL)));
        let halves = |patterns, kinds| Blocks { lengths: [330, 2100], block: 64, patterns, kinds };
        cases.push(block_case("blocks64_long", base(dtype, [2, 2], 64), halves(1, ALL)));
        cases.push(block_case("blocks64_long_d128", causal(base(dtype, [2, 1], 128)), halves(2, ALL)));
        let many = Blocks { lengths: [300, 300], block: 64, patterns: 1, kinds: ALL };
        cases.push(block_case("blocks64_many_heads", base(dtype, [50, 25], 16), many));
        let many = Blocks { lengths: [300, 300], block: 128, patterns: 1, kinds: ALL };
        cases.push(block_case("blocks128_many_heads", base(dtype, [50, 25], 16), many));
    }
    // Heads of 64 in more tiles than four SMs, then than a large GPU has.
    for (n, dtype) in [DType::F16, DType::BF16].into_iter().enumerate() {
        let op = |heads, lengths, d| Attention::dense(dtype, 1, heads, lengths, d);
        cases.push(case("quartet", op([5, 5], [65, 470 - n as u64], 64)));
        cases.push(case("quartet_one_step", op([6, 3], [100, 100 + n as u64], 56)));
        cases.push(case("quartet_causal", Attention::dense(dtype, 3, [2, 1], [129, 300], 40).with_causal(true)));
    }
    cases.push(case("quartet_tall", Attention::dense(DType::BF16, 1, [6, 1], [65, 2100], 40)));
    cases.push(case("quartet_large", Attention::dense(DType::F16, 1, [134, 67], [65, 270], 64)));
    cases.push(case("quartet_causal_large", Attention::dense(DType::BF16, 1, [67, 67], [130, 160], 64).with_causal(true)));
    // Enough steps and tiles that two neighbours share their keys.
    cases.push(case("pairs_of_tiles", Attention::dense(DType::F16, 1, [34, 2], [130, 1925], 80)));
    // More pairs than a GPU takes at once, and no multiple of that, so that the last ones are cut.
    cases.push(case("pairs_of_tiles_cut", Attention::dense(DType::BF16, 1, [71, 1], [130, 1925], 72)));
    let windowed = base(DType::F16, [2, 2], 64).with_causal(true).with_window(Some(150));
    cases.push(block_case("blocks128_window_causal", windowed, Blocks { lengths: [500, 500], block: 128, patterns: 1, kinds: FULL }));
    cases
}

/// Tiles of heads of more than 128 elements: few tiles and many keys, a tile a block, several a block, and neighbours that share keys.
fn wide_tiles() -> Vec<Case> {
    let mut cases = Vec::new();
    let causal = |op: Attention| op.with_causal(true);
    let windowed = |op: Attention| op.with_window(Some(100));
    for dtype in [DType::F16, DType::BF16] {
        cases.push(case("q130_kv900_d256", Attention::dense(dtype, 1, [2, 1], [130, 900], 256)));
        cases.push(case("q130_kv900_causal_d192", causal(Attention::dense(dtype, 1, [1, 1], [130, 900], 192))));
        cases.push(case("causal_tiles_d256", causal(Attention::dense(dtype, 1, [3, 1], [330, 330], 256))));
        cases.push(case("causal_tiles_q_longer_d160", causal(Attention::dense(dtype, 2, [2, 2], [300, 190], 160))));
    }
    cases.push(case("many_heads_d144", Attention::dense(DType::F16, 2, [70, 70], [65, 130], 144)));
    cases.push(case("many_heads_causal_d192", causal(Attention::dense(DType::BF16, 1, [68, 4], [140, 150], 192))));
    cases.push(case("many_heads_causal_q_longer_d256", causal(Attention::dense(DType::F16, 1, [50, 50], [300, 65], 256))));
    cases.push(case("many_heads_window_d240", windowed(Attention::dense(DType::BF16, 1, [68, 34], [130, 150], 240))));
    cases.push(case("many_heads_window_causal_d176", windowed(causal(Attention::dense(DType::F16, 1, [68, 34], [140, 180], 176)))));
    cases.push(case("pairs_of_tiles_d208", Attention::dense(DType::F16, 1, [34, 2], [130, 1205], 208)));
    cases.push(case("pairs_of_tiles_d256", Attention::dense(DType::BF16, 1, [34, 2], [130, 1205], 256)));
    cases
}

/// Rows of blocks of very different length, or one alone: a GPU that takes them as they come waits for the longest.
fn uneven_rows() -> Vec<Case> {
    let base = |dtype, batch, heads, d| Attention::dense(dtype, batch, heads, [1, 1], d);
    let causal = |op: Attention| op.with_causal(true);
    let blocks = |lengths, block, patterns, kinds| Blocks { lengths, block, patterns, kinds };
    let power_law = |name, op, blocks| block_rows_case(name, op, blocks, RowLengths::PowerLaw);
    let mut cases = Vec::new();
    for dtype in [DType::F16, DType::BF16] {
        cases.push(power_law("blocks128_power_law", base(dtype, 1, [1, 1], 64), blocks([1100, 1500], 128, 1, FULL)));
        cases.push(power_law("blocks128_power_law_d128", causal(base(dtype, 1, [2, 1], 128)), blocks([700, 1300], 128, 2, ALL)));
        cases.push(power_law("blocks64_power_law", base(dtype, 1, [2, 1], 64), blocks([500, 1200], 64, 1, ALL)));
        let every = |name, op, blocks| block_rows_case(name, op, blocks, RowLengths::Every);
        cases.push(every("blocks128_one_row", base(dtype, 1, [2, 2], 32), blocks([100, 2100], 128, 1, ALL)));
        cases.push(every("blocks64_one_row", causal(base(dtype, 1, [2, 1], 80)), blocks([64, 1000], 64, 1, FULL)));
        cases.push(power_law("blocks128_power_law_per_head", base(dtype, 2, [8, 2], 16), blocks([390, 900], 128, 8, ALL)));
        cases.push(power_law("blocks64_power_law_per_batch_and_head", base(dtype, 2, [2, 1], 32), blocks([300, 700], 64, 4, FULL)));
    }
    // More rows than a block of a GPU has threads.
    cases.push(power_law("blocks128_power_law_many_patterns", base(DType::F16, 1, [100, 50], 16), blocks([400, 400], 128, 100, FULL)));
    let windowed = causal(base(DType::F16, 1, [2, 2], 40)).with_window(Some(300));
    cases.push(power_law("blocks128_power_law_window", windowed, blocks([1000, 1000], 128, 2, FULL)));
    cases
}
