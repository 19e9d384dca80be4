//! Block-sparse split-KV on sm90: rows of blocks are cut into parts, and the longest part is taken first. This is the configuration
//! `split_kv` of `sm90`, for lists whose rows are few or of very different length.

use crate::backends::cuda::attention::block_pairs::Pairs;
use crate::backends::cuda::attention::choose::split_kv::{part_length, taken_together};
use crate::backends::cuda::attention::entry::{Entry, entry};
use crate::backends::cuda::attention::sm90::ready::{all_beside, parts_at, ready};
use crate::backends::cuda::attention::sm90::schedule as order;
use crate::backends::cuda::attention::sm90::tile::{HELD, ROWS, Tile, TmaParams, define, held};
use crate::backends::cuda::jit::{Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, address, blocks};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::attention::Form;
use crate::ops::{Attention, AttentionArgs};

params! {
    /// Parameters of the split-KV kernels: those of the tiles, and where the parts of rows are joined.
    PartParams {
        tiles: TmaParams,
        /// The most k-blocks of a part.
        length: u32,
        /// Partial results of cut rows, for the heads that share a pattern.
        slots: u32,
        /// Heads and sequences of a pattern that share L2: their parts are taken together.
        band: u32,
    }
}

/// Parts that a plan has room for in shared memory, and its bytes, in `kernels/attention/sm90/block_sparse.cuh`.
const PLAN_PARTS: u64 = 4096;
const PLAN_BYTES: u64 = PLAN_PARTS * 8 + 256;
/// The most k-blocks of a row, so that 32 bits count places in it.
const LONGEST_ROW: u64 = 1 << 19;
/// The most bytes of partial results. Most of the time they should stay in L2 until they are joined.
const MOST_BYTES: u64 = 128 << 20;
/// The assumed sparsity, where the shape does not say: one block in this many is present. It is a guess.
const MAP_ONE_IN: u64 = 4;

/// How rows of blocks are cut. The cut follows from the operation's shape and not from its lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Rows of tiles over all patterns.
    rows: u64,
    /// Heads and sequences of each pattern.
    copies: u64,
    /// Heads and sequences of a pattern that share L2: their parts are taken together.
    band: u64,
    /// The most k-blocks of a part.
    length: u64,
    /// The most parts.
    parts: u64,
    /// The most parts of cut rows.
    slots: u64,
}

impl Cut {
    /// The cut of a block-sparse operation on `units` SMs, or why there is none.
    pub(crate) fn of(op: &Attention, units: u32) -> std::result::Result<Self, String> {
        let (shape, listed) = match op.form {
            Form::Blocks(shape) => (shape, u64::from(shape.capacity)),
            Form::BlockMap(shape) => (shape.lists(), shape.blocks().div_ceil(MAP_ONE_IN)),
            _ => return Err("it runs the block-sparse form alone".into()),
        };
        let (patterns, tiles) = (u64::from(shape.patterns), op.q_len.div_ceil(ROWS));
        let (rows, copies) = (patterns * tiles, op.batch * op.heads / patterns.max(1));
        if rows > PLAN_PARTS / 2 {
            return Err(format!("{rows} rows of tiles: a plan has room for {}", PLAN_PARTS / 2));
        }
        // Two columns of 64-key blocks make a k-block, for both rows of a tile.
        let together = ROWS / u64::from(shape.block);
        let longest = u64::from(shape.kv_blocks).div_ceil(together);
        if longest > LONGEST_ROW || copies > 1 << 18 {
            return Err(format!("rows of {longest} steps, {copies} times: at most {LONGEST_ROW}, and {}", 1 << 18));
        }
        let steps = |blocks: u64| ((blocks + (together - 1) * rows) / together).min(rows * longest);
        // Patterns may share their lists.
        let (likely, most) = (steps(listed), steps(patterns.saturating_mul(shape.capacity.into())));
        let kept = copies * part_bytes(op);
        let room = most.div_ceil(PLAN_PARTS - rows).max((2 * most * kept).div_ceil(MOST_BYTES));
        let band = taken_together((order::band(op) / patterns.max(1)).max(1), copies);
        let length = part_length([rows, copies, band], likely, u64::from(units.max(1))).max(room);
        let whole = length >= longest;
        Ok(Self { rows, copies, band, length, parts: rows + if whole { 0 } else { most / length }, slots: if whole { 0 } else { 2 * most / length } })
    }

    fn parts_bytes(self, op: &Attention) -> u64 {
        self.copies * self.slots * part_bytes(op)
    }
}

fn part_bytes(op: &Attention) -> u64 {
    tile(op).sums_bytes()
}

/// Bytes of the workspace for partial results, and for counters of those that have arrived.
pub(crate) fn bytes(op: &Attention, units: u32) -> u64 {
    Cut::of(op, units).map_or(0, |cut| cut.parts_bytes(op) + cut.copies * cut.slots * tile(op).consumers * 4 * 4)
}

fn tile(op: &Attention) -> Tile {
    Tile { held: held(op.head_dim), consumers: 2 }
}

const BLOCKS: Entry = entry!("attention_sm90_block_sparse_blocks");
const PAIRS: Entry = entry!("attention_sm90_block_sparse_pairs");

/// The kernel of an operation without a map: for blocks of 128 or for blocks of 64.
fn kernel(op: &Attention) -> Entry {
    if Pairs::of(op, ROWS).is_some() { PAIRS } else { BLOCKS }
}

/// The unit of an operation without a map.
pub(crate) fn unit(op: &Attention, tile: Tile, also: Vec<Unit>) -> Unit {
    unit_of(kernel(op), tile, op.dtype, also)
}

fn unit_of(entry: Entry, tile: Tile, dtype: DType, also: Vec<Unit>) -> Unit {
    let name = if entry == PAIRS { "attention/sm90 split_kv pairs" } else { "attention/sm90 split_kv blocks" };
    let mut unit = Unit { entries: entry.list, also, ..tile.unit(name, source!("attention/sm90/block_sparse.cu"), dtype) };
    unit.headers.push(("attention/block_sparse_params.cuh", PartParams::cuda()));
    define(&mut unit, &[("PLAN_PARTS", PLAN_PARTS), ("PLAN_BYTES", PLAN_BYTES)]);
    unit.defines.push(entry.defined());
    unit.shared_bytes += PLAN_BYTES as u32;
    unit
}

/// Every unit that [`unit`] may give.
pub(crate) fn units() -> impl Iterator<Item = Unit> {
    let each = HELD.into_iter().map(|held| Tile { held, consumers: 2 }).flat_map(|tile| [BLOCKS, PAIRS].map(|entry| (entry, tile)));
    each.flat_map(|(entry, tile)| [DType::F16, DType::BF16].map(|dtype| unit_of(entry, tile, dtype, all_beside(tile.held, dtype, true))))
}

/// Launches the kernel for `op`, the operation of `plan` without a map.
///
/// # Safety
/// The conditions of [`Kernel::launch`](crate::backend::Kernel::launch) hold. The workspace has [`bytes`] behind what comes before.
pub(crate) unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, op: &Attention, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let cut = Cut::of(&plan.op, plan.target.units).map_err(|reason| Error::unsupported("attention", reason))?;
    let tile = tile(op);
    // SAFETY: the caller's promise.
    let Some(mut tiles) = (unsafe { ready(queue, plan, op, workspace, args, tile, tile.keys())? }) else { return Ok(()) };
    tiles.queue = address(workspace);
    tiles.parts = address(workspace) + parts_at(op);
    tiles.arrivals = tiles.parts + cut.parts_bytes(op);
    let entry = kernel(op).name();
    let grid = blocks((cut.parts * cut.copies).min(plan.target.units.into()));
    let params = PartParams { tiles, length: cut.length as u32, slots: cut.slots as u32, band: cut.band as u32 };
    // The kernel's PDL wait stands before its first read.
    let launch = Launch { shared_bytes: tile.shared_bytes() + PLAN_BYTES as u32, overlap: true, ..Launch::new(grid, tile.threads()) };
    // SAFETY: the caller's promise; the workspace is as large as the variant says, and its counters are zero.
    unsafe { plan.launch(queue, entry, &launch, &params) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::cuda::attention::choose::split_kv::LEAST;
    use crate::ops::index::{BlockShape, MapShape};

    const UNITS: u32 = 132;

    fn op(heads: u64, tokens: u64, head_dim: u64, [block, patterns, capacity]: [u32; 3]) -> Attention {
        let q_blocks = tokens.div_ceil(u64::from(block)) as u32;
        let shape = BlockShape { block, q_blocks, kv_blocks: q_blocks, patterns, capacity, masks: 0 };
        Attention { form: Form::Blocks(shape), ..Attention::dense(DType::F16, 1, [heads, heads], [tokens, tokens], head_dim) }
    }

    fn cut(op: &Attention) -> Cut {
        Cut::of(op, UNITS).unwrap_or(Cut { rows: 0, copies: 0, band: 0, length: 0, parts: 0, slots: 0 })
    }

    #[test]
    fn few_rows_are_cut_so_that_they_fill_the_chip() {
        let length = |tokens, capacity| cut(&op(1, tokens, 64, [128, 1, capacity])).length;
        // 63 rows of 13: two parts each. 178 rows of 36: three waves of halves, instead of two of whole rows. 126 rows of 26: one of each.
        assert_eq!([length(3968, 204), length(8064, 800), length(22_784, 6400), length(16_128, 3200)], [2, 7, 18, 26]);
        assert_eq!(cut(&op(1, 8064, 64, [128, 1, 800])), Cut { rows: 63, copies: 1, band: 1, length: 7, parts: 63 + 114, slots: 228 });
    }

    #[test]
    fn many_rows_are_cut_only_where_one_is_longer_than_a_share_of_everything() {
        for (heads, capacity) in [(8, 800), (32, 888)] {
            let cut = cut(&op(heads, 8192, 64, [128, 1, capacity]));
            assert!(cut.length >= 14, "{cut:?}: longer than the mean row");
        }
        let dense = cut(&op(32, 8192, 128, [128, 1, 4096]));
        assert_eq!((dense.slots, dense.parts), (0, 64));
    }

    #[test]
    fn a_plan_fits_and_so_do_the_parts() {
        let map = MapShape { block: 64, q_blocks: 128, kv_blocks: 128, patterns: 8 };
        let dense = Attention::dense(DType::F16, 1, [8, 8], [8192, 8192], 128);
        let all = [op(1, 131_072, 128, [128, 1, 104_858]), op(8, 8192, 128, [64, 8, 26_000]), Attention { form: Form::BlockMap(map), ..dense }];
        for op in all {
            let cut = cut(&op);
            assert!(cut.length >= LEAST && cut.parts <= PLAN_PARTS && cut.slots <= PLAN_PARTS, "{cut:?}");
            assert!(bytes(&op, UNITS) <= MOST_BYTES + MOST_BYTES / 1000, "{cut:?}");
            assert!(Cut::of(&op, 1).is_ok());
        }
        assert!(Cut::of(&op(8, 131_072, 128, [128, 8, 800_000]), 1).is_err());
    }

    #[test]
    fn the_plan_fits_beside_the_tiles() {
        assert!(units().all(|unit| unit.shared_bytes <= 227 << 10));
    }
}
