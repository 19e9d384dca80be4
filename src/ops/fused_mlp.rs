//! `Y = act(X·W1ᵀ + b1)·W2ᵀ + b2 + residual`, or gated `Y = (act(X·Wgᵀ) ⊙ (X·W1ᵀ + b1))·W2ᵀ + b2 + residual`.
//!
//! The intermediate is never allocated at full size: a plan's workspace is at most [`MAX_WORKSPACE`], whatever the
//! number of tokens.

use derive_where::derive_where;

use super::{Access, Activation, Cost, Op, Operand, expect_present, product};
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Result, ensure};

/// The most workspace a plan may ask for, in bytes: 32 MiB.
pub const MAX_WORKSPACE: u64 = 32 << 20;

/// The descriptor. Sizes in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FusedMlp {
    /// Of every operand. Sums are in f32; the intermediate is rounded to this type.
    pub dtype: DType,
    /// Rows of x.
    pub tokens: u64,
    /// Columns of x.
    pub d_model: u64,
    /// Columns of the intermediate.
    pub d_ff: u64,
    /// Columns of y.
    pub d_out: u64,
    /// The activation.
    pub activation: Activation,
    /// The gated form (SwiGLU and its kin, arXiv:2002.05202).
    pub gated: bool,
    /// There is a `b1`.
    pub bias1: bool,
    /// There is a `b2`.
    pub bias2: bool,
    /// There is a residual.
    pub residual: bool,
}

/// The operands, all of the descriptor's dtype.
#[derive_where(Clone, Debug)]
pub struct FusedMlpArgs<D: Device> {
    /// `[tokens, d_model]`, read.
    pub x: Slice<D>,
    /// `[d_ff, d_model]`, read; of the gated form the up projection.
    pub w1: Slice<D>,
    /// `[d_ff, d_model]`, read; the gate.
    pub wg: Option<Slice<D>>,
    /// `[d_ff]`, read.
    pub b1: Option<Slice<D>>,
    /// `[d_out, d_ff]`, read.
    pub w2: Slice<D>,
    /// `[d_out]`, read.
    pub b2: Option<Slice<D>>,
    /// `[tokens, d_out]`, read.
    pub residual: Option<Slice<D>>,
    /// `[tokens, d_out]`, written.
    pub y: Slice<D>,
}

impl Op for FusedMlp {
    const NAME: &'static str = "fused_mlp";
    type Args<D: Device> = FusedMlpArgs<D>;

    fn validate(&self) -> Result<()> {
        let (size, dims) = (self.dtype.size(), [self.d_model, self.d_ff, self.d_out]);
        ensure(dims.iter().all(|&dim| dim > 0), "fused_mlp: d_model, d_ff, d_out", "at least 1", format!("{dims:?}"))?;
        for [rows, columns] in [[self.tokens, self.d_model], [self.tokens, self.d_out], [self.d_ff, self.d_model], [self.d_out, self.d_ff]] {
            product("fused_mlp", &[rows, columns, size])?;
        }
        Ok(())
    }

    fn cost(&self) -> Cost {
        let (tokens, d_model, d_ff, d_out) = (self.tokens as f64, self.d_model as f64, self.d_ff as f64, self.d_out as f64);
        let weights = d_ff * d_model * if self.gated { 2.0 } else { 1.0 } + d_out * d_ff;
        let flops = 2.0 * tokens * weights;
        let rows = tokens * (d_model + d_out * if self.residual { 2.0 } else { 1.0 });
        let bias = if self.bias1 { d_ff } else { 0.0 } + if self.bias2 { d_out } else { 0.0 };
        Cost { executed_flops: flops, useful_flops: flops, dense_flops: flops, bytes: (weights + rows + bias) * self.dtype.size() as f64 }
    }

    fn operands<'a, D: Device>(&self, args: &'a FusedMlpArgs<D>, see: &mut dyn FnMut(Operand<'a, D>)) -> Result<()> {
        let size = self.dtype.size();
        let mut required = |name, access, slice: &'a Slice<D>, rows: u64, columns: u64| {
            see(Operand::packed(name, access, slice, rows.saturating_mul(columns), size));
        };
        required("x", Access::Read, &args.x, self.tokens, self.d_model);
        required("w1", Access::Read, &args.w1, self.d_ff, self.d_model);
        required("w2", Access::Read, &args.w2, self.d_out, self.d_ff);
        required("y", Access::Write, &args.y, self.tokens, self.d_out);
        for (name, slice, wanted, rows, columns) in [
            ("wg", &args.wg, self.gated, self.d_ff, self.d_model),
            ("b1", &args.b1, self.bias1, 1, self.d_ff),
            ("b2", &args.b2, self.bias2, 1, self.d_out),
            ("residual", &args.residual, self.residual, self.tokens, self.d_out),
        ] {
            expect_present(Self::NAME, name, wanted, slice.is_some())?;
            if let Some(slice) = slice {
                required(name, Access::Read, slice, rows, columns);
            }
        }
        Ok(())
    }
}
