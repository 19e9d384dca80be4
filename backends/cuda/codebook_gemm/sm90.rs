//! `codebook_gemm` in clusters with early starts (PDL), on Hopper and newer.

use super::launch::*;
use super::tile::*;
use crate::backends::cuda::jit::Arch;
use crate::backends::cuda::runtime::pdl::starts_early;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, TensorCores, Variant, range};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{CodebookGemm, CodebookGemmArgs};

pub(crate) const SM90: Variant<CodebookGemm> = Variant {
    name: "sm90",
    label: "codebook_gemm/sm90",
    // Clusters and early starts, nothing that is Hopper's alone.
    runs_on: RunsOn::From(90),
    // Not by wgmma: it multiplies 64 rows at least, of which 16 tokens fill a quarter, and reads its second operand from shared
    // memory alone, while codes are decoded into registers.
    tensor_cores: TensorCores::By("HMMA"),
    supports: |op, target| supports(op, target, true),
    suits: |_, _| Ok(()),
    unit: |op, _| unit(op.dtype, rank_of(op), width_of(op), true),
    units: |_: Arch| units(true),
    workspace: |_, _| 0,
    launch,
};

/// Of d_in, what one buffer of the basis takes of a block, of rank 16.
const SHARE: u64 = 512;
/// Blocks that decode all they need of a tile's 16 adapters before they wait, and groups of columns of each, at most.
const AHEAD_BLOCKS: u64 = 32;
const AHEAD_GROUPS: u64 = 4;
/// Launches that are to be under way at once with a block of that kind a multiprocessor, which has no room for a second.
const UNDER_WAY: u64 = 4;

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

/// # Safety
/// As [`Plan::launch`].
unsafe fn launch(queue: &mut Queue, plan: &Plan<CodebookGemm>, _workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
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
