//! Attention over a prefix that all sequences of a batch share. Its keys and values are given by factors, and rebuilt a tile at a time
//! inside the operation: `K = C_K · B_Kᵀ`, `V = C_V · B_Vᵀ`. The coefficients are `C [tokens, R]`, and the basis is `B [kv_heads ·
//! head_dim, R]`. Neither K nor V is ever a tensor in memory.
//!
//! ```text
//! O = softmax(scale · Q · Kᵀ) · V        every query of every sequence sees every token of the prefix
//! L = ln Σ exp(scale · q · k)
//! ```
//!
//! With `join`, `o` and `lse` hold attention over other keys, each sequence's own, and become attention over both. The softmax over two
//! sets of keys follows from the softmax over each (Hydragen, arXiv:2402.05099, FlashInfer, arXiv:2501.01005). A row with LSE −∞ has seen
//! nothing, and is replaced.
//!
//! Either factor is dense or coded, like those of [`super::CodebookGemm`]. A core and a scale belong into the dense one.

use derive_where::derive_where;

use super::attention::{Form, Scale, Strides};
use super::codebook_gemm::{Factor, FactorArgs, Held};
use super::setters::setters;
use super::{Access, Attention, Cost, Op, Operand, Translate, expect_size};
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Result, ensure};

/// The descriptor of attention over a prefix. Sizes and strides are in elements; a head's `head_dim` elements are contiguous.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PrefixAttention {
    /// Element type of q, o and the dense factors. K, V, scores and sums are at least as exact.
    pub dtype: DType,
    /// Sequences of the batch.
    pub batch: u64,
    /// Heads of q and o.
    pub heads: u64,
    /// Heads of k and v; divides `heads`. Query head `h` reads head `h / (heads / kv_heads)`.
    pub kv_heads: u64,
    /// Elements of a head, 1 to 256.
    pub head_dim: u64,
    /// Queries of a sequence.
    pub q_len: u64,
    /// Tokens of the prefix, at least 1.
    pub tokens: u64,
    /// The factor in front of the scores.
    pub scale: Scale,
    /// How the keys are given.
    pub key: Factors,
    /// How the values are given.
    pub value: Factors,
    /// Whether `o` and `lse` are joined with what they hold, rather than overwritten.
    pub join: bool,
    /// Strides of q.
    pub q: Strides,
    /// Strides of o.
    pub o: Strides,
}

/// How K or V is given: `[tokens, R]` coefficients over a basis `[kv_heads · head_dim, R]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Factors {
    /// Columns of coefficients and basis, 1 to 1024.
    pub rank: u64,
    /// The coefficients. A dense factor has one basis here.
    pub coefficients: Factor,
    /// The basis, one row for each element of a token, all heads side by side. A dense factor has one basis here.
    pub basis: Factor,
}

/// The operands of attention over a prefix.
#[derive_where(Clone, Debug)]
#[non_exhaustive]
pub struct PrefixAttentionArgs<D: Device> {
    /// Queries, read.
    pub q: Slice<D>,
    /// The keys' factors, read.
    pub key: FactorsArgs<D>,
    /// The values' factors, read.
    pub value: FactorsArgs<D>,
    /// The output, written; read too where the descriptor joins.
    pub o: Slice<D>,
    /// The LSE, `[batch, heads, q_len]` f32, accessed like `o`. For one batch it is the `[heads, total_q]` of sequences end to end.
    pub lse: Slice<D>,
}

impl<D: Device> PrefixAttentionArgs<D> {
    /// The operands.
    pub fn new(q: Slice<D>, key: FactorsArgs<D>, value: FactorsArgs<D>, o: Slice<D>, lse: Slice<D>) -> Self {
        Self { q, key, value, o, lse }
    }

    setters! {
        with_q: q = Slice<D>;
        with_key: key = FactorsArgs<D>;
        with_value: value = FactorsArgs<D>;
        with_o: o = Slice<D>;
        with_lse: lse = Slice<D>;
    }
}

/// The operands of [`Factors`].
#[derive_where(Clone, Debug)]
#[non_exhaustive]
pub struct FactorsArgs<D: Device> {
    /// The coefficients `C`, of one adapter.
    pub coefficients: FactorArgs<D>,
    /// The basis `B`, of one adapter.
    pub basis: FactorArgs<D>,
}

impl PrefixAttention {
    /// Attention that overwrites its outputs, with q and o packed `[b, s, h, d]`. Heads are `[heads, kv_heads]`, lengths `[q_len, tokens]`.
    pub fn new(dtype: DType, batch: u64, [heads, kv_heads]: [u64; 2], [q_len, tokens]: [u64; 2], head_dim: u64, [key, value]: [Factors; 2]) -> Self {
        let rows = Strides::bshd(q_len, heads, head_dim);
        let scale = Scale::Default;
        Self { dtype, batch, heads, kv_heads, head_dim, q_len, tokens, scale, key, value, join: false, q: rows, o: rows }
    }

    /// Elements of a token's keys, which are rows of a basis.
    pub fn width(&self) -> u64 {
        self.kv_heads.saturating_mul(self.head_dim)
    }

    /// Elements of the LSE: the rows of all heads.
    pub fn rows(&self) -> u64 {
        self.batch.saturating_mul(self.heads).saturating_mul(self.q_len)
    }

    /// This attention over K and V as tensors `[tokens, kv_heads, head_dim]`, which all sequences read.
    pub fn plain(&self) -> Attention {
        let tokens = Strides { batch: 0, token: self.kv_heads.saturating_mul(self.head_dim), head: self.head_dim };
        Attention {
            dtype: self.dtype,
            batch: self.batch,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            q_len: self.q_len,
            kv_len: self.tokens,
            scale: self.scale,
            causal: false,
            window: None,
            form: Form::Dense,
            slots: None,
            lse: true,
            q: self.q,
            k: tokens,
            v: tokens,
            o: self.o,
        }
    }

    setters! {
        with_dtype: dtype = DType;
        with_batch: batch = u64;
        with_heads: heads = u64;
        with_kv_heads: kv_heads = u64;
        with_head_dim: head_dim = u64;
        with_q_len: q_len = u64;
        with_tokens: tokens = u64;
        with_scale: scale <- Scale;
        with_key: key = Factors;
        with_value: value = Factors;
        with_join: join = bool;
        with_q: q = Strides;
        with_o: o = Strides;
    }
}

impl Factors {
    fn validate(self, name: &str, op: &PrefixAttention) -> Result<()> {
        ensure((1..=1024).contains(&self.rank), format_args!("prefix_attention: {name} rank"), "1 to 1024", self.rank)?;
        for (side, factor, d) in [("coefficients", self.coefficients, op.tokens), ("basis", self.basis, op.width())] {
            let subject = format!("prefix_attention: {name} {side}");
            ensure(!matches!(factor, Factor::Dense { bases } if bases != 1), &subject, "one basis where it is dense", format_args!("{factor:?}"))?;
            factor.validate(&subject, 1, d, self.rank, op.dtype.size())?;
        }
        Ok(())
    }

    /// Operations that rebuild one row of `width` elements from the factors.
    fn flops(self, width: u64) -> f64 {
        2.0 * self.rank as f64 * width as f64
    }

    /// Bytes of the factors on a device, which are read in place of K, or of V.
    pub fn bytes(self, dtype: DType, tokens: u64, width: u64) -> u64 {
        let side = |factor: Factor, d: u64| factor.bytes(1, d, self.rank, dtype.size() as f64) as u64;
        side(self.coefficients, tokens).saturating_add(side(self.basis, width))
    }

    /// The factors of K or of V, with `rank` columns each.
    pub const fn new(rank: u64, coefficients: Factor, basis: Factor) -> Self {
        Self { rank, coefficients, basis }
    }

    setters! {
        with_rank: rank = u64;
        with_coefficients: coefficients = Factor;
        with_basis: basis = Factor;
    }
}

impl<D: Device> FactorsArgs<D> {
    fn operands<'a>(&'a self, names: [[&'static str; 2]; 2], factors: Factors, op: &PrefixAttention, see: &mut dyn FnMut(Operand<'a, D>)) -> Result<()> {
        let held = Held { op: PrefixAttention::NAME, dtype: op.dtype, adapters: 1 };
        self.coefficients.operands(names[0], factors.coefficients, held, [op.tokens, factors.rank], see)?;
        self.basis.operands(names[1], factors.basis, held, [op.width(), factors.rank], see)
    }

    /// The operands of both factors.
    pub fn new(coefficients: FactorArgs<D>, basis: FactorArgs<D>) -> Self {
        Self { coefficients, basis }
    }

    setters! {
        with_coefficients: coefficients = FactorArgs<D>;
        with_basis: basis = FactorArgs<D>;
    }
}

impl Op for PrefixAttention {
    const NAME: &'static str = "prefix_attention";
    type Args<D: Device> = PrefixAttentionArgs<D>;

    fn validate(&self) -> Result<()> {
        ensure(self.tokens > 0, "prefix_attention: tokens", "at least 1", self.tokens)?;
        expect_size("prefix_attention: heads", &[self.kv_heads, self.head_dim])?;
        self.plain().validate()?;
        self.key.validate("key", self)?;
        self.value.validate("value", self)
    }

    fn sizes(&self) -> [u64; 3] {
        [self.batch * self.q_len, self.heads * self.head_dim, self.tokens]
    }

    fn cost(&self) -> Cost {
        let plain = self.plain().cost();
        // A row of K and of V is rebuilt once, however many tiles of queries do it again.
        let rebuilt = self.tokens as f64 * [self.key, self.value].map(|factors| factors.flops(self.width())).iter().sum::<f64>();
        let rows = self.rows() as f64;
        let passes = if self.join { 2.0 } else { 1.0 };
        let heads = rows * self.head_dim as f64 * self.dtype.size() as f64;
        let factors: f64 = [self.key, self.value].map(|factors| factors.bytes(self.dtype, self.tokens, self.width()) as f64).iter().sum();
        let bytes = heads + passes * (heads + 4.0 * rows) + factors;
        Cost { executed_flops: plain.executed_flops + rebuilt, useful_flops: plain.useful_flops + rebuilt, bytes, ..plain }
    }

    fn translate<A: Device, B: Device>(args: &PrefixAttentionArgs<A>, to: &Translate<'_, A, B>) -> Result<PrefixAttentionArgs<B>> {
        let factors = |factors: &FactorsArgs<A>| -> Result<FactorsArgs<B>> {
            Ok(FactorsArgs { coefficients: factors.coefficients.translate(to)?, basis: factors.basis.translate(to)? })
        };
        let (key, value) = (factors(&args.key)?, factors(&args.value)?);
        Ok(PrefixAttentionArgs { q: to.slice(&args.q)?, key, value, o: to.slice(&args.o)?, lse: to.slice(&args.lse)? })
    }

    fn operands<'a, D: Device>(&self, args: &'a PrefixAttentionArgs<D>, see: &mut dyn FnMut(Operand<'a, D>)) -> Result<()> {
        let plain = self.plain();
        let extent = (self.batch, self.q_len);
        let access = if self.join { Access::ReadWrite } else { Access::Write };
        see(Operand::packed("q", Access::Read, &args.q, plain.span("q", self.q, extent, self.heads)?, self.dtype));
        args.key.operands([["key coefficients", "key codebooks"], ["key basis", "key basis codebooks"]], self.key, self, see)?;
        args.value.operands([["value coefficients", "value codebooks"], ["value basis", "value basis codebooks"]], self.value, self, see)?;
        see(Operand::packed("o", access, &args.o, plain.span("o", self.o, extent, self.heads)?, self.dtype));
        see(Operand::packed("lse", access, &args.lse, self.rows(), DType::F32));
        Ok(())
    }
}
