//! `linear` on few rows: the variant `sm90_stream`.

use super::gemm::{ActivationForm, GemmParams, HALVES, MmaTile, fits, gemm_header, half};
use super::jit::{Arch, Unit, source};
use super::kernel::{Plan, RunsOn, Target, TensorCores, Variant};
use super::linear_tensor::product;
use super::params::params;
use super::stream::{StreamCut, StreamTile, stream_header};
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

pub(super) const STREAM: Variant<Linear> = Variant {
    name: "sm90_stream",
    label: "linear/sm90_stream",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    covers,
    unit: |op, _| unit(op.dtype, &StreamTile::choose(op.tokens), ActivationForm::of(op.activation)),
    units: |_: Arch| {
        let forms = || StreamTile::ALL.into_iter().flat_map(|tile| ActivationForm::ALL.map(|form| (tile, form)));
        HALVES.iter().flat_map(|&dtype| forms().map(move |(tile, form)| unit(dtype, &tile, form))).collect()
    },
    workspace: |_, _| 0,
    launch,
};

params! {
    /// Of `linear_stream`.
    LinearStreamParams {
        gemm: GemmParams,
        cut: StreamCut,
    }
}

fn covers(op: &Linear, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    if op.delta.is_some() {
        return Err("adapters on top".into());
    }
    StreamTile::covers(op.dtype, op.tokens, op.d_out, op.d_in)?;
    fits(StreamTile::choose(op.tokens).shared_bytes(), target)
}

/// The tile of the kernels that take over where an operand starts at an odd place.
const INSTEAD: MmaTile = MmaTile::SLIM;

fn unit(dtype: DType, tile: &StreamTile, activation: ActivationForm) -> Unit {
    let mut defines = [tile.defines(), INSTEAD.defines()].concat();
    defines.push(("ELEMENT", dtype.name().into()));
    defines.push(("ACTIVATION_FORM", activation.name().into()));
    Unit {
        name: format!("linear/sm90_stream {dtype}, {} rows, {}", tile.tokens(), activation.name()),
        source: source!("linear/sm90_stream.cu"),
        headers: vec![gemm_header(), stream_header(), ("linear/stream_params.cuh", LinearStreamParams::cuda())],
        defines,
        entries: &["linear_stream", "linear_mma_4", "linear_mma_2"],
        shared_bytes: tile.shared_bytes().max(INSTEAD.shared_bytes()),
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    if op.tokens == 0 {
        return Ok(());
    }
    let tile = StreamTile::choose(op.tokens);
    // SAFETY: the caller's promise; the width says that rows start where TMA can read them.
    unsafe {
        let product = product(queue, plan, workspace, args)?;
        if product.width() < 16 {
            return product.launch_mma(queue, plan, &INSTEAD, ["", "linear_mma_4", "linear_mma_2"]);
        }
        let cut = tile.cut(op.d_out, StreamTile::clusters(plan.target.units), true);
        let clusters = StreamTile::clusters_of(&cut, op.d_out).min(StreamTile::clusters(plan.target.units));
        let params = LinearStreamParams { gemm: tile.params(&product, &cut)?, cut };
        plan.launch(queue, "linear_stream", &tile.launch(clusters), &params)
    }
}
