//! `fused_mlp` on few tokens, both products at the speed of memory: the variant `sm90_stream`.

use crate::backends::cuda::fused_mlp::problem::{bring, chunk_rows, chunks, each_form, entries_instead, form, up_strides, workspace};
use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::problem::{fits, gemm_header, half};
use crate::backends::cuda::gemm::repack::{REPACK, repack_header};
use crate::backends::cuda::gemm::sm80::tile::MmaTile;
use crate::backends::cuda::gemm::sm90::skinny::{StreamParams, StreamTile, StreamUse};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{FusedMlp, FusedMlpArgs};

pub(crate) const STREAM: Variant<FusedMlp> = Variant {
    name: "sm90_stream",
    label: "fused_mlp/sm90_stream",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports,
    suits: |_, _| Ok(()),
    unit: |op, target| unit(op.dtype, op.gated, &tile(op, target), splits(op, target), ActivationForm::of(Some(op.activation))),
    units: |_: Arch| {
        let tiles = StreamTile::every(false, StreamTile::filled).into_iter().flat_map(|tile| [false, true].map(|split| (tile, split)));
        let forms = tiles.flat_map(|(tile, split)| each_form([(tile, split)]));
        let forms = forms.map(|(dtype, gated, (tile, split))| (dtype, gated, tile, split));
        forms.flat_map(|(dtype, gated, tile, split)| ActivationForm::ALL.map(|form| unit(dtype, gated, &tile, split, form))).collect()
    },
    workspace,
    launch,
};

/// The shape of a block's stages, for tiles of both products. Those of one that is split along K are never the larger ones.
fn tile(op: &FusedMlp, target: &Target) -> StreamTile {
    let rows = |columns: u64| StreamTile::tile_rows(columns, StreamTile::clusters(target.units), false);
    let down = if splits(op, target) { 0 } else { rows(op.d_out) };
    StreamTile::choose(op.tokens).filled(rows(op.d_ff).max(down), false)
}

fn splits(op: &FusedMlp, target: &Target) -> bool {
    StreamTile::splits(op.d_out, StreamTile::clusters(target.units))
}

fn supports(op: &FusedMlp, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    if chunk_rows(op, target)? < op.tokens {
        return Err(format!("the intermediate of {} tokens is larger than the workspace", op.tokens));
    }
    StreamTile::supports(op.dtype, [op.tokens, op.d_ff, op.d_model], up_strides(op))?;
    StreamTile::supports(op.dtype, [op.tokens, op.d_out, op.d_ff], [op.w2_stride; 2])?;
    fits(tile(op, target).shared_bytes(), target)
}

/// The tile of the kernels that take over where an operand starts at an odd place.
const INSTEAD: MmaTile = MmaTile::SLIM;

fn unit(dtype: DType, gated: bool, tile: &StreamTile, split: bool, activation: ActivationForm) -> Unit {
    let mut defines = [tile.defines(split), INSTEAD.defines()].concat();
    defines.extend([("ELEMENT", dtype.name().into()), ("MLP_GATED", gated.to_string()), ("ACTIVATION_FORM", activation.name().into())]);
    Unit {
        name: format!("fused_mlp/sm90_stream {dtype}, {}, {}, {}{}", form(gated), tile.name(), activation.name(), if split { ", K split" } else { "" }),
        source: source!("fused_mlp/sm90_stream.cu"),
        headers: vec![gemm_header(), ("gemm/skinny_params.cuh", StreamParams::cuda()), repack_header()],
        defines,
        entries: if gated {
            &[REPACK, "mlp_up_stream", "mlp_down_stream", "mlp_mma_4", "mlp_mma_2", "mlp_gated_mma_4", "mlp_gated_mma_2"]
        } else {
            &[REPACK, "mlp_up_stream", "mlp_down_stream", "mlp_mma_4", "mlp_mma_2"]
        },
        shared_bytes: tile.shared_bytes().max(INSTEAD.shared_bytes()),
        also: Vec::new(),
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>) -> Result<()> {
    let tile = tile(&plan.op, &plan.target);
    let how = |split| StreamUse { clusters: StreamTile::clusters(plan.target.units), split, keeps: false, overlap: false };
    for [mut up, down] in chunks(plan, workspace, args)? {
        // SAFETY: the caller's promise; the intermediate fits into the workspace, and aligned rows start where TMA can read
        // them.
        unsafe {
            bring(queue, plan, workspace, &mut up)?;
            if up.aligned() && down.aligned() {
                tile.run(queue, plan, "mlp_up_stream", &up, how(false))?;
                tile.run(queue, plan, "mlp_down_stream", &down, how(splits(&plan.op, &plan.target)))?;
                continue;
            }
            for product in [up, down] {
                product.launch_mma(queue, plan, &INSTEAD, entries_instead(&product))?;
            }
        }
    }
    Ok(())
}
