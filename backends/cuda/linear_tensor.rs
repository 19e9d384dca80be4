//! `linear` on the tensor cores: the variants `sm80` and `sm90`.

use super::adapter_basis::{adapted_headers, has_basis, with_basis};
use super::gemm::{ActivationForm, HALVES, MmaTile, Product, fits, gemm_header, half};
use super::jit::{Arch, Unit, source};
use super::kernel::{Plan, RunsOn, Target, TensorCores, Variant, range};
use super::linear_parts::{self, parts_bytes, parts_header};
use super::open::starts_early;
use super::repack::{Copies, REPACK, padded, repack_header};
use super::wgmma::{WgmmaLaunch, WgmmaTile};
use super::wgmma_choice::{Shape, straddles};
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
    unit: |op, target| unit_sm90(op.dtype, &wgmma_tile(op, target), ActivationForm::of(op.activation)),
    units: |_: Arch| {
        let forms = || WgmmaTile::all().flat_map(|tile| ActivationForm::ALL.map(|form| (tile, form)));
        HALVES.iter().flat_map(|&dtype| forms().map(move |(tile, form)| unit_sm90(dtype, &tile, form))).collect()
    },
    workspace: |op, target| repacked_bytes(op) + parts_bytes(&wgmma_tile(op, target), op).iter().sum::<u64>(),
    launch: launch_sm90,
};

/// Bytes of what is copied before the product.
pub(super) fn repacked_bytes(op: &Linear) -> u64 {
    Copies::of(op).bytes([op.tokens, op.d_out], op.d_in)
}

/// The strides of X and of W that a product's kernel finds, copied or as they are.
pub(super) fn strides(op: &Linear) -> [u64; 2] {
    Copies::of(op).strides([x_stride(op), op.w_stride], op.d_in)
}

/// That of X. A single row has none: TMA is told one that it takes.
fn x_stride(op: &Linear) -> u64 {
    if op.tokens == 1 { padded(op.d_in) } else { op.x_stride }
}

fn mma_tile(op: &Linear, target: &Target) -> MmaTile {
    MmaTile::choose(op.tokens, op.d_out, false, target)
}

/// What the choice of tiles goes by.
pub(super) fn shape(op: &Linear) -> Shape {
    let activated = ActivationForm::of(op.activation) != ActivationForm::Floor;
    Shape { rows: op.tokens, outputs: op.d_out, depth: padded(op.d_in), activated, straddles: straddles(op.dtype, strides(op)) }
}

fn wgmma_tile(op: &Linear, target: &Target) -> WgmmaTile {
    basis_or_not(op, target).0
}

/// The tile, and whether its product makes h of the adapters' basis itself, where it can.
fn basis_or_not(op: &Linear, target: &Target) -> (WgmmaTile, bool) {
    basis_tile(op, target).map_or_else(|| (shape(op).choose(target), false), |tile| (tile, true))
}

/// The tile of a product that makes h of the adapters' basis itself.
fn basis_tile(op: &Linear, target: &Target) -> Option<WgmmaTile> {
    let delta = op.delta.as_ref().filter(|delta| delta.slices.len() == 1 && has_basis(delta))?;
    WgmmaTile::choose_with_basis(Shape { outputs: delta.slices[0].d_out, ..shape(op) }, target)
}

fn covers_sm90(op: &Linear, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    op.no_norm()?;
    WgmmaTile::enough_rows(op.tokens)?;
    for stride in strides(op) {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_out), op.d_in, stride)?;
    }
    fits(wgmma_tile(op, target).most_shared_bytes(), target)
}

fn unit_sm80(dtype: DType, tile: &MmaTile) -> Unit {
    let mut defines = tile.defines();
    defines.push(("ELEMENT", dtype.name().into()));
    Unit {
        name: format!("linear/sm80 {dtype}, {}", tile.name()),
        source: source!("linear/sm80.cu"),
        headers: vec![gemm_header(), repack_header()],
        defines,
        entries: &[REPACK, "linear_mma_16", "linear_mma_ragged", "linear_mma_4", "linear_mma_2"],
        shared_bytes: tile.shared_bytes(),
        also: Vec::new(),
    }
}

/// The tile of the kernels that take over from wgmma where an operand starts at an odd place.
const INSTEAD: MmaTile = MmaTile::MIDDLE;

fn unit_sm90(dtype: DType, tile: &WgmmaTile, activation: ActivationForm) -> Unit {
    let mut defines = [tile.defines(), tile.linear_defines().into(), INSTEAD.defines()].concat();
    defines.push(("ELEMENT", dtype.name().into()));
    defines.push(("ACTIVATION_FORM", activation.name().into()));
    Unit {
        name: format!("linear/sm90 {dtype}, {}, {}", tile.name(), activation.name()),
        source: source!("linear/sm90.cu"),
        headers: [vec![gemm_header(), repack_header(), parts_header()], adapted_headers()].concat(),
        defines,
        entries: match (tile.takes_basis(), tile.takes_turns()) {
            (true, _) => &[REPACK, "linear_wgmma", "linear_wgmma_odd", "linear_wgmma_basis", "linear_mma_4", "linear_mma_2"],
            (false, true) => &[REPACK, "linear_wgmma", "linear_mma_4", "linear_mma_2"],
            (false, false) => &[REPACK, "linear_wgmma", "linear_wgmma_odd", "linear_mma_4", "linear_mma_2"],
        },
        shared_bytes: tile.most_shared_bytes().max(INSTEAD.shared_bytes()),
        also: Vec::new(),
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
        x_stride: x_stride(op),
        w_stride: op.w_stride,
        y_stride: op.d_out,
        activation: op.activation,
        adds: op.delta.is_some(),
    }
}

/// The product on its operands as they are, with the adapters' part put into the queue before it: it finds that in y, rounded once.
///
/// # Safety
/// As [`Plan::launch`].
pub(super) unsafe fn adapted<'a>(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &'a LinearArgs<Cuda>) -> Result<Product<'a>> {
    if let (Some(delta), Some(own)) = (&plan.delta, &args.delta) {
        // SAFETY: the caller's promise: the delta's y is this operation's own.
        unsafe { delta.run(queue, &plan.delta_workspace(workspace)?, own)? };
    }
    Ok(unpacked(&plan.op, args))
}

/// The product, and whether it may start while the launch before still runs (see `Launch::overlap`). What comes before it is put into
/// the queue: the adapters' part, and where that pays, copies of the operands in the workspace.
///
/// # Safety
/// As [`Plan::launch`].
pub(super) unsafe fn product<'a>(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &'a LinearArgs<Cuda>) -> Result<(Product<'a>, bool)> {
    // SAFETY: the caller's promise; the workspace is as large as the copies want it.
    let product = unsafe {
        let mut product = adapted(queue, plan, workspace, args)?;
        Copies::of(&plan.op).launch(queue, plan, workspace, &mut product)?;
        product
    };
    let overlap = product.adds && early(queue, args);
    Ok((product, overlap))
}

/// Whether a product that waits only before it reads what adapters add may start while the launches before still run.
pub(super) fn early(queue: &mut Queue, args: &LinearArgs<Cuda>) -> bool {
    let reads = [Some(&args.x), Some(&args.w), args.bias.as_ref(), args.residual.as_ref()];
    starts_early(&queue.take_open(), &reads.into_iter().flatten().map(range).collect::<Vec<_>>())
}

/// Whether kernels that make h of the adapters' basis themselves take it: they read X, W and the basis in whole eights, and write so.
pub(super) fn takes_basis(product: &Product<'_>) -> bool {
    product.width() == 16 && product.writes_whole()
}

unsafe fn launch_sm80(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let (product, _) = product(queue, plan, workspace, args)?;
        product.launch_mma(queue, plan, &mma_tile(&plan.op, &plan.target), ["linear_mma_16", "linear_mma_ragged", "linear_mma_4", "linear_mma_2"])
    }
}

unsafe fn launch_sm90(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    let (alone, (tile, basis)) = (unpacked(&plan.op, args), plan.once(|plan| Ok(basis_or_not(&plan.op, &plan.target)))?);
    if let (Some(delta), Some(own), true) = (&plan.delta, &args.delta, basis && takes_basis(&alone)) {
        // SAFETY: the caller's promise. The product reads what was prepared, or is left in the workspace first.
        unsafe {
            if let Some(sums) = with_basis(queue, delta, &plan.delta_workspace(workspace)?, own, 1)? {
                return alone.launch_with_basis(queue, plan, "linear_wgmma_basis", &tile, sums);
            }
        }
    }
    // SAFETY: the caller's promise; aligned rows start where TMA can read them.
    unsafe {
        let (product, overlap) = product(queue, plan, workspace, args)?;
        match product.aligned() && (product.writes_whole() || !tile.takes_turns()) {
            true => {
                // With no adapters' part the kernel waits before it reads anything.
                let overlap = overlap || !product.adds;
                let how = WgmmaLaunch { tile, entry: "linear_wgmma", odd_entry: "linear_wgmma_odd", overlap, weights_early: false };
                match tile.meets_outside() {
                    true => linear_parts::launch(queue, plan, workspace, &product, &how),
                    false => product.launch_wgmma(queue, plan, &how),
                }
            }
            false => product.launch_mma(queue, plan, &INSTEAD, ["linear_mma_4", "", "linear_mma_4", "linear_mma_2"]),
        }
    }
}
