//! What is measured: an operation's sizes, in words that a report and a peer's program understand.

use serde::Serialize;

use crate::cases::Draw;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attention::Form;
use crate::ops::index::{BlockMask, BlockShape};
use crate::ops::{Activation, Attention, FusedMlp};

/// One line of a suite.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// The suite.
    pub suite: Suite,
    /// The sizes.
    #[serde(flatten)]
    pub shape: Shape,
    /// Of every operand.
    pub dtype: DType,
    /// Whether the work is captured once and replayed: what a server does with work this short.
    pub captured: bool,
}

/// A list of shapes with one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Suite {
    /// Attention: prefill, decode, block-sparse.
    Attention,
    /// The fused MLP.
    Mlp,
    /// Matrix products.
    Linear,
    /// Chains and groups of codebook GEMMs.
    Adapters,
}

impl Suite {
    /// Every suite.
    pub const ALL: [Self; 4] = [Self::Attention, Self::Mlp, Self::Linear, Self::Adapters];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Mlp => "mlp",
            Self::Linear => "linear",
            Self::Adapters => "adapters",
        }
    }
}

/// The sizes of one measurement, in elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
    },
    /// Two products with a GELU (tanh form) and both biases.
    FusedMlp {
        /// Rows of x.
        tokens: u64,
        /// Columns of x and y.
        d_model: u64,
        /// Columns of the intermediate.
        d_ff: u64,
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
    },
}

/// Compressed adapters on top of a linear operation, in S2LC's form; token `t` is on adapter `t mod adapters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Delta {
    /// How many.
    pub adapters: u32,
    /// Columns of both factors.
    pub rank: u64,
}

/// A random pattern of blocks, the same for all heads: the diagonal, and of the rest one in so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Blocks {
    /// Queries and keys of a block.
    pub size: u32,
    /// One block in so many is there.
    pub one_in: u32,
}

impl Shape {
    /// Its name: what `--shape` searches.
    pub fn name(&self) -> String {
        match self {
            Self::Linear { tokens, d_out, d_in, delta } => {
                let delta = delta.map_or_else(String::new, |Delta { adapters, rank }| format!(" + r{rank} adapters{adapters}"));
                format!("m{tokens} n{d_out} k{d_in}{delta}")
            }
            Self::FusedMlp { tokens, d_model, d_ff } => format!("m{tokens} {d_model}-{d_ff}-{d_model} gelu"),
            Self::Attention { batch, heads, kv_heads, q_len, kv_len, head_dim, causal, blocks } => {
                let mut name = if q_len == kv_len { "prefill".to_owned() } else { "decode".into() };
                if let Some(Blocks { size, one_in }) = blocks {
                    name = format!("sparse{} block{size}", 100 - 100 / one_in);
                }
                name += &format!(" b{batch} h{heads}");
                if heads != kv_heads || q_len != kv_len {
                    name += &format!("/{kv_heads}");
                }
                name += &format!(" d{head_dim} s{kv_len}");
                if *q_len != 1 && q_len != kv_len {
                    name += &format!(" q{q_len}");
                }
                if *causal { name + " causal" } else { name }
            }
            Self::CodebookGemm { tokens, adapters, projections, d, rank, grouped } => {
                let form = if *grouped { "grouped" } else { "chained" };
                format!("{form} {projections} x {d} r{rank} tokens{tokens} adapters{adapters}")
            }
        }
    }

    /// The blocks that are there, drawn from the shape's name alone; nothing where all are.
    ///
    /// # Errors
    /// Sizes past what an index holds.
    pub fn pattern(&self) -> Result<Option<Pattern>> {
        let Self::Attention { q_len, kv_len, blocks: Some(Blocks { size, one_in }), .. } = self else { return Ok(None) };
        let mut draw = Draw::seeded(&self.name());
        let (rows, columns) = (q_len.div_ceil(u64::from(*size)) as u32, kv_len.div_ceil(u64::from(*size)) as u32);
        let (mut row_ptr, mut col_idx) = (vec![0], Vec::new());
        for row in 0..rows {
            for column in 0..columns {
                if draw.below(*one_in) == 0 || column == row % columns {
                    col_idx.push(column as i32);
                }
            }
            row_ptr.push(col_idx.len() as i32);
        }
        let shape = BlockShape { block: *size, q_blocks: rows, kv_blocks: columns, patterns: 1, capacity: col_idx.len() as u32, masks: 0 };
        let mask = BlockMask::new(&row_ptr, &col_idx, &[], &[], shape)?;
        Ok(Some(Pattern { block: *size, row_ptr, col_idx, mask }))
    }
}

/// Blocks in compressed sparse rows.
#[derive(Clone, Debug, Serialize)]
pub struct Pattern {
    /// Queries and keys of a block.
    pub block: u32,
    /// Where the blocks of each row of blocks begin, and where the last ends.
    pub row_ptr: Vec<i32>,
    /// The column of each block.
    pub col_idx: Vec<i32>,
    /// The same, checked.
    #[serde(skip)]
    pub mask: BlockMask,
}

/// The fused MLP of a shape.
pub(super) fn fused_mlp(dtype: DType, tokens: u64, d_model: u64, d_ff: u64) -> FusedMlp {
    let activation = Activation::GeluTanh;
    FusedMlp { dtype, tokens, d_model, d_ff, d_out: d_model, activation, gated: false, bias1: true, bias2: true, residual: false }
}

/// `op` over the listed blocks.
pub(super) fn sparse(op: Attention, pattern: Option<&Pattern>) -> Attention {
    use crate::ops::index::HostIndex;
    match pattern {
        Some(pattern) => Attention { form: Form::Blocks(pattern.mask.shape()), ..op },
        None => op,
    }
}
