use super::tensors::{Tensors, dtype_named};
use crate::cases::{Posed, Problem};
use crate::oracle::{fused_mlp, linear};
use trifuse::error::Result;
use trifuse::ops::{Activation, FusedMlp, Linear};

/// Every element is written.
fn all(values: Vec<f64>) -> Vec<Option<f64>> {
    values.into_iter().map(Some).collect()
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct LinearParams {
    dtype: String,
    activation: String,
}

pub(super) fn read_linear(tensors: &mut Tensors) -> Result<(Problem, Vec<Vec<Option<f64>>>)> {
    let params: LinearParams = tensors.params()?;
    let dtype = dtype_named(tensors, &params.dtype)?;
    let activation = if params.activation == "none" { None } else { Some(tensors.at("params", params.activation.parse::<Activation>())?) };
    let [tokens, d_in] = tensors.shape("x")?;
    let [d_out, _] = tensors.shape("w")?;
    let host = linear::Host {
        x: tensors.float("x", dtype, &[tokens, d_in])?,
        w: tensors.float("w", dtype, &[d_out, d_in])?,
        bias: tensors.optional("bias", dtype, &[d_out])?,
        residual: tensors.optional("residual", dtype, &[tokens, d_out])?,
        delta: None,
        norm: None,
        input_norm: None,
    };
    let op = Linear::new(dtype, [tokens, d_in, d_out]).with_bias(host.bias.is_some()).with_activation(activation).with_residual(host.residual.is_some());
    let y = tensors.expected("y", &[tokens, d_out])?;
    Ok((Posed { op, host }.into(), vec![all(y)]))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct MlpParams {
    dtype: String,
    activation: String,
    gated: bool,
}

pub(super) fn read_fused_mlp(tensors: &mut Tensors) -> Result<(Problem, Vec<Vec<Option<f64>>>)> {
    let params: MlpParams = tensors.params()?;
    let dtype = dtype_named(tensors, &params.dtype)?;
    let activation = tensors.at("params", params.activation.parse::<Activation>())?;
    let [tokens, d_model] = tensors.shape("x")?;
    let [d_ff, _] = tensors.shape("w1")?;
    let [d_out, _] = tensors.shape("w2")?;
    let host = fused_mlp::Host {
        x: tensors.float("x", dtype, &[tokens, d_model])?,
        w1: tensors.float("w1", dtype, &[d_ff, d_model])?,
        wg: if params.gated { Some(tensors.float("wg", dtype, &[d_ff, d_model])?) } else { None },
        b1: tensors.optional("b1", dtype, &[d_ff])?,
        w2: tensors.float("w2", dtype, &[d_out, d_ff])?,
        b2: tensors.optional("b2", dtype, &[d_out])?,
        residual: tensors.optional("residual", dtype, &[tokens, d_out])?,
    };
    let op = FusedMlp::new(dtype, [tokens, d_model, d_ff, d_out], activation);
    let op = op.with_gated(params.gated).with_bias1(host.b1.is_some()).with_bias2(host.b2.is_some()).with_residual(host.residual.is_some());
    let y = tensors.expected("y", &[tokens, d_out])?;
    Ok((Posed { op, host }.into(), vec![all(y)]))
}
