//! The small operations of a layer on CUDA.

use super::jit::{Arch, Unit, source};
use super::kernel::{Launch, Plan, RunsOn, Table, TensorCores, Variant, address, address_of, blocks, names};
use super::linear::activation_code;
use super::params::params;
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::pointwise::Kind;
use crate::ops::{Pointwise, PointwiseArgs};

impl Table for Pointwise {
    const VARIANTS: &'static [Variant<Self>] = &VARIANTS;
    const NAMES: &'static [&'static str] = &names::<Self, { VARIANTS.len() }>(&VARIANTS);
}

const VARIANTS: [Variant<Pointwise>; 1] = [Variant {
    name: "simt",
    label: "pointwise/simt",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::Without("there is no product of matrices"),
    covers: |_, _| Ok(()),
    unit: |op, _| unit(op.dtype),
    units: |_: Arch| DType::ALL.map(unit).into(),
    workspace: |_, _| 0,
    launch,
}];

params! {
    /// Of every kind.
    PointwiseParams {
        x: [const element],
        weight: [const element],
        bias: [const element],
        residual: [const element],
        y: [element],
        /// Positions, ids or running totals.
        index: [const i32],
        rows: u64,
        columns: u64,
        head_dim: u64,
        /// Of the rotary base.
        log2_base: f64,
        eps: f32,
        kind: u32,
        activation: u32,
        unused: u32,
    }
}

fn unit(dtype: DType) -> Unit {
    Unit {
        name: format!("pointwise/simt {dtype}"),
        source: source!("pointwise/simt.cu"),
        headers: vec![("pointwise/params.cuh", PointwiseParams::cuda())],
        defines: vec![("ELEMENT", dtype.name().into())],
        entries: &["pointwise_simt"],
        shared_bytes: 0,
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Pointwise>, _workspace: &Slice<Cuda>, args: &PointwiseArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let mut params = PointwiseParams {
        x: address(&args.x),
        weight: address_of(args.weight.as_ref()),
        bias: address_of(args.bias.as_ref()),
        residual: address_of(args.residual.as_ref()),
        y: address(&args.y),
        index: 0,
        rows: op.rows,
        columns: op.columns,
        head_dim: op.columns,
        log2_base: 0.0,
        eps: 0.0,
        kind: 0,
        activation: 0,
        unused: 0,
    };
    match op.kind {
        Kind::RmsNorm { eps, .. } => (params.kind, params.eps) = (0, f32::from_bits(eps)),
        Kind::LayerNorm { eps, .. } => (params.kind, params.eps) = (1, f32::from_bits(eps)),
        Kind::Rope { head_dim, base } => {
            (params.kind, params.head_dim, params.log2_base) = (2, head_dim, f64::from(f32::from_bits(base)).log2());
            params.index = address_of(args.positions.as_ref());
        }
        Kind::Embedding { .. } => (params.kind, params.index) = (3, address_of(args.ids.as_ref().map(|ids| ids.slice()))),
        Kind::MeanPool(_) => (params.kind, params.index) = (4, address_of(args.sequences.as_ref().map(|sequences| sequences.slice()))),
        Kind::L2Normalise => params.kind = 5,
        Kind::Add => params.kind = 6,
        Kind::Activation(activation) => (params.kind, params.activation) = (7, activation_code(Some(activation))),
    }
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, "pointwise_simt", &Launch::new(blocks(op.rows), 256), &params) }
}
