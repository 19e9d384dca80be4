//! `Y = act(X·Wᵀ + bias + delta) + residual`, gates, and the norms of rows of X and of Y.

use super::pointwise::{layer_norm, rms_norm};
use super::{Define, Output, Rounding, activate, codebook_gemm, expect_len, expect_optional, products, reversed, transposed};
use trifuse::dtype::DType;
use trifuse::error::{Result, ensure};
use trifuse::ops::{Linear, Op};

/// The operands on the host, row-major; see [`trifuse::ops::LinearArgs`].
#[derive(Clone, Debug)]
pub struct Host {
    /// `[tokens, d_in]`.
    pub x: Vec<f64>,
    /// `[d_out, d_in]`; of gates and then of what they let through where outputs are gated.
    pub w: Vec<f64>,
    /// `[d_out]`.
    pub bias: Option<Vec<f64>>,
    /// `[tokens, d_out]`.
    pub residual: Option<Vec<f64>>,
    /// The operands of the delta. `x` and `y` in it are empty: they are this operation's.
    pub delta: Option<codebook_gemm::Host>,
    /// Weight and bias of the norm, `[d_out]` each.
    pub norm: Option<[Vec<f64>; 2]>,
    /// The weight of the norm before the product, `[d_in]`.
    pub input_norm: Option<Vec<f64>>,
}

impl Define for Linear {
    type Host = Host;

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn evaluate<R: Rounding>(&self, host: &Host, rounding: R) -> Result<Vec<Output>> {
        self.validate()?;
        expect_len("linear: x", &host.x, self.tokens * self.d_in)?;
        expect_len("linear: w", &host.w, self.w_rows() * self.d_in)?;
        expect_optional("linear: input norm", host.input_norm.as_deref(), self.input_norm.is_some(), self.d_in)?;
        expect_optional("linear: bias", host.bias.as_deref(), self.bias, self.d_out)?;
        expect_optional("linear: residual", host.residual.as_deref(), self.residual, self.tokens * self.d_out)?;
        ensure(host.delta.is_some() == self.delta.is_some(), "linear: delta", "present where the descriptor says so", host.delta.is_some())?;
        let delta = match (&self.delta, &host.delta) {
            (Some(op), Some(delta)) => {
                // The values of x are packed here, however they lie on a device.
                let op = op.clone().with_x_stride(self.d_in);
                let mut rows = vec![Some(Vec::new()); self.tokens as usize];
                for which in 0..op.slices.len() {
                    for (row, part) in rows.iter_mut().zip(codebook_gemm::deltas(&op, delta, &host.x, which, rounding)?) {
                        *row = row.take().zip(part).map(|(row, part)| [row, part].concat());
                    }
                }
                rows
            }
            _ => vec![None; self.tokens as usize],
        };

        for (which, name) in ["linear: norm weight", "linear: norm bias"].into_iter().enumerate() {
            let values = host.norm.as_ref().map(|norm| norm[which].as_slice());
            expect_optional(name, values, self.norm.is_some(), self.d_out)?;
        }
        let (d_in, d_out) = (self.d_in as usize, self.d_out as usize);
        let normed = self.input_norm.zip(host.input_norm.as_ref()).map(|(eps, weight)| {
            let rows = host.x.chunks_exact(d_in).flat_map(|row| rms_norm(row, eps, weight, rounding));
            rows.map(|value| rounding.keep(value)).collect::<Vec<_>>()
        });
        let x = normed.as_ref().unwrap_or(&host.x);
        let (gates, w) = host.w.split_at(if self.gated { d_out * d_in } else { 0 });
        let gate = self.gated.then(|| products(x, gates, d_in, rounding, |_, _, value| self.activation.map_or(value, |own| activate(own, value, rounding))));
        // Wide outputs are f32, which every step is rounded to.
        let keep = |value: f64| if self.wide_outputs { rounding.step(value) } else { rounding.keep(value) };
        let mut y = products(x, w, d_in, rounding, |t, n, value| {
            if let Some(gate) = &gate {
                let value = gate[t * d_out + n] * value;
                return rounding.keep(host.residual.as_ref().map_or(value, |residual| rounding.step(rounding.step(value) + residual[t * d_out + n])));
            }
            let value = host.bias.as_ref().map_or(value, |bias| rounding.step(value + bias[n]));
            let value = delta[t].as_ref().map_or(value, |delta| rounding.step(value + delta[n]));
            let value = self.activation.map_or(value, |activation| activate(activation, value, rounding));
            let value = host.residual.as_ref().map_or(value, |residual| rounding.step(value + residual[t * d_out + n]));
            keep(value)
        });
        if let (Some(eps), Some([weight, bias])) = (self.norm, &host.norm) {
            for row in y.chunks_exact_mut(d_out) {
                let normed: Vec<f64> = layer_norm(row, eps, weight, bias, rounding).into_iter().map(|value| rounding.keep(value)).collect();
                row.copy_from_slice(&normed);
            }
        }
        // A tensor core sums 16 products at a time.
        let cut = if self.wide_outputs && self.dtype != DType::F32 { self.d_in.div_ceil(16) } else { 0 };
        Ok(vec![Output { cut, ..Output::packed("y", self.y_dtype(), y) }])
    }

    fn disordered(&self, host: &Host) -> Vec<(&'static str, Host)> {
        let w = transposed(&host.w, self.w_rows() as usize, self.d_in as usize).map(|w| ("w", Host { w, ..host.clone() }));
        // Where no token has an adapter, there is none to leave out.
        let some = host.delta.as_ref().filter(|delta| delta.token_adapter.ids().iter().any(|&adapter| adapter >= 0));
        let without = some.map(|delta| {
            let delta = codebook_gemm::Host { scaling: vec![0.0; delta.scaling.len()], ..delta.clone() };
            ("no delta", Host { delta: Some(delta), ..host.clone() })
        });
        let input = host.input_norm.as_ref().and_then(|weight| reversed(weight));
        let input = input.map(|weight| ("input norm", Host { input_norm: Some(weight), ..host.clone() }));
        let norm = host.norm.as_ref().and_then(|[weight, bias]| Some([reversed(weight)?, bias.clone()]));
        let norm = norm.map(|norm| ("norm weight", Host { norm: Some(norm), ..host.clone() }));
        w.into_iter().chain(without).chain(input).chain(norm).collect()
    }
}
