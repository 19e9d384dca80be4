//! `grouped_linear` of a gate and what it lets through, on few rows in one launch: the variant `sm90_skinny_gated`. The two read rows of their own, and a
//! block has the same outputs of both.

use crate::backends::cuda::gemm::activation::{ActivationForm, activation_code};
use crate::backends::cuda::gemm::entry::listed;
use crate::backends::cuda::gemm::problem::{HALVES, Product, SIMT_TILE, fits, half};
use crate::backends::cuda::gemm::sm90::skinny::{SkinnyParams, SkinnyShape};
use crate::backends::cuda::gemm::sm90::skinny_config::Stream;
use crate::backends::cuda::gemm::sm90::units::{Form, SkinnyKernel};
use crate::backends::cuda::grouped_linear::problem::streams;
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::linear::problem::unpacked;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, TensorCores, Variant, address, blocks, range};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{GroupedLinear, GroupedLinearArgs};

pub(crate) const GATED: Variant<GroupedLinear> = Variant {
    name: "sm90_skinny_gated",
    label: "grouped_linear/sm90_skinny_gated",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports: |op, target| {
        half(op.dtype())?;
        if op.gate.is_none() {
            return Err("no gate".into());
        }
        if op.tokens() > ROWS {
            return Err(format!("{} rows > {ROWS}", op.tokens()));
        }
        op.problems.iter().try_for_each(streams)?;
        fits(SHAPE.shared_bytes(), target)
    },
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, _| Unit { also: vec![anywhere(op.dtype())], ..unit(op.dtype(), ActivationForm::of(op.gate)) },
    units: |_: Arch| {
        let own = HALVES.into_iter().flat_map(|dtype| ActivationForm::ALL.map(|activation| unit(dtype, activation)));
        listed(own, HALVES.map(anywhere))
    },
    workspace: |_, _| 0,
    launch,
};

/// The most rows, and the shape of the blocks' stages for them.
const ROWS: u64 = 16;
const SHAPE: SkinnyShape = SkinnyShape::ALL[0];
/// The kernel for operands that TMA cannot read, alone in its unit.
const ANYWHERE: [&str; 1] = ["gemm_gated_pair"];

params! {
    /// Parameters of the kernel for operands at any place. Strides are in elements.
    GatedPairParams {
        gate_x: [const element],
        gate_w: [const element],
        x: [const element],
        w: [const element],
        y: [element],
        rows: u64,
        columns: u64,
        gate_depth: u64,
        depth: u64,
        gate_x_stride: u64,
        gate_w_stride: u64,
        x_stride: u64,
        w_stride: u64,
        activation: u32,
        spare: u32,
    }
}

/// The unit of the streaming kernel with rows for each weight.
fn unit(dtype: DType, activation: ActivationForm) -> Unit {
    let own = SkinnyKernel::Tiles.unit(&SHAPE, false, Form { dtype, gated: true, activation });
    let defines = own.defines.iter().cloned().chain([("SKINNY_PAIRED", "1".into())]).collect();
    Unit { name: format!("{}, rows for each", own.name), defines, ..own }
}

fn anywhere(dtype: DType) -> Unit {
    Unit {
        headers: vec![("gemm/gated_pair_params.cuh", GatedPairParams::cuda())],
        defines: vec![("ELEMENT", dtype.name().into())],
        entries: &ANYWHERE,
        ..Unit::new(format!("{} {dtype}", ANYWHERE[0]), source!("gemm/gated_pair.cu"))
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<GroupedLinear>, _: &Slice<Cuda>, args: &GroupedLinearArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let (true, [gate_op, own_op], [gate_args, own_args]) = (op.tokens() > 0, &op.problems[..], &args.problems[..]) else { return Ok(()) };
    let (gate, own) = (unpacked(gate_op, gate_args), Product { activation: op.gate, ..unpacked(own_op, own_args) });
    if !(gate.aligned() && own.aligned()) {
        let params = GatedPairParams {
            gate_x: address(&gate.x),
            gate_w: address(&gate.w),
            x: address(&own.x),
            w: address(&own.w),
            y: address(&own.y),
            rows: own.rows,
            columns: own.columns,
            gate_depth: gate.depth,
            depth: own.depth,
            gate_x_stride: gate.x_stride,
            gate_w_stride: gate.w_stride,
            x_stride: own.x_stride,
            w_stride: own.w_stride,
            activation: activation_code(op.gate),
            spare: 0,
        };
        let tiles = own.rows.div_ceil(SIMT_TILE) * own.columns.div_ceil(SIMT_TILE);
        // SAFETY: the caller's promise.
        return unsafe { plan.launch(queue, ANYWHERE[0], &Launch::new(blocks(tiles), 256), &params) };
    }
    let (tile_rows, clusters) = Stream::tiles(SHAPE, false).cut(own.columns, SkinnyShape::clusters(plan.target.units));
    let by = SHAPE.params(&gate, tile_rows)?;
    let mut gemm = SHAPE.params(&own, tile_rows)?;
    // Behind the end of the shorter K there are zeros.
    (gemm.gate_map, gemm.x_last_map, gemm.depth) = (by.w_map, by.x_map, gemm.depth.max(by.depth));
    let constants = [gate.constants(), own.constants()].concat();
    let (ahead, open) = queue.prefetch_allowed(&constants, vec![range(&own.y)]);
    let params = SkinnyParams { gemm, tile_rows, keeps: 0, ahead: ahead.into() };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, SkinnyKernel::Tiles.name(), &Launch { overlap: ahead, ..SHAPE.launch(clusters) }, &params)? };
    queue.leave_open(open);
    Ok(())
}
