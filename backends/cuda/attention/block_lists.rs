//! Block-sparse `attention` by a block map: a kernel turns the map into block lists on the device before each launch.

use std::borrow::Cow;

use crate::backends::cuda::jit::{Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, address, blocks};
use crate::device::Slice;
use crate::error::{Error, Result};
use crate::ops::attention::{AttentionIndex, Form};
use crate::ops::index::{BlockMask, HostIndex, Index, MapShape};
use crate::ops::{Attention, AttentionArgs};

params! {
    /// Parameters of the kernel that lists: where the map lies, and where its lists go.
    ListParams {
        map: [const u8],
        /// The lists, laid out as the words of a block mask with room for every block.
        words: [i32],
        q_blocks: u32,
        kv_blocks: u32,
        patterns: u32,
        capacity: u32,
    }
}

/// The name of the kernel that lists.
pub(crate) const ENTRY: &str = "attention_lists";
/// Warps of a thread block in `kernels/attention/block_lists.cu`. Each takes a row of the map.
const ROWS: u64 = 8;
/// Bytes of the kernel's shared memory: two counts a warp.
const SCRATCH: u32 = ROWS as u32 * 2 * 4;

/// The unit of the kernel that lists, for any dtype.
pub(crate) fn unit() -> Unit {
    Unit {
        headers: vec![("attention/list_params.cuh", ListParams::cuda())],
        entries: &[ENTRY],
        shared_bytes: SCRATCH,
        ..Unit::new("attention/block_lists", source!("attention/block_lists.cu"))
    }
}

/// The unit of the kernel that lists, where an operation has a map.
pub(crate) fn unit_of(op: &Attention) -> Option<Unit> {
    matches!(op.form, Form::BlockMap(_)).then(unit)
}

/// The operation that the other kernels run: it has lists in place of a map.
pub(crate) fn listed(op: &Attention) -> Cow<'_, Attention> {
    match op.form {
        Form::BlockMap(shape) => Cow::Owned(Attention { form: Form::Blocks(shape.lists()), ..op.clone() }),
        _ => Cow::Borrowed(op),
    }
}

/// Bytes of the lists, at the start of the workspace. They end where a workspace may start.
fn bytes(shape: &MapShape) -> u64 {
    (BlockMask::capacity(&shape.lists()) * 4).next_multiple_of(256)
}

/// Bytes of the workspace of a variant that takes `own` for the listed operation.
pub(crate) fn workspace(op: &Attention, own: impl FnOnce(&Attention) -> u64) -> u64 {
    let lists = if let Form::BlockMap(shape) = op.form { bytes(&shape) } else { 0 };
    lists + own(&listed(op))
}

/// The launch of a variant, for an operation without a map.
type Run = unsafe fn(&mut Queue, &Plan<Attention>, &Attention, &Slice<Cuda>, &AttentionArgs<Cuda>) -> Result<()>;

/// Launches the kernel that lists, where there is a map, and then `run`.
///
/// # Safety
/// The conditions of [`Kernel::launch`](crate::backend::Kernel::launch) hold, and the plan has the unit of [`unit_of`].
pub(crate) unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, all: &Slice<Cuda>, args: &AttentionArgs<Cuda>, run: Run) -> Result<()> {
    let (Form::BlockMap(shape), AttentionIndex::BlockMap(map)) = (plan.op.form, &args.index) else {
        // SAFETY: the caller's promise.
        return unsafe { run(queue, plan, &plan.op, all, args) };
    };
    let room = bytes(&shape);
    let part = |at: u64, bytes: Option<u64>| {
        bytes.and_then(|bytes| all.sub_slice(at, bytes)).ok_or_else(|| Error::invalid("workspace", format!("{room} bytes and more"), all.len))
    };
    let (words, rest) = (part(0, Some(room))?, part(room, all.len.checked_sub(room))?);
    let lists = shape.lists();
    let params = ListParams {
        map: address(map.slice()),
        words: address(&words),
        q_blocks: shape.q_blocks,
        kv_blocks: shape.kv_blocks,
        patterns: shape.patterns,
        capacity: lists.capacity,
    };
    // The kernel's PDL wait stands before its first read.
    let overlap = plan.target.arch.0 >= 90;
    let grid = blocks(u64::from(shape.patterns) * u64::from(shape.q_blocks).div_ceil(ROWS));
    let args = AttentionArgs { index: AttentionIndex::Blocks(Index::over(lists, words)), ..args.clone() };
    // SAFETY: the caller's promise; the lists have a part of the workspace for themselves.
    unsafe {
        plan.launch(queue, ENTRY, &Launch { shared_bytes: SCRATCH, overlap, ..Launch::new(grid, ROWS as u32 * 32) }, &params)?;
        run(queue, plan, &listed(&plan.op), &rest, &args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    #[test]
    fn lists_come_before_what_a_variant_wants_itself() {
        let shape = MapShape { block: 128, q_blocks: 64, kv_blocks: 64, patterns: 32 };
        let dense = Attention::dense(DType::F16, 1, [32, 32], [8192, 8192], 128);
        let op = Attention { form: Form::BlockMap(shape), ..dense.clone() };
        assert!(matches!(listed(&op).form, Form::Blocks(lists) if lists.capacity == 1 << 17));
        assert_eq!(workspace(&op, |_| 512), (4 * (32 * 65 + (2 << 17)) as u64).next_multiple_of(256) + 512);
        assert_eq!((workspace(&dense, |_| 512), listed(&dense).form), (512, Form::Dense));
    }
}
