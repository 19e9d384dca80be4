//! `fused_mlp` on few tokens, in one launch: the variant `sm90_stream`.

use super::fused_mlp_tensor::{bring, chunk_rows, chunks, each_form, entries_instead, form, up_strides, workspace};
use super::gemm::{ActivationForm, GemmParams, MmaTile, fits, gemm_header, half};
use super::jit::{Arch, Unit, source};
use super::kernel::{Launch, Plan, RunsOn, Target, TensorCores, Variant};
use super::params::params;
use super::repack::{REPACK, repack_header};
use super::stream::StreamTile;
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{FusedMlp, FusedMlpArgs};

pub(super) const STREAM: Variant<FusedMlp> = Variant {
    name: "sm90_stream",
    label: "fused_mlp/sm90_stream",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    covers,
    unit: |op, target| unit(op.dtype, op.gated, &StreamTile::choose(op.tokens), splits(op, target), ActivationForm::of(Some(op.activation))),
    units: |_: Arch| {
        let forms = each_form(StreamTile::ALL);
        let forms = forms.flat_map(|(dtype, gated, tile)| [false, true].map(|split| (dtype, gated, tile, split)));
        forms.flat_map(|(dtype, gated, tile, split)| ActivationForm::ALL.map(|form| unit(dtype, gated, &tile, split, form))).collect()
    },
    workspace,
    launch,
};

params! {
    /// Of `mlp_stream`.
    MlpStreamParams {
        up: GemmParams,
        down: GemmParams,
        up_rows: u32,
        down_rows: u32,
        /// Counts the blocks whose part of the intermediate is there.
        ready: [u32],
    }
}

fn splits(op: &FusedMlp, target: &Target) -> bool {
    StreamTile::splits(op.d_out, StreamTile::clusters(target.units))
}

fn covers(op: &FusedMlp, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    if chunk_rows(op, target)? < op.tokens {
        return Err(format!("the intermediate of {} tokens is larger than the workspace", op.tokens));
    }
    StreamTile::covers(op.dtype, [op.tokens, op.d_ff, op.d_model], up_strides(op))?;
    StreamTile::covers(op.dtype, [op.tokens, op.d_out, op.d_ff], [op.w2_stride; 2])?;
    fits(StreamTile::choose(op.tokens).shared_bytes(), target)
}

/// The tile of the kernels that take over where an operand starts at an odd place.
const INSTEAD: MmaTile = MmaTile::SLIM;

fn unit(dtype: DType, gated: bool, tile: &StreamTile, split: bool, activation: ActivationForm) -> Unit {
    let mut defines = [tile.defines(split), INSTEAD.defines()].concat();
    defines.extend([("ELEMENT", dtype.name().into()), ("MLP_GATED", gated.to_string()), ("ACTIVATION_FORM", activation.name().into())]);
    Unit {
        name: format!("fused_mlp/sm90_stream {dtype}, {}, {} rows, {}{}", form(gated), tile.tokens(), activation.name(), if split { ", K split" } else { "" }),
        source: source!("fused_mlp/sm90_stream.cu"),
        headers: vec![gemm_header(), ("fused_mlp/stream_params.cuh", MlpStreamParams::cuda()), repack_header()],
        defines,
        entries: if gated {
            &[REPACK, "mlp_stream", "mlp_mma_4", "mlp_mma_2", "mlp_gated_mma_4", "mlp_gated_mma_2"]
        } else {
            &[REPACK, "mlp_stream", "mlp_mma_4", "mlp_mma_2"]
        },
        shared_bytes: tile.shared_bytes().max(INSTEAD.shared_bytes()),
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>) -> Result<()> {
    let tile = StreamTile::choose(plan.op.tokens);
    for [mut up, down] in chunks(plan, workspace, args)? {
        // SAFETY: the caller's promise; the intermediate fits into the workspace, and aligned rows start where TMA can read
        // them.
        unsafe {
            bring(queue, plan, workspace, &mut up)?;
            let (split, resident) = (splits(&plan.op, &plan.target), StreamTile::resident(plan, "mlp_stream", |clusters| tile.launch(clusters))?);
            let fits = !split || StreamTile::splits(down.columns, resident);
            if !(up.aligned() && down.aligned() && fits) {
                for product in [up, down] {
                    product.launch_mma(queue, plan, &INSTEAD, entries_instead(&product))?;
                }
                continue;
            }
            let (up_rows, down_rows) = (StreamTile::tile_rows(up.columns, resident, false), StreamTile::tile_rows(down.columns, resident, split));
            let used = StreamTile::clusters_of(up.columns, up_rows, false).max(StreamTile::clusters_of(down.columns, down_rows, split));
            let (up, down) = (tile.params(&up, up_rows)?, tile.params(&down, down_rows)?);
            let params = MlpStreamParams { up, down, up_rows, down_rows, ready: queue.counters()? };
            plan.launch(queue, "mlp_stream", &Launch { cooperative: true, ..tile.launch(used.min(resident)) }, &params)?;
        }
    }
    Ok(())
}
