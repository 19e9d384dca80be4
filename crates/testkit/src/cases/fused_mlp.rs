use super::case::{Case, EDGES, OpKind, Posed, dtype_in_turn};
use super::draw::Draw;
use crate::oracle::fused_mlp::Host;
use trifuse::dtype::DType;
use trifuse::ops::{Activation, FusedMlp};

impl Posed<FusedMlp> {
    /// Draws the operands of `op`.
    pub fn draw(op: FusedMlp, draw: &mut Draw) -> Self {
        let dtype = op.dtype;
        let (input, inner) = (1.0 / (op.d_model as f64).sqrt(), 2.0 / (op.d_ff as f64).sqrt());
        let host = Host {
            x: draw.normal(dtype, op.tokens * op.d_model, 1.0),
            w1: draw.normal(dtype, op.d_ff * op.d_model, input),
            wg: draw.optional(op.gated, dtype, op.d_ff * op.d_model, input),
            b1: draw.optional(op.bias1, dtype, op.d_ff, 0.5),
            w2: draw.normal(dtype, op.d_out * op.d_ff, inner),
            b2: draw.optional(op.bias2, dtype, op.d_out, 0.5),
            residual: draw.optional(op.residual, dtype, op.tokens * op.d_out, 1.0),
        };
        Self { op, host }
    }
}

/// No gate, bias or residual; GELU in its tanh form.
fn op(dtype: DType, tokens: u64, [d_model, d_ff, d_out]: [u64; 3]) -> FusedMlp {
    FusedMlp::new(dtype, [tokens, d_model, d_ff, d_out], Activation::GeluTanh)
}

fn gated(dtype: DType, tokens: u64, dims: [u64; 3]) -> FusedMlp {
    op(dtype, tokens, dims).with_gated(true).with_activation(Activation::Silu)
}

fn case(name: impl std::fmt::Display, op: FusedMlp) -> Case {
    Case::new(OpKind::FusedMlp, format!("{name}_{}", op.dtype), move |draw| Ok(Posed::<FusedMlp>::draw(op.clone(), draw).into()))
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, edge) in EDGES.into_iter().enumerate() {
        cases.push(case(format!("tokens{edge}"), op(dtype_in_turn(n), edge, [24, 40, 24])));
        cases.push(case(format!("d_model{edge}"), gated(dtype_in_turn(n + 1), 5, [edge, 48, edge])));
        cases.push(case(format!("d_ff{edge}"), op(dtype_in_turn(n + 2), 5, [40, edge, 33])));
    }
    for dtype in DType::ALL {
        cases.push(case("no_tokens", op(dtype, 0, [16, 32, 16])).zero("zero tokens: nothing is written"));
        cases.push(case("d_ff4096", op(dtype, 3, [32, 4096, 48])));
        let everything = op(dtype, 33, [65, 130, 65]).with_bias1(true).with_bias2(true).with_residual(true).with_activation(Activation::GeluErf);
        cases.push(case("everything", everything.clone()));
        cases.push(case("gated_everything", everything.clone().with_gated(true).with_activation(Activation::Silu)));
        // Several tiles along every axis, none of them whole.
        let FusedMlp { bias1, bias2, residual, activation, .. } = everything;
        let tiles = op(dtype, 300, [200, 328, 264]).with_bias1(bias1).with_bias2(bias2).with_residual(residual).with_activation(activation);
        cases.push(case("tiles_everything", tiles.clone()));
        cases.push(case("tiles_gated_everything", tiles.with_gated(true).with_activation(Activation::GeluTanh)));
    }
    for (n, activation) in Activation::ALL.into_iter().enumerate() {
        cases.push(case(activation.name(), op(dtype_in_turn(n), 9, [33, 70, 47]).with_activation(activation)));
        cases.push(case(format!("gated_{}", activation.name()), gated(dtype_in_turn(n + 1), 9, [33, 70, 47]).with_activation(activation)));
    }
    // Few tokens, for kernels that stream the weights: every width of a tile, both forms.
    for (n, tokens) in [2, 16, 17, 64, 65, 128].into_iter().enumerate() {
        let dims = [200, 1112, if n < 3 { 264 } else { 1003 }];
        let everything = op(DType::F16, tokens, dims).with_bias1(true).with_bias2(true).with_residual(true);
        cases.push(case(format!("few_tokens{tokens}"), everything.clone()));
        cases.push(case(format!("gated_few_tokens{tokens}"), everything.with_dtype(DType::BF16).with_gated(true).with_activation(Activation::Silu)));
    }
    // As many outputs as there are tiles for most of an H200's SMs, a block each.
    let ahead = |op: FusedMlp| op.with_bias1(true).with_bias2(true).with_residual(true);
    cases.push(case("ahead", ahead(op(DType::F16, 66, [24, 8640, 3144]))));
    // Two tiles a block; gated, one and two.
    cases.push(case("ahead_twice", ahead(op(DType::F16, 66, [24, 24_000, 3144]))));
    cases.push(case("gated_ahead", ahead(gated(DType::BF16, 127, [24, 9000, 3144]))));
    cases.push(case("gated_ahead_twice", ahead(gated(DType::F16, 72, [24, 17_001, 3144]).with_padded_weights())));
    // The same for four SMs, and rings that go round.
    cases.push(case("ahead_tiles", ahead(op(DType::F16, 66, [328, 613, 128]).with_padded_weights())));
    cases.push(case("gated_ahead_tiles", ahead(gated(DType::F16, 66, [328, 368, 128]))));
    // Rows of an odd length that start on multiples of 16 bytes, as weights are loaded: of the weights, and of x as well; and that do not.
    for (n, tokens) in [1, 5, 16, 40, 70, 128, 300].into_iter().enumerate() {
        let dims = [[131, 264, 131], [131, 203, 133], [136, 203, 64]][n % 3];
        let everything = op(DType::F16, tokens, dims).with_bias1(true).with_bias2(true).with_residual(true);
        let wide = gated(DType::BF16, tokens, dims);
        cases.push(case(format!("padded_w_tokens{tokens}"), everything.clone().with_padded_weights()));
        cases.push(case(format!("gated_padded_w_tokens{tokens}"), wide.clone().with_padded_weights()));
        cases.push(case(format!("padded_tokens{tokens}"), everything.with_x_stride(152).with_padded_weights()));
        cases.push(case(format!("gated_padded_tokens{tokens}"), wide.with_x_stride(136).with_padded_weights()));
    }
    for dtype in DType::ALL {
        let strided = gated(dtype, 9, [33, 70, 47]).with_x_stride(39).with_w1_stride(40).with_w2_stride(75).with_bias1(true).with_residual(true);
        cases.push(case("strided", strided));
    }
    // A first product that fills SMs best in tiles of 168 outputs: the last tile cut short, and whole.
    for (dtype, d_ff, activation) in [(DType::F16, 4408, Activation::GeluErf), (DType::BF16, 4536, Activation::GeluTanh)] {
        let fitted = op(dtype, 300, [72, d_ff, 41]).with_bias1(true).with_residual(true).with_activation(activation);
        cases.push(case(format!("fitted_tiles{d_ff}"), fitted));
    }
    // Products that fill SMs best in other widths: the first one's, gated too, and the second one's, written whole and not.
    for (n, [d_model, d_ff, d_out]) in
        [[72, 6008, 24], [72, 7000, 24], [24, 72, 5000], [24, 72, 5003], [24, 72, 6000], [24, 72, 6003], [24, 72, 7000], [24, 72, 7001]].into_iter().enumerate()
    {
        let dtype = if n % 2 == 0 { DType::F16 } else { DType::BF16 };
        let wide = op(dtype, 300, [d_model, d_ff, d_out]).with_bias1(true).with_bias2(true).with_residual(true);
        cases.push(case(format!("widths{}", d_ff.max(d_out)), wide));
    }
    // Tiles of two widths.
    for (n, dims) in [[72, 27_000, 24], [72, 27_496, 24], [24, 72, 42_000]].into_iter().enumerate() {
        let dtype = if n % 2 == 0 { DType::F16 } else { DType::BF16 };
        let wide = op(dtype, 130, dims).with_bias1(true).with_bias2(true).with_residual(true);
        cases.push(case(format!("two_widths{}", dims[1].max(dims[2])), wide));
    }
    // A first product whose tiles warpgroups take in turn.
    let in_turns = op(DType::F16, 2060, [136, 2544, 24]).with_bias1(true).with_residual(true).with_activation(Activation::GeluErf);
    cases.push(case("in_turns", in_turns));
    cases.push(case("gated_widths3000", gated(DType::F16, 300, [72, 3000, 24])));
    // More outputs than K is split for, more than blocks have rows for, and a longer intermediate than that.
    cases.push(case("few_tokens_wide", op(DType::BF16, 5, [40, 128, 5003])));
    cases.push(case("few_tokens_wider", op(DType::F16, 3, [40, 48, 17_001])));
    cases.push(case("gated_few_tokens_deep", gated(DType::F16, 3, [40, 17_008, 24])));
    let plain = op(DType::F16, 17, [48, 96, 64]);
    cases.push(case("bias1", plain.clone().with_bias1(true)));
    cases.push(case("bias2", plain.clone().with_bias2(true)));
    cases.push(case("residual", plain.clone().with_residual(true)));
    cases.push(case("gated_bias1", plain.with_bias1(true).with_gated(true)));
    cases.push(case("one_token_wide", gated(DType::F16, 1, [512, 1376, 512])));
    cases.push(case("one_element", op(DType::F32, 1, [1, 1, 1])).orderless("one element"));
    cases.push(case("tokens4096", op(DType::BF16, 4096, [8, 12, 9])));
    cases
}
