//! Fused MLP: `Y = act(X·W1ᵀ + b1)·W2ᵀ + b2 + residual`, or gated `Y = (act(X·Wgᵀ) ⊙ (X·W1ᵀ + b1))·W2ᵀ + b2 + residual`.
//!
//! The intermediate is never allocated at full size. A plan's workspace is at most [`MAX_WORKSPACE`], whatever the number of tokens.

use derive_where::derive_where;

use super::setters::setters;
use super::{Access, Activation, Cost, Op, Operand, Translate, expect_present, expect_size, expect_stride};
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Result, ensure};

/// The most workspace a plan may ask for, in bytes: 32 MiB.
pub const MAX_WORKSPACE: u64 = 32 << 20;

/// The descriptor of a fused MLP. Sizes are in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct FusedMlp {
    /// Element type of every operand. Sums are in f32; the intermediate is rounded to this type.
    pub dtype: DType,
    /// Rows of x.
    pub tokens: u64,
    /// Columns of x.
    pub d_model: u64,
    /// Columns of the intermediate.
    pub d_ff: u64,
    /// Columns of y.
    pub d_out: u64,
    /// Elements from a row of x to the next, at least `d_model`. What lies between rows is ignored.
    pub x_stride: u64,
    /// Elements from a row of w1 to the next, and of wg, at least `d_model`. What lies between rows is ignored. A GPU streams rows that
    /// start at multiples of 16 bytes. Where `d_model` or `d_ff` has another length, weights are padded once, when they are loaded:
    /// [`with_padded_weights`](Self::with_padded_weights).
    pub w1_stride: u64,
    /// Elements from a row of w2 to the next, at least `d_ff`. What lies between rows is ignored.
    pub w2_stride: u64,
    /// The activation.
    pub activation: Activation,
    /// Whether the MLP is gated (SwiGLU and its kin, arXiv:2002.05202).
    pub gated: bool,
    /// Whether there is a `b1`.
    pub bias1: bool,
    /// Whether there is a `b2`.
    pub bias2: bool,
    /// Whether there is a residual.
    pub residual: bool,
}

/// The operands of a fused MLP, all of the descriptor's dtype.
#[derive_where(Clone, Debug)]
#[non_exhaustive]
pub struct FusedMlpArgs<D: Device> {
    /// The input rows, `[tokens, d_model]`, a row every `x_stride` elements, read.
    pub x: Slice<D>,
    /// The first weight, `[d_ff, d_model]`, a row every `w1_stride` elements, read. In the gated form it is the up projection.
    pub w1: Slice<D>,
    /// The gate's weight, `[d_ff, d_model]`, a row every `w1_stride` elements, read.
    pub wg: Option<Slice<D>>,
    /// The first bias, `[d_ff]`, read.
    pub b1: Option<Slice<D>>,
    /// The second weight, `[d_out, d_ff]`, a row every `w2_stride` elements, read.
    pub w2: Slice<D>,
    /// The second bias, `[d_out]`, read.
    pub b2: Option<Slice<D>>,
    /// The residual, `[tokens, d_out]`, read.
    pub residual: Option<Slice<D>>,
    /// The result, `[tokens, d_out]`, written.
    pub y: Slice<D>,
}

impl<D: Device> FusedMlpArgs<D> {
    /// The operands of a plain MLP: no gate, biases or residual.
    pub fn new(x: Slice<D>, w1: Slice<D>, w2: Slice<D>, y: Slice<D>) -> Self {
        Self { x, w1, wg: None, b1: None, w2, b2: None, residual: None, y }
    }

    setters! {
        with_x: x = Slice<D>;
        with_w1: w1 = Slice<D>;
        with_wg: wg <- Option<Slice<D>>;
        with_b1: b1 <- Option<Slice<D>>;
        with_w2: w2 = Slice<D>;
        with_b2: b2 <- Option<Slice<D>>;
        with_residual: residual <- Option<Slice<D>>;
        with_y: y = Slice<D>;
    }
}

impl FusedMlp {
    /// An MLP from `[tokens, d_model]` to `[tokens, d_out]` through `d_ff`, everything packed, without gate, biases or residual.
    pub fn new(dtype: DType, [tokens, d_model, d_ff, d_out]: [u64; 4], activation: Activation) -> Self {
        let [x_stride, w1_stride, w2_stride] = [d_model, d_model, d_ff];
        let [gated, bias1, bias2, residual] = [false; 4];
        Self { dtype, tokens, d_model, d_ff, d_out, x_stride, w1_stride, w2_stride, activation, gated, bias1, bias2, residual }
    }

    /// This operation with rows of the weights that start at multiples of 16 bytes ([`DType::row_stride`]), as
    /// [`Session::upload_rows`](crate::session::Session::upload_rows) places them. A row takes at most 15 bytes more.
    #[must_use]
    pub fn with_padded_weights(self) -> Self {
        let [w1_stride, w2_stride] = [self.d_model, self.d_ff].map(|columns| self.dtype.row_stride(columns));
        Self { w1_stride, w2_stride, ..self }
    }

    setters! {
        with_dtype: dtype = DType;
        with_tokens: tokens = u64;
        with_d_model: d_model = u64;
        with_d_ff: d_ff = u64;
        with_d_out: d_out = u64;
        with_x_stride: x_stride = u64;
        with_w1_stride: w1_stride = u64;
        with_w2_stride: w2_stride = u64;
        with_activation: activation = Activation;
        with_gated: gated = bool;
        with_bias1: bias1 = bool;
        with_bias2: bias2 = bool;
        with_residual: residual = bool;
    }
}

impl Op for FusedMlp {
    const NAME: &'static str = "fused_mlp";
    type Args<D: Device> = FusedMlpArgs<D>;

    fn validate(&self) -> Result<()> {
        let (size, dims) = (self.dtype.size(), [self.d_model, self.d_ff, self.d_out]);
        ensure(dims.iter().all(|&dim| dim > 0), "fused_mlp: d_model, d_ff, d_out", "at least 1", format_args!("{dims:?}"))?;
        expect_stride("fused_mlp: x_stride", self.x_stride, self.d_model)?;
        expect_stride("fused_mlp: w1_stride", self.w1_stride, self.d_model)?;
        expect_stride("fused_mlp: w2_stride", self.w2_stride, self.d_ff)?;
        for [rows, columns] in [[self.tokens, self.x_stride], [self.tokens, self.d_out], [self.d_ff, self.w1_stride], [self.d_out, self.w2_stride]] {
            expect_size("fused_mlp", &[rows, columns, size])?;
        }
        Ok(())
    }

    fn sizes(&self) -> [u64; 3] {
        [self.tokens, self.d_out, self.d_ff]
    }

    fn cost(&self) -> Cost {
        let (tokens, d_model, d_ff, d_out) = (self.tokens as f64, self.d_model as f64, self.d_ff as f64, self.d_out as f64);
        let weights = d_ff * d_model * if self.gated { 2.0 } else { 1.0 } + d_out * d_ff;
        let flops = 2.0 * tokens * weights;
        let rows = tokens * (d_model + d_out * if self.residual { 2.0 } else { 1.0 });
        let bias = if self.bias1 { d_ff } else { 0.0 } + if self.bias2 { d_out } else { 0.0 };
        Cost { executed_flops: flops, useful_flops: flops, dense_flops: flops, bytes: (weights + rows + bias) * self.dtype.size() as f64 }
    }

    fn translate<A: Device, B: Device>(args: &FusedMlpArgs<A>, to: &Translate<'_, A, B>) -> Result<FusedMlpArgs<B>> {
        Ok(FusedMlpArgs {
            x: to.slice(&args.x)?,
            w1: to.slice(&args.w1)?,
            wg: to.if_any(&args.wg)?,
            b1: to.if_any(&args.b1)?,
            w2: to.slice(&args.w2)?,
            b2: to.if_any(&args.b2)?,
            residual: to.if_any(&args.residual)?,
            y: to.slice(&args.y)?,
        })
    }

    fn operands<'a, D: Device>(&self, args: &'a FusedMlpArgs<D>, see: &mut dyn FnMut(Operand<'a, D>)) -> Result<()> {
        let mut rows = |name, slice: &'a Slice<D>, shape: [u64; 2], stride: u64| see(Operand::pitched(name, Access::Read, slice, shape, stride, self.dtype));
        rows("x", &args.x, [self.tokens, self.d_model], self.x_stride);
        rows("w1", &args.w1, [self.d_ff, self.d_model], self.w1_stride);
        rows("w2", &args.w2, [self.d_out, self.d_ff], self.w2_stride);
        for (name, slice, wanted, shape, stride) in [
            ("wg", &args.wg, self.gated, [self.d_ff, self.d_model], self.w1_stride),
            ("b1", &args.b1, self.bias1, [1, self.d_ff], self.d_ff),
            ("b2", &args.b2, self.bias2, [1, self.d_out], self.d_out),
            ("residual", &args.residual, self.residual, [self.tokens, self.d_out], self.d_out),
        ] {
            expect_present(Self::NAME, name, wanted, slice.is_some())?;
            if let Some(slice) = slice {
                rows(name, slice, shape, stride);
            }
        }
        see(Operand::packed("y", Access::Write, &args.y, self.tokens * self.d_out, self.dtype));
        Ok(())
    }
}
