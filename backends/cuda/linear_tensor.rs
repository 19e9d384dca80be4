//! `linear` on the tensor cores: the variants `sm80` and `sm90`.

use super::codebook_gemm::{FactorParams, factor_header};
use super::gemm::{GemmParams, HALVES, MmaTile, Product, WgmmaTile, fits, gemm_header, half};
use super::jit::{Arch, Unit, source};
use super::kernel::{Plan, RunsOn, Target, TensorCores, Variant, address};
use super::linear::{LinearParams, activation_code, launch_project, linear_params};
use super::params::params;
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Activation, Linear, LinearArgs};

pub(super) const SM80: Variant<Linear> = Variant {
    name: "sm80",
    label: "linear/sm80",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    covers: |op, target| half(op.dtype).and_then(|()| fits(mma_tile(op, target).shared_bytes(), target)),
    unit: |op, target| unit_sm80(op.dtype, &mma_tile(op, target)),
    units: |_: Arch| HALVES.iter().flat_map(|&dtype| MmaTile::ALL.map(|tile| unit_sm80(dtype, &tile))).collect(),
    workspace: |op, _| op.delta.as_ref().map_or(0, |delta| op.tokens * delta.slices[0].rank * 4),
    launch: launch_sm80,
};

pub(super) const SM90: Variant<Linear> = Variant {
    name: "sm90",
    label: "linear/sm90",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    covers: covers_sm90,
    unit: |op, target| unit_sm90(op.dtype, &wgmma_tile(op, target), op.activation),
    units: |_: Arch| {
        let activations = || Activation::ALL.into_iter().map(Some).chain([None]);
        let tiles = || WgmmaTile::ALL.into_iter().flat_map(move |tile| activations().map(move |activation| (tile, activation)));
        HALVES.iter().flat_map(|&dtype| tiles().map(move |(tile, activation)| unit_sm90(dtype, &tile, activation))).collect()
    },
    workspace: |_, _| 0,
    launch: launch_sm90,
};

params! {
    /// Of the kernels of `sm80.cu` that multiply.
    LinearMmaParams {
        gemm: GemmParams,
        /// Of the delta: the adapter of each token, or null.
        token_adapter: [const i32],
        projected: [const f32],
        output: FactorParams,
    }
}

fn mma_tile(op: &Linear, target: &Target) -> MmaTile {
    MmaTile::choose(op.tokens, op.d_out, false, target)
}

fn wgmma_tile(op: &Linear, target: &Target) -> WgmmaTile {
    WgmmaTile::choose(&[(op.tokens, op.d_out, op.d_in, false)], target)
}

fn covers_sm90(op: &Linear, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    WgmmaTile::enough_rows(op.tokens)?;
    if op.delta.is_some() {
        return Err("adapters on top".into());
    }
    WgmmaTile::reads(op.dtype, op.tokens.max(op.d_out), op.d_in, op.d_in)?;
    fits(wgmma_tile(op, target).shared_bytes(), target)
}

fn unit_sm80(dtype: DType, tile: &MmaTile) -> Unit {
    let mut defines = tile.defines();
    defines.push(("ELEMENT", dtype.name().into()));
    Unit {
        name: format!("linear/sm80 {dtype}, {}", tile.name()),
        source: source!("linear/sm80.cu"),
        headers: vec![gemm_header(), factor_header(), ("linear/params.cuh", LinearParams::cuda()), ("linear/mma_params.cuh", LinearMmaParams::cuda())],
        defines,
        entries: &["linear_project", "linear_mma_16", "linear_mma_4", "linear_mma_2"],
        shared_bytes: tile.shared_bytes(),
    }
}

/// The tile of the kernels that take over from wgmma where an operand starts at an odd place.
const INSTEAD: MmaTile = MmaTile::MIDDLE;

fn unit_sm90(dtype: DType, tile: &WgmmaTile, activation: Option<Activation>) -> Unit {
    let mut defines = [tile.defines(), INSTEAD.defines()].concat();
    defines.push(("ELEMENT", dtype.name().into()));
    defines.push(("ACTIVATION", activation_code(activation).to_string()));
    Unit {
        name: format!("linear/sm90 {dtype}, {} columns, {}", tile.columns_name(), activation.map_or("no activation", Activation::name)),
        source: source!("linear/sm90.cu"),
        headers: vec![gemm_header()],
        defines,
        entries: &["linear_wgmma", "linear_mma_4", "linear_mma_2"],
        shared_bytes: tile.shared_bytes().max(INSTEAD.shared_bytes()),
    }
}

fn product<'a>(op: &Linear, args: &'a LinearArgs<Cuda>) -> Product<'a> {
    Product {
        dtype: op.dtype,
        x: args.x.clone(),
        w: args.w.clone(),
        gate: None,
        bias: args.bias.as_ref(),
        residual: args.residual.clone(),
        y: args.y.clone(),
        rows: op.tokens,
        columns: op.d_out,
        depth: op.d_in,
        x_stride: op.d_in,
        y_stride: op.d_out,
        activation: op.activation,
    }
}

unsafe fn launch_sm80(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let product = product(op, args);
    let mut params = LinearMmaParams { gemm: product.params(), token_adapter: 0, projected: address(workspace), output: FactorParams::NONE };
    if op.delta.is_some() {
        let project = linear_params(op, workspace, args);
        params.token_adapter = project.token_adapter;
        params.output = project.output;
        // SAFETY: the caller's promise; the workspace holds a row of f32 for each token.
        unsafe { launch_project(queue, plan, &project)? };
    }
    let entry = match product.width() {
        16 => "linear_mma_16",
        4 => "linear_mma_4",
        _ => "linear_mma_2",
    };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, entry, &product.mma_launch(&mma_tile(op, &plan.target)), &params) }
}

unsafe fn launch_sm90(queue: &mut Queue, plan: &Plan<Linear>, _workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    let product = product(&plan.op, args);
    // SAFETY: the caller's promise; the width says that rows start where TMA can read them.
    unsafe {
        match product.width() {
            16 => product.launch_wgmma(queue, plan, &wgmma_tile(&plan.op, &plan.target), "linear_wgmma", false),
            _ => product.launch_mma(queue, plan, &INSTEAD, ["", "linear_mma_4", "linear_mma_2"]),
        }
    }
}
