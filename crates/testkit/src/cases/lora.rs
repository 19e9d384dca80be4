//! Cases of the codebook GEMM in the form of LoRA as it is trained: both factors dense, and each adapter's own.

use super::case::{Case, EDGES, dtype_in_turn};
use super::codebook_gemm::{Assignment, case};
use trifuse::dtype::DType;
use trifuse::ops::CodeWidth;
use trifuse::ops::codebook_gemm::{CodebookGemm, CodebookSlice, Factor, ScaledBy};

/// Slices of these columns and ranks, each of whose adapters has factors of its own.
fn lora(dtype: DType, tokens: u64, d_in: u64, slices: &[(u64, u64)], adapters: u32) -> CodebookGemm {
    let own = Factor::Dense { bases: adapters };
    let stride = slices.iter().map(|(d_out, _)| d_out).sum();
    let slices = slices.iter().map(|&(d_out, rank)| CodebookSlice::new(d_out, rank, own, own).with_y_stride(stride)).collect();
    CodebookGemm::s2lc(dtype, tokens, [d_in, 1, 1], adapters, CodeWidth::FourThree).with_slices(slices)
}

pub(super) fn cases() -> Vec<Case> {
    let mixed = Assignment::Mixed;
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        cases.push(case("lora", lora(dtype, 33, 64, &[(96, 16)], 6), mixed));
        cases.push(case("lora_overwrite_odd", lora(dtype, 21, 41, &[(57, 7)], 6).with_accumulate(false), mixed));
        cases.push(case("lora_gates", lora(dtype, 37, 64, &[(96, 16)], 6).with_scaled_by(ScaledBy::Token), mixed));
        cases.push(case("lora_three_slices", lora(dtype, 70, 136, &[(64, 16), (24, 8), (520, 16)], 6), mixed));
        // More slices than one launch takes.
        cases.push(case("lora_ten_slices", lora(dtype, 19, 72, &[(40, 8); 10], 6), mixed));
        // Many tokens of each: units of one adapter, and what is left over.
        cases.push(case("lora_runs200", lora(dtype, 200, 136, &[(392, 16)], 6), Assignment::Runs));
        cases.push(case("lora_one_of_many", lora(dtype, 150, 72, &[(40, 16)], 100).with_accumulate(false), Assignment::One));
        // More segments than a warp reads at once.
        cases.push(case("lora_segments", lora(dtype, 400, 40, &[(48, 16)], 300).with_accumulate(false), mixed));
    }
    for (n, rank) in [1, 4, 8, 12, 16, 17, 24, 32, 33, 64, 65, 100, 128, 130, 200, 256].into_iter().enumerate() {
        cases.push(case(format!("lora_rank{rank}"), lora(dtype_in_turn(n), 20, 72, &[(80, rank)], 3), mixed));
    }
    for (n, edge) in EDGES.into_iter().enumerate() {
        cases.push(case(format!("lora_tokens{edge}"), lora(dtype_in_turn(n), edge, 40, &[(56, 16)], 6), mixed));
        cases.push(case(format!("lora_d_in{edge}"), lora(dtype_in_turn(n + 1), 6, edge, &[(56, 16)], 6), mixed));
        cases.push(case(format!("lora_d_out{edge}"), lora(dtype_in_turn(n + 2), 6, 40, &[(edge, 16)], 6).with_accumulate(false), mixed));
    }
    let half = |n: usize| [DType::F16, DType::BF16][n % 2];
    // Several shares of d_in and of the columns, with a rest: of one adapter they are shorter.
    for (n, (rank, adapters)) in [(16, 1), (16, 5), (32, 5), (64, 5), (128, 2), (256, 2)].into_iter().enumerate() {
        let op = lora(half(n), 35, 2088, &[(1112, rank)], adapters).with_accumulate(n % 2 == 0);
        cases.push(case(format!("lora_shares_rank{rank}_of{adapters}"), op, mixed));
    }
    // More shares than a cluster has blocks.
    cases.push(case("lora_d_in9000", lora(DType::F16, 18, 9000, &[(40, 16)], 3), mixed));
    cases.push(case("lora_strided", lora(DType::F16, 11, 40, &[(33, 8), (24, 8)], 6).with_x_stride(53), mixed));
    cases.push(
        case("lora_base_only", lora(DType::F16, 9, 32, &[(32, 8)], 6).with_accumulate(false), Assignment::BaseOnly)
            .zero("no token has an adapter: zeros are written"),
    );
    cases.push(case("lora_no_tokens", lora(DType::F16, 0, 32, &[(32, 8)], 6), mixed).zero("zero tokens: nothing is written"));
    // A basis that all share, on either side.
    for (name, sides) in [("input", [2, 6]), ("output", [6, 2])] {
        let [input, output] = sides.map(|bases| Factor::Dense { bases });
        let op = lora(DType::BF16, 23, 50, &[(61, 18)], 6).with_slices(vec![CodebookSlice::new(61, 18, input, output)]);
        cases.push(case(format!("lora_shared_{name}"), op, mixed));
    }
    cases
}
