//! The shrink and expand kernels that both lines of `sgmv` launch for the segments of an index: parameters, sizes, units and launch. A
//! segment is the tokens of one adapter (SGMV).

use super::entry::{Entry, entry, together};
use super::launch::{Group, each_group, forms, overlaps, read_early, tile_group, tile_params, whole};
use super::tile::{GROUP, GROUPED, ROWS, THREADS, TileGroup, TileParams, WIDTHS, each_form, form_name, headers, rank_of, width_of};
use crate::backends::cuda::jit::{Source, Unit, source};
use crate::backends::cuda::runtime::pdl::starts_early;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, Target, address, range};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{CodebookGemm, CodebookGemmArgs};

params! {
    /// Parameters of both kernels beside the operation's.
    SgmvPlan {
        /// h in the workspace: for each share of d_in, each token in the index's order, and each slice.
        shrunk: [f32],
        /// Elements of d_in in a share.
        each: u64,
        shares: u32,
        /// The most segments that there may be.
        segments: u32,
    }
}

params! {
    /// Parameters of a launch of one slice.
    SgmvParams {
        tile: TileParams,
        plan: SgmvPlan,
    }
}

params! {
    /// Parameters of a launch of several slices.
    SgmvGroup {
        group: TileGroup,
        plan: SgmvPlan,
    }
}

/// Constants of `kernels/codebook_gemm/sgmv_parts.cuh`.
const MOST: u64 = 64;
const PARTS: u64 = 2;
/// Blocks of the expand kernel that an SM holds at once.
const RESIDENT: u64 = 2;
/// The most bytes of codes of an expand block. The smallest GPUs have room beside them for tables and coefficients.
const CODES_BYTES: u64 = 47 << 10;
/// Segments that a block's threads read at once.
const MOST_SEGMENTS: u64 = 512;
/// The most parts of d_in by which blocks share a tile of tokens. The order in which h is summed depends on it, so it may not depend on the
/// batch.
pub(crate) const SHARES: u64 = 8;

/// How d_in is split: in multiples of 32, so that only the last share has a rest.
pub(crate) struct Shares {
    /// Elements of d_in in a share.
    pub(crate) each: u64,
    count: u64,
}

impl Shares {
    pub(crate) const fn of(op: &CodebookGemm) -> Self {
        let each = op.d_in.div_ceil(32 * SHARES) * 32;
        Self { each, count: op.d_in.div_ceil(each) }
    }
}

/// Bytes of the workspace.
pub(crate) fn shrunk_bytes(op: &CodebookGemm) -> u64 {
    op.slices.len().min(GROUPED) as u64 * Shares::of(op).count * op.tokens * rank_of(op) * 4
}

/// The most segments that there may be.
fn most_segments(op: &CodebookGemm) -> u64 {
    op.tokens.min(u64::from(op.adapters))
}

/// The most units that there may be. A unit is up to `MOST` tokens of one adapter.
pub(crate) fn most_units(op: &CodebookGemm) -> u64 {
    let segments = most_segments(op);
    segments + (op.tokens - segments) / MOST
}

/// The most expand blocks for each slice, and groups of columns of a block. All SMs should have equally many.
fn blocks_of(op: &CodebookGemm, group: Group, units: u64) -> (u64, u64) {
    let (groups, slices) = (group.widest.div_ceil(GROUP), group.slices);
    let (all, most) = (most_units(op) * groups, groups.min(most_groups(rank_of(op), width_of(op))).max(1));
    let blocks = (all * slices).div_ceil(most).next_multiple_of(RESIDENT * units).div_ceil(slices.max(1));
    (blocks, all.div_ceil(blocks.max(1)))
}

/// The most words of a group of columns of codes, for one rank.
const fn words_of(width: u32) -> u64 {
    if width == 0 { 16 } else { width as u64 }
}

/// The most groups of columns of a block.
const fn most_groups(rank: u64, width: u32) -> u64 {
    CODES_BYTES / (4 * rank * words_of(width))
}

/// Shared memory of the shrink kernel: two buffers of V, or the sums in place of the second.
fn shrink_bytes(rank: u64, both: bool) -> u32 {
    let rows = if rank == 16 { 512 } else { 256 };
    let buffer = rows * (rank + 8) * 2;
    let sums = u64::from(THREADS) / 32 * ROWS * rank * 4;
    (buffer + if both { buffer } else { sums }) as u32
}

/// Bytes that the expand kernel holds beside codes.
fn held_bytes(rank: u64, width: u32) -> u32 {
    let table = match width {
        7 | 16 => 128 * 128,
        8.. => 256,
        _ => 512,
    };
    (PARTS * (table + ROWS * (rank + 8) * 2 + ROWS * rank * 4)).next_multiple_of(128) as u32
}

/// Shared memory of the expand kernel.
fn expand_bytes(rank: u64, width: u32, groups: u64) -> u32 {
    let head = if width == 0 { 4 } else { 0 };
    let pitch = (PARTS * head + groups * words_of(width) + 9).next_multiple_of(16) + 4;
    held_bytes(rank, width) + (pitch * rank * 4) as u32
}

const SHRINK: Entry = entry!("codebook_gemm_sgmv_shrink");
const SHRINK_LONG: Entry = entry!("codebook_gemm_sgmv_shrink_long");
const SHRINK_ANY: Entry = entry!("codebook_gemm_sgmv_shrink_any");
const SHRINK_GROUPED: Entry = entry!("codebook_gemm_sgmv_shrink_grouped");
const EXPAND: Entry = entry!("codebook_gemm_sgmv_expand");
const EXPAND_ANY: Entry = entry!("codebook_gemm_sgmv_expand_any");
const EXPAND_GROUPED: Entry = entry!("codebook_gemm_sgmv_expand_grouped");

/// A configuration: the kernels for launches of one slice. No configuration changes what they can read, or how many slices they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Slices that share one launch, which leave no choice.
    Grouped,
    /// The shrink kernel keeps its share of the basis, where it can.
    Once,
    /// The shrink kernel reads its share again for every tile of tokens.
    Long,
    /// Both kernels read operands whatever their alignment.
    Any,
}

impl Way {
    /// Every configuration, fastest first.
    pub(crate) const ALL: [Self; 4] = [Self::Grouped, Self::Once, Self::Long, Self::Any];

    /// The configuration of the target, where it has one.
    pub(crate) fn of(target: &Target) -> Option<Self> {
        target.configured(Self::ALL.into_iter())
    }

    /// The configuration's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Grouped => "grouped",
            Self::Once => "once",
            Self::Long => "long",
            Self::Any => "any",
        }
    }

    /// Whether launches of `op` can be of this kind, or why not.
    pub(crate) fn computes(self, op: &CodebookGemm) -> std::result::Result<(), String> {
        let forms = forms(op);
        if forms.iter().any(|(group, _)| group.slices > 1) != (self == Self::Grouped) {
            return Err(format!("{} slices of one launch or of their own", op.slices.len()));
        }
        let able = match self {
            Self::Grouped | Self::Any => true,
            Self::Once => forms.iter().any(|&(group, whole)| whole && keeps_share(op, group)),
            Self::Long => forms.iter().any(|(_, whole)| *whole),
        };
        if able { Ok(()) } else { Err("rows that are no whole multiples of 16 bytes, or more of a basis than a block keeps".into()) }
    }
}

/// Whether a block of the shrink kernel can keep its share of the basis.
fn keeps_share(op: &CodebookGemm, group: Group) -> bool {
    in_one_stage(op) && group.one_basis
}

/// Both kernels of a launch whose rows are `whole` multiples of 16 bytes or not, in a configuration or in none.
fn kernels(op: &CodebookGemm, group: Group, whole: bool, way: Option<Way>) -> [Entry; 2] {
    match (group.slices, whole && way != Some(Way::Any)) {
        (0 | 1, true) if keeps_share(op, group) && way != Some(Way::Long) => [SHRINK, EXPAND],
        (0 | 1, true) => [SHRINK_LONG, EXPAND],
        (0 | 1, false) => [SHRINK_ANY, EXPAND_ANY],
        _ => [SHRINK_GROUPED, EXPAND_GROUPED],
    }
}

/// Whether a share of the basis fits into one of its buffers.
fn in_one_stage(op: &CodebookGemm) -> bool {
    Shares::of(op).each <= if rank_of(op) == 16 { 512 } else { 256 }
}

/// The units of a plan for `op`.
pub(crate) fn plan_unit(op: &CodebookGemm, way: Option<Way>) -> Unit {
    let kernels = forms(op).into_iter().flat_map(|(group, whole)| kernels(op, group, whole, way));
    together(SHRINK_ANY, kernels.chain([EXPAND_ANY]), |entry| unit(entry, op.dtype, rank_of(op), width_of(op)))
}

const KERNELS: [Entry; 7] = [SHRINK, SHRINK_LONG, SHRINK_ANY, SHRINK_GROUPED, EXPAND, EXPAND_ANY, EXPAND_GROUPED];

/// The units of every form.
pub(crate) fn units() -> Vec<Unit> {
    each_form(|_, _| KERNELS, unit)
}

/// The units of one form, for plans of one slice.
pub(crate) fn units_of_one(dtype: DType, rank: u64, width: u32) -> Vec<Unit> {
    let alone = KERNELS.into_iter().filter(|&entry| entry != SHRINK_GROUPED && entry != EXPAND_GROUPED);
    alone.map(|entry| unit(entry, dtype, rank, width)).collect()
}

fn unit(entry: Entry, dtype: DType, rank: u64, width: u32) -> Unit {
    // The shrink kernel reads no codes, so one kernel serves every width.
    let (width, form, shared_bytes) = match entry {
        EXPAND | EXPAND_ANY | EXPAND_GROUPED => (width, form_name(dtype, rank, width), expand_bytes(rank, width, most_groups(rank, width))),
        _ => (WIDTHS[0], format!("{dtype} rank {rank}"), shrink_bytes(rank, entry != SHRINK)),
    };
    let base = base(format!("codebook_gemm/sgmv {form}"), dtype, rank, width, source!("codebook_gemm/sgmv.cu"));
    entry.unit(base, "codebook_gemm_sgmv", shared_bytes)
}

/// What units of kernels for segments have in common.
pub(crate) fn base(name: String, dtype: DType, rank: u64, width: u32, source: Source) -> Unit {
    let mut headers = headers();
    headers.push(("codebook_gemm/sgmv_params.cuh", [SgmvPlan::cuda(), SgmvParams::cuda(), SgmvGroup::cuda()].concat()));
    Unit {
        headers,
        defines: vec![
            ("ELEMENT", dtype.name().into()),
            ("RANK", rank.to_string()),
            ("WIDTH", width.to_string()),
            ("SHARES", SHARES.to_string()),
            ("EXPAND_BYTES", held_bytes(rank, width).to_string()),
            // Bytes of a window, which these kernels do without.
            ("CODES_BYTES", "4".into()),
        ],
        ..Unit::new(name, source)
    }
}

/// Whether the kernels have room for `op`, or why not.
pub(crate) fn supports(op: &CodebookGemm, target: &Target) -> std::result::Result<(), String> {
    if most_segments(op) > MOST_SEGMENTS {
        return Err(format!("{} segments, and a block's threads read {MOST_SEGMENTS} at once", most_segments(op)));
    }
    // The expand kernel's blocks also clear the rows of tokens without an adapter.
    if op.tokens > 0 && most_units(op) == 0 {
        return Err("no adapters: there is no block that would write y".into());
    }
    let groups = op.slices.iter().map(|slice| slice.d_out.div_ceil(GROUP)).max().unwrap_or(1);
    let pairs = most_units(op).saturating_mul(groups);
    if pairs >= 1 << 31 {
        return Err(format!("{pairs} pairs of tokens and columns, 2^31 or more"));
    }
    let shared = [shrink_bytes(rank_of(op), true), expand_bytes(rank_of(op), width_of(op), most_groups(rank_of(op), width_of(op)))];
    if let Some(shared) = shared.into_iter().find(|&shared| shared > target.shared_bytes) {
        return Err(format!("{shared} bytes of shared memory, the device has {}", target.shared_bytes));
    }
    Ok(())
}

/// Enqueues one kernel, for one slice or several.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold.
unsafe fn put(queue: &mut Queue, plan: &Plan<CodebookGemm>, slices: &[TileParams], entry: Entry, launch: &Launch, own: SgmvPlan) -> Result<()> {
    plan.most_shared(entry.name())?;
    match slices {
        [] => Ok(()),
        // SAFETY: the caller's promise.
        [tile] => unsafe { plan.launch(queue, entry.name(), launch, &SgmvParams { tile: *tile, plan: own }) },
        [first, ..] => {
            let launch = Launch { grid: [launch.grid[0], slices.len() as u32, 1], ..*launch };
            // SAFETY: as above; the grid has as many rows as there are slices.
            unsafe { plan.launch(queue, entry.name(), &launch, &SgmvGroup { group: tile_group(first, slices), plan: own }) }
        }
    }
}

/// Enqueues both kernels for each group of slices, in the configuration `way` where there is one.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold.
pub(crate) unsafe fn launch(
    queue: &mut Queue,
    plan: &Plan<CodebookGemm>,
    way: Option<Way>,
    workspace: &Slice<Cuda>,
    args: &CodebookGemmArgs<Cuda>,
) -> Result<()> {
    let (op, rank, shares) = (&plan.op, rank_of(&plan.op), Shares::of(&plan.op));
    each_group(op, args, |slices| {
        let group = Group::with(slices);
        let mut open = queue.take_open();
        // What both kernels read before their PDL waits, and the core.
        let mut reads: Vec<_> = slices.iter().flat_map(|(_, of)| read_early(args, of)).collect();
        reads.extend(slices.iter().filter_map(|(_, of)| of.core.as_ref()).map(range));
        let early = overlaps(plan) && starts_early(&open, &reads);
        let units = u64::from(plan.target.units);
        let (blocks, groups) = blocks_of(op, group, units);
        let params: Vec<_> = slices.iter().map(|(slice, of)| tile_params(op, args, slice, of, blocks as u32)).collect();
        let own = SgmvPlan { shrunk: address(workspace), each: shares.each, shares: shares.count as u32, segments: most_segments(op) as u32 };
        let [shrinking, expanding] = kernels(op, group, params.iter().all(whole), way);
        let once = shrinking == SHRINK;
        let tiles = op.tokens.div_ceil(ROWS);
        // A block that keeps its share is persistent, and takes tiles in turn; there is one an SM.
        let lanes = if once { tiles.min((units / shares.count).max(1)) } else { tiles };
        let shrink = Launch { shared_bytes: shrink_bytes(rank, !once), overlap: early, ..Launch::new((lanes * shares.count) as u32, THREADS) };
        let expand = Launch { shared_bytes: expand_bytes(rank, width_of(op), groups), overlap: overlaps(plan), ..Launch::new(blocks as u32, THREADS) };
        // SAFETY: the caller's promise; the workspace has room for the sums; launches in flight write nothing that these read before their
        // PDL waits, and both wait before they write.
        unsafe {
            put(queue, plan, &params, shrinking, &shrink, own)?;
            put(queue, plan, &params, expanding, &expand, own)?;
        }
        if overlaps(plan) {
            if !early {
                open.clear();
            }
            open.extend(slices.iter().map(|(_, of)| range(&of.y)));
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
    use crate::backends::cuda::codebook_gemm::entry::reach::{each_operation, names};
    use crate::backends::cuda::codebook_gemm::tile::supports as supports_tiles;

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
    fn the_first_kernel_is_one_for_every_width_and_the_second_is_not() {
        use crate::backends::cuda::jit::Arch;
        for entry in KERNELS {
            let hashes: std::collections::HashSet<_> = WIDTHS.iter().map(|&width| unit(entry, DType::F16, 16, width).hash(Arch(80))).collect();
            assert_eq!(hashes.len(), if entry.name().contains("shrink") { 1 } else { WIDTHS.len() }, "{entry:?}");
        }
    }

    #[test]
    fn parameters_fit_what_every_driver_takes() {
        assert!(size_of::<SgmvGroup>() <= 4096);
    }

    #[test]
    fn a_plan_has_every_kernel_that_its_launches_may_name() {
        each_operation(|op, target| {
            if supports_tiles(op, target, false).is_ok() {
                for way in [None].into_iter().chain(Way::ALL.map(Some)) {
                    let names = names(&plan_unit(op, way));
                    for kernel in forms(op).into_iter().flat_map(|(group, whole)| kernels(op, group, whole, way)) {
                        assert!(names.contains(&kernel.name()), "{kernel:?} {way:?} {op:?}: {names:?}");
                    }
                }
            }
        });
    }
}
