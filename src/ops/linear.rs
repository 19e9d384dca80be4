//! A product with an epilogue, `Y = act(X·Wᵀ + bias + delta) + residual`, or gated `Y = act(X·Gᵀ) ⊙ (X·Wᵀ) + residual`. Rows of X may be normed first. The delta is a [`CodebookGemm`] on the same x, whose slices lie
//! side by side in y. A [layer normalisation](https://arxiv.org/abs/1607.06450) (Ba, Kiros, Hinton 2016) of each row may follow.

use derive_where::derive_where;

use super::setters::setters;
use super::{Access, Activation, CodebookGemm, CodebookGemmArgs, Cost, Op, Operand, ScaledBy, Translate, expect_present, expect_size, expect_stride};
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Result, ensure};

/// The descriptor of a linear layer. Sizes are in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Linear {
    /// Element type of every operand, but of y where outputs are wide. Sums are in f32. Nothing is rounded before y, but a delta may be, once, to this
    /// type.
    pub dtype: DType,
    /// Rows of x (M).
    pub tokens: u64,
    /// Columns of x (K).
    pub d_in: u64,
    /// Columns of y (N).
    pub d_out: u64,
    /// Elements from a row of x to the next, at least `d_in`. What lies between rows is ignored.
    pub x_stride: u64,
    /// Elements from a row of w to the next, at least `d_in`. What lies between rows is ignored. A GPU streams rows that start at multiples
    /// of 16 bytes. Where `d_in` has another length, weights are padded once, when they are loaded:
    /// [`with_padded_weights`](Self::with_padded_weights).
    pub w_stride: u64,
    /// Whether there is a bias.
    pub bias: bool,
    /// The activation, if any.
    pub activation: Option<Activation>,
    /// Whether there is a residual.
    pub residual: bool,
    /// The adapters whose part is added: one slice, packed rows, accumulating.
    pub delta: Option<CodebookGemm>,
    /// The eps of a norm, as the bits of an f32. Every row z becomes (z − mean) / √(variance + eps) · weight + bias, as at the end of a
    /// layer that adds to a residual. Some backends do not take it: `pointwise` has the norm as an operation of its own.
    pub norm: Option<u32>,
    /// The eps of a norm of each row of x before the product, as the bits of an f32: x / √(mean(x²) + eps) · weight, rounded to the operands' type
    /// ([RMSNorm](https://arxiv.org/abs/1910.07467)). There is no delta then. Some backends do not take it, and some only with few and short rows: `pointwise` has it as an
    /// operation of its own.
    pub input_norm: Option<u32>,
    /// Whether outputs are gated: w has `2 · d_out` rows, those of the gate first, and the activation is the gate's. There is no bias then, no delta and no
    /// norm at the end. What is said of `input_norm` holds here too.
    pub gated: bool,
    /// Whether a row of y has the same bits among any other rows, 16 rows and more. Kernels that divide K by the number of rows are left out then. It
    /// holds on one device, with operands that start at multiples of 16 bytes.
    pub batch_invariant: bool,
    /// Whether y is f32, whatever the operands are: sums as they are, which 16 bits would make alike, as logits that are compared. There is no
    /// activation then, no delta, no norm and no gates.
    pub wide_outputs: bool,
}

/// The operands of a norm at the end, of the descriptor's dtype.
#[derive_where(Clone, Debug)]
#[non_exhaustive]
pub struct NormArgs<D: Device> {
    /// The norm's weight, `[d_out]`, read.
    pub weight: Slice<D>,
    /// The norm's bias, `[d_out]`, read.
    pub bias: Slice<D>,
}

impl<D: Device> NormArgs<D> {
    /// The operands of a norm.
    pub fn new(weight: Slice<D>, bias: Slice<D>) -> Self {
        Self { weight, bias }
    }

    setters! {
        with_weight: weight = Slice<D>;
        with_bias: bias = Slice<D>;
    }
}

/// The operands of a linear layer, of the descriptor's dtype, but of y where outputs are wide.
#[derive_where(Clone, Debug)]
#[non_exhaustive]
pub struct LinearArgs<D: Device> {
    /// The input rows, `[tokens, d_in]`, a row every `x_stride` elements, read.
    pub x: Slice<D>,
    /// The weight, `[d_out, d_in]`, twice as many rows where outputs are gated, a row every `w_stride` elements, read.
    pub w: Slice<D>,
    /// The bias, `[d_out]`, read.
    pub bias: Option<Slice<D>>,
    /// The residual, `[tokens, d_out]`, read.
    pub residual: Option<Slice<D>>,
    /// The operands of the delta. Its `x` must be this operation's own. The `y` of each slice must be this operation's y from the slice's
    /// first column on.
    pub delta: Option<CodebookGemmArgs<D>>,
    /// The operands of the norm.
    pub norm: Option<NormArgs<D>>,
    /// The weight of the norm before the product, `[d_in]`, read.
    pub input_norm: Option<Slice<D>>,
    /// The result, `[tokens, d_out]`, written.
    pub y: Slice<D>,
}

impl<D: Device> LinearArgs<D> {
    /// The operands of a plain product: no bias, residual, delta or norm.
    pub fn new(x: Slice<D>, w: Slice<D>, y: Slice<D>) -> Self {
        Self { x, w, bias: None, residual: None, delta: None, norm: None, input_norm: None, y }
    }

    setters! {
        with_x: x = Slice<D>;
        with_w: w = Slice<D>;
        with_bias: bias <- Option<Slice<D>>;
        with_residual: residual <- Option<Slice<D>>;
        with_delta: delta <- Option<CodebookGemmArgs<D>>;
        with_norm: norm <- Option<NormArgs<D>>;
        with_input_norm: input_norm <- Option<Slice<D>>;
        with_y: y = Slice<D>;
    }
}

impl Linear {
    /// The product `Y = X·Wᵀ`, `[tokens, d_in]` times `[d_out, d_in]`ᵀ, both packed.
    pub fn new(dtype: DType, [tokens, d_in, d_out]: [u64; 3]) -> Self {
        Self {
            dtype,
            tokens,
            d_in,
            d_out,
            x_stride: d_in,
            w_stride: d_in,
            bias: false,
            activation: None,
            residual: false,
            delta: None,
            norm: None,
            input_norm: None,
            gated: false,
            batch_invariant: false,
            wide_outputs: false,
        }
    }

    /// This operation with rows of w that start at multiples of 16 bytes ([`DType::row_stride`]), as
    /// [`Session::upload_rows`](crate::session::Session::upload_rows) places them. A row takes at most 15 bytes more, and no launch copies
    /// w.
    #[must_use]
    pub fn with_padded_weights(self) -> Self {
        Self { w_stride: self.dtype.row_stride(self.d_in), ..self }
    }

    /// Whether the delta, if there is one, has one slice, or what is wrong. Some backends take no more.
    pub fn one_slice(&self) -> std::result::Result<(), String> {
        match self.delta.as_ref().map(|delta| delta.slices.len()) {
            Some(count) if count != 1 => Err(format!("a delta of {count} slices: it takes one")),
            _ => Ok(()),
        }
    }

    /// Whether the operation has no norm and no gates, or what is wrong. Some backends never hold whole rows.
    pub fn no_norm(&self) -> std::result::Result<(), String> {
        if self.norm.is_some() { Err("a norm at the end: a launch of its own is for that".into()) } else { self.no_input_norm() }
    }

    /// Whether rows are taken as they are, and outputs have no gates, or what is wrong.
    pub fn no_input_norm(&self) -> std::result::Result<(), String> {
        match (self.input_norm, self.gated) {
            (Some(_), _) => Err("a norm before the product: a launch of its own is for that".into()),
            (None, true) => Err("outputs with gates: a launch of its own is for them".into()),
            (None, false) => Ok(()),
        }
    }

    /// Element type of y.
    pub const fn y_dtype(&self) -> DType {
        if self.wide_outputs { DType::F32 } else { self.dtype }
    }

    /// Whether y has the operands' own type, or what is wrong. Some kernels write no other.
    pub fn no_wide_outputs(&self) -> std::result::Result<(), String> {
        if self.y_dtype() == self.dtype { Ok(()) } else { Err(format!("outputs of f32 from operands of {}: other kernels write them", self.dtype)) }
    }

    /// Rows of w.
    pub fn w_rows(&self) -> u64 {
        if self.gated { self.d_out.saturating_mul(2) } else { self.d_out }
    }

    /// Whether no adapter adds to the operation, or what is wrong. Some kernels cannot add adapters as they multiply.
    pub fn no_delta(&self) -> std::result::Result<(), String> {
        if self.delta.is_some() { Err("adapters: other kernels add them as they multiply".into()) } else { Ok(()) }
    }

    /// Whether a kernel may compute the operation that adds sums up in an order of its own, in parts say, or what is wrong.
    pub fn sums(&self, of_its_own: bool) -> std::result::Result<(), String> {
        if self.batch_invariant && of_its_own { Err("sums in an order of its own, which a row would not have among fewer or more".into()) } else { Ok(()) }
    }

    setters! {
        with_dtype: dtype = DType;
        with_tokens: tokens = u64;
        with_d_in: d_in = u64;
        with_d_out: d_out = u64;
        with_x_stride: x_stride = u64;
        with_w_stride: w_stride = u64;
        with_bias: bias = bool;
        with_activation: activation <- Option<Activation>;
        with_residual: residual = bool;
        with_delta: delta <- Option<CodebookGemm>;
        with_norm: norm = Option<u32>;
        with_input_norm: input_norm <- Option<u32>;
        with_gated: gated = bool;
        with_batch_invariant: batch_invariant = bool;
        with_wide_outputs: wide_outputs = bool;
    }
}

impl Op for Linear {
    const NAME: &'static str = "linear";
    type Args<D: Device> = LinearArgs<D>;

    fn validate(&self) -> Result<()> {
        let (size, dims) = (self.dtype.size(), [self.d_in, self.d_out]);
        ensure(dims.iter().all(|&dim| dim > 0), "linear: d_in, d_out", "at least 1", format_args!("{dims:?}"))?;
        for eps in [self.norm, self.input_norm].into_iter().flatten().map(f32::from_bits) {
            ensure(eps >= 0.0 && eps.is_finite(), "linear: norm: eps", "at least 0 and finite", eps)?;
        }
        let alone = !self.bias && self.norm.is_none() && self.delta.is_none();
        ensure(alone || !self.gated, "linear: gated", "no bias, delta and norm at the end", "one of them")?;
        ensure(self.delta.is_none() || self.input_norm.is_none(), "linear: input norm", "no delta", "one")?;
        let plain = self.activation.is_none() && self.delta.is_none() && self.no_norm().is_ok();
        ensure(plain || !self.wide_outputs, "linear: wide outputs", "no activation, delta, norm and gates", "one of them")?;
        expect_stride("linear: x_stride", self.x_stride, self.d_in)?;
        expect_stride("linear: w_stride", self.w_stride, self.d_in)?;
        for [rows, columns] in [[self.tokens, self.x_stride], [self.tokens, self.d_out], [self.w_rows(), self.w_stride]] {
            expect_size("linear", &[rows, columns, size])?;
        }
        if let Some(delta) = &self.delta {
            delta.validate()?;
            let own = (self.dtype, self.tokens, self.d_in, self.x_stride, ScaledBy::Adapter, true);
            let same = own == (delta.dtype, delta.tokens, delta.d_in, delta.x_stride, delta.scaled_by, delta.accumulate);
            let columns = delta.slices.iter().try_fold(0u64, |sum, slice| sum.checked_add(slice.d_out));
            let whole = columns == Some(self.d_out) && delta.slices.iter().all(|slice| slice.y_stride == self.d_out);
            let wanted = "accumulating slices that make up the operation's own y, on its own x, scaled by adapter";
            ensure(same && whole, "linear: delta", wanted, format_args!("{delta:?}"))?;
        }
        Ok(())
    }

    fn sizes(&self) -> [u64; 3] {
        [self.tokens, self.d_out, self.d_in]
    }

    fn cost(&self) -> Cost {
        let (tokens, d_in, d_out, size) = (self.tokens as f64, self.d_in as f64, self.d_out as f64, self.dtype.size() as f64);
        let delta = self.delta.as_ref().map(Op::cost).unwrap_or_default();
        let rows = self.w_rows() as f64;
        let flops = 2.0 * tokens * d_in * rows + delta.executed_flops;
        let outputs = self.y_dtype().size() as f64 / size + if self.residual { 1.0 } else { 0.0 };
        let elements = tokens * (d_in + d_out * outputs)
            + rows * d_in
            + if self.input_norm.is_some() { d_in } else { 0.0 }
            + if self.bias { d_out } else { 0.0 }
            + if self.norm.is_some() { 2.0 * d_out } else { 0.0 };
        // The delta's x and y are already counted.
        let bytes = elements * size + (delta.bytes - tokens * (d_in + 2.0 * d_out) * size).max(0.0);
        Cost { executed_flops: flops, useful_flops: flops, dense_flops: flops, bytes }
    }

    fn translate<A: Device, B: Device>(args: &LinearArgs<A>, to: &Translate<'_, A, B>) -> Result<LinearArgs<B>> {
        let norm = |norm: &NormArgs<A>| -> Result<NormArgs<B>> { Ok(NormArgs { weight: to.slice(&norm.weight)?, bias: to.slice(&norm.bias)? }) };
        Ok(LinearArgs {
            x: to.slice(&args.x)?,
            w: to.slice(&args.w)?,
            bias: to.if_any(&args.bias)?,
            residual: to.if_any(&args.residual)?,
            delta: args.delta.as_ref().map(|delta| CodebookGemm::translate(delta, to)).transpose()?,
            norm: args.norm.as_ref().map(norm).transpose()?,
            input_norm: to.if_any(&args.input_norm)?,
            y: to.slice(&args.y)?,
        })
    }

    fn operands<'a, D: Device>(&self, args: &'a LinearArgs<D>, see: &mut dyn FnMut(Operand<'a, D>)) -> Result<()> {
        let size = self.dtype.size();
        see(Operand::pitched("x", Access::Read, &args.x, [self.tokens, self.d_in], self.x_stride, self.dtype));
        see(Operand::pitched("w", Access::Read, &args.w, [self.w_rows(), self.d_in], self.w_stride, self.dtype));
        see(Operand::packed("y", Access::Write, &args.y, self.tokens * self.d_out, self.y_dtype()));
        for (name, slice, wanted, rows) in [("bias", &args.bias, self.bias, 1), ("residual", &args.residual, self.residual, self.tokens)] {
            expect_present(Self::NAME, name, wanted, slice.is_some())?;
            if let Some(slice) = slice {
                see(Operand::packed(name, Access::Read, slice, rows * self.d_out, self.dtype));
            }
        }
        expect_present(Self::NAME, "input norm", self.input_norm.is_some(), args.input_norm.is_some())?;
        if let Some(weight) = &args.input_norm {
            see(Operand::packed("input norm", Access::Read, weight, self.d_in, self.dtype));
        }
        expect_present(Self::NAME, "norm", self.norm.is_some(), args.norm.is_some())?;
        if let Some(norm) = &args.norm {
            see(Operand::packed("norm weight", Access::Read, &norm.weight, self.d_out, self.dtype));
            see(Operand::packed("norm bias", Access::Read, &norm.bias, self.d_out, self.dtype));
        }
        expect_present(Self::NAME, "delta", self.delta.is_some(), args.delta.is_some())?;
        if let (Some(op), Some(delta)) = (&self.delta, &args.delta) {
            let same = |a: &Slice<D>, b: &Slice<D>| (D::buffer_id(&a.buffer), a.offset) == (D::buffer_id(&b.buffer), b.offset);
            let mut first = 0;
            let mut own = same(&delta.x, &args.x);
            for (slice, of) in op.slices.iter().zip(&delta.slices) {
                own &= args.y.sub_slice(first * size, args.y.len.saturating_sub(first * size)).is_some_and(|part| same(&of.y, &part));
                first += slice.d_out;
            }
            ensure(own, "linear: delta", "the operation's own x, and parts of its own y side by side", "other memory")?;
            // Its x and y were shown above; showing them again would make y overlap itself.
            op.operands(delta, &mut |operand| {
                if operand.name != "x" && operand.name != "y" {
                    see(operand);
                }
            })?;
        }
        Ok(())
    }
}
