//! Intra-CTA split-KV on sm90, where tiles are few: four warpgroups have the same 64 rows, and each takes every fourth k-block.

use crate::backends::cuda::attention::block_lists as lists;
use crate::backends::cuda::attention::choose;
use crate::backends::cuda::attention::entry::{Entry, entry};
use crate::backends::cuda::attention::sm90::ready::{all_beside, beside, limits, own_bytes, ready};
use crate::backends::cuda::attention::sm90::schedule::grid_fits;
use crate::backends::cuda::attention::sm90::tile::{GROUP, HELD, NARROW, Tile, define, held};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Configs, Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attention::Form;
use crate::ops::{Attention, AttentionArgs};

pub(crate) const VARIANT: Variant<Attention> = Variant {
    name: "sm90",
    label: "attention/sm90",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports,
    suits: choose::intra_split,
    configs: Some(Configs { names: |_| vec!["intra_split_kv".into()], choose: |_, _| 0 }),
    unit: |op, _| unit(kernel(op), tile(op), op.dtype, beside(op, tile(op).held)),
    units,
    workspace: |op, _| lists::workspace(op, own_bytes),
    launch,
};

/// Warpgroups of a block.
const GROUPS: u64 = 4;
/// Keys of a k-block.
const KEYS: u64 = 128;
/// K-blocks in the rings of all warpgroups: K and V of one, and K of the next, for each.
const STAGES: u64 = 6;
/// Bytes for the barriers.
const BARRIERS: u64 = 1024;

/// The tile of one warpgroup, whose rows all four have.
fn tile(op: &Attention) -> Tile {
    Tile { held: held(op.head_dim), consumers: 1 }
}

/// Bytes of shared memory: Q in panels of 64 elements, whatever a head has, then K and V.
const SHARED_BYTES: u32 = ((GROUP + STAGES * 2 * KEYS) * NARROW * 2 + BARRIERS) as u32;

const EVERY: Entry = entry!("attention_sm90_intra_split");
const LISTED: Entry = entry!("attention_sm90_intra_split_blocks");

/// The kernel that an operation takes: one walks over every key, one over listed blocks.
fn kernel(op: &Attention) -> Entry {
    if op.form.is_sparse() { LISTED } else { EVERY }
}

fn unit(entry: Entry, tile: Tile, dtype: DType, also: Vec<Unit>) -> Unit {
    let name = if entry == LISTED { "attention/sm90 intra_split_kv blocks" } else { "attention/sm90 intra_split_kv" };
    let mut unit = Unit { entries: entry.list, shared_bytes: SHARED_BYTES, also, ..tile.unit(name, source!("attention/sm90/intra_split.cu"), dtype) };
    define(&mut unit, &[("GROUPS", GROUPS), ("RING_STAGES", STAGES), ("Q_STAGES", 1), ("TMA_SHARED_BYTES", SHARED_BYTES.into()), ("BARRIER_BYTES", BARRIERS)]);
    unit.defines.push(entry.defined());
    unit
}

fn units(_: Arch) -> Vec<Unit> {
    let narrow = HELD.into_iter().filter(|&held| held <= NARROW).map(|held| Tile { held, consumers: 1 });
    let each = narrow.flat_map(|tile| [EVERY, LISTED].map(|entry| (entry, tile)));
    each.flat_map(|(entry, tile)| [DType::F16, DType::BF16].map(|dtype| unit(entry, tile, dtype, all_beside(tile.held, dtype, true)))).collect()
}

fn supports(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    limits(op, target)?;
    if op.head_dim > NARROW {
        return Err(format!("head_dim {} > {NARROW}: there is no room for the steps of four groups", op.head_dim));
    }
    if matches!(lists::listed(op).form, Form::Blocks(shape) if u64::from(shape.block) != KEYS) {
        return Err(format!("its steps are as long as blocks of {KEYS}"));
    }
    grid_fits(op, 0)
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { lists::launch(queue, plan, workspace, args, launch_listed) }
}

unsafe fn launch_listed(queue: &mut Queue, plan: &Plan<Attention>, op: &Attention, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let entry = kernel(op).name();
    // SAFETY: the caller's promise.
    let Some(params) = (unsafe { ready(queue, plan, op, workspace, args, tile(op), KEYS)? }) else { return Ok(()) };
    let grid = [op.q_len.div_ceil(GROUP) as u32, op.heads as u32, op.batch as u32];
    // The kernel's PDL wait stands before its first read.
    let launch = Launch { grid, shared_bytes: SHARED_BYTES, overlap: true, ..Launch::new(1, (GROUPS * 128) as u32) };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, entry, &launch, &params) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_multiprocessor_holds_four_rings() {
        const { assert!(SHARED_BYTES <= 227 << 10) };
        assert!(units(Arch(90)).iter().all(|unit| unit.shared_bytes == SHARED_BYTES));
    }
}
