use super::case::{Case, EDGES, OpKind, Posed, Problem, dtype_in_turn};
use super::codebook_gemm::{Assignment, Population, coded};
use super::draw::Draw;
use crate::oracle::linear::Host;
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::ops::codebook_gemm::Factor;
use trifuse::ops::{Activation, CodeWidth, CodebookGemm, Linear};

impl Posed<Linear> {
    /// Draws the operands of `op`, which has no delta.
    pub fn draw(op: Linear, draw: &mut Draw) -> Self {
        let dtype = op.dtype;
        let host = Host {
            x: draw.normal(dtype, op.tokens * op.d_in, 1.0),
            w: draw.normal(dtype, op.w_rows() * op.d_in, 1.0 / (op.d_in as f64).sqrt()),
            bias: draw.optional(op.bias, dtype, op.d_out, 0.5),
            residual: draw.optional(op.residual, dtype, op.tokens * op.d_out, 1.0),
            delta: None,
            norm: op.norm.map(|_| [draw.normal(dtype, op.d_out, 1.0), draw.normal(dtype, op.d_out, 0.5)]),
            input_norm: draw.optional(op.input_norm.is_some(), dtype, op.d_in, 1.0),
        };
        Self { op, host }
    }

    /// Draws the operands of `op` with `population`'s adapters on top.
    fn draw_with_delta(mut op: Linear, population: &Population, draw: &mut Draw) -> Result<Self> {
        let mut posed = Self::draw(op.clone(), draw);
        let mut delta = population.pose(draw)?;
        for slice in &mut delta.host.slices {
            slice.y.clear();
        }
        delta.host.x.clear();
        posed.host.delta = Some(delta.host);
        op.delta = Some(delta.op);
        posed.op = op;
        Ok(posed)
    }
}

pub(super) fn case(name: impl std::fmt::Display, op: Linear) -> Case {
    Case::new(OpKind::Linear, format!("{name}_{}", op.dtype), move |draw| Ok(Posed::<Linear>::draw(op.clone(), draw).into()))
}

fn with_delta(name: &str, op: Linear, width: CodeWidth, rank: u64) -> Case {
    let delta = CodebookGemm::s2lc(op.dtype, op.tokens, [op.d_in, op.d_out, rank], 5, width).with_x_stride(op.x_stride);
    with_population(name, op, Population::new(delta))
}

fn with_population(name: &str, op: Linear, population: Population) -> Case {
    Case::new(OpKind::Linear, format!("{name}_{}", op.dtype), move |draw| Posed::<Linear>::draw_with_delta(op.clone(), &population, draw).map(Problem::from))
}

/// Few rows with adapters of every form, for kernels that add them to the sums of a product that streams W: tiles of W narrow and wide,
/// more of them than blocks, adapters that are all alike and all different.
fn few_adapted_rows() -> Vec<Case> {
    let delta = |dtype, dims: [u64; 4], width| {
        let [tokens, d_out, d_in, rank] = dims;
        CodebookGemm::s2lc(dtype, tokens, [d_in, d_out, rank], 40, width)
    };
    let full = |dtype, [tokens, d_out, d_in, _]: [u64; 4]| {
        Linear::new(dtype, [tokens, d_in, d_out]).with_bias(true).with_residual(true).with_activation(Some(Activation::Silu))
    };
    let (mixed, widths) = (Assignment::Mixed, [CodeWidth::FourThree, CodeWidth::Four, CodeWidth::Three, CodeWidth::Bytes]);
    let sizes = [
        [16, 1000, 1160, 16],
        [1, 1024, 1024, 8],
        [9, 520, 2568, 64],
        [32, 1001, 648, 11],
        [16, 4300, 136, 16],
        [13, 17_000, 72, 16],
        [32, 600, 648, 16],
        [11, 130, 776, 32],
    ];
    let mut cases = Vec::new();
    for (n, dims) in sizes.into_iter().enumerate() {
        let dtype = if n % 2 == 0 { DType::F16 } else { DType::BF16 };
        let population = Population { assignment: mixed, op: delta(dtype, dims, widths[n % widths.len()]) };
        let name = format!("few_rows{}_n{}_rank{}_delta", dims[0], dims[1], dims[3]);
        cases.push(with_population(&name, full(dtype, dims), population));
    }
    for (name, bases, rank) in [("bases", 3, 20), ("basis", 1, 24)] {
        let dims = [14, 640, 520, rank];
        let mut rich = delta(DType::F16, dims, CodeWidth::FourThree);
        rich.slices[0].core = true;
        rich.slices[0].input = Factor::Dense { bases };
        rich.slices[0].output = coded(None, rich.adapters, dims[1], dims[3]);
        cases.push(with_population(&format!("few_rows_delta_{name}_core_column_widths"), full(DType::F16, dims), Population { op: rich, assignment: mixed }));
    }
    for (name, assignment) in [("one", Assignment::One), ("no", Assignment::BaseOnly), ("runs_of", Assignment::Runs)] {
        let dims = [16, 200, 264, 16];
        let population = Population { assignment, op: delta(DType::BF16, dims, CodeWidth::Four) };
        cases.push(with_population(&format!("few_rows_delta_{name}_adapter"), full(DType::BF16, dims), population));
    }
    cases
}

/// A product with as many projections side by side, each with a core.
fn with_deltas(name: &str, op: Linear, projections: u64) -> Case {
    Case::new(OpKind::Linear, format!("{name}{}_{}", op.d_out, op.dtype), move |draw| {
        let columns = op.d_out / projections;
        let mut delta = CodebookGemm::s2lc(op.dtype, op.tokens, [op.d_in, columns, 16], 5, CodeWidth::FourThree);
        delta.slices[0].core = true;
        delta.slices[0].y_stride = op.d_out;
        delta.slices = vec![delta.slices[0].clone(); projections as usize];
        let population = Population { assignment: Assignment::Runs, ..Population::new(delta) };
        Posed::<Linear>::draw_with_delta(op.clone(), &population, draw).map(Problem::from)
    })
}

/// Rows that do not start on multiples of 16 bytes, of K or of the outputs, with all that an epilogue reads.
fn odd_sizes() -> Vec<Case> {
    let everything =
        |dtype, size: [u64; 3]| Linear::new(dtype, [size[0], size[2], size[1]]).with_bias(true).with_residual(true).with_activation(Some(Activation::GeluErf));
    let mut cases = Vec::new();
    // K odd, even and a multiple of 4; every room for rows, and rows that are copied first.
    for (n, tokens) in [1, 2, 8, 9, 16, 17, 33, 64, 65, 128, 129].into_iter().enumerate() {
        let dtype = if n % 2 == 0 { DType::F16 } else { DType::BF16 };
        cases.push(case(format!("odd_k_tokens{tokens}"), everything(dtype, [tokens, 203, 1001 + n as u64 % 8])));
    }
    for k in [1, 7, 9, 31, 33, 510, 513] {
        cases.push(case(format!("odd_k{k}_one_row"), Linear::new(DType::F16, [1, k, 1100])));
    }
    cases.push(with_delta("odd_k_delta", everything(DType::F16, [5, 264, 203]), CodeWidth::Bytes, 16));
    // Outputs that are whole in eights but not in runs, and that are not; one tile and several, each width of them.
    for (n, d_out) in [1, 7, 63, 65, 136, 255, 257, 331, 584].into_iter().enumerate() {
        let dtype = if n % 2 == 0 { DType::BF16 } else { DType::F16 };
        cases.push(case(format!("odd_n{d_out}_everything"), everything(dtype, [150, d_out, 136])));
    }
    cases.push(case("odd_n_wide_tiles", everything(DType::F16, [2100, 4095, 72])));
    cases.push(case("odd_n_middle_tiles", everything(DType::BF16, [8300, 383, 392])));
    cases.push(case("odd_n_long_k", everything(DType::F16, [70, 1033, 4104])));
    cases.push(with_delta("odd_n_delta", everything(DType::BF16, [150, 333, 72]), CodeWidth::Four, 8));
    cases
}

/// Rows that are normed before the product, and outputs with gates: both and either, in the first and the last of a warp's pieces of K, of one row and of
/// as many as there is room for.
fn normed() -> Vec<Case> {
    let mut cases = Vec::new();
    let sizes = [[1, 576, 960], [16, 576, 1537], [2, 72, 8], [9, 1536, 24], [7, 2056, 16], [16, 2048, 17], [3, 333, 41], [5, 1, 9]];
    for (n, [tokens, d_in, d_out]) in sizes.into_iter().enumerate() {
        let (dtype, norm) = ([DType::F16, DType::BF16, DType::F32][if n == 2 { 2 } else { n % 2 }], Some(1e-5f32.to_bits()));
        let op = Linear::new(dtype, [tokens, d_in, d_out]).with_residual(n % 2 == 0).with_padded_weights();
        let gated = |activation| op.clone().with_gated(true).with_activation(Some(activation));
        let name = format!("{tokens}_k{d_in}");
        cases.push(case(format!("normed{name}"), op.clone().with_input_norm(norm).with_bias(n % 3 == 0)));
        cases.push(case(format!("gated{name}"), gated(Activation::ALL[n % Activation::ALL.len()])));
        cases.push(case(format!("normed_gated{name}"), gated(Activation::Silu).with_input_norm(norm).with_x_stride(op.dtype.row_stride(d_in))));
        cases.push(case(format!("small_w{name}"), op.with_bias(true).with_activation(Some(Activation::Silu))));
    }
    cases
}

/// Rows of an odd length that start on multiples of 16 bytes, as weights are loaded: of w, and of x as well; then rows that start anywhere.
fn rows_apart() -> Vec<Case> {
    let everything =
        |dtype, size: [u64; 3]| Linear::new(dtype, [size[0], size[2], size[1]]).with_bias(true).with_residual(true).with_activation(Some(Activation::GeluTanh));
    let both = |op: Linear| {
        let x_stride = op.dtype.row_stride(op.d_in) + 8;
        op.with_padded_weights().with_x_stride(x_stride)
    };
    let mut cases = Vec::new();
    // Every way to few rows and to many, K odd, even and a multiple of 4.
    for (n, tokens) in [1, 2, 8, 9, 16, 17, 33, 64, 65, 128, 150, 300].into_iter().enumerate() {
        let dtype = if n % 2 == 0 { DType::BF16 } else { DType::F16 };
        let op = everything(dtype, [tokens, 200 + n as u64 % 5, 1001 + n as u64 % 7]);
        cases.push(case(format!("padded_w_tokens{tokens}"), op.clone().with_padded_weights()));
        cases.push(case(format!("padded_tokens{tokens}"), both(op)));
    }
    // Rows that start on lines of a cache, as those between two factors and of second factors do; of x among other columns.
    for (n, tokens) in [1, 16, 70, 130, 300].into_iter().enumerate() {
        let dtype = if n % 2 == 0 { DType::F16 } else { DType::BF16 };
        cases.push(case(format!("on_lines_tokens{tokens}"), everything(dtype, [tokens, 264, 312]).with_x_stride(640).with_w_stride(320)));
    }
    for dtype in DType::ALL {
        let op = everything(dtype, [37, 70, 203]);
        cases.push(case("padded", both(op.clone())));
        // Neither is on multiples of 16 bytes; nor is a row of x whose length is.
        cases.push(case("strided", op.with_x_stride(210).with_w_stride(205)));
        cases.push(case("strided_x", everything(dtype, [20, 41, 200]).with_x_stride(203)));
        cases.push(case("strided_w_one_row", everything(dtype, [1, 141, 200]).with_w_stride(203)));
        cases.push(with_delta("padded_delta", both(everything(dtype, [37, 72, 67])), CodeWidth::Bytes, 16));
    }
    for k in [1, 7, 9, 31, 33, 510, 513] {
        cases.push(case(format!("padded_k{k}_one_row"), Linear::new(DType::F16, [1, k, 1100]).with_padded_weights()));
        cases.push(case(format!("padded_k{k}"), Linear::new(DType::BF16, [70, k, 130]).with_padded_weights()));
    }
    cases.push(with_delta("padded_w_delta", everything(DType::F16, [5, 264, 203]).with_padded_weights(), CodeWidth::Bytes, 16));
    cases.push(case("padded_odd_n", both(everything(DType::F16, [150, 331, 137]))));
    // A short K, where a block keeps its rows of W; whole rows, normalised; a long K, of which blocks take parts.
    cases.push(case("padded_short_k", both(everything(DType::F16, [300, 1152, 77]))));
    let norm = Linear::new(DType::BF16, [130, 77, 384]).with_bias(true).with_residual(true).with_norm(Some(1e-5f32.to_bits()));
    cases.push(case("padded_norm", both(norm)));
    cases.push(case("padded_long_k", everything(DType::F16, [70, 1032, 4101]).with_padded_weights()));
    // Many rows of x that start anywhere, while those of w do not: odd outputs, adapters, more than a band of rows, a stride that is odd of rows that
    // are not.
    cases.push(case("padded_w_odd_n", everything(DType::BF16, [520, 331, 137]).with_padded_weights()));
    cases.push(case("padded_w_tokens513", everything(DType::BF16, [513, 72, 777]).with_padded_weights()));
    cases.push(case("padded_w_bands", everything(DType::F16, [2310, 264, 777]).with_padded_weights()));
    let op = everything(DType::F16, [600, 72, 520]).with_x_stride(523);
    cases.push(case("strided_x_tokens600", op.clone()));
    cases.push(with_delta("strided_x_tokens600_delta", op, CodeWidth::Four, 8));
    // Few of them: tiles of w narrow and wide, more of them than blocks, K in quarters, in steps of which the last is nearly empty.
    for (n, [tokens, d_out, d_in]) in
        [[7, 17_001, 75], [30, 5001, 257], [64, 9003, 131], [50, 203, 4361], [100, 5001, 267], [16, 4097, 385]].into_iter().enumerate()
    {
        let dtype = [DType::F16, DType::BF16][n % 2];
        cases.push(case(format!("padded_w_few_rows{tokens}_n{d_out}"), everything(dtype, [tokens, d_out, d_in]).with_padded_weights()));
    }
    cases
}

/// Rows that tiles of 128 would leave partly empty, for kernels that have tokens as wgmma's N: each of their tiles, the last of rows and of outputs
/// not whole, outputs that are whole in eights and that are not, K in parts of which neither is.
fn across() -> Vec<Case> {
    let sizes = [
        [129, 72, 72],
        [129, 67, 2000],
        [150, 2160, 72],
        [129, 2867, 2000],
        [150, 2864, 72],
        [129, 4264, 72],
        [144, 5760, 648],
        [150, 3464, 4104],
        [129, 14_864, 136],
        [129, 16_960, 72],
    ];
    let everything = |n: usize| {
        let (dtype, activation) = ([DType::F16, DType::BF16][n % 2], (!n.is_multiple_of(3)).then_some(Activation::ALL[n % Activation::ALL.len()]));
        Linear::new(dtype, [sizes[n][0], sizes[n][2], sizes[n][1]]).with_bias(true).with_residual(true).with_activation(activation)
    };
    (0..sizes.len()).map(|n| case(format!("across{}_n{}", sizes[n][0], sizes[n][1]), everything(n))).collect()
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, edge) in EDGES.into_iter().enumerate() {
        cases.push(case(format!("tokens{edge}"), Linear::new(dtype_in_turn(n), [edge, 40, 67])));
        cases.push(case(format!("d_in{edge}"), Linear::new(dtype_in_turn(n + 1), [5, edge, 33])));
        cases.push(case(format!("d_out{edge}"), Linear::new(dtype_in_turn(n + 2), [5, 40, edge])));
    }
    for dtype in DType::ALL {
        cases.push(case("no_tokens", Linear::new(dtype, [0, 40, 33])).zero("zero tokens: nothing is written"));
        cases.push(case("one_element", Linear::new(dtype, [1, 1, 1])).orderless("one element"));
        cases.push(case("k4095", Linear::new(dtype, [3, 4095, 65])));
        cases.push(case("n4095", Linear::new(dtype, [3, 65, 4095])));
        cases.push(case("everything", Linear::new(dtype, [33, 96, 129]).with_bias(true).with_residual(true).with_activation(Some(Activation::GeluErf))));
        // Several tiles along every axis, none of them whole.
        let full = Linear::new(dtype, [300, 648, 328]).with_bias(true).with_residual(true).with_activation(Some(Activation::GeluTanh));
        cases.push(case("tiles_everything", full));
        cases.push(case("tiles", Linear::new(dtype, [200, 1000, 391])));
        cases.push(with_delta("delta_rank16", Linear::new(dtype, [37, 64, 72]), CodeWidth::Bytes, 16));
    }
    // Tiles of two widths on an H200: a wave of wide ones or two, and one that narrower ones fill, of each width.
    for (n, d_out) in [42_000, 27_000, 27_496, 31_000].into_iter().enumerate() {
        let (dtype, activation) = (if n % 2 == 0 { DType::F16 } else { DType::BF16 }, Some(Activation::ALL[n % Activation::ALL.len()]));
        let everything = Linear::new(dtype, [130, 72, d_out]).with_bias(true).with_residual(true).with_activation(activation);
        cases.push(case(format!("two_widths{d_out}"), everything));
    }
    cases.push(case("k4096", Linear::new(DType::F16, [2, 4096, 33])));
    cases.push(case("n4096", Linear::new(DType::BF16, [2, 32, 4096])));
    cases.push(case("tokens4096", Linear::new(DType::F16, [4096, 8, 9])));
    cases.push(case("k4095_n4095", Linear::new(DType::F16, [2, 4095, 4095])));
    cases.push(case("decode_gemv", Linear::new(DType::F16, [1, 768, 512])));
    // Few rows, for kernels that stream W: every width of a tile, K in many steps and in one, more tiles than blocks.
    for (n, tokens) in [2, 16, 17, 64, 65, 128].into_iter().enumerate() {
        let activation = Some(Activation::ALL[n % Activation::ALL.len()]);
        let op = Linear::new(if n % 2 == 0 { DType::F16 } else { DType::BF16 }, [tokens, 1160, 1000])
            .with_bias(true)
            .with_residual(true)
            .with_activation(activation);
        cases.push(case(format!("few_rows{tokens}"), op));
    }
    // A tile of outputs that blocks share, each a part of a long K, where there are four SMs; and two tiles a block.
    for (name, dims) in [("parts", [100, 117, 1480]), ("tiles", [66, 1100, 72])] {
        let few = Linear::new(DType::F16, [dims[0], dims[2], dims[1]]).with_bias(true).with_residual(true).with_activation(Some(Activation::Silu));
        cases.push(case(format!("few_rows_{name}"), few));
    }
    cases.push(case("few_rows_one_step", Linear::new(DType::F16, [100, 8, 1003])));
    cases.push(case("few_rows_wide", Linear::new(DType::BF16, [3, 72, 17_001])));
    // Tiles of 40 rows of w, which both halves of a block take; and so long a k, of so few outputs, that clusters of four share it.
    for (n, tokens) in [3, 30, 50, 100].into_iter().enumerate() {
        let dtype = [DType::F16, DType::BF16][n % 2];
        let op = Linear::new(dtype, [tokens, 264, 5001]).with_bias(true).with_residual(true);
        cases.push(case(format!("few_rows{tokens}_n5001"), op));
        cases.push(case(format!("few_rows{tokens}_k4360"), Linear::new(dtype, [tokens, 4360, 203]).with_bias(true)));
    }
    cases.extend(odd_sizes());
    cases.extend(rows_apart());
    cases.extend(normed());
    // Many rows and a short K, where a block may keep its rows of W: a part of a slab, what is added to the sums, more tiles than stages.
    let short = Linear::new(DType::F16, [1030, 384, 352]).with_bias(true).with_residual(true).with_activation(Some(Activation::GeluErf));
    cases.push(case("short_k", short));
    cases.push(case("short_k_silu", Linear::new(DType::BF16, [1100, 200, 384]).with_activation(Some(Activation::Silu))));
    for (dtype, activation, d_in) in [(DType::F16, None, 264), (DType::BF16, Some(Activation::Relu), 136), (DType::BF16, Some(Activation::GeluErf), 328)] {
        cases.push(case(format!("short_k{d_in}"), Linear::new(dtype, [700, d_in, 352]).with_bias(true).with_activation(activation)));
    }
    cases.push(case("short_k_many_tiles", Linear::new(DType::F16, [5000, 8, 4192]).with_bias(true)));
    // A K that a block asks for at once: outputs that are not whole in tiles, a part of a step.
    for (dtype, activation, sizes) in [(DType::F16, Activation::GeluErf, [200, 264, 128]), (DType::BF16, Activation::Silu, [129, 392, 72])] {
        let op = Linear::new(dtype, [sizes[0], sizes[2], sizes[1]]).with_bias(true).with_residual(true).with_activation(Some(activation));
        cases.push(case(format!("short_k_at_once{}", sizes[2]), op));
    }
    // More tiles of 64 rows than SMs, which warpgroups take in turn; the last ones are narrow.
    for (dtype, activation, d_in) in [(DType::F16, Activation::Silu, 392), (DType::BF16, Activation::GeluErf, 136)] {
        let op = Linear::new(dtype, [2060, d_in, 2544]).with_bias(true).with_residual(true).with_activation(Some(activation));
        cases.push(case(format!("in_turns_k{d_in}"), op));
    }
    cases.extend(across());
    let delta = Linear::new(DType::BF16, [1030, 64, 384]).with_bias(true).with_residual(true).with_activation(Some(Activation::GeluErf));
    cases.push(with_delta("short_k_delta", delta, CodeWidth::Four, 8));
    for (dtype, d_out) in [(DType::F16, 576), (DType::BF16, 1152), (DType::F16, 384)] {
        cases.push(with_deltas("short_k_three_deltas", Linear::new(dtype, [300, 128, d_out]).with_bias(true), 3));
    }
    for (dtype, d_out, width) in [(DType::F16, 384, CodeWidth::Four), (DType::BF16, 352, CodeWidth::FourThree)] {
        let delta = Linear::new(dtype, [700, 520, d_out]).with_bias(true).with_residual(true);
        cases.push(with_delta(&format!("delta_in_product{d_out}"), delta, width, 16));
    }
    for (dtype, tokens, d_in) in [(DType::F16, 700, 520), (DType::BF16, 9000, 72)] {
        let delta = Linear::new(dtype, [tokens, d_in, 384]).with_bias(true).with_residual(true).with_norm(Some(1e-5f32.to_bits()));
        cases.push(with_delta(&format!("norm_delta{tokens}"), delta, CodeWidth::Four, 16));
    }
    // Whole rows, normalised: fewer than a tile, more than a wave of them, K in a part of a k-block and in many, with and without a residual.
    let norm =
        |dtype, sizes: [u64; 3]| Linear::new(dtype, [sizes[0], sizes[2], sizes[1]]).with_bias(true).with_residual(true).with_norm(Some(1e-5f32.to_bits()));
    for (n, edge) in [1, 64, 65, 300].into_iter().enumerate() {
        cases.push(case(format!("norm_tokens{edge}"), norm(if n % 2 == 0 { DType::F16 } else { DType::BF16 }, [edge, 384, 72])));
    }
    for dtype in DType::ALL {
        cases.push(case("norm", norm(dtype, [33, 65, 40])));
        cases.push(case("norm_short_k", norm(dtype, [130, 384, 384])));
    }
    cases.push(case("norm_long_k", norm(DType::F16, [70, 384, 1536])));
    cases.push(case("norm_activation", norm(DType::F16, [40, 384, 64]).with_activation(Some(Activation::Relu))));
    cases.push(case("norm_no_residual", norm(DType::BF16, [200, 384, 128]).with_bias(false).with_residual(false)));
    cases.push(case("norm_many_tiles", norm(DType::BF16, [20_000, 384, 8])));
    // So long a K that blocks of their own may take parts of it.
    let long = Linear::new(DType::F16, [70, 4104, 1032]).with_bias(true).with_residual(true).with_activation(Some(Activation::GeluTanh));
    cases.push(case("long_k", long));
    // The same where they share rows of w too: a quarter of K each, of outputs that are whole in eights and that are not, and half.
    for (dtype, tokens, d_out) in [(DType::F16, 130, 2000), (DType::BF16, 129, 2001), (DType::BF16, 129, 4096)] {
        let op = Linear::new(dtype, [tokens, 5000, d_out]).with_bias(true).with_residual(true).with_activation(Some(Activation::GeluErf));
        cases.push(case(format!("long_k_n{d_out}"), op));
    }
    cases.push(with_delta("long_k_delta", Linear::new(DType::BF16, [130, 5000, 2000]).with_bias(true), CodeWidth::FourThree, 16));
    for (n, activation) in Activation::ALL.into_iter().enumerate() {
        let op = Linear::new(dtype_in_turn(n), [9, 33, 65]).with_activation(Some(activation));
        cases.push(case(activation.name(), op.clone()));
        cases.push(case(format!("bias_{}", activation.name()), op.with_bias(true)));
    }
    cases.push(case("bias", Linear::new(DType::F16, [17, 33, 65]).with_bias(true)));
    cases.push(case("residual", Linear::new(DType::BF16, [17, 33, 65]).with_residual(true)));
    let full = Linear::new(DType::F16, [21, 33, 65]).with_bias(true).with_residual(true).with_activation(Some(Activation::Silu));
    cases.push(with_delta("delta_odd_rank_everything", full, CodeWidth::FourThree, 11));
    cases.extend(few_adapted_rows());
    cases.push(with_delta("delta_one_token", Linear::new(DType::BF16, [1, 127, 129]), CodeWidth::Four, 8));
    cases
}
