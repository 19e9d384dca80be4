//! The variant of `codebook_gemm` for many tokens of many adapters on the tensor cores: S2LC's form, a block for the tokens of one adapter.

use crate::backends::cuda::codebook_gemm::choose::{beats_clusters, takes_adapters};
use crate::backends::cuda::codebook_gemm::launch::{each_group, read_early, tile_group, tile_params, whole, widest};
use crate::backends::cuda::codebook_gemm::sgmv_simt::overlaps;
use crate::backends::cuda::codebook_gemm::tile::{CLUSTER, GROUP, GROUPED, ROWS, THREADS, TileGroup, TileParams};
use crate::backends::cuda::codebook_gemm::tile::{RANKS, WIDTHS, headers, rank_of, supports as supports_tiles, width_of};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::pdl::starts_early;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, address, range};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::codebook_gemm::Factor;
use crate::ops::{CodebookGemm, CodebookGemmArgs};

pub(crate) const SEGMENTS: Variant<CodebookGemm> = Variant {
    name: "segments_sm80",
    label: "codebook_gemm/segments_sm80",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: |_, _| Ok(()),
    unit: |op, _| unit(op.dtype, rank_of(op), width_of(op)),
    units: |_: Arch| units(),
    workspace: |op, _| projected_bytes(op),
    launch,
};

params! {
    /// What both kernels know beside the operation.
    SegmentsPlan {
        /// h of each share of d_in, of each token in the index's order, of each slice; in the workspace.
        projected: [f32],
        /// Elements of d_in in a share.
        each: u64,
        shares: u32,
        /// Segments that there may be.
        segments: u32,
    }
}

params! {
    /// Of one slice.
    SegmentsParams {
        tile: TileParams,
        plan: SegmentsPlan,
    }
}

params! {
    /// Of several.
    SegmentsGroup {
        group: TileGroup,
        plan: SegmentsPlan,
    }
}

/// As in `kernels/codebook_gemm/sgmv_parts.cuh`.
const MOST: u64 = 64;
const PARTS: u64 = 2;
/// Blocks of the second kernel that a multiprocessor holds at once.
const RESIDENT: u64 = 2;
/// Codes of a block of it, at most: beside them the smallest GPUs have room for tables and coefficients.
const CODES_BYTES: u64 = 47 << 10;
/// Parts of d_in that blocks share a tile of tokens by, at most. What h is summed from depends on it, and so it may not on the batch.
pub(crate) const SHARES: u64 = 8;

/// How d_in is split: whole 32s, so that only the last share has a rest.
pub(crate) struct Shares {
    pub(crate) each: u64,
    count: u64,
}

impl Shares {
    pub(crate) const fn of(op: &CodebookGemm) -> Self {
        let each = op.d_in.div_ceil(32 * SHARES) * 32;
        Self { each, count: op.d_in.div_ceil(each) }
    }
}

/// Bytes of workspace.
pub(crate) fn projected_bytes(op: &CodebookGemm) -> u64 {
    op.slices.len().min(GROUPED) as u64 * Shares::of(op).count * op.tokens * rank_of(op) * 4
}

fn supports(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    takes_adapters(op, target)?;
    beats_clusters(op, target, u64::from(target.units) / CLUSTER)?;
    supports_tiles(op, target, false)?;
    let groups = op.slices.iter().map(|slice| slice.d_out.div_ceil(GROUP)).max().unwrap_or(1);
    let pairs = most_units(op).saturating_mul(groups);
    if pairs >= 1 << 31 {
        return Err(format!("{pairs} pairs of tokens and columns, 2^31 or more"));
    }
    let shared = [project_bytes(rank_of(op), true), expand_bytes(rank_of(op), width_of(op), most_groups(rank_of(op), width_of(op)))];
    if let Some(shared) = shared.into_iter().find(|&shared| shared > target.shared_bytes) {
        return Err(format!("{shared} bytes of shared memory, the device has {}", target.shared_bytes));
    }
    Ok(())
}

/// Segments that there may be.
fn most_segments(op: &CodebookGemm) -> u64 {
    op.tokens.min(u64::from(op.adapters))
}

/// Units that there may be: up to `MOST` tokens of one adapter.
pub(crate) fn most_units(op: &CodebookGemm) -> u64 {
    let segments = most_segments(op);
    segments + (op.tokens - segments) / MOST
}

/// Blocks of the second kernel for each slice, and groups of columns of one, at most: all multiprocessors are to have as many.
fn blocks_of(op: &CodebookGemm, widest: u64, slices: u64, units: u64) -> (u64, u64) {
    let groups = widest.div_ceil(GROUP);
    let (all, most) = (most_units(op) * groups, groups.min(most_groups(rank_of(op), width_of(op))).max(1));
    let blocks = (all * slices).div_ceil(most).next_multiple_of(RESIDENT * units).div_ceil(slices.max(1));
    (blocks, all.div_ceil(blocks.max(1)))
}

/// Words of a group of columns of codes, for one rank, at most.
const fn words_of(width: u32) -> u64 {
    if width == 0 { 16 } else { width as u64 }
}

/// Groups of columns of a block, at most.
const fn most_groups(rank: u64, width: u32) -> u64 {
    CODES_BYTES / (4 * rank * words_of(width))
}

/// Shared memory of the first kernel: two buffers of V, or the sums in the place of the second.
fn project_bytes(rank: u64, both: bool) -> u32 {
    let rows = if rank == 16 { 512 } else { 256 };
    let buffer = rows * (rank + 8) * 2;
    let sums = u64::from(THREADS) / 32 * ROWS * rank * 4;
    (buffer + if both { buffer } else { sums }) as u32
}

/// What the second kernel holds beside codes.
fn held_bytes(rank: u64, width: u32) -> u32 {
    let table = match width {
        7 | 16 => 128 * 128,
        8.. => 256,
        _ => 512,
    };
    (PARTS * (table + ROWS * (rank + 8) * 2 + ROWS * rank * 4)).next_multiple_of(128) as u32
}

/// Shared memory of the second kernel.
fn expand_bytes(rank: u64, width: u32, groups: u64) -> u32 {
    let head = if width == 0 { 4 } else { 0 };
    let pitch = (PARTS * head + groups * words_of(width) + 9).next_multiple_of(16) + 4;
    held_bytes(rank, width) + (pitch * rank * 4) as u32
}

fn units() -> Vec<Unit> {
    let dtypes = [DType::F16, DType::BF16];
    dtypes.into_iter().flat_map(|dtype| RANKS.map(|rank| WIDTHS.map(|width| unit(dtype, rank, width)))).flatten().collect()
}

pub(crate) fn unit(dtype: DType, rank: u64, width: u32) -> Unit {
    let mut headers = headers();
    headers.push(("codebook_gemm/sgmv_parts.cuh", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/codebook_gemm/sgmv_parts.cuh")).into()));
    headers.push(("codebook_gemm/sgmv_expand.cuh", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/codebook_gemm/sgmv_expand.cuh")).into()));
    headers.push(("codebook_gemm/sgmv_params.cuh", [SegmentsPlan::cuda(), SegmentsParams::cuda(), SegmentsGroup::cuda()].concat()));
    Unit {
        name: format!("codebook_gemm/segments_sm80 {dtype} rank {rank} {}", if width == 0 { "any width".into() } else { format!("{width} bits") }),
        source: source!("codebook_gemm/sgmv.cu"),
        headers,
        defines: vec![
            ("ELEMENT", dtype.name().into()),
            ("RANK", rank.to_string()),
            ("WIDTH", width.to_string()),
            ("SHARES", SHARES.to_string()),
            ("EXPAND_BYTES", held_bytes(rank, width).to_string()),
            // Of a window, which these kernels do without.
            ("CODES_BYTES", "4".into()),
        ],
        entries: &[
            "codebook_gemm_segments_project",
            "codebook_gemm_segments_project_long",
            "codebook_gemm_segments_project_any",
            "codebook_gemm_segments_project_grouped",
            "codebook_gemm_segments_expand",
            "codebook_gemm_segments_expand_any",
            "codebook_gemm_segments_expand_grouped",
        ],
        shared_bytes: project_bytes(rank, true).max(expand_bytes(rank, width, most_groups(rank, width))),
        also: Vec::new(),
    }
}

/// Puts one kernel into the queue, for one slice or several.
///
/// # Safety
/// As [`Plan::launch`].
unsafe fn put(queue: &mut Queue, plan: &Plan<CodebookGemm>, slices: &[TileParams], entries: [&str; 3], launch: &Launch, own: SegmentsPlan) -> Result<()> {
    let [single, any, grouped] = entries;
    match slices {
        [] => Ok(()),
        [tile] => {
            let entry = if whole(tile) { single } else { any };
            plan.most_shared(entry)?;
            // SAFETY: the caller's promise.
            unsafe { plan.launch(queue, entry, launch, &SegmentsParams { tile: *tile, plan: own }) }
        }
        [first, ..] => {
            plan.most_shared(grouped)?;
            let launch = Launch { grid: [launch.grid[0], slices.len() as u32, 1], ..*launch };
            // SAFETY: as above; the grid has as many rows as there are slices.
            unsafe { plan.launch(queue, grouped, &launch, &SegmentsGroup { group: tile_group(first, slices), plan: own }) }
        }
    }
}

/// # Safety
/// As [`Plan::launch`].
pub(crate) unsafe fn launch(queue: &mut Queue, plan: &Plan<CodebookGemm>, workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let (op, rank, shares) = (&plan.op, rank_of(&plan.op), Shares::of(&plan.op));
    let one_stage = shares.each <= if rank == 16 { 512 } else { 256 };
    each_group(op, args, |group| {
        let mut open = queue.take_open();
        // What both kernels read before they wait, and the core.
        let mut reads: Vec<_> = group.iter().flat_map(|(_, of)| read_early(args, of)).collect();
        reads.extend(group.iter().filter_map(|(_, of)| of.core.as_ref()).map(range));
        let early = overlaps(plan) && starts_early(&open, &reads);
        let units = u64::from(plan.target.units);
        let (blocks, groups) = blocks_of(op, widest(group), group.len() as u64, units);
        let params: Vec<_> = group.iter().map(|(slice, of)| tile_params(op, args, slice, of, blocks as u32)).collect();
        let own = SegmentsPlan { projected: address(workspace), each: shares.each, shares: shares.count as u32, segments: most_segments(op) as u32 };
        let one_basis = group.iter().all(|(slice, _)| matches!(slice.input, Factor::Dense { bases: 1 }));
        let once = one_stage && one_basis && group.len() == 1 && params.iter().all(whole);
        let tiles = op.tokens.div_ceil(ROWS);
        // A block that keeps its share takes tiles in turn; one a multiprocessor.
        let lanes = if once { tiles.min((units / shares.count).max(1)) } else { tiles };
        let project = Launch { shared_bytes: project_bytes(rank, !once), overlap: early, ..Launch::new((lanes * shares.count) as u32, THREADS) };
        let expand = Launch { shared_bytes: expand_bytes(rank, width_of(op), groups), overlap: overlaps(plan), ..Launch::new(blocks as u32, THREADS) };
        let entry = if once { "codebook_gemm_segments_project" } else { "codebook_gemm_segments_project_long" };
        let projects = [entry, "codebook_gemm_segments_project_any", "codebook_gemm_segments_project_grouped"];
        let expands = ["codebook_gemm_segments_expand", "codebook_gemm_segments_expand_any", "codebook_gemm_segments_expand_grouped"];
        // SAFETY: the caller's promise; the workspace has room for the sums; launches still under way write nothing that these read before they
        // wait, and both wait before they write.
        unsafe {
            put(queue, plan, &params, projects, &project, own)?;
            put(queue, plan, &params, expands, &expand, own)?;
        }
        if overlaps(plan) {
            if !early {
                open.clear();
            }
            open.extend(group.iter().map(|(_, of)| range(&of.y)));
            if !open.names(&range(workspace)) {
                open.extend([range(workspace)]);
            }
            queue.leave_open(open);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_whole_and_all_of_d_in() {
        for d_in in [1, 31, 64, 136, 4096, 4097, 11008] {
            let op = CodebookGemm::s2lc(DType::F16, 200, [d_in, 64, 16], 50, crate::ops::CodeWidth::FourThree);
            let shares = Shares::of(&op);
            assert!(shares.each.is_multiple_of(32) && shares.count <= SHARES, "{d_in}");
            assert!((shares.count - 1) * shares.each < d_in && shares.count * shares.each >= d_in, "{d_in}");
        }
    }

    #[test]
    fn parameters_fit_what_every_driver_takes() {
        assert!(size_of::<SegmentsGroup>() <= 4096);
    }
}
