//! How the tensor-core variants of `codebook_gemm` are launched: what slices share, and when a launch may start early.

use super::codebook_gemm::{FactorParams, factor, scaled_by_token};
use super::codebook_gemm_tile::{decodes_ahead, plan_shared, rank_of, width_of};
use super::kernel::{Launch, Plan, address, address_of, range};
use super::open::starts_early;
use super::params::params;
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::codebook_gemm::{CodebookSlice, CodebookSliceArgs, FactorArgs};
use crate::ops::{CodebookGemm, CodebookGemmArgs};

params! {
    /// Of one slice.
    TileParams {
        x: [const element],
        y: [element],
        /// The words of the token index.
        index: [const i32],
        scaling: [const f32],
        core: [const f32],
        tokens: u64,
        x_stride: u64,
        y_stride: u64,
        input: FactorParams,
        output: FactorParams,
        accumulate: u32,
        /// Rows of x, of the input factor and of y start on multiples of 16 bytes.
        x_aligned: u32,
        v_aligned: u32,
        y_aligned: u32,
        /// Blocks that share a tile of tokens.
        blocks: u32,
        /// No launch still under way writes x or the core.
        x_early: u32,
        /// Nor reads or writes y. Only with the above.
        y_early: u32,
        /// The scaling is each token's own.
        scaled_by_token: u32,
    }
}

params! {
    /// What slices of one launch do not share.
    TileSlice {
        y: [element],
        core: [const f32],
        values: [const element],
        basis_of: [const i32],
        codes: [const u32],
        codebooks: [const f32],
        y_stride: u64,
        d_out: u64,
        rank: u32,
        bits: u32,
        words_per_adapter: u32,
        unused: u32,
    }
}

params! {
    /// Of one launch of several slices, whose rows are whole multiples of 16 bytes: 4 KiB of parameters are what every driver takes.
    TileGroup {
        x: [const element],
        index: [const i32],
        scaling: [const f32],
        tokens: u64,
        x_stride: u64,
        d_in: u64,
        accumulate: u32,
        blocks: u32,
        x_early: u32,
        y_early: u32,
        scaled_by_token: u32,
        unused: u32,
        slices: [TileSlice; 48],
    }
}

/// Slices that one launch takes at most.
pub(super) const GROUPED: usize = 48;
/// As in `kernels/codebook_gemm/tile.cuh`.
pub(super) const ROWS: u64 = 16;
pub(super) const GROUP: u64 = 32;
pub(super) const THREADS: u32 = 256;
/// Groups of columns that a warp finishes at once, at most.
const HELD: u64 = 2;
/// Blocks of a cluster: what every device with clusters has room for. Twice as many read x sooner, and wait longer for each other.
pub(super) const CLUSTER: u64 = 8;
/// From this many slices on, clusters have fewer blocks. What h is summed from depends on it, and so it may not on the batch.
pub(super) const MANY_SLICES: usize = 17;
const FEW: u64 = 2;

/// Of d_in, what one buffer of the basis takes of a block, of rank 16.
const SHARE: u64 = 512;
/// Blocks that decode all they need of a tile's 16 adapters before they wait, and groups of columns of each, at most.
const AHEAD_BLOCKS: u64 = 32;
const AHEAD_GROUPS: u64 = 4;
/// Launches that are to be under way at once with a block of that kind a multiprocessor, which has no room for a second.
const UNDER_WAY: u64 = 4;

fn aligned(address: u64, stride: u64) -> u32 {
    u32::from(address.is_multiple_of(16) && stride.is_multiple_of(8))
}

pub(super) fn tile_params(op: &CodebookGemm, args: &CodebookGemmArgs<Cuda>, slice: &CodebookSlice, of: &CodebookSliceArgs<Cuda>, blocks: u32) -> TileParams {
    let input = factor(slice.input, &of.input, op.d_in, slice.rank);
    TileParams {
        x: address(&args.x),
        y: address(&of.y),
        index: address(args.token_adapter.slice()),
        scaling: address(&args.scaling),
        core: address_of(of.core.as_ref()),
        tokens: op.tokens,
        x_stride: op.x_stride,
        y_stride: slice.y_stride,
        input,
        output: factor(slice.output, &of.output, slice.d_out, slice.rank),
        accumulate: u32::from(op.accumulate),
        x_aligned: aligned(address(&args.x), op.x_stride),
        v_aligned: aligned(input.values, slice.rank),
        y_aligned: aligned(address(&of.y), slice.y_stride),
        blocks,
        x_early: 0,
        y_early: 0,
        scaled_by_token: scaled_by_token(op),
    }
}

/// Whether all rows are whole multiples of 16 bytes, so that the short kernel takes them.
pub(super) fn whole(params: &TileParams) -> bool {
    let aligned = params.x_aligned & params.v_aligned & params.y_aligned == 1;
    aligned && params.input.d.is_multiple_of(8) && params.output.d.is_multiple_of(8) && params.input.rank.is_multiple_of(8)
}

/// Slices with their operands.
pub(super) type Slices<'a> = [(&'a CodebookSlice, &'a CodebookSliceArgs<Cuda>)];

/// Blocks that share a tile, so that about `wanted` are in the launch, but no more than `most`, nor than there are groups of
/// columns.
fn sharing(op: &CodebookGemm, slices: &Slices<'_>, wanted: u64, most: u64) -> u64 {
    let tiles = op.tokens.div_ceil(ROWS).max(1) * slices.len() as u64;
    (wanted / tiles).clamp(1, most.min(widest(slices).div_ceil(GROUP)))
}

pub(super) fn widest(slices: &Slices<'_>) -> u64 {
    slices.iter().map(|(slice, _)| slice.d_out).max().unwrap_or(1)
}

/// The same of clusters, on a device of `units` multiprocessors.
fn cluster_sharing(op: &CodebookGemm, slices: &Slices<'_>, cluster: u64, units: u64, x_early: bool) -> u64 {
    let most = match (x_early, op.adapters) {
        // All work but the last step is done before the launch before ends. The fewer blocks, the more launches are under way; but
        // a block is to finish its columns at once.
        (true, _) => widest(slices).div_ceil(GROUP * HELD * u64::from(THREADS / 32)).max(16).next_multiple_of(CLUSTER),
        // Fewer blocks have less to wait for; but of many adapters each is to decode little after x is there.
        (false, 0..=1) => 32,
        (false, _) => 64,
    };
    // A launch takes one block a multiprocessor: the next one is to start beside it.
    (sharing(op, slices, units, most) / cluster).max(1) * cluster
}

/// Whether a launch on x that another writes has few blocks, which decode everything before they wait: the fewer there are, the sooner a launch
/// ends. One of several tiles or slices fills too much of the device for that.
fn ahead(op: &CodebookGemm, slices: &Slices<'_>, units: u64) -> bool {
    let blocks = op.tokens.div_ceil(ROWS) * slices.len() as u64 * AHEAD_BLOCKS;
    let groups = widest(slices).div_ceil(GROUP).div_ceil(AHEAD_BLOCKS);
    slices.len() == 1 && op.adapters > 1 && decodes_ahead(rank_of(op), width_of(op)) && groups <= AHEAD_GROUPS && blocks * UNDER_WAY <= units
}

/// Whether a launch on x that another writes has one adapter and so few blocks that one a multiprocessor is enough: registers are then left to go the
/// way from x to y once before the wait.
fn rehearsed(op: &CodebookGemm, slices: &Slices<'_>, units: u64) -> bool {
    slices.len() == 1 && op.adapters <= 1 && rank_of(op) == 16 && op.tokens.div_ceil(ROWS) * AHEAD_BLOCKS * UNDER_WAY <= units
}

/// Whether a launch on x that another writes shares out all pieces of its adapters among the warps, each of which decodes its first ones before it waits.
fn in_line(op: &CodebookGemm, params: &TileParams) -> bool {
    let one_share = params.input.basis_of == 0 && op.d_in <= CLUSTER * SHARE;
    one_share && !op.accumulate && op.adapters > 1 && decodes_ahead(rank_of(op), width_of(op))
}

/// Calls with slices that one launch takes: all that share it if their rows are whole multiples of 16 bytes, one otherwise.
pub(super) fn each_group(op: &CodebookGemm, args: &CodebookGemmArgs<Cuda>, mut launch: impl FnMut(&Slices<'_>) -> Result<()>) -> Result<()> {
    let slices: Vec<_> = op.slices.iter().zip(&args.slices).collect();
    // Launches of about the same size.
    let most = slices.len().div_ceil(slices.len().div_ceil(GROUPED).max(1)).max(1);
    for group in slices.chunks(most) {
        let together = group.iter().all(|(slice, of)| whole(&tile_params(op, args, slice, of, 1)));
        group.chunks(if together { most } else { 1 }).try_for_each(&mut launch)?;
    }
    Ok(())
}

/// The same slices as one launch has them.
pub(super) fn tile_group(first: &TileParams, slices: &[TileParams]) -> TileGroup {
    let own = |params: &TileParams| TileSlice {
        y: params.y,
        core: params.core,
        values: params.input.values,
        basis_of: params.input.basis_of,
        codes: params.output.codes,
        codebooks: params.output.codebooks,
        y_stride: params.y_stride,
        d_out: params.output.d,
        rank: params.output.rank,
        bits: params.output.bits,
        words_per_adapter: params.output.words_per_adapter,
        unused: 0,
    };
    let mut group = TileGroup {
        x: first.x,
        index: first.index,
        scaling: first.scaling,
        tokens: first.tokens,
        x_stride: first.x_stride,
        d_in: first.input.d,
        accumulate: first.accumulate,
        blocks: first.blocks,
        x_early: first.x_early,
        y_early: first.y_early,
        scaled_by_token: first.scaled_by_token,
        unused: 0,
        slices: [own(first); GROUPED],
    };
    group.slices.iter_mut().zip(slices).for_each(|(slice, params)| *slice = own(params));
    group
}

/// Puts one launch of `slices` into the queue: `single` names the kernel of one slice alone, `grouped` that of several.
///
/// # Safety
/// As [`Plan::launch`].
unsafe fn launch_group(queue: &mut Queue, plan: &Plan<CodebookGemm>, slices: &[TileParams], entries: [&str; 2], launch: &Launch) -> Result<()> {
    let [single, grouped] = entries;
    match slices {
        [] => Ok(()),
        // SAFETY: the caller's promise.
        [one] => unsafe { plan.launch(queue, single, launch, one) },
        [first, ..] => {
            let group = tile_group(first, slices);
            let launch = Launch { grid: [launch.grid[0], slices.len() as u32, 1], ..*launch };
            // SAFETY: as above; the grid has as many rows as there are slices.
            unsafe { plan.launch(queue, grouped, &launch, &group) }
        }
    }
}

/// # Safety
/// As [`Plan::launch`].
pub(super) unsafe fn launch_sm80(queue: &mut Queue, plan: &Plan<CodebookGemm>, _workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    each_group(op, args, |group| {
        // Every block computes h anew: few do it, unless there are many adapters to decode.
        let blocks = sharing(op, group, 2 * u64::from(plan.target.units), 16);
        let params: Vec<_> = group.iter().map(|(slice, of)| tile_params(op, args, slice, of, blocks as u32)).collect();
        let grid = [(op.tokens.div_ceil(ROWS) * blocks) as u32, 1, 1];
        let launch = Launch { grid, shared_bytes: plan_shared(plan, false), ..Launch::new(1, THREADS) };
        let single = if params.iter().all(whole) { "codebook_gemm_sm80" } else { "codebook_gemm_sm80_any" };
        // SAFETY: the caller's promise.
        unsafe { launch_group(queue, plan, &params, [single, "codebook_gemm_sm80_grouped"], &launch) }
    })
}

/// # Safety
/// As [`Plan::launch`].
pub(super) unsafe fn launch_sm90(queue: &mut Queue, plan: &Plan<CodebookGemm>, _workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    // Whether all launches still under way are this operation's.
    let mut own = false;
    each_group(op, args, |group| {
        let mut open = queue.take_open();
        let early = starts_early(&open, &group.iter().flat_map(|(_, of)| read_early(args, of)).collect::<Vec<_>>());
        let cores = group.iter().filter_map(|(_, of)| of.core.as_ref());
        let x_early = !early || starts_early(&open, &cores.chain([&args.x]).map(range).collect::<Vec<_>>());
        let (cluster, grouped) =
            if op.slices.len() < MANY_SLICES || group.len() == 1 { (CLUSTER, "codebook_gemm_sm90_grouped") } else { (FEW, "codebook_gemm_sm90_many") };
        let units = u64::from(plan.target.units);
        let ahead = early && !x_early && ahead(op, group, units);
        let blocks = if ahead {
            sharing(op, group, units, AHEAD_BLOCKS).next_multiple_of(CLUSTER)
        } else {
            cluster_sharing(op, group, cluster, units, early && x_early)
        };
        let mut params: Vec<_> = group.iter().map(|(slice, of)| tile_params(op, args, slice, of, blocks as u32)).collect();
        for params in &mut params {
            params.x_early = u32::from(x_early);
            params.y_early = u32::from(x_early && own);
        }
        // Every y of an operation lies apart from the others, and from x.
        own |= !early;
        if !early {
            open.clear();
        }
        open.extend(group.iter().map(|(_, of)| range(&of.y)));
        let launch = Launch {
            grid: [(op.tokens.div_ceil(ROWS) * blocks) as u32, 1, 1],
            shared_bytes: plan_shared(plan, true),
            cluster: [cluster as u32, 1, 1],
            overlap: early,
            ..Launch::new(1, THREADS)
        };
        let dependent = early && !x_early;
        let usual = match (ahead, dependent && rehearsed(op, group, units)) {
            (true, _) => "codebook_gemm_sm90_ahead",
            (false, true) => "codebook_gemm_sm90_rehearsed",
            (false, false) => "codebook_gemm_sm90",
        };
        let wide = if dependent && in_line(op, &params[0]) { "codebook_gemm_sm90_line" } else { "codebook_gemm_sm90_wide" };
        // SAFETY: the caller's promise; and launches still under way write nothing that this one reads before it waits.
        unsafe { launch_group(queue, plan, &params, [sm90_entry(&params[0], usual, wide), grouped], &launch)? };
        if op.tokens > 0 {
            queue.leave_open(open);
        }
        Ok(())
    })
}

/// The kernel of one slice whose rows are whole: `usual`, where a warp has one group of columns, else `wide`.
fn sm90_entry(params: &TileParams, usual: &'static str, wide: &'static str) -> &'static str {
    let groups = params.output.d.div_ceil(GROUP).div_ceil(u64::from(params.blocks));
    match (whole(params), groups > u64::from(THREADS / 32)) {
        (true, false) => usual,
        (true, true) => wide,
        (false, _) => "codebook_gemm_sm90_any",
    }
}

/// What the sm90 kernel reads before it waits for the launch before, apart from indices, which no launch writes.
pub(super) fn read_early(args: &CodebookGemmArgs<Cuda>, of: &CodebookSliceArgs<Cuda>) -> Vec<std::ops::Range<u64>> {
    let mut reads = vec![range(&args.scaling)];
    for factor in [&of.input, &of.output] {
        reads.push(match factor {
            FactorArgs::Dense { values, .. } => range(values),
            FactorArgs::Coded { codebooks, .. } => range(codebooks),
        });
    }
    reads
}
