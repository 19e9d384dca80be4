//! Swap-AB `linear`, whose tokens are wgmma's N: the variant `sm90_swap_ab`, of `kernels/gemm/sm90/swap_ab.cuh`. It is for row counts whose
//! last tile of 128 would be mostly empty.

use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::entry::{Entry, entry, listed, widened};
use crate::backends::cuda::gemm::problem::{HALVES, fits, gemm_header, half};
use crate::backends::cuda::gemm::repack::{Copies, repack_unit};
use crate::backends::cuda::gemm::sm90::cost::Shape;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::gemm::sm90::units::Form;
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::linear::problem::{every_fallback, fallback, is_wide, product, repacked_bytes, shape, strides, writes};
use crate::backends::cuda::linear::swap_ab_tile::{SwapAbTile, TILES, WIDE};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

pub(crate) const SWAP_AB: Variant<Linear> = Variant {
    name: "sm90_swap_ab",
    label: "linear/sm90_swap_ab",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports,
    suits: |_, _| Ok(()),
    configs: None,
    unit,
    units: |_: Arch| {
        let kernels = |tiles: &'static [SwapAbTile]| tiles.iter().flat_map(|tile| [WHOLE, UNALIGNED].map(|entry| (tile, entry)));
        let own = kernels(&TILES).flat_map(|(tile, entry)| Form::all(&HALVES, false).map(move |form| kernel(entry, tile, form)));
        let plain = |dtype| Form::plain(dtype, ActivationForm::Floor);
        let wide = kernels(&WIDE).flat_map(move |(tile, entry)| HALVES.map(|dtype| widened(kernel(entry, tile, plain(dtype)))));
        listed(own.chain(wide), every_fallback().chain(HALVES.map(repack_unit)))
    },
    workspace: |op, _| if is_wide(op) { repacked_bytes(op) } else { 0 },
    launch,
};

pub(crate) fn names(_: Arch) -> Vec<String> {
    TILES.iter().map(SwapAbTile::config).collect()
}

/// The configuration of a target that supports the operation.
fn configured(target: &Target) -> SwapAbTile {
    target.configured(TILES.into_iter()).unwrap_or(TILES[0])
}

fn supports(op: &Linear, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    op.no_norm()?;
    op.no_delta()?;
    // No operand is copied first, but where outputs are wide no other variant has all rows.
    for stride in if is_wide(op) { strides(op) } else { [op.x_stride, op.w_stride] } {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_out), op.d_in, stride)?;
    }
    target.any(TILES.iter(), |tile| {
        op.sums(tile.parts > 1)?;
        writes(op, WIDE.contains(tile))?;
        tile.has_parts(op.d_in)?;
        fits(tile.shared_bytes(), target)
    })
}

/// The kernel for outputs that can be moved 16 bytes at a time, and the kernel for all others.
const WHOLE: Entry = entry!("linear_swap_ab");
const UNALIGNED: Entry = entry!("linear_swap_ab_unaligned");

fn kernel(entry: Entry, tile: &SwapAbTile, Form { dtype, activation, .. }: Form) -> Unit {
    let mut defines = tile.defines();
    defines.extend([("ELEMENT", dtype.name().into()), ("ACTIVATION_FORM", activation.name().into())]);
    let name = format!("{} {dtype}, {}, {}", entry.name(), tile.name(), activation.name());
    entry.alone(Unit { headers: vec![gemm_header()], defines, shared_bytes: tile.shared_bytes(), ..Unit::new(name, source!("gemm/sm90/swap_ab.cu")) })
}

/// The unit of an operation. It has both kernels where only the launch can tell by where the outputs start.
fn unit(op: &Linear, target: &Target) -> Unit {
    let (tile, form) = (configured(target), Form::plain(op.dtype, ActivationForm::of(op.activation)));
    let [whole, odd] = [WHOLE, UNALIGNED].map(|entry| kernel(entry, &tile, form)).map(|unit| if is_wide(op) { widened(unit) } else { unit });
    let beside = fallback(op).into_iter().chain(Copies::of(op).unit(op.dtype)).collect();
    match op.d_out.is_multiple_of(8) {
        true => Unit { also: [vec![odd], beside].concat(), ..whole },
        false => Unit { also: beside, ..odd },
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise; rows start where TMA can read them.
    unsafe {
        let (product, _) = product(queue, plan, workspace, args)?;
        if !product.aligned() {
            return product.launch_fallback(queue, plan);
        }
        if product.rows == 0 {
            return Ok(());
        }
        let tile = configured(&plan.target);
        let time = tile.time(&shape(&plan.op), &plan.target);
        let params = tile.params(&product)?;
        let entry = if product.writes_whole() { WHOLE } else { UNALIGNED };
        let launch = Launch {
            cluster: [tile.parts as u32, 1, 1],
            shared_bytes: tile.shared_bytes(),
            // The kernel's PDL wait stands before its first read.
            overlap: Shape::starts_early_after(time),
            ..Launch::new(tile.blocks(product.rows, product.columns) as u32, tile.threads())
        };
        plan.launch(queue, entry.name(), &launch, &params)
    }
}
