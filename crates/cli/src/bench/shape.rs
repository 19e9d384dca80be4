//! What is measured: an operation's sizes, in words that a report and a peer's program understand.

mod layers;
mod point;

use serde::{Deserialize, Serialize};

pub use super::padding::Padding;
use super::pattern::{Blocks, Pattern};
use super::projection::sizes::Sizes as ProjectionSizes;
use super::schedule::Schedule;
use super::sequences::Sequences;
use layers::in_a_row;
pub use point::Point;
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::ops::layer::{Model, Sizes, Style};
use trifuse::ops::{Activation, FusedMlp};
use trifuse_testkit::cases::Draw;

/// A list of shapes with one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Suite {
    /// Attention: prefill, decode, block-sparse.
    Attention,
    /// The fused MLP.
    Mlp,
    /// A transformer layer as one graph, beside its parts.
    Layer,
    /// Matrix products.
    Linear,
    /// The products of Llama-2's layers, 1 row to 8,192.
    Projections,
    /// Chains and groups of codebook GEMMs.
    Adapters,
    /// Attention over a prefix that sequences share, in factors and as plain keys and values.
    Prefix,
    /// Block-sparse attention by the number of blocks.
    Sparse,
    /// The codebook GEMMs of one pass through a model, with a hundred adapters on the device or on the host.
    ForwardPass,
    /// Products and attention at sizes that rise one by one, against the next size that is aligned.
    Align,
    /// Sizes that published suites measured and that no other list has.
    Published,
    /// What everything else is made of: copies, large products, launches, nodes of a graph.
    Micro,
}

impl Suite {
    /// Every suite.
    pub const ALL: [Self; 12] = [
        Self::Attention,
        Self::Mlp,
        Self::Layer,
        Self::Linear,
        Self::Projections,
        Self::Adapters,
        Self::Prefix,
        Self::Sparse,
        Self::ForwardPass,
        Self::Align,
        Self::Published,
        Self::Micro,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Mlp => "mlp",
            Self::Layer => "layer",
            Self::Linear => "linear",
            Self::Projections => "projections",
            Self::Adapters => "adapters",
            Self::Prefix => "prefix",
            Self::Sparse => "sparse",
            Self::ForwardPass => "forward-pass",
            Self::Align => "align",
            Self::Published => "published",
            Self::Micro => "micro",
        }
    }

    /// How often its shapes run where nothing else is said: as the references did, 100 timed runs where the spread of the
    /// times is the subject, else 50.
    pub fn schedule(self) -> Schedule {
        match self {
            Self::Sparse => Schedule { iterations: 100, ..Schedule::default() },
            Self::ForwardPass => Schedule { warmup: 5, iterations: 100, ..Schedule::default() },
            _ => Schedule::default(),
        }
    }
}

/// The sizes of one measurement, in elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "op")]
pub enum Shape {
    /// `[tokens, d_in] · [d_out, d_in]ᵀ`.
    Linear {
        /// Rows of x (M).
        tokens: u64,
        /// Columns of y (N).
        d_out: u64,
        /// Columns of x (K).
        d_in: u64,
        /// The adapters on top, of `d_in = d_out`, where there are any.
        delta: Option<Delta>,
        /// Which operands' rows start on multiples of 16 bytes whatever their length.
        #[serde(default, skip_serializing_if = "Padding::is_none")]
        padding: Padding,
        /// How many in a row, each on what the one before wrote and with weights of its own: as a model runs them.
        #[serde(default = "layers::one", skip_serializing_if = "layers::is_one")]
        layers: u64,
    },
    /// Two products with a GELU (tanh form) and both biases, or gated.
    FusedMlp {
        /// Rows of x.
        tokens: u64,
        /// Columns of x and y.
        d_model: u64,
        /// Columns of the intermediate.
        d_ff: u64,
        /// SwiGLU without biases, as Llama has it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        gated: bool,
        /// How many in a row, each on what the one before wrote and with weights of its own: as a model runs them.
        #[serde(default = "layers::one", skip_serializing_if = "layers::is_one")]
        layers: u64,
    },
    /// Packed `[batch, tokens, heads, head_dim]`.
    Attention {
        /// Sequences.
        batch: u64,
        /// Heads of q.
        heads: u64,
        /// Heads of k and v.
        kv_heads: u64,
        /// Queries a sequence.
        q_len: u64,
        /// Keys a sequence.
        kv_len: u64,
        /// Elements of a head.
        head_dim: u64,
        /// Whether a query sees no later key.
        causal: bool,
        /// The blocks that are there, where not all are.
        blocks: Option<Blocks>,
        /// How many times in a row, each over operands of its own: a model decodes one layer after another.
        #[serde(default = "layers::one", skip_serializing_if = "layers::is_one")]
        layers: u64,
    },
    /// One token of each sequence appended to a cache in pages, and attention over it.
    Decode {
        /// Sequences.
        batch: u64,
        /// Heads of q.
        heads: u64,
        /// Heads of k and v.
        kv_heads: u64,
        /// Keys a sequence, the new one among them.
        kv_len: u64,
        /// Elements of a head.
        head_dim: u64,
        /// How many times in a row, each over operands of its own: a model decodes one layer after another.
        layers: u64,
    },
    /// Sequences of their own lengths in one launch.
    Ragged(Sequences),
    /// Queries of many sequences over a prefix that all share.
    Prefix {
        /// Sequences, one query each.
        batch: u64,
        /// Heads of q.
        heads: u64,
        /// Heads of k and v.
        kv_heads: u64,
        /// Tokens of the prefix.
        tokens: u64,
        /// Elements of a head.
        head_dim: u64,
        /// Columns of the factors that K and V are given by, coefficients in codes of four bits; nothing where they are tensors.
        rank: Option<u64>,
    },
    /// `d → d` projections in S2LC's form: one basis, codes of 7 bits, y written over.
    CodebookGemm {
        /// Rows of x.
        tokens: u64,
        /// Adapters, token `t` on adapter `t mod adapters`.
        adapters: u32,
        /// How many projections.
        projections: u64,
        /// Columns of x and y.
        d: u64,
        /// Columns of both factors.
        rank: u64,
        /// All in one launch on one x, rather than each on what the one before wrote.
        grouped: bool,
        /// So many projections in a row read the same x, slices of one launch unless these are all; the next one reads what the last of
        /// them wrote. 1: each waits for the one before.
        share: u64,
        /// Where the adapters are held.
        held: Held,
    },
    /// A population far larger than a batch, in S2LC's form, and a batch over all of it: each projection on what the one
    /// before wrote.
    Registered {
        /// Rows of x, each on an adapter of its own where there are as many.
        tokens: u64,
        /// Adapters.
        adapters: u32,
        /// Bits of a code.
        bits: u32,
        /// How many projections, where the device holds them all.
        projections: u64,
        /// Columns of x and y.
        d: u64,
        /// Columns of both factors.
        rank: u64,
    },
    /// `d → d` projections with LoRA adapters as they are trained, each projection on what the one before wrote: both factors dense, and each
    /// adapter's own.
    Lora {
        /// Rows of x.
        tokens: u64,
        /// Adapters, token `t` on adapter `t mod adapters`.
        adapters: u32,
        /// How many projections.
        projections: u64,
        /// Columns of x and y.
        d: u64,
        /// Columns of both factors.
        rank: u64,
        /// Whether y is added to, as an engine does, rather than written over.
        added: bool,
    },
    /// A mixture of experts that are adapters, in S2LC's form, of `d → d` projections that all read one x and are added to: each
    /// token goes to `top` experts, with a weight for each, a launch a choice.
    Mixture {
        /// Rows of x.
        tokens: u64,
        /// Experts.
        experts: u32,
        /// Experts that each token goes to.
        top: u32,
        /// How many projections.
        projections: u64,
        /// Columns of x and y.
        d: u64,
        /// Columns of both factors.
        rank: u64,
    },
    /// Projections of one x in one launch, each of adapters of its own in S2LC's form, whose columns of y need not be as many as those of x.
    Projection(ProjectionSizes),
    /// A transformer layer, all of its operations.
    #[serde(skip_deserializing)]
    Layer {
        /// The model that it is of, where it is one with a name.
        model: Option<Model>,
        /// Sequences.
        batch: u64,
        /// Tokens of each.
        tokens: u64,
        /// Widths of the layer.
        #[serde(flatten)]
        sizes: Sizes,
        /// Norms and MLP of the layer.
        style: Style,
        /// Whether a token sees no later one.
        causal: bool,
    },
    /// A copy from one buffer to another.
    Copy {
        /// Bytes that are read; as many are written.
        bytes: u64,
    },
    /// Launches of a kernel with next to nothing to do, each on what the one before wrote.
    Launches {
        /// How many.
        count: u64,
    },
}

/// Where adapters are held between the runs that use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// On the device, all of them.
    Device,
    /// On the host, in page-locked memory: before each launch those that the batch uses are copied into one place on the
    /// device. The bases are on the device.
    Host,
    /// On the host as in [`Host`](Self::Host), but the adapters of all launches are copied together before the first.
    HostPass,
}

/// Compressed adapters on top of a linear operation, in S2LC's form; token `t` is on adapter `t mod adapters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delta {
    /// How many.
    pub adapters: u32,
    /// Columns of both factors.
    pub rank: u64,
}

impl Shape {
    /// Name of the shape: what `--shape` searches.
    pub fn name(&self) -> String {
        match self {
            Self::Linear { tokens, d_out, d_in, delta, padding, layers } => {
                let delta = delta.map_or_else(String::new, |Delta { adapters, rank }| format!(" + r{rank} adapters{adapters}"));
                format!("m{tokens} n{d_out} k{d_in}{delta}{}{}", padding.suffix(), in_a_row(*layers))
            }
            Self::FusedMlp { tokens, d_model, d_ff, gated, layers } => {
                format!("m{tokens} {d_model}-{d_ff}-{d_model} {}{}", if *gated { "swiglu" } else { "gelu" }, in_a_row(*layers))
            }
            Self::Attention { batch, heads, kv_heads, q_len, kv_len, head_dim, causal, blocks, layers } => {
                let dense = || if q_len == kv_len { "prefill".to_owned() } else { "decode".into() };
                let mut name = blocks.map_or_else(dense, |blocks| blocks.name());
                name += &format!(" b{batch} h{heads}");
                if heads != kv_heads || q_len != kv_len {
                    name += &format!("/{kv_heads}");
                }
                name += &format!(" d{head_dim} s{kv_len}");
                if *q_len != 1 && q_len != kv_len {
                    name += &format!(" q{q_len}");
                }
                if *causal {
                    name += " causal";
                }
                name + &in_a_row(*layers)
            }
            Self::Decode { batch, heads, kv_heads, kv_len, head_dim, layers } => {
                format!("append and decode b{batch} h{heads}/{kv_heads} d{head_dim} s{kv_len}{}", in_a_row(*layers))
            }
            Self::Ragged(sequences) => sequences.name(),
            Self::Prefix { batch, heads, kv_heads, tokens, head_dim, rank } => {
                let form = rank.map_or_else(|| "plain".to_owned(), |rank| format!("r{rank} of 4 bits"));
                format!("prefix {form}, b{batch} h{heads}/{kv_heads} d{head_dim} s{tokens}")
            }
            Self::CodebookGemm { tokens, adapters, projections, d, rank, grouped, share, held } => {
                let form = match (grouped, held) {
                    (true, _) => "grouped".to_owned(),
                    (_, Held::Host) => "from host,".into(),
                    (_, Held::HostPass) => "from host at once,".into(),
                    _ if *share == 1 => "chained".into(),
                    _ if share == projections => "one input,".into(),
                    _ => format!("one input per {share},"),
                };
                format!("{form} {projections} x {d} r{rank} tokens{tokens} adapters{adapters}")
            }
            Self::Registered { tokens, adapters, bits, projections, d, rank } => {
                format!("registered {adapters} of {bits} bits, {projections} x {d} r{rank} tokens{tokens}")
            }
            Self::Lora { tokens, adapters, projections, d, rank, added } => {
                let form = if *added { "LoRA added" } else { "LoRA chained" };
                format!("{form} {projections} x {d} r{rank} tokens{tokens} adapters{adapters}")
            }
            Self::Mixture { tokens, experts, top, projections, d, rank } => {
                format!("mixture of {experts} experts top{top}, {projections} x {d} r{rank} tokens{tokens}")
            }
            Self::Projection(sizes) => sizes.name(),
            Self::Layer { model, batch, tokens, sizes, style, causal } => {
                let model = model.map_or_else(|| format!("h{}", sizes.hidden), |model| model.name().into());
                format!("{model} {} b{batch} s{tokens}{}", style.name(), if *causal { " causal" } else { "" })
            }
            Self::Copy { bytes } => match bytes {
                1_073_741_824.. => format!("copy {} GiB", bytes >> 30),
                1_048_576.. => format!("copy {} MiB", bytes >> 20),
                _ => format!("copy {} KiB", bytes >> 10),
            },
            Self::Launches { count } => format!("{count} launches"),
        }
    }

    /// The blocks that are there, drawn from the shape's name alone; nothing where all are.
    ///
    /// # Errors
    /// Sizes past what an index holds.
    pub fn pattern(&self) -> Result<Option<Pattern>> {
        let Self::Attention { q_len, kv_len, blocks: Some(blocks), .. } = self else { return Ok(None) };
        Pattern::draw(*blocks, [*q_len, *kv_len], &mut Draw::seeded(&self.name())).map(Some)
    }
}

/// The fused MLP of a shape.
pub(super) fn fused_mlp(dtype: DType, [tokens, d_model, d_ff]: [u64; 3], gated: bool) -> FusedMlp {
    let activation = if gated { Activation::Silu } else { Activation::GeluTanh };
    FusedMlp::new(dtype, [tokens, d_model, d_ff, d_model], activation).with_gated(gated).with_bias1(!gated).with_bias2(!gated)
}
