//! `linear` on few rows: the variant `sm90_stream`.

use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::problem::{HALVES, fits, gemm_header, half};
use crate::backends::cuda::gemm::repack::{REPACK, repack_header};
use crate::backends::cuda::gemm::sm80::tile::MmaTile;
use crate::backends::cuda::gemm::sm90::skinny::{StreamParams, StreamTile, StreamUse};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::linear::problem::{product, repacked_bytes, shape, strides};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

pub(crate) const STREAM: Variant<Linear> = Variant {
    name: "sm90_stream",
    label: "linear/sm90_stream",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports: |op, target| {
        supports(op, target)?;
        match shape(op).tiles_beat_stream(target) {
            true => Err("tiles of sm90 take less time here than stages with few rows of W".into()),
            false => Ok(()),
        }
    },
    suits: |_, _| Ok(()),
    unit: |op, target| unit(op.dtype, &tile(op, target), splits(op, target), ActivationForm::of(op.activation)),
    units: |_: Arch| {
        let fitted = || [false, true].into_iter().flat_map(|split| StreamTile::every(split, StreamTile::fitted).into_iter().map(move |tile| (tile, split)));
        let quartered = || StreamTile::every(true, StreamTile::fitted).into_iter().map(|tile| (tile.quartered(), true));
        let tiles = || fitted().chain(quartered()).chain(StreamTile::all_grouped().map(|tile| (tile, false)));
        let forms = || tiles().flat_map(|(tile, split)| ActivationForm::ALL.map(|form| (tile, split, form)));
        HALVES.iter().flat_map(|&dtype| forms().map(move |(tile, split, form)| unit(dtype, &tile, split, form))).collect()
    },
    workspace: |op, _| repacked_bytes(op),
    launch,
};

/// The shape of a block's stages, and the blocks of a cluster.
fn tile(op: &Linear, target: &Target) -> StreamTile {
    let (split, room) = (splits(op, target), StreamTile::clusters(target.units));
    let tile = StreamTile::choose(op.tokens).fitted(StreamTile::tile_rows(op.d_out, room, split), split);
    match (split, StreamTile::by_groups(op.d_out, room)) {
        (true, _) if StreamTile::quarters(op.d_out, op.d_in, target.units) => tile.quartered(),
        (false, true) => tile.grouped(),
        _ => tile,
    }
}

/// Whether W is so small that the second-level cache (50 MB on an H200) still has it at the next launch, if it is let stay. With many rows of X
/// what that costs others is more.
fn keeps(op: &Linear) -> bool {
    op.tokens <= 64 && op.d_out.saturating_mul(op.w_stride).saturating_mul(op.dtype.size()) <= 36 << 20
}

/// Whether K is split.
pub(crate) fn splits(op: &Linear, target: &Target) -> bool {
    StreamTile::splits(op.d_out, StreamTile::clusters(target.units))
}

pub(crate) fn supports(op: &Linear, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    op.no_norm()?;
    StreamTile::supports(op.dtype, [op.tokens, op.d_out, op.d_in], strides(op))?;
    fits(tile(op, target).shared_bytes(), target)
}

/// The tile of the kernels that take over where an operand starts at an odd place.
pub(crate) const INSTEAD: MmaTile = MmaTile::SLIM;

fn unit(dtype: DType, tile: &StreamTile, split: bool, activation: ActivationForm) -> Unit {
    let mut defines = [tile.defines(split), INSTEAD.defines()].concat();
    defines.push(("ELEMENT", dtype.name().into()));
    defines.push(("ACTIVATION_FORM", activation.name().into()));
    Unit {
        name: format!(
            "linear/sm90_stream {dtype}, {}, {}{}",
            tile.name(),
            activation.name(),
            match (split, tile.cluster()) {
                (false, _) => "",
                (true, 2) => ", K split",
                _ => ", K in quarters",
            }
        ),
        source: source!("gemm/sm90/skinny.cu"),
        headers: vec![gemm_header(), ("gemm/skinny_params.cuh", StreamParams::cuda()), repack_header()],
        defines,
        entries: match split {
            true => &[REPACK, "linear_stream", "linear_mma_4", "linear_mma_2"],
            false => &[REPACK, "linear_stream", "linear_stream_groups", "linear_mma_4", "linear_mma_2"],
        },
        shared_bytes: tile.shared_bytes().max(INSTEAD.shared_bytes()),
        also: Vec::new(),
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    if op.tokens == 0 {
        return Ok(());
    }
    let tile = tile(op, &plan.target);
    // SAFETY: the caller's promise; aligned rows start where TMA can read them.
    unsafe {
        let (product, overlap) = product(queue, plan, workspace, args)?;
        if !product.aligned() {
            return product.launch_mma(queue, plan, &INSTEAD, ["", "", "linear_mma_4", "linear_mma_2"]);
        }
        let split = splits(op, &plan.target);
        let room = match tile.cluster() {
            4 => {
                let resident = plan.once(|plan| plan.resident_clusters("linear_stream", &tile.launch(u64::from(plan.target.units) / 4)))?;
                resident.max(StreamTile::quarter_clusters(plan.target.units))
            }
            _ => StreamTile::clusters(plan.target.units),
        };
        let entry = if !split && StreamTile::by_groups(op.d_out, room) { "linear_stream_groups" } else { "linear_stream" };
        tile.run(queue, plan, entry, &product, StreamUse { clusters: room, split, keeps: keeps(op), overlap })
    }
}
