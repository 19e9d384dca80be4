//! A transformer layer as operations: which they are, their sizes, and their cost together.
//!
//! ```text
//! n = norm(x)            q, k, v = n·Wqkvᵀ          one product, rows [q | k | v]; grouped heads make k and v narrower
//! q, k = rope(q, k)      in place, both in one launch
//! a = attention(q, k, v) read where the product left them, as slices with its strides
//! h = a·Woᵀ + x          the residual in the product's epilogue
//! y = mlp(norm(h)) + h   the residual in the epilogue of the second product
//! ```
//!
//! There are six launches, or seven with rotary positions. Nothing is copied or transposed between them, and no residual is a launch. For
//! many tokens the MLP may be its two products ([`Layer::mlp_products`]).

use super::attention::Strides;
use super::fused_mlp::MAX_WORKSPACE;
use super::pointwise::{Kind, Turn};
use super::{Activation, Attention, Cost, FusedMlp, Linear, Op, Pointwise};
use crate::dtype::DType;
use crate::error::{Error, Result, ensure};

/// The descriptor of a layer on a batch of sequences of one length.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layer {
    /// Element type of weights, states and everything between. Sums are in f32.
    pub dtype: DType,
    /// Sequences.
    pub batch: u64,
    /// Tokens of each sequence.
    pub tokens: u64,
    /// Sizes of the layer.
    pub sizes: Sizes,
    /// Norms and MLP of the layer, and whether it has biases and rotary positions.
    pub style: Style,
    /// Whether a token sees no later one.
    pub causal: bool,
    /// The number that is added to the variance, or to the mean square: the bits of an f32.
    pub eps: u32,
    /// The base of the rotary positions: the bits of an f32.
    pub rope_base: u32,
}

/// The widths of a layer, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Sizes {
    /// Elements of a token's state.
    pub hidden: u64,
    /// Heads of q.
    pub heads: u64,
    /// Heads of k and v; divides `heads`.
    pub kv_heads: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// Elements between the products of the MLP.
    pub intermediate: u64,
}

/// How a layer is built. In both styles norms come before what they feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Style {
    /// A layer of the reference suite, and of GPT-2: LayerNorm, GELU (tanh form), a bias on every product, no rotary positions.
    Reference,
    /// A layer of Llama (arXiv:2307.09288): RMSNorm, rotary positions, SwiGLU, no bias.
    Llama,
}

impl Style {
    /// Every style.
    pub const ALL: [Self; 2] = [Self::Reference, Self::Llama];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reference => "reference",
            Self::Llama => "llama",
        }
    }
}

/// Models with named layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub enum Model {
    /// 7 thousand million weights.
    #[serde(rename = "llama2-7b")]
    Llama2With7B,
    /// 13 thousand million.
    #[serde(rename = "llama2-13b")]
    Llama2With13B,
    /// 70 thousand million: eight heads of q on one of k and v.
    #[serde(rename = "llama2-70b")]
    Llama2With70B,
}

impl Model {
    /// Every model.
    pub const ALL: [Self; 3] = [Self::Llama2With7B, Self::Llama2With13B, Self::Llama2With70B];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama2With7B => "llama2-7b",
            Self::Llama2With13B => "llama2-13b",
            Self::Llama2With70B => "llama2-70b",
        }
    }

    /// The sizes of each layer of the model.
    pub const fn sizes(self) -> Sizes {
        match self {
            Self::Llama2With7B => Sizes { hidden: 4096, heads: 32, kv_heads: 32, head_dim: 128, intermediate: 11008 },
            Self::Llama2With13B => Sizes { hidden: 5120, heads: 40, kv_heads: 40, head_dim: 128, intermediate: 13824 },
            Self::Llama2With70B => Sizes { hidden: 8192, heads: 64, kv_heads: 8, head_dim: 128, intermediate: 28672 },
        }
    }
}

impl Sizes {
    /// Elements of a row of q.
    pub const fn query(self) -> u64 {
        self.heads.saturating_mul(self.head_dim)
    }

    /// Elements of a row of k, and of v.
    pub const fn key(self) -> u64 {
        self.kv_heads.saturating_mul(self.head_dim)
    }

    /// Elements of a row `[q | k | v]`.
    pub const fn qkv(self) -> u64 {
        self.query().saturating_add(self.key().saturating_mul(2))
    }
}

/// The operations of a layer. The norm runs twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parts {
    /// The norm of the layer's input, and of the MLP's input.
    pub norm: Pointwise,
    /// The product that computes rows `[q | k | v]`.
    pub qkv: Linear,
    /// Rotary positions over the heads of q and k.
    pub rope: Option<Pointwise>,
    /// Attention over rows `[q | k | v]`, to rows of `heads · head_dim`.
    pub attention: Attention,
    /// The product back to the hidden size; its residual is the layer's input.
    pub output: Linear,
    /// The MLP; its residual is the sum that the norm before it read.
    pub mlp: FusedMlp,
}

impl Layer {
    /// A layer with the usual `eps` of 1e-5 and rotary base of 10,000.
    pub fn new(dtype: DType, [batch, tokens]: [u64; 2], sizes: Sizes, style: Style, causal: bool) -> Self {
        Self { dtype, batch, tokens, sizes, style, causal, eps: 1e-5f32.to_bits(), rope_base: 1e4f32.to_bits() }
    }

    /// Rows of every matrix of states.
    pub fn rows(&self) -> u64 {
        self.batch.saturating_mul(self.tokens)
    }

    /// Whether products have biases.
    pub fn biases(&self) -> bool {
        self.style == Style::Reference
    }

    /// The operations.
    ///
    /// # Errors
    /// Sizes that no operation takes; heads that are no multiple of the heads of k and v.
    pub fn parts(&self) -> Result<Parts> {
        let Self { dtype, batch, tokens, sizes, style, causal, eps, rope_base } = *self;
        let Sizes { hidden, heads, kv_heads, head_dim, intermediate } = sizes;
        let small = [hidden, heads, kv_heads, head_dim, intermediate, sizes.qkv()].iter().all(|size| (1..=1 << 24).contains(size));
        ensure(small, "layer: sizes", "each 1 to 2^24, a row of q, k and v too", format_args!("{sizes:?}"))?;
        let rows = self.rows();
        let countable = [batch, tokens, rows].iter().all(|&count| count <= 1 << 32);
        ensure(countable, "layer: batch, tokens", "at most 2^32 rows", format_args!("{batch}, {tokens}"))?;
        let (llama, bias) = (style == Style::Llama, self.biases());
        let kind = if llama { Kind::RmsNorm { eps, residual: false } } else { Kind::LayerNorm { eps, residual: false } };
        let rope = Kind::RopeInPlace { head_dim, turn: Turn::Base(rope_base), stride: sizes.qkv() };
        let rows_of_qkv = Strides { batch: tokens.saturating_mul(sizes.qkv()), token: sizes.qkv(), head: head_dim };
        let attention = Attention { causal, ..Attention::dense(dtype, batch, [heads, kv_heads], [tokens; 2], head_dim) };
        let activation = if llama { Activation::Silu } else { Activation::GeluTanh };
        let mlp = FusedMlp::new(dtype, [rows, hidden, intermediate, hidden], activation);
        let parts = Parts {
            norm: Pointwise { dtype, rows, columns: hidden, kind },
            qkv: Linear { bias, ..Linear::new(dtype, [rows, hidden, sizes.qkv()]) }.with_padded_weights(),
            rope: llama.then_some(Pointwise { dtype, rows, columns: sizes.query() + sizes.key(), kind: rope }),
            attention: Attention { q: rows_of_qkv, k: rows_of_qkv, v: rows_of_qkv, ..attention },
            output: Linear { bias, residual: true, ..Linear::new(dtype, [rows, sizes.query(), hidden]) }.with_padded_weights(),
            mlp: FusedMlp { gated: llama, bias1: bias, bias2: bias, residual: true, ..mlp }.with_padded_weights(),
        };
        parts.norm.validate()?;
        parts.qkv.validate()?;
        parts.rope.iter().try_for_each(Op::validate)?;
        parts.attention.validate()?;
        parts.output.validate()?;
        parts.mlp.validate()?;
        Ok(parts)
    }

    /// The MLP as two products, the second of which adds the residual. `None` where [`FusedMlp`] is as good. Its workspace holds a part of
    /// the intermediate, so it would take the tokens in chunks. Here the whole intermediate lies where q, k and v were, which nothing reads
    /// any more. Each weight is then read once, and tiles fill the device better than a chunk's. A gated MLP has two weights in its first
    /// product, and is never split.
    ///
    /// # Errors
    /// The errors of [`parts`](Self::parts).
    pub fn mlp_products(&self) -> Result<Option<[Linear; 2]>> {
        let FusedMlp { dtype, tokens, d_model, d_ff, d_out, activation, gated, bias1, bias2, residual, .. } = self.parts()?.mlp;
        let chunks = tokens.saturating_mul(d_ff).saturating_mul(dtype.size()) > MAX_WORKSPACE;
        let up = Linear { bias: bias1, activation: Some(activation), ..Linear::new(dtype, [tokens, d_model, d_ff]) }.with_padded_weights();
        let down = Linear { bias: bias2, residual, ..Linear::new(dtype, [tokens, d_ff, d_out]) }.with_padded_weights();
        Ok((chunks && !gated).then_some([up, down]))
    }

    /// The work of all operations together. The bytes are what no layer can do without: its weights, the states that come in and those that
    /// go out.
    ///
    /// # Errors
    /// The errors of [`parts`](Self::parts).
    pub fn cost(&self) -> Result<Cost> {
        let Parts { norm, qkv, rope, attention, output, mlp } = self.parts()?;
        let all = [norm.cost(), norm.cost(), qkv.cost(), rope.as_ref().map(Op::cost).unwrap_or_default(), attention.cost(), output.cost(), mlp.cost()];
        let sum = |of: fn(&Cost) -> f64| all.iter().map(of).sum::<f64>();
        let elements = self.weight_elements() + 2.0 * self.rows() as f64 * self.sizes.hidden as f64;
        Ok(Cost {
            executed_flops: sum(|cost| cost.executed_flops),
            useful_flops: sum(|cost| cost.useful_flops),
            dense_flops: sum(|cost| cost.dense_flops),
            bytes: elements * self.dtype.size() as f64,
        })
    }

    /// The count of weights and biases.
    fn weight_elements(&self) -> f64 {
        let Sizes { hidden, intermediate, .. } = self.sizes;
        let [hidden, wide, query, qkv] = [hidden, intermediate, self.sizes.query(), self.sizes.qkv()].map(|size| size as f64);
        let products = hidden * (qkv + query + wide * if self.style == Style::Llama { 3.0 } else { 2.0 });
        // Both norms; then their biases and those of the products.
        products + 2.0 * hidden + if self.biases() { 2.0 * hidden + qkv + hidden + wide + hidden } else { 0.0 }
    }
}

impl std::str::FromStr for Model {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let named = Self::ALL.into_iter().find(|model| model.name() == name);
        named.ok_or_else(|| Error::invalid("model", "llama2-7b, llama2-13b or llama2-70b", format!("{name:?}")))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn work_and_bytes_are_those_counted_by_hand() {
        let sizes = Sizes { hidden: 8, heads: 4, kv_heads: 2, head_dim: 2, intermediate: 12 };
        let llama = Layer::new(DType::F16, [1, 3], sizes, Style::Llama, true);
        // Products have 16 columns of q, k and v, 8 of the output, 3 × 12 of the MLP; there are 6 pairs of query and key.
        let products = 2.0 * 3.0 * 8.0 * (16.0 + 8.0 + 36.0);
        let pointwise = 4.0 * 3.0 * (8.0 + 8.0 + 12.0);
        let cost = llama.cost().unwrap();
        assert_eq!(cost.useful_flops, products + pointwise + 4.0 * 4.0 * 2.0 * 6.0);
        assert_eq!(cost.dense_flops - cost.useful_flops, 4.0 * 4.0 * 2.0 * 3.0);
        assert_eq!(cost.bytes, 2.0 * (8.0 * 60.0 + 16.0 + 2.0 * 24.0));
        let reference = Layer { style: Style::Reference, ..llama };
        assert_eq!(reference.cost().unwrap().bytes, 2.0 * (8.0 * 48.0 + 32.0 + 16.0 + 8.0 + 12.0 + 8.0 + 48.0));
    }

    #[test]
    fn an_mlp_is_two_products_where_it_would_go_in_chunks() {
        let products = |model: Model, tokens, style| {
            let layer = Layer::new(DType::F16, [1, tokens], model.sizes(), style, false);
            layer.mlp_products().unwrap().map(|products| products.map(|product| [product.tokens, product.d_out, product.d_in]))
        };
        assert_eq!(products(Model::Llama2With7B, 1024, Style::Reference), None, "one chunk");
        assert_eq!(products(Model::Llama2With7B, 2048, Style::Reference), Some([[2048, 11008, 4096], [2048, 4096, 11008]]));
        assert_eq!(products(Model::Llama2With7B, 2048, Style::Llama), None, "gated");
        assert_eq!(products(Model::Llama2With70B, 512, Style::Reference), None, "one chunk");
        assert_eq!(products(Model::Llama2With70B, 1024, Style::Reference), Some([[1024, 28672, 8192], [1024, 8192, 28672]]), "wider than q, k and v");
    }

    #[test]
    fn models_have_the_sizes_of_their_papers() {
        // The weights of a layer of each model, in millions, from the models' files.
        for (model, millions) in [("llama2-7b", 202.4), ("llama2-13b", 317.2), ("llama2-70b", 855.7)] {
            let sizes = model.parse::<Model>().unwrap().sizes();
            let weights = Layer::new(DType::F16, [1, 1], sizes, Style::Llama, true).weight_elements();
            assert!((weights / 1e6 - millions).abs() < 0.1, "{model}: {weights}");
        }
        assert!("llama3-8b".parse::<Model>().is_err());
    }

    #[test]
    fn sizes_that_fit_no_operation_are_refused() {
        let sizes = Sizes { hidden: 8, heads: 4, kv_heads: 2, head_dim: 2, intermediate: 12 };
        let refused = |sizes, rows| Layer::new(DType::F32, rows, sizes, Style::Llama, false).parts().is_err();
        assert!(!refused(sizes, [2, 3]));
        assert!(refused(Sizes { kv_heads: 3, ..sizes }, [2, 3]) && refused(Sizes { head_dim: 3, ..sizes }, [2, 3]));
        assert!(refused(Sizes { hidden: 0, ..sizes }, [2, 3]) && refused(Sizes { heads: u64::MAX, ..sizes }, [2, 3]));
        assert!(refused(sizes, [u64::MAX, 2]));
    }
}
