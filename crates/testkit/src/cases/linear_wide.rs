//! Cases of products whose outputs are f32 where their operands are not, as logits are.

use super::case::Case;
use super::linear::case;
use trifuse::dtype::DType;
use trifuse::ops::Linear;

fn half(n: usize) -> DType {
    [DType::F16, DType::BF16][n % 2]
}

/// A product of these rows, outputs and K.
fn wide(dtype: DType, [tokens, d_out, d_in]: [u64; 3]) -> Linear {
    Linear::new(dtype, [tokens, d_in, d_out]).with_wide_outputs(true)
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    // Every room for rows, outputs that are whole in eights and that are not.
    for (n, tokens) in [1, 3, 8, 9, 16, 17, 33, 64, 65, 97, 128, 129, 177, 300].into_iter().enumerate() {
        let op = wide(half(n), [tokens, [1000, 1003][n / 2 % 2], 200 + n as u64 % 3 * 8]);
        cases.push(case(format!("wide_tokens{tokens}"), op.with_padded_weights()));
    }
    for dtype in DType::ALL {
        cases.push(case("wide", wide(dtype, [5, 67, 40])));
        cases.push(case("wide_no_tokens", wide(dtype, [0, 40, 33])).zero("zero tokens: nothing is written"));
        for (n, tokens) in [7, 70, 140].into_iter().enumerate() {
            let op = wide(dtype, [tokens, 136 + n as u64, 72]).with_bias(true).with_residual(true);
            cases.push(case(format!("wide_everything{tokens}"), op));
        }
    }
    // Rows of an odd length: w padded or not, copied first or read two bytes at a time.
    for (n, tokens) in [1, 9, 16, 17, 70, 130, 300].into_iter().enumerate() {
        let op = wide(half(n + 1), [tokens, 203, 1001 + n as u64 % 4]);
        cases.push(case(format!("wide_odd_k_tokens{tokens}"), op.clone()));
        cases.push(case(format!("wide_odd_k_padded_w_tokens{tokens}"), op.with_padded_weights()));
    }
    cases.push(case("wide_strided", wide(DType::BF16, [37, 203, 70]).with_x_stride(210).with_w_stride(205)));
    // More tiles of w than blocks; tiles with tokens as wgmma's N, each of those that there are.
    for (n, sizes) in
        [[3, 17_001, 72], [20, 17_008, 72], [50, 9003, 136], [100, 17_001, 72], [150, 2864, 72], [129, 14_864, 136], [200, 16_961, 72]].into_iter().enumerate()
    {
        cases.push(case(format!("wide_tokens{}_n{}", sizes[0], sizes[1]), wide(half(n), sizes)));
    }
    // A long k, whose sums are far longer than what 16 bits tell apart.
    cases.push(case("wide_long_k", wide(DType::BF16, [12, 264, 5000])));
    cases.push(case("wide_long_k_tokens140", wide(DType::F16, [140, 264, 4104])));
    cases
}
