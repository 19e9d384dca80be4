//! `linear` on the tensor cores: the variants `sm80` and `sm90`.

use crate::backends::cuda::codebook_gemm::prepare::with_basis;
use crate::backends::cuda::codebook_gemm::sgmv_long::has_basis;
use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::lora::adapted_headers;
use crate::backends::cuda::gemm::problem::{HALVES, fits, gemm_header, half};
use crate::backends::cuda::gemm::repack::{REPACK, repack_header};
use crate::backends::cuda::gemm::sm80::tile::MmaTile;
use crate::backends::cuda::gemm::sm90::cost::Shape;
use crate::backends::cuda::gemm::sm90::start::WgmmaLaunch;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::linear::problem::{product, repacked_bytes, shape, strides, takes_basis, unpacked};
use crate::backends::cuda::linear::split_k::{self, parts_bytes, parts_header};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

pub(crate) const SM80: Variant<Linear> = Variant {
    name: "sm80",
    label: "linear/sm80",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports: |op, target| half(op.dtype).and_then(|()| op.no_norm()).and_then(|()| fits(mma_tile(op, target).shared_bytes(), target)),
    suits: |_, _| Ok(()),
    unit: |op, target| unit_sm80(op.dtype, &mma_tile(op, target)),
    units: |arch: Arch| HALVES.iter().flat_map(|&dtype| MmaTile::on(arch).map(|tile| unit_sm80(dtype, &tile))).collect(),
    workspace: |op, _| repacked_bytes(op),
    launch: launch_sm80,
};

pub(crate) const SM90: Variant<Linear> = Variant {
    name: "sm90",
    label: "linear/sm90",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports: supports_sm90,
    suits: |_, _| Ok(()),
    unit: |op, target| unit_sm90(op.dtype, &wgmma_tile(op, target), ActivationForm::of(op.activation)),
    units: |_: Arch| {
        let forms = || WgmmaTile::all().flat_map(|tile| ActivationForm::ALL.map(|form| (tile, form)));
        HALVES.iter().flat_map(|&dtype| forms().map(move |(tile, form)| unit_sm90(dtype, &tile, form))).collect()
    },
    workspace: |op, target| repacked_bytes(op) + parts_bytes(&wgmma_tile(op, target), op).iter().sum::<u64>(),
    launch: launch_sm90,
};

fn mma_tile(op: &Linear, target: &Target) -> MmaTile {
    MmaTile::choose(op.tokens, op.d_out, false, target)
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

fn supports_sm90(op: &Linear, target: &Target) -> std::result::Result<(), String> {
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
        source: source!("gemm/sm80/tile.cu"),
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
        source: source!("gemm/sm90/tile.cu"),
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
                    true => split_k::launch(queue, plan, workspace, &product, &how),
                    false => product.launch_wgmma(queue, plan, &how),
                }
            }
            false => product.launch_mma(queue, plan, &INSTEAD, ["linear_mma_4", "", "linear_mma_4", "linear_mma_2"]),
        }
    }
}
