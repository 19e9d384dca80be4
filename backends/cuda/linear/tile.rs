//! `linear` on the tensor cores: the variants `sm80` and `sm90`.

use crate::backends::cuda::codebook_gemm::prepare::with_basis;
use crate::backends::cuda::codebook_gemm::sgmv_long::has_basis;
use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::entry::{gathered, listed};
use crate::backends::cuda::gemm::problem::{HALVES, fits, half};
use crate::backends::cuda::gemm::repack::{Copies, padded, repack_unit};
use crate::backends::cuda::gemm::sm80::tile::MmaTile;
use crate::backends::cuda::gemm::sm80::units::{all_mma_units, fallback_units, mma_units};
use crate::backends::cuda::gemm::sm90::cost::Shape;
use crate::backends::cuda::gemm::sm90::start::WgmmaLaunch;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::gemm::sm90::units::{Form, WgmmaKernel};
use crate::backends::cuda::jit::{Arch, Unit};
use crate::backends::cuda::linear::problem::{product, repacked_bytes, shape, strides, takes_lora, unpacked};
use crate::backends::cuda::linear::split_k::{self, split_k_bytes};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Configs, Cuda, Plan, RunsOn, Target, TensorCores, Variant, number};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

pub(crate) const SM80: Variant<Linear> = Variant {
    name: "sm80",
    label: "linear/sm80",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports: |op, target| half(op.dtype).and_then(|()| op.no_norm()).and_then(|()| fits(mma_tile(op, target).shared_bytes(), target)),
    suits: |_, _| Ok(()),
    configs: Some(Configs {
        names: |arch| MmaTile::on(arch).map(|tile| tile.config().into()).into(),
        choose: |op, target| number(MmaTile::on(target.arch).into_iter(), &mma_tile(op, target)),
    }),
    unit: unit_sm80,
    units: |arch: Arch| listed(all_mma_units(&MmaTile::on(arch), false), HALVES.map(repack_unit)),
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
    configs: Some(Configs {
        names: |_| configs().map(|(tile, lora)| format!("{}{}", tile.config(), if lora { "-lora" } else { "" })).collect(),
        choose: |op, target| number(configs(), &tile_and_lora(op, target)),
    }),
    unit: unit_sm90,
    units: |_: Arch| {
        let kernels = WgmmaTile::all().flat_map(|tile| WgmmaKernel::all(tile).map(move |kernel| (tile, kernel)));
        let own = kernels.flat_map(|(tile, kernel)| Form::all(&HALVES, false).map(move |form| kernel.unit(&tile, form)));
        listed(own, HALVES.into_iter().flat_map(|dtype| fallback_units(dtype).into_iter().chain([repack_unit(dtype)])))
    },
    workspace: |op, target| repacked_bytes(op) + split_k_bytes(&wgmma_tile(op, target), op).iter().sum::<u64>(),
    launch: launch_sm90,
};

fn mma_tile(op: &Linear, target: &Target) -> MmaTile {
    target.configured(MmaTile::on(target.arch).into_iter()).unwrap_or_else(|| MmaTile::choose(op.tokens, op.d_out, false, target))
}

/// The tiles of `sm90`, and whether their kernel makes h of the adapters' basis.
fn configs() -> impl Iterator<Item = (WgmmaTile, bool)> {
    WgmmaTile::all().map(|tile| (tile, false)).chain(WgmmaTile::WITH_LORA.map(|tile| (tile, true)))
}

fn wgmma_tile(op: &Linear, target: &Target) -> WgmmaTile {
    tile_and_lora(op, target).0
}

/// The tile, and whether its product makes h of the adapters' basis itself, where it can: the target's, or what takes the least time.
fn tile_and_lora(op: &Linear, target: &Target) -> (WgmmaTile, bool) {
    let chosen = || lora_shape(op).and_then(|shape| WgmmaTile::choose_with_lora(shape, target));
    target.configured(configs()).unwrap_or_else(|| chosen().map_or_else(|| (shape(op).choose(target), false), |tile| (tile, true)))
}

/// The product by which adapters' basis is multiplied too, where it has such a basis.
fn lora_shape(op: &Linear) -> Option<Shape> {
    let delta = op.delta.as_ref().filter(|delta| delta.slices.len() == 1 && has_basis(delta))?;
    Some(Shape { outputs: delta.slices[0].d_out, ..shape(op) })
}

fn supports_sm90(op: &Linear, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    op.no_norm()?;
    for stride in strides(op) {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_out), op.d_in, stride)?;
    }
    let (tile, lora) = tile_and_lora(op, target);
    if lora && lora_shape(op).is_none_or(|shape| !shape.outputs.is_multiple_of(WgmmaTile::RUN)) {
        return Err("its kernel multiplies by a basis that adapters share, too, which there is not".into());
    }
    shape(op).can_take(&tile, target)?;
    fits(tile.most_shared_bytes(), target)
}

/// Its kernels read the strides and the K that the copies leave.
fn unit_sm80(op: &Linear, target: &Target) -> Unit {
    let (copies, tile) = (Copies::of(op), mma_tile(op, target));
    let depth = if copies.x && copies.w { padded(op.d_in) } else { op.d_in };
    let own = mma_units(op.dtype, &tile, false, strides(op), depth);
    gathered(own.into_iter().chain(copies.unit(op.dtype))).unwrap_or_else(|| repack_unit(op.dtype))
}

fn unit_sm90(op: &Linear, target: &Target) -> Unit {
    let ((tile, lora), form) = (tile_and_lora(op, target), Form::plain(op.dtype, ActivationForm::of(op.activation)));
    let kernels = lora.then_some(WgmmaKernel::Lora).into_iter().chain(WgmmaKernel::within(&tile, op.d_out));
    let own = kernels.map(|kernel| kernel.unit(&tile, form));
    gathered(own.chain(fallback_units(op.dtype)).chain(Copies::of(op).unit(op.dtype))).unwrap_or_else(|| repack_unit(op.dtype))
}

unsafe fn launch_sm80(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let (product, _) = product(queue, plan, workspace, args)?;
        product.launch_mma(queue, plan, &mma_tile(&plan.op, &plan.target))
    }
}

unsafe fn launch_sm90(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    if plan.op.tokens == 0 {
        return Ok(());
    }
    let (alone, (tile, lora)) = (unpacked(&plan.op, args), plan.once(|plan| Ok(tile_and_lora(&plan.op, &plan.target)))?);
    if let (Some(delta), Some(own), true) = (&plan.delta, &args.delta, lora && takes_lora(&alone)) {
        // SAFETY: the caller's promise. The product reads what was prepared, or is left in the workspace first.
        unsafe {
            if let Some(sums) = with_basis(queue, delta, &plan.delta_workspace(workspace)?, own, 1)? {
                return alone.launch_with_lora(queue, plan, &tile, sums);
            }
        }
    }
    // SAFETY: the caller's promise; aligned rows start where TMA can read them.
    unsafe {
        let (product, overlap) = product(queue, plan, workspace, args)?;
        match product.aligned() && (product.writes_whole() || !tile.is_pingpong()) {
            true => {
                // With no adapters' part the kernel waits before it reads anything.
                let overlap = overlap || !product.adds;
                let how = WgmmaLaunch { tile, unit: 0, overlap, weights_early: false };
                match tile.meets_outside() {
                    true => split_k::launch(queue, plan, workspace, &product, &how),
                    false => product.launch_wgmma(queue, plan, &how),
                }
            }
            false => product.launch_fallback(queue, plan),
        }
    }
}
