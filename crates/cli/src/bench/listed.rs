//! Shapes by their sizes alone, as lists have them.

use super::shape::{Padding, Shape};

/// A shape, and whether it is in the quick list.
pub(super) type Entry = (Shape, bool);

pub(super) fn product(tokens: u64, d_out: u64, d_in: u64) -> Shape {
    Shape::Linear { tokens, d_out, d_in, delta: None, padding: Padding::None, layers: 1 }
}

pub(super) fn mlp(tokens: u64, d_model: u64, d_ff: u64) -> Shape {
    Shape::FusedMlp { tokens, d_model, d_ff, gated: false, layers: 1 }
}

pub(super) fn prefill(batch: u64, [heads, kv_heads]: [u64; 2], head_dim: u64, length: u64, causal: bool) -> Shape {
    Shape::Attention { batch, heads, kv_heads, q_len: length, kv_len: length, head_dim, causal, blocks: None, layers: 1 }
}
