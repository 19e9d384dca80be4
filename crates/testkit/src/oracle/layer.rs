//! A transformer layer: the definitions of its operations, each on what the one before gave.

use super::attention::HostForm;
use super::{Define, Rounding, attention, expect_len, fused_mlp, linear, pointwise};
use trifuse::error::{Error, Result};
use trifuse::ops::Layer;
use trifuse::ops::layer::Parts;

/// The weights on the host, row-major; see [`Layer`]. Biases are there where the style has them.
#[derive(Clone, Debug)]
pub struct Weights {
    /// `[hidden]`: of the norm before attention.
    pub attention_norm: Affine,
    /// `[heads · head_dim + 2 · kv_heads · head_dim, hidden]`.
    pub qkv: Affine,
    /// `[hidden, heads · head_dim]`.
    pub output: Affine,
    /// `[hidden]`: of the norm before the MLP.
    pub mlp_norm: Affine,
    /// `[intermediate, hidden]`, of a gated MLP.
    pub gate: Option<Vec<f64>>,
    /// `[intermediate, hidden]`.
    pub up: Affine,
    /// `[hidden, intermediate]`.
    pub down: Affine,
}

/// A weight, and a bias of one element a row.
#[derive(Clone, Debug)]
pub struct Affine {
    /// The weight.
    pub weight: Vec<f64>,
    /// The bias, where there is one.
    pub bias: Option<Vec<f64>>,
}

/// The layer's output, `[batch · tokens, hidden]`, for states `x` of that shape. `positions`, one a row, are read where there are
/// rotary positions.
///
/// # Errors
/// Sizes that are not the layer's.
pub fn evaluate<R: Rounding>(layer: &Layer, weights: &Weights, x: &[f64], positions: &[i32], rounding: R) -> Result<Vec<f64>> {
    let Parts { norm, qkv, rope, attention, output, mlp } = layer.parts()?;
    let normed = |x: &[f64], by: &Affine| {
        first(&norm, &pointwise::Host { weight: Some(by.weight.clone()), bias: by.bias.clone(), ..pointwise::Host::new(x.to_vec()) }, rounding)
    };
    let product = |x: Vec<f64>, by: &Affine, residual: Option<&[f64]>| linear::Host {
        x,
        w: by.weight.clone(),
        bias: by.bias.clone(),
        residual: residual.map(<[f64]>::to_vec),
        delta: None,
        norm: None,
        input_norm: None,
    };
    expect_len("layer: x", x, layer.rows() * layer.sizes.hidden)?;
    let mut rows = first(&qkv, &product(normed(x, &weights.attention_norm)?, &weights.qkv, None), rounding)?;
    if let Some(rope) = &rope {
        // From the first head of q to the last of k of the last row: v of that row lies behind.
        let end = rows.len() - if rows.is_empty() { 0 } else { layer.sizes.key() as usize };
        let host = pointwise::Host { positions: Some(positions.to_vec()), ..pointwise::Host::new(rows[..end].to_vec()) };
        let turned = rope.evaluate(&host, rounding)?.swap_remove(0).elements;
        rows.iter_mut().zip(turned).for_each(|(before, after)| *before = after.unwrap_or(*before));
    }
    let (query, key) = (layer.sizes.query() as usize, layer.sizes.key() as usize);
    // Each operand from its first element to its last: what lies behind in the last row is no part of it.
    let part = |from: usize, behind: usize| if rows.is_empty() { Vec::new() } else { rows[from..rows.len() - behind].to_vec() };
    let host = attention::Host { q: part(0, 2 * key), k: part(query, key), v: part(query + key, 0), index: HostForm::None, slots: None };
    let attended = first(&attention, &host, rounding)?;
    let middle = first(&output, &product(attended, &weights.output, Some(x)), rounding)?;
    let host = fused_mlp::Host {
        x: normed(&middle, &weights.mlp_norm)?,
        w1: weights.up.weight.clone(),
        wg: weights.gate.clone(),
        b1: weights.up.bias.clone(),
        w2: weights.down.weight.clone(),
        b2: weights.down.bias.clone(),
        residual: Some(middle),
    };
    first(&mlp, &host, rounding)
}

/// The one output of an operation, all of which it writes.
fn first<O: Define, R: Rounding>(op: &O, host: &O::Host, rounding: R) -> Result<Vec<f64>> {
    let elements = op.evaluate(host, rounding)?.swap_remove(0).elements;
    elements.into_iter().map(|value| value.ok_or_else(|| Error::invalid(O::NAME, "an output with every element written", "a gap"))).collect()
}
