//! `linear` on the tensor cores: the variants `sm80` and `sm90`.

use crate::backends::cuda::codebook_gemm::long_tile::has_basis;
use crate::backends::cuda::codebook_gemm::prepare::with_basis;
use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::entry::{gathered, listed};
use crate::backends::cuda::gemm::problem::{HALVES, fits, half};
use crate::backends::cuda::gemm::repack::{Copies, padded, repack_unit};
use crate::backends::cuda::gemm::sm80::tile::MmaTile;
use crate::backends::cuda::gemm::sm80::units::{all_mma_units, all_wide_mma_units, fallback_units, mma_units, wide_mma_units};
use crate::backends::cuda::gemm::sm90::cost::Shape;
use crate::backends::cuda::gemm::sm90::start::WgmmaLaunch;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::gemm::sm90::units::{Form, WgmmaKernel};
use crate::backends::cuda::jit::{Arch, Unit};
use crate::backends::cuda::linear::problem::{is_wide, product, repacked_bytes, shape, strides, takes_lora, unpacked};
use crate::backends::cuda::linear::single_shot;
use crate::backends::cuda::linear::split_k::{self, split_k_bytes};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

pub(crate) const SM80: Variant<Linear> = Variant {
    name: "sm80",
    label: "linear/sm80",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports: |op, target| {
        half(op.dtype)?;
        op.no_norm()?;
        // wgmma rounds sums on the way in another manner, which 16 bits do not show.
        let unlike = is_wide(op) && target.arch == Arch(90);
        target.any(MmaTile::on(target.arch).into_iter(), |tile| op.sums(unlike || tile.in_parts()).and_then(|()| fits(tile.shared_bytes(), target)))
    },
    suits: |_, _| Ok(()),
    configs: None,
    unit: unit_sm80,
    units: |arch: Arch| {
        let tiles = MmaTile::on(arch);
        listed(all_mma_units(&tiles, false).into_iter().chain(all_wide_mma_units(&tiles)), HALVES.map(repack_unit))
    },
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
    configs: None,
    unit: unit_sm90,
    units: |_: Arch| {
        let kernels = WgmmaTile::all().flat_map(|tile| WgmmaKernel::all(tile).map(move |kernel| (tile, kernel)));
        let own = kernels.flat_map(|(tile, kernel)| Form::all(&HALVES, false).map(move |form| kernel.unit(&tile, form)));
        listed(own.chain(single_shot::units()), HALVES.into_iter().flat_map(|dtype| fallback_units(dtype).into_iter().chain([repack_unit(dtype)])))
    },
    workspace: |op, target| {
        repacked_bytes(op)
            + match configured(target) {
                Kind::Ring(tile) => split_k_bytes(&tile, op).iter().sum::<u64>(),
                Kind::Lora(_) | Kind::SingleShot(_) => 0,
            }
    },
    launch: launch_sm90,
};

pub(crate) fn names_sm80(arch: Arch) -> Vec<String> {
    MmaTile::on(arch).map(|tile| tile.config()).into()
}

pub(crate) fn names_sm90(_: Arch) -> Vec<String> {
    let config = |kind| match kind {
        Kind::Ring(tile) => tile.config(),
        Kind::Lora(tile) => format!("{}-lora", tile.config()),
        Kind::SingleShot(tile) => single_shot::config(&tile),
    };
    Kind::all().map(config).collect()
}

/// The tile of `sm80` in a target's configuration.
fn mma_tile(target: &Target) -> MmaTile {
    target.configured(MmaTile::on(target.arch).into_iter()).unwrap_or(MmaTile::MIDDLE)
}

/// A configuration of `sm90`: a tile, and the kind of its kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A kernel with a ring of stages.
    Ring(WgmmaTile),
    /// A kernel with a ring of stages that multiplies by the adapters' basis too.
    Lora(WgmmaTile),
    /// A kernel that loads all of K at once.
    SingleShot(WgmmaTile),
}

impl Kind {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        WgmmaTile::all().map(Self::Ring).chain(WgmmaTile::WITH_LORA.map(Self::Lora)).chain(single_shot::TILES.map(Self::SingleShot))
    }

    /// Whether the kernel can compute `op`, or why not.
    fn takes(&self, op: &Linear, target: &Target) -> std::result::Result<(), String> {
        let ring =
            |tile: &WgmmaTile| op.sums(tile.in_parts()).and_then(|()| shape(op).can_take(tile, target)).and_then(|()| fits(tile.most_shared_bytes(), target));
        match self {
            Self::Ring(tile) => ring(tile),
            Self::Lora(_) if lora_shape(op).is_none_or(|shape| !shape.outputs.is_multiple_of(WgmmaTile::RUN)) => {
                Err("its kernel multiplies by a basis that adapters share, too, which there is not".into())
            }
            Self::Lora(tile) => ring(tile),
            // Its bits were not compared with those of other kernels.
            Self::SingleShot(tile) => op.sums(true).and_then(|()| single_shot::supports(op, tile, target)),
        }
    }
}

/// The configuration of a target.
fn configured(target: &Target) -> Kind {
    target.configured(Kind::all()).unwrap_or(Kind::Ring(WgmmaTile::WIDE))
}

/// The product by which adapters' basis is multiplied too, where it has such a basis.
pub(crate) fn lora_shape(op: &Linear) -> Option<Shape> {
    let delta = op.delta.as_ref().filter(|delta| delta.slices.len() == 1 && has_basis(delta))?;
    Some(Shape { outputs: delta.slices[0].d_out, ..shape(op) })
}

fn supports_sm90(op: &Linear, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    op.no_norm()?;
    op.no_wide_outputs()?;
    for stride in strides(op) {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_out), op.d_in, stride)?;
    }
    target.any(Kind::all(), |kind| kind.takes(op, target))
}

/// The units of `sm80`. Its kernels read the strides and the K that the copies leave.
fn unit_sm80(op: &Linear, target: &Target) -> Unit {
    let (copies, tile) = (Copies::of(op), mma_tile(target));
    let depth = if copies.x && copies.w { padded(op.d_in) } else { op.d_in };
    let own = match is_wide(op) {
        true => wide_mma_units(op.dtype, &tile, strides(op), depth),
        false => mma_units(op.dtype, &tile, false, strides(op), depth),
    };
    gathered(own.into_iter().chain(copies.unit(op.dtype))).unwrap_or_else(|| repack_unit(op.dtype))
}

fn unit_sm90(op: &Linear, target: &Target) -> Unit {
    let form = Form::plain(op.dtype, ActivationForm::of(op.activation));
    let ring = |tile: &WgmmaTile| WgmmaKernel::within(tile, op.d_out).map(|kernel| kernel.unit(tile, form)).collect::<Vec<_>>();
    let own = match configured(target) {
        Kind::Ring(tile) => ring(&tile),
        Kind::Lora(tile) => [vec![WgmmaKernel::Lora.unit(&tile, form)], ring(&tile)].concat(),
        Kind::SingleShot(tile) => vec![single_shot::unit(op.dtype, &tile, form.activation)],
    };
    gathered(own.into_iter().chain(fallback_units(op.dtype)).chain(Copies::of(op).unit(op.dtype))).unwrap_or_else(|| repack_unit(op.dtype))
}

unsafe fn launch_sm80(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let (product, _) = product(queue, plan, workspace, args)?;
        product.launch_mma(queue, plan, &mma_tile(&plan.target))
    }
}

unsafe fn launch_sm90(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    if plan.op.tokens == 0 {
        return Ok(());
    }
    let alone = unpacked(&plan.op, args);
    let (tile, lora) = match configured(&plan.target) {
        // SAFETY: the caller's promise.
        Kind::SingleShot(tile) => return unsafe { single_shot::launch(queue, plan, workspace, args, tile) },
        Kind::Ring(tile) => (tile, false),
        Kind::Lora(tile) => (tile, true),
    };
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
                // Without an adapters' part, the kernel's PDL wait stands before its first read.
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
