//! A batch of many compressed LoRA adapters, decoded on the fly (after S2LC).
//!
//! For token `t` with adapter `a`, and for each slice (a projection that reads the same `x`):
//!
//! ```text
//! h[t]  = x[t] · I_a           [R]       I_a [d_in, R], the input factor
//! g[t]  = h[t] · Q_a           [R]       Q_a [R, R], the core; the identity where absent
//! y[t] += s_a · g[t] · O_aᵀ    [d_out]   O_a [d_out, R], the output factor
//! ```
//!
//! Instead, each token may have a scaling of its own, `s_t`: the gate of a mixture of experts.
//!
//! A factor is either dense and shared, or coded and private. A dense factor is one of a few bases that the whole population uses. A coded
//! factor has columns of codes into a small codebook. S2LC's own form is a dense input factor, the basis V, and a coded output factor, U.
//! The other three combinations are the other rungs of the encoder's ladder. Tokens without an adapter keep their row (accumulate) or get
//! zeros (overwrite).

use derive_where::derive_where;

use super::index::{BasisOf, Codes, CodesShape, Index, TokenAdapters};
use super::setters::setters;
use super::{Access, CodeWidth, Cost, Op, Operand, Translate, expect_present, expect_size};
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Result, ensure};
use crate::ops::codes::CODEBOOK_LEN;

/// The highest rank of a slice.
pub const MAX_RANK: u64 = 1024;

/// The descriptor. Sizes in elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CodebookGemm {
    /// Element type of x, y and the dense factors. Sums are in f32.
    pub dtype: DType,
    /// Rows of x and y.
    pub tokens: u64,
    /// Columns of x.
    pub d_in: u64,
    /// Elements from one row of x to the next.
    pub x_stride: u64,
    /// Adapters, which are slots of a pool.
    pub adapters: u32,
    /// Whether the scaling belongs to adapters or to tokens.
    pub scaled_by: ScaledBy,
    /// Whether the result is added to y (`y += …`) rather than written to it (`y = …`).
    pub accumulate: bool,
    /// Projections that read the same x: q, k, v; gate, up.
    pub slices: Vec<CodebookSlice>,
    /// Whether a row has the same bits whatever other rows there are, and however many. The number of rows then chooses among kernels of one order of
    /// sums alone.
    pub batch_invariant: bool,
}

/// One projection of a [`CodebookGemm`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CodebookSlice {
    /// Columns of y.
    pub d_out: u64,
    /// Elements from one row of y to the next.
    pub y_stride: u64,
    /// Columns of both factors. An adapter with fewer leaves the rest zero.
    pub rank: u64,
    /// The factor on the input side.
    pub input: Factor,
    /// Whether a core stands between the factors.
    pub core: bool,
    /// The factor on the output side.
    pub output: Factor,
}

impl CodebookSlice {
    /// A projection whose rows of y lie one after another, without a core.
    pub const fn new(d_out: u64, rank: u64, input: Factor, output: Factor) -> Self {
        Self { d_out, y_stride: d_out, rank, input, core: false, output }
    }

    setters! {
        with_d_out: d_out = u64;
        with_y_stride: y_stride = u64;
        with_rank: rank = u64;
        with_input: input = Factor;
        with_core: core = bool;
        with_output: output = Factor;
    }
}

/// What a scaling belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaledBy {
    /// The adapter: `[adapters]` scalings.
    Adapter,
    /// The token, whatever its adapter: `[tokens]` scalings, the gates of a mixture of experts.
    Token,
}

/// How a factor is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Factor {
    /// Dense bases, `[bases, d, R]` in the operation's dtype.
    Dense {
        /// How many bases the population uses.
        bases: u32,
    },
    /// Codes, a private set for each adapter.
    Coded {
        /// One width for every column, or a width a column.
        width: Option<CodeWidth>,
        /// Words of an adapter's codes, as in [`CodesShape`].
        words_per_adapter: u32,
    },
}

/// The operands of a codebook GEMM.
#[derive_where(Clone, Debug)]
#[non_exhaustive]
pub struct CodebookGemmArgs<D: Device> {
    /// The input rows, `[tokens, d_in]`, read.
    pub x: Slice<D>,
    /// The adapter of each token.
    pub token_adapter: Index<TokenAdapters, D>,
    /// The scalings `s_a`, `[adapters]` f32, or `s_t`, `[tokens]` f32, as the descriptor says; read.
    pub scaling: Slice<D>,
    /// Operands for each slice of the descriptor, in its order.
    pub slices: Vec<CodebookSliceArgs<D>>,
    /// The result of [`Session::prepare`](crate::session::Session::prepare) for these factors, for this shape of factors and as many
    /// adapters, with any rows. A product may take it instead of decoding the factors. It must be made anew when they change.
    pub prepared: Option<Slice<D>>,
}

impl<D: Device> CodebookGemmArgs<D> {
    /// The operands, without a prepared result.
    pub fn new(x: Slice<D>, token_adapter: Index<TokenAdapters, D>, scaling: Slice<D>, slices: Vec<CodebookSliceArgs<D>>) -> Self {
        Self { x, token_adapter, scaling, slices, prepared: None }
    }

    setters! {
        with_x: x = Slice<D>;
        with_token_adapter: token_adapter = Index<TokenAdapters, D>;
        with_scaling: scaling = Slice<D>;
        with_slices: slices = Vec<CodebookSliceArgs<D>>;
        with_prepared: prepared <- Option<Slice<D>>;
    }
}

/// The operands of one slice.
#[derive_where(Clone, Debug)]
#[non_exhaustive]
pub struct CodebookSliceArgs<D: Device> {
    /// The input factors `I_a`.
    pub input: FactorArgs<D>,
    /// The cores `Q_a`, `[adapters, R, R]` f32, read: `g[j] = Σ_i h[i] · Q_a[i, j]`.
    pub core: Option<Slice<D>>,
    /// The output factors `O_a`.
    pub output: FactorArgs<D>,
    /// The result, `[tokens, d_out]`, written, and read where the descriptor accumulates.
    pub y: Slice<D>,
}

impl<D: Device> CodebookSliceArgs<D> {
    /// The operands of a slice without a core.
    pub fn new(input: FactorArgs<D>, output: FactorArgs<D>, y: Slice<D>) -> Self {
        Self { input, core: None, output, y }
    }

    setters! {
        with_input: input = FactorArgs<D>;
        with_core: core <- Option<Slice<D>>;
        with_output: output = FactorArgs<D>;
        with_y: y = Slice<D>;
    }
}

/// The operands of one factor.
#[derive_where(Clone, Debug)]
pub enum FactorArgs<D: Device> {
    /// Operands for [`Factor::Dense`].
    Dense {
        /// The bases, `[bases, d, R]`, read.
        values: Slice<D>,
        /// The basis of each adapter; may be absent where there is one basis.
        basis_of: Option<Index<BasisOf, D>>,
    },
    /// Operands for [`Factor::Coded`].
    Coded {
        /// The packed codes.
        codes: Index<Codes, D>,
        /// The adapters' codebook records, `[adapters, 52]` f32, read (see [`CodeWidth::stage1`]).
        codebooks: Slice<D>,
    },
}

impl CodebookGemm {
    /// S2LC's form for one projection. Rows are packed, one basis is shared, codes have one width, and the result is added to y.
    pub fn s2lc(dtype: DType, tokens: u64, [d_in, d_out, rank]: [u64; 3], adapters: u32, width: CodeWidth) -> Self {
        let words = width.column_words(d_out).saturating_mul(rank).min(u64::from(u32::MAX)) as u32;
        let slice = CodebookSlice {
            d_out,
            y_stride: d_out,
            rank,
            input: Factor::Dense { bases: 1 },
            core: false,
            output: Factor::Coded { width: Some(width), words_per_adapter: words },
        };
        Self { dtype, tokens, d_in, x_stride: d_in, adapters, scaled_by: ScaledBy::Adapter, accumulate: true, slices: vec![slice], batch_invariant: false }
    }

    /// Elements of the scaling.
    pub fn scalings(&self) -> u64 {
        match self.scaled_by {
            ScaledBy::Adapter => self.adapters.into(),
            ScaledBy::Token => self.tokens,
        }
    }

    setters! {
        with_dtype: dtype = DType;
        with_tokens: tokens = u64;
        with_d_in: d_in = u64;
        with_x_stride: x_stride = u64;
        with_adapters: adapters = u32;
        with_scaled_by: scaled_by = ScaledBy;
        with_accumulate: accumulate = bool;
        with_batch_invariant: batch_invariant = bool;
        with_slices: slices = Vec<CodebookSlice>;
    }
}

impl Factor {
    /// The shape of the codes of this factor with columns of `d` elements, where it is coded.
    pub fn codes(self, adapters: u32, d: u64, rank: u64) -> Option<CodesShape> {
        match self {
            Self::Dense { .. } => None,
            Self::Coded { width, words_per_adapter } => Some(CodesShape { adapters, d: d as u32, rank: rank as u32, width, words_per_adapter }),
        }
    }

    pub(super) fn validate(self, name: &str, adapters: u32, d: u64, rank: u64, size: u64) -> Result<()> {
        match self {
            Self::Dense { bases } => {
                ensure(bases > 0, name, "at least one basis", bases)?;
                expect_size(name, &[u64::from(bases), d, rank, size])
            }
            Self::Coded { width, words_per_adapter } => {
                ensure(d < 1 << 31 && rank < 1 << 31, name, "sizes below 2^31", format_args!("[{d}, {rank}]"))?;
                let need = width.map_or(rank, |width| width.column_words(d).saturating_mul(rank));
                ensure(u64::from(words_per_adapter) >= need, name, format_args!("at least {need} words an adapter"), words_per_adapter)?;
                expect_size(name, &[u64::from(adapters), u64::from(words_per_adapter), 4])
            }
        }
    }

    /// Bytes of the factors that a batch with this many adapters reads.
    pub(super) fn bytes(self, adapters: u32, d: u64, rank: u64, size: f64) -> f64 {
        match self {
            Self::Dense { bases } => f64::from(bases.min(adapters)) * d as f64 * rank as f64 * size,
            Self::Coded { words_per_adapter, .. } => f64::from(adapters) * 4.0 * (f64::from(words_per_adapter) + CODEBOOK_LEN as f64),
        }
    }
}

/// The operation to which factors belong.
#[derive(Clone, Copy)]
pub(super) struct Held {
    /// Name of the operation in errors.
    pub op: &'static str,
    /// Element type of dense factors.
    pub dtype: DType,
    /// Adapters that have factors.
    pub adapters: u32,
}

impl<D: Device> FactorArgs<D> {
    /// These operands on another device.
    pub(super) fn translate<B: Device>(&self, to: &Translate<'_, D, B>) -> Result<FactorArgs<B>> {
        Ok(match self {
            Self::Dense { values, basis_of } => FactorArgs::Dense { values: to.slice(values)?, basis_of: to.index_if_any(basis_of)? },
            Self::Coded { codes, codebooks } => FactorArgs::Coded { codes: to.index(codes)?, codebooks: to.slice(codebooks)? },
        })
    }

    /// Shows the operands of a factor `[d, rank]`.
    pub(super) fn operands<'a>(
        &'a self,
        name: [&'static str; 2],
        factor: Factor,
        op: Held,
        [d, rank]: [u64; 2],
        see: &mut dyn FnMut(Operand<'a, D>),
    ) -> Result<()> {
        match (self, factor) {
            (Self::Dense { values, basis_of }, Factor::Dense { bases }) => {
                see(Operand::packed(name[0], Access::Read, values, u64::from(bases) * d * rank, op.dtype));
                if let Some(index) = basis_of {
                    let shape = *index.shape();
                    let fits = shape.adapters == op.adapters && shape.bases == bases;
                    ensure(fits, format_args!("{}: basis_of", op.op), format_args!("{} adapters on {bases} bases", op.adapters), format_args!("{shape:?}"))?;
                    see(Operand::packed("basis_of", Access::Read, index.slice(), u64::from(op.adapters), 4u64));
                }
                ensure(basis_of.is_some() || bases == 1, format_args!("{}: basis_of", op.op), "present where there are several bases", "absent")
            }
            (Self::Coded { codes, codebooks }, Factor::Coded { .. }) => {
                let wanted = factor.codes(op.adapters, d, rank);
                ensure(Some(*codes.shape()) == wanted, format_args!("{}: codes", op.op), format_args!("{wanted:?}"), format_args!("{:?}", codes.shape()))?;
                see(Operand::packed(name[0], Access::Read, codes.slice(), codes.slice().len / 4, 4u64));
                see(Operand::packed(name[1], Access::Read, codebooks, u64::from(op.adapters) * CODEBOOK_LEN as u64, DType::F32));
                Ok(())
            }
            _ => ensure(false, format_args!("{}: {}", op.op, name[0]), format_args!("{factor:?}"), "the other kind of factor"),
        }
    }
}

impl Op for CodebookGemm {
    const NAME: &'static str = "codebook_gemm";
    type Args<D: Device> = CodebookGemmArgs<D>;

    fn validate(&self) -> Result<()> {
        let size = self.dtype.size();
        ensure(!self.slices.is_empty(), "codebook_gemm: slices", "at least one", 0)?;
        ensure(self.d_in > 0, "codebook_gemm: d_in", "at least 1", self.d_in)?;
        ensure(self.x_stride >= self.d_in, "codebook_gemm: x_stride", format_args!("at least d_in, {}", self.d_in), self.x_stride)?;
        expect_size("codebook_gemm: x", &[self.tokens, self.x_stride, size])?;
        for slice in &self.slices {
            ensure(slice.d_out > 0 && slice.rank > 0, "codebook_gemm: d_out and rank", "at least 1", format_args!("{} and {}", slice.d_out, slice.rank))?;
            ensure(slice.rank <= MAX_RANK, "codebook_gemm: rank", format_args!("at most {MAX_RANK}"), slice.rank)?;
            ensure(slice.y_stride >= slice.d_out, "codebook_gemm: y_stride", format_args!("at least d_out, {}", slice.d_out), slice.y_stride)?;
            expect_size("codebook_gemm: y", &[self.tokens, slice.y_stride, size])?;
            expect_size("codebook_gemm: core", &[u64::from(self.adapters), slice.rank, slice.rank, 4])?;
            slice.input.validate("codebook_gemm: input factor", self.adapters, self.d_in, slice.rank, size)?;
            slice.output.validate("codebook_gemm: output factor", self.adapters, slice.d_out, slice.rank, size)?;
        }
        Ok(())
    }

    fn sizes(&self) -> [u64; 3] {
        [self.tokens, self.slices.iter().map(|slice| slice.d_out).sum(), self.d_in]
    }

    fn cost(&self) -> Cost {
        let (tokens, size) = (self.tokens as f64, self.dtype.size() as f64);
        // A population may be far larger than the batch, which reads no more adapters than it has tokens.
        let used = self.adapters.min(u32::try_from(self.tokens).unwrap_or(u32::MAX));
        let mut flops = 0.0;
        let mut bytes = tokens * self.d_in as f64 * size;
        for slice in &self.slices {
            let core = if slice.core { slice.rank } else { 0 };
            flops += 2.0 * tokens * slice.rank as f64 * (self.d_in as f64 + slice.d_out as f64 + core as f64);
            let passes = if self.accumulate { 2.0 } else { 1.0 };
            bytes += passes * tokens * slice.d_out as f64 * size;
            bytes += slice.input.bytes(used, self.d_in, slice.rank, size);
            bytes += slice.output.bytes(used, slice.d_out, slice.rank, size);
            bytes += f64::from(used) * 4.0 * (core as f64).powi(2);
        }
        Cost { executed_flops: flops, useful_flops: flops, dense_flops: flops, bytes }
    }

    fn translate<A: Device, B: Device>(args: &CodebookGemmArgs<A>, to: &Translate<'_, A, B>) -> Result<CodebookGemmArgs<B>> {
        let slice = |slice: &CodebookSliceArgs<A>| -> Result<CodebookSliceArgs<B>> {
            let (input, output) = (slice.input.translate(to)?, slice.output.translate(to)?);
            Ok(CodebookSliceArgs { input, core: to.if_any(&slice.core)?, output, y: to.slice(&slice.y)? })
        };
        Ok(CodebookGemmArgs {
            x: to.slice(&args.x)?,
            token_adapter: to.index(&args.token_adapter)?,
            scaling: to.slice(&args.scaling)?,
            slices: args.slices.iter().map(slice).collect::<Result<_>>()?,
            prepared: to.if_any(&args.prepared)?,
        })
    }

    fn operands<'a, D: Device>(&self, args: &'a CodebookGemmArgs<D>, see: &mut dyn FnMut(Operand<'a, D>)) -> Result<()> {
        see(Operand::pitched("x", Access::Read, &args.x, [self.tokens, self.d_in], self.x_stride, self.dtype));
        let shape = *args.token_adapter.shape();
        let fits = shape.tokens == self.tokens && shape.adapters == self.adapters;
        ensure(fits, "codebook_gemm: token_adapter", format_args!("{} tokens over {} adapters", self.tokens, self.adapters), format_args!("{shape:?}"))?;
        see(Operand::packed("token_adapter", Access::Read, args.token_adapter.slice(), args.token_adapter.slice().len / 4, 4u64));
        see(Operand::packed("scaling", Access::Read, &args.scaling, self.scalings(), DType::F32));
        if let Some(prepared) = &args.prepared {
            see(Operand::packed("prepared", Access::Read, prepared, prepared.len / 4, 4u64));
        }
        ensure(args.slices.len() == self.slices.len(), "codebook_gemm: slices", format_args!("{}", self.slices.len()), args.slices.len())?;
        let held = Held { op: Self::NAME, dtype: self.dtype, adapters: self.adapters };
        for (slice, args) in self.slices.iter().zip(&args.slices) {
            args.input.operands(["input factor", "input codebooks"], slice.input, held, [self.d_in, slice.rank], see)?;
            expect_present(Self::NAME, "core", slice.core, args.core.is_some())?;
            if let Some(core) = &args.core {
                see(Operand::packed("core", Access::Read, core, u64::from(self.adapters) * slice.rank * slice.rank, DType::F32));
            }
            args.output.operands(["output factor", "output codebooks"], slice.output, held, [slice.d_out, slice.rank], see)?;
            let access = if self.accumulate { Access::ReadWrite } else { Access::Write };
            see(Operand::pitched("y", access, &args.y, [self.tokens, slice.d_out], slice.y_stride, self.dtype));
        }
        Ok(())
    }
}
