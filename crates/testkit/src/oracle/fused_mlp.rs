//! `Y = act(X·W1ᵀ + b1)·W2ᵀ + b2 + residual`, or gated `Y = (act(X·Wgᵀ) ⊙ (X·W1ᵀ + b1))·W2ᵀ + b2 + residual`.

use super::{Define, Output, Rounding, activate, expect_len, expect_optional, products, transposed};
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::ops::{FusedMlp, Op};

/// The operands on the host, row-major; see [`trifuse::ops::FusedMlpArgs`].
#[derive(Clone, Debug)]
pub struct Host {
    /// `[tokens, d_model]`.
    pub x: Vec<f64>,
    /// `[d_ff, d_model]`.
    pub w1: Vec<f64>,
    /// `[d_ff, d_model]`.
    pub wg: Option<Vec<f64>>,
    /// `[d_ff]`.
    pub b1: Option<Vec<f64>>,
    /// `[d_out, d_ff]`.
    pub w2: Vec<f64>,
    /// `[d_out]`.
    pub b2: Option<Vec<f64>>,
    /// `[tokens, d_out]`.
    pub residual: Option<Vec<f64>>,
}

impl Define for FusedMlp {
    type Host = Host;

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn evaluate<R: Rounding>(&self, host: &Host, rounding: R) -> Result<Vec<Output>> {
        self.validate()?;
        expect_len("fused_mlp: x", &host.x, self.tokens * self.d_model)?;
        expect_len("fused_mlp: w1", &host.w1, self.d_ff * self.d_model)?;
        expect_len("fused_mlp: w2", &host.w2, self.d_out * self.d_ff)?;
        expect_optional("fused_mlp: wg", host.wg.as_deref(), self.gated, self.d_ff * self.d_model)?;
        expect_optional("fused_mlp: b1", host.b1.as_deref(), self.bias1, self.d_ff)?;
        expect_optional("fused_mlp: b2", host.b2.as_deref(), self.bias2, self.d_out)?;
        expect_optional("fused_mlp: residual", host.residual.as_deref(), self.residual, self.tokens * self.d_out)?;

        let (d_model, d_ff, d_out) = (self.d_model as usize, self.d_ff as usize, self.d_out as usize);
        let gate = host.wg.as_ref().map(|wg| products(&host.x, wg, d_model, rounding, |_, _, gate| activate(self.activation, gate, rounding)));
        let hidden = products(&host.x, &host.w1, d_model, rounding, |t, f, up| {
            let up = host.b1.as_ref().map_or(up, |b1| rounding.step(up + b1[f]));
            rounding.keep(match &gate {
                Some(gate) => gate[t * d_ff + f] * up,
                None => activate(self.activation, up, rounding),
            })
        });
        let y = products(&hidden, &host.w2, d_ff, rounding, |t, n, value| {
            let value = host.b2.as_ref().map_or(value, |b2| rounding.step(value + b2[n]));
            let value = host.residual.as_ref().map_or(value, |residual| rounding.step(value + residual[t * d_out + n]));
            rounding.keep(value)
        });
        Ok(vec![Output::packed("y", self.dtype, y)])
    }

    fn disordered(&self, host: &Host) -> Vec<(&'static str, Host)> {
        let (d_model, d_ff, d_out) = (self.d_model as usize, self.d_ff as usize, self.d_out as usize);
        let w1 = transposed(&host.w1, d_ff, d_model).map(|w1| ("w1", Host { w1, ..host.clone() }));
        let w2 = transposed(&host.w2, d_out, d_ff).map(|w2| ("w2", Host { w2, ..host.clone() }));
        let swapped = host.wg.as_ref().map(|wg| ("gate and up", Host { w1: wg.clone(), wg: Some(host.w1.clone()), ..host.clone() }));
        w1.into_iter().chain(w2).chain(swapped).collect()
    }
}
