//! Attention of many queries whose heads and rows do not start on multiples of 16 bytes, and heads of every width.

use super::attention::{Scores, case_with};
use super::attention_forms::{ALL, Blocks, block_case, varlen_case};
use super::case::Case;
use crate::oracle::attention::HostForm;
use trifuse::dtype::DType;
use trifuse::ops::attention::{Attention, Strides};

fn case(name: impl std::fmt::Display, op: Attention) -> Case {
    case_with(name, op.with_lse(true), Scores::Normal, |_, _| Ok(HostForm::None))
}

fn causal(op: Attention) -> Attention {
    op.with_causal(true)
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = widths();
    cases.extend(odd_heads());
    for dtype in [DType::F16, DType::BF16] {
        // Tokens lie 8 · d elements apart, so that only heads start elsewhere; each at a remainder of its own.
        cases.push(case("many_queries_d107_h8", Attention::dense(dtype, 2, [8, 8], [130, 200], 107)));
        cases.push(case("many_queries_d107_h16_to_8_causal", causal(Attention::dense(dtype, 1, [16, 8], [129, 300], 107))));
        cases.push(case("many_queries_d127_h8", Attention::dense(dtype, 1, [8, 8], [66, 140], 127)));
        // Tokens start elsewhere too.
        cases.push(case("many_queries_d107_h3", Attention::dense(dtype, 2, [3, 1], [130, 200], 107)));
        let (queries, keys) = (Strides::bhsd(133, 3, 101), Strides::bhsd(257, 3, 101));
        let op = Attention::dense(dtype, 2, [3, 3], [133, 257], 101);
        cases.push(case("many_queries_d101_heads_first", causal(op.with_q(queries).with_k(keys).with_v(keys).with_o(queries))));
    }
    cases.push(case("many_queries_window_d107_h8", causal(Attention::dense(DType::F16, 1, [8, 8], [200, 200], 107)).with_window(Some(60))));
    // Query, key and value in one row of a projection, with slack; only the keys' sequences lie an odd number of elements apart.
    let row = Strides { batch: 440 * 100, token: 440, head: 107 };
    let op = Attention::dense(DType::F16, 2, [2, 1], [100, 100], 107);
    let packed = op.with_q(row).with_k(Strides { batch: 440 * 100 + 1, ..row }).with_v(row);
    cases.push(case("many_queries_strided_d107", packed.clone()));
    cases.push(case("many_queries_strided_d107_causal", causal(packed).with_dtype(DType::BF16)));
    // Few tiles and many keys: several blocks share a tile's.
    let keys = Strides { batch: 2100 * 216, token: 216, head: 107 };
    let op = Attention::dense(DType::F16, 1, [2, 2], [130, 2100], 107);
    cases.push(case("many_queries_kv2100_d107", op.with_k(keys).with_v(keys)));
    let blocks = || Blocks { lengths: [300, 300], block: 128, patterns: 1, kinds: ALL };
    cases.push(block_case("blocks128_d107_h8", Attention::dense(DType::F16, 1, [8, 8], [1, 1], 107), blocks()));
    cases.push(block_case("blocks128_d75_h3", causal(Attention::dense(DType::BF16, 1, [3, 3], [1, 1], 75)), blocks()));
    for dtype in [DType::F16, DType::BF16] {
        cases.extend(varlen_case("varlen_d107", dtype, [4, 2], 107, [&[70, 0, 131], &[90, 3, 131]], |op| op.causal = true));
    }
    cases
}

/// Every width that a kernel may be compiled for, and one in between.
fn widths() -> Vec<Case> {
    let mut cases = Vec::new();
    let to_128 = [1, 8, 31, 32, 48, 63, 72, 80, 81, 96, 104, 112, 113, 120];
    let to_256 = [129, 136, 144, 160, 170, 176, 185, 192, 200, 208, 224, 240, 255, 256];
    for (n, head_dim) in to_128.into_iter().chain(to_256).enumerate() {
        let op = |n: usize| Attention::dense([DType::F16, DType::BF16][n % 2], 1, [2, 2], [70, 150], head_dim);
        cases.push(case(format!("many_queries_d{head_dim}"), op(n)));
        cases.push(case(format!("many_queries_d{head_dim}_causal"), causal(op(n + 1))));
    }
    cases
}

/// Tokens of keys and values lie multiples of 16 bytes apart, and their heads do not: of every width that a kernel is compiled for, with elements past
/// its last column and without.
fn odd_heads() -> Vec<Case> {
    let mut cases = Vec::new();
    let dense = |n, heads, lengths, head_dim| Attention::dense([DType::F16, DType::BF16][n % 2], 1, heads, lengths, head_dim);
    for (n, head_dim) in [7, 31, 35, 63, 75, 95, 97, 109, 127].into_iter().enumerate() {
        // More tiles than a GPU has SMs, so that groups do not share one.
        cases.push(case(format!("odd_heads_d{head_dim}"), dense(n, [8, 8], [70, 150], head_dim).with_batch(9)));
        cases.push(case(format!("odd_heads_d{head_dim}_causal"), causal(dense(n + 1, [8, 8], [130, 180], head_dim).with_batch(9))));
    }
    for (n, head_dim) in [129, 143, 159, 163, 175, 185, 191, 199, 207, 223, 239, 255].into_iter().enumerate() {
        cases.push(case(format!("odd_heads_d{head_dim}"), dense(n, [8, 8], [70, 300], head_dim)));
        cases.push(case(format!("odd_heads_d{head_dim}_causal"), causal(dense(n + 1, [8, 8], [270, 330], head_dim))));
    }
    // Two neighbours share their keys.
    for (n, (head_dim, keys)) in [(75, 1925), (127, 1925), (205, 1205), (255, 1205)].into_iter().enumerate() {
        cases.push(case(format!("odd_heads_pairs_of_tiles_d{head_dim}"), dense(n, [40, 40], [130, keys], head_dim)));
    }
    // Queries in another order than keys; keys and values with room of their own between heads, or whole heads apart.
    let op = dense(0, [8, 8], [140, 290], 107);
    let queries = Strides::bhsd(140, 8, 107);
    cases.push(case("odd_heads_q_heads_first", causal(op.clone().with_q(queries).with_o(queries))));
    cases.push(case("odd_heads_k_padded", op.clone().with_k(Strides { batch: 0, token: 896, head: 112 })));
    cases.push(case("odd_heads_v_spaced", op.with_v(Strides { batch: 0, token: 888, head: 110 })));
    let spaced = Strides { batch: 0, token: 800, head: 99 };
    cases.push(case("odd_heads_d96", dense(1, [8, 8], [140, 290], 96).with_q(spaced).with_k(spaced).with_v(spaced)));
    cases
}
