//! `prefix_attention` without tensor cores: every dtype and size.

use super::grid::{Grid, headers, join_unit, launch_grid};
use crate::backends::cuda::attention::simt_tile::{HELD, KEYS, ROWS, THREADS, held, numbers};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, blocks};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{PrefixAttention, PrefixAttentionArgs};

pub(crate) const SIMT: Variant<PrefixAttention> = Variant {
    name: "simt",
    label: "prefix_attention/simt",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::Without("it serves f32 and every size; the tensor cores round f32 to 11 bits"),
    supports: |_, _| Ok(()),
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, _| unit(op.dtype, held(op.head_dim)),
    units: |_: Arch| DType::ALL.iter().flat_map(|&dtype| HELD.map(|head_dim| unit(dtype, head_dim))).collect(),
    workspace: |op, target| Grid::of(op, ROWS, KEYS, target.units.into()).workspace(op),
    launch,
};

/// Columns of the factors of a tile in `kernels/attention/prefix_simt.cu`.
const RANKS: u64 = 32;
fn shared_bytes(held: u64) -> u32 {
    ((numbers(held) + (KEYS + held) * (RANKS + 1)) * 4) as u32
}

fn unit(dtype: DType, held: u64) -> Unit {
    Unit {
        headers: headers(),
        defines: vec![("ELEMENT", dtype.name().into()), ("HEAD_DIM_MAX", held.to_string()), ("SHARED_BYTES", shared_bytes(held).to_string())],
        entries: &["prefix_attention_simt"],
        shared_bytes: shared_bytes(held),
        also: vec![join_unit(dtype)],
        ..Unit::new(format!("prefix_attention/simt {dtype} head_dim {held}"), source!("attention/prefix_simt.cu"))
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<PrefixAttention>, workspace: &Slice<Cuda>, args: &PrefixAttentionArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let Target { units, .. } = plan.target;
    let grid = Grid::of(op, ROWS, KEYS, units.into());
    let launch = Launch { shared_bytes: shared_bytes(held(op.head_dim)), ..Launch::new(blocks(grid.blocks(op)), THREADS) };
    // SAFETY: the caller's promise; the workspace is that of this grid.
    unsafe { launch_grid(queue, plan, ("prefix_attention_simt", launch), grid, workspace, args) }
}
