//! `linear` on the tensor cores: the variants `sm80` and `sm90`.

use super::adapter_basis::{adapted_headers, has_basis, with_basis};
use super::gemm::{ActivationForm, HALVES, MmaTile, Product, elements, fits, gemm_header, half};
use super::jit::{Arch, Unit, source};
use super::kernel::{Launch, Plan, RunsOn, Target, TensorCores, Variant, address, blocks, range};
use super::params::params;
use super::queue::starts_early;
use super::wgmma::{Cut, WgmmaLaunch, WgmmaTile};
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

pub(super) const SM80: Variant<Linear> = Variant {
    name: "sm80",
    label: "linear/sm80",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    covers: |op, target| half(op.dtype).and_then(|()| op.no_norm()).and_then(|()| fits(mma_tile(op, target).shared_bytes(), target)),
    unit: |op, target| unit_sm80(op.dtype, &mma_tile(op, target)),
    units: |arch: Arch| HALVES.iter().flat_map(|&dtype| MmaTile::on(arch).map(|tile| unit_sm80(dtype, &tile))).collect(),
    workspace: |op, _| repacked_bytes(op),
    launch: launch_sm80,
};

pub(super) const SM90: Variant<Linear> = Variant {
    name: "sm90",
    label: "linear/sm90",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    covers: covers_sm90,
    unit: |op, target| unit_sm90(op.dtype, &wgmma_tile(op, target).0, ActivationForm::of(op.activation)),
    units: |_: Arch| {
        let forms = || WgmmaTile::ALL.into_iter().flat_map(|tile| ActivationForm::ALL.map(|form| (tile, form)));
        HALVES.iter().flat_map(|&dtype| forms().map(move |(tile, form)| unit_sm90(dtype, &tile, form))).collect()
    },
    workspace: |op, target| {
        let (tile, parts) = wgmma_tile(op, target);
        repacked_bytes(op) + tile.cut_bytes(op.tokens, op.d_out, parts)
    },
    launch: launch_sm90,
};

params! {
    /// Of the kernel that copies rows of both operands to places that are multiples of 16 bytes.
    RepackParams {
        x: [const element],
        x_to: [element],
        x_rows: u64,
        w: [const element],
        w_to: [element],
        w_rows: u64,
        depth: u64,
        /// Of both copies.
        stride: u64,
    }
}

/// Elements from a row to the next where rows start on multiples of 16 bytes.
pub(super) const fn padded(depth: u64) -> u64 {
    depth.next_multiple_of(8)
}

/// Rows of X from which on it pays to copy both operands: each is read once more, instead of two bytes at a time for every tile.
const REPACK_ROWS: u64 = 17;

/// Whether X and W are first copied to rows that start on multiples of 16 bytes.
pub(super) const fn repacks(op: &Linear) -> bool {
    !op.d_in.is_multiple_of(8) && op.tokens >= REPACK_ROWS
}

/// Bytes that the copies take, a multiple of 16.
pub(super) fn repacked_bytes(op: &Linear) -> u64 {
    if repacks(op) { (op.tokens + op.d_out).saturating_mul(padded(op.d_in) * op.dtype.size()) } else { 0 }
}

/// The header of the kernel that copies.
pub(super) fn repack_header() -> (&'static str, String) {
    ("linear/repack_params.cuh", RepackParams::cuda())
}

/// How it is started, for that many rows of both operands: a block's 256 threads take four rows at once, or whole groups of four where
/// a row is short.
fn repack_launch([x_rows, w_rows]: [u64; 2], stride: u64) -> Launch {
    let rows = 256 / (stride / 8).min(256) * 4;
    Launch::new(blocks(x_rows.div_ceil(rows) + w_rows.div_ceil(rows)), 256)
}

fn mma_tile(op: &Linear, target: &Target) -> MmaTile {
    MmaTile::choose(op.tokens, op.d_out, false, target)
}

/// And into how many parts K is cut.
fn wgmma_tile(op: &Linear, target: &Target) -> (WgmmaTile, u64) {
    let product = (op.tokens, op.d_out, padded(op.d_in), false);
    match basis_tile(op, target) {
        Some(tile) => (tile, 1),
        None => WgmmaTile::choose_cut(product, target),
    }
}

/// The tile of a product that makes h of the adapters' basis itself.
fn basis_tile(op: &Linear, target: &Target) -> Option<WgmmaTile> {
    let delta = op.delta.as_ref().filter(|delta| delta.slices.len() == 1 && has_basis(delta))?;
    WgmmaTile::choose_with_basis((op.tokens, delta.slices[0].d_out, padded(op.d_in), false), target)
}

fn covers_sm90(op: &Linear, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    op.no_norm()?;
    WgmmaTile::enough_rows(op.tokens)?;
    WgmmaTile::reads(op.dtype, op.tokens.max(op.d_out), op.d_in, padded(op.d_in))?;
    fits(wgmma_tile(op, target).0.most_shared_bytes(), target)
}

fn unit_sm80(dtype: DType, tile: &MmaTile) -> Unit {
    let mut defines = tile.defines();
    defines.push(("ELEMENT", dtype.name().into()));
    Unit {
        name: format!("linear/sm80 {dtype}, {}", tile.name()),
        source: source!("linear/sm80.cu"),
        headers: vec![gemm_header(), repack_header()],
        defines,
        entries: &["linear_repack", "linear_mma_16", "linear_mma_4", "linear_mma_2"],
        shared_bytes: tile.shared_bytes(),
    }
}

/// The tile of the kernels that take over from wgmma where an operand starts at an odd place.
const INSTEAD: MmaTile = MmaTile::MIDDLE;

fn unit_sm90(dtype: DType, tile: &WgmmaTile, activation: ActivationForm) -> Unit {
    let mut defines = [tile.defines(), INSTEAD.defines()].concat();
    defines.push(("ELEMENT", dtype.name().into()));
    defines.push(("ACTIVATION_FORM", activation.name().into()));
    Unit {
        name: format!("linear/sm90 {dtype}, {} columns, {}", tile.columns_name(), activation.name()),
        source: source!("linear/sm90.cu"),
        headers: [vec![gemm_header(), repack_header()], adapted_headers()].concat(),
        defines,
        entries: match (tile.cuts(), tile.takes_basis()) {
            (true, _) => &["linear_repack", "linear_wgmma", "linear_wgmma_cut", "linear_wgmma_odd", "linear_wgmma_basis", "linear_mma_4", "linear_mma_2"],
            (false, true) => &["linear_repack", "linear_wgmma", "linear_wgmma_odd", "linear_wgmma_basis", "linear_mma_4", "linear_mma_2"],
            (false, false) => &["linear_repack", "linear_wgmma", "linear_wgmma_odd", "linear_mma_4", "linear_mma_2"],
        },
        shared_bytes: tile.most_shared_bytes().max(INSTEAD.shared_bytes()),
    }
}

/// The product on its operands as they are.
pub(super) fn unpacked<'a>(op: &Linear, args: &'a LinearArgs<Cuda>) -> Product<'a> {
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
        w_stride: op.d_in,
        y_stride: op.d_out,
        activation: op.activation,
        adds: op.delta.is_some(),
    }
}

/// The product, and whether it may start while the launch before still runs (see `Launch::overlap`). What comes before it is put into
/// the queue: the adapters' part, which it finds in y, rounded once; and where that pays, copies of the operands in the workspace.
///
/// # Safety
/// As [`Plan::launch`].
pub(super) unsafe fn product<'a>(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &'a LinearArgs<Cuda>) -> Result<(Product<'a>, bool)> {
    let op = &plan.op;
    if let (Some(delta), Some(own)) = (&plan.delta, &args.delta) {
        // SAFETY: the caller's promise: the delta's y is this operation's own.
        unsafe { delta.run(queue, &plan.delta_workspace(workspace)?, own)? };
    }
    let mut product = unpacked(op, args);
    if repacks(op) {
        let stride = padded(op.d_in);
        let x = elements(workspace, op.dtype, 0, op.tokens * stride)?;
        let w = elements(workspace, op.dtype, op.tokens * stride, op.d_out * stride)?;
        let params = RepackParams {
            x: address(&args.x),
            x_to: address(&x),
            x_rows: op.tokens,
            w: address(&args.w),
            w_to: address(&w),
            w_rows: op.d_out,
            depth: op.d_in,
            stride,
        };
        // SAFETY: the caller's promise; the workspace holds both copies.
        unsafe { plan.launch(queue, "linear_repack", &repack_launch([op.tokens, op.d_out], stride), &params)? };
        product = Product { x, w, depth: stride, x_stride: stride, w_stride: stride, ..product };
    }
    let overlap = product.adds && early(queue, args);
    Ok((product, overlap))
}

/// Whether a product that waits only before it reads what adapters add may start while the launches before still run.
pub(super) fn early(queue: &mut Queue, args: &LinearArgs<Cuda>) -> bool {
    let reads = [Some(&args.x), Some(&args.w), args.bias.as_ref(), args.residual.as_ref()];
    starts_early(&queue.take_open(), &reads.into_iter().flatten().map(range).collect::<Vec<_>>())
}

unsafe fn launch_sm80(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let (product, _) = product(queue, plan, workspace, args)?;
        product.launch_mma(queue, plan, &mma_tile(&plan.op, &plan.target), ["linear_mma_16", "linear_mma_4", "linear_mma_2"])
    }
}

unsafe fn launch_sm90(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    let (alone, tile) = (unpacked(&plan.op, args), basis_tile(&plan.op, &plan.target));
    if let (Some(delta), Some(own), Some(tile), true) = (&plan.delta, &args.delta, tile, alone.width() >= 16 && alone.params().vector == 1) {
        // SAFETY: the caller's promise. The product reads what was prepared, or is left in the workspace first.
        unsafe {
            if let Some(sums) = with_basis(queue, delta, &plan.delta_workspace(workspace)?, own, 1)? {
                return alone.launch_with_basis(queue, plan, "linear_wgmma_basis", &tile, sums);
            }
        }
    }
    // SAFETY: the caller's promise; the width says that rows start where TMA can read them.
    unsafe {
        let (product, overlap) = product(queue, plan, workspace, args)?;
        let (tile, parts) = wgmma_tile(&plan.op, &plan.target);
        let rest = repacked_bytes(&plan.op);
        let rest = workspace.part(rest, workspace.len - rest);
        match product.width() {
            16 => {
                let cut = rest.filter(|_| parts > 1).map(|workspace| Cut { entry: "linear_wgmma_cut", parts, workspace });
                // With no adapters' part the kernel waits before it reads anything.
                let overlap = overlap || (!product.adds && cut.is_none());
                product.launch_wgmma(queue, plan, &WgmmaLaunch { tile, entry: "linear_wgmma", odd_entry: "linear_wgmma_odd", cut, overlap })
            }
            _ => product.launch_mma(queue, plan, &INSTEAD, ["", "linear_mma_4", "linear_mma_2"]),
        }
    }
}
