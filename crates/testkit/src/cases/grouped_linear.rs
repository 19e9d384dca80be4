//! Cases of products of one number of rows: of the same x or of parts of rows that lie between factors, of widths that differ.

use super::case::{Case, OpKind, Posed};
use crate::oracle::grouped_linear::Host;
use trifuse::dtype::DType;
use trifuse::ops::{Activation, GroupedLinear, Linear};

/// A case of products of these outputs and K, each changed by `of`. Where `shares`, all read the x of the first.
fn case(name: impl std::fmt::Display, dtype: DType, tokens: u64, sizes: &[[u64; 2]], shares: bool, of: impl Fn(usize, Linear) -> Linear) -> Case {
    let problem = |(n, &[d_out, d_in]): (usize, &[u64; 2])| of(n, Linear::new(dtype, [tokens, d_in, d_out]).with_padded_weights());
    of_group(name, GroupedLinear::new(sizes.iter().enumerate().map(problem).collect()), shares)
}

/// A case of a gate and what it lets through, of these K, which read rows between factors.
fn gated(name: impl std::fmt::Display, dtype: DType, [tokens, d_out]: [u64; 2], depths: [u64; 2], activation: Activation) -> Case {
    let problem = |d_in| Linear::new(dtype, [tokens, d_in, d_out]).with_padded_weights().with_x_stride(depths[0] + depths[1]);
    of_group(format!("gated_{name}"), GroupedLinear::new(depths.map(problem).into()).with_gate(activation), false)
}

/// A case of a group. Where `shares`, all read the x of the first.
fn of_group(name: impl std::fmt::Display, op: GroupedLinear, shares: bool) -> Case {
    let dtype = op.dtype();
    Case::new(OpKind::GroupedLinear, format!("{name}_{dtype}"), move |draw| {
        let mut problems: Vec<_> = op.problems.iter().map(|problem| Posed::<Linear>::draw(problem.clone(), draw).host).collect();
        if let (true, Some((first, others))) = (shares, problems.split_first_mut()) {
            others.iter_mut().for_each(|own| own.x.clone_from(&first.x));
        }
        Ok(Posed { op: op.clone(), host: Host { problems } }.into())
    })
}

fn half(n: usize) -> DType {
    [DType::F16, DType::BF16][n % 2]
}

pub(super) fn cases() -> Vec<Case> {
    let plain = |_, op| op;
    let everything = |n: usize, op: Linear| op.with_bias(n != 1).with_residual(n != 2).with_activation((n == 0).then_some(Activation::Relu));
    // Rows between factors: each part's K is some columns of them.
    let between = |_, op: Linear| op.with_x_stride(520);
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        cases.push(case("one", dtype, 5, &[[67, 40]], false, plain));
        cases.push(case("qkv", dtype, 7, &[[72, 40], [24, 40], [24, 40]], true, plain));
        cases.push(case("everything", dtype, 11, &[[41, 33], [72, 64], [130, 72]], false, everything));
        cases.push(case("no_tokens", dtype, 0, &[[40, 33], [24, 16]], false, plain).zero("zero tokens: nothing is written"));
        cases.push(case("eight", dtype, 3, &[[24, 16]; 8], false, everything));
    }
    for (n, tokens) in [1, 2, 8, 16, 17, 40, 70, 150].into_iter().enumerate() {
        cases.push(case(format!("factors_tokens{tokens}"), half(n), tokens, &[[264, 176], [136, 64], [130, 280]], false, between));
        cases.push(case(format!("same_x_tokens{tokens}"), half(n + 1), tokens, &[[328, 136], [200, 136]], true, plain));
    }
    // Widths far from each other; more tiles than blocks, in each; a K of one step and of many; rows of an odd length.
    cases.push(case("widths", DType::F16, 4, &[[4100, 72], [8, 264], [1000, 136]], false, everything));
    cases.push(case("widths_many_blocks", DType::BF16, 16, &[[9003, 72], [3, 72], [17_001, 40]], false, plain));
    cases.push(case("long_k", DType::F16, 3, &[[264, 2056], [72, 8]], false, plain));
    cases.push(case("odd", DType::BF16, 9, &[[33, 67], [201, 75]], false, everything));
    cases.push(case("gelu", DType::F16, 6, &[[72, 64], [40, 64]], true, |_, op| op.with_activation(Some(Activation::GeluErf))));
    cases.push(case("batch_invariant", DType::BF16, 20, &[[264, 136], [72, 136]], true, |_, op| op.with_batch_invariant(true)));
    for dtype in DType::ALL {
        cases.push(gated("silu", dtype, [5, 72], [40, 40], Activation::Silu));
        cases.push(gated("odd", dtype, [3, 41], [33, 67], Activation::Silu));
        cases.push(gated("no_tokens", dtype, [0, 40], [32, 16], Activation::Silu).zero("zero tokens: nothing is written"));
    }
    // A K of one step beside one of many; tiles of a block one after another; every activation.
    for (n, tokens) in [1, 2, 8, 16, 17, 40].into_iter().enumerate() {
        cases.push(gated(format!("tokens{tokens}"), half(n), [tokens, 264], [[176, 176], [136, 320]][n % 2], Activation::Silu));
    }
    for (n, activation) in Activation::ALL.into_iter().enumerate() {
        cases.push(gated(format!("by_{}", activation.name()), half(n), [9, 136], [72, 200], activation));
    }
    cases.push(gated("long_k", DType::F16, [3, 136], [1032, 8], Activation::Silu));
    cases.push(gated("many_blocks", DType::BF16, [4, 17_001], [40, 72], Activation::Silu));
    cases
}
