//! `codebook_gemm` in clusters with early starts (PDL), on Hopper and newer.

use super::entry::{Entry, entry, together};
use super::launch::{Group, each_group, forms, launch_group, read_early, sharing, tile_params, whole};
use super::tile::{CLUSTER, FEW, GROUP, HELD, MANY_SLICES, ROWS, THREADS, each_form, plan_shared, predecodes, rank_of, supports, unit, width_of};
use crate::backends::cuda::jit::Unit;
use crate::backends::cuda::runtime::pdl::starts_early;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, range};
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
    configs: None,
    unit: plan_unit,
    units: |_| each_form(kernels, |entry, dtype, rank, width| unit(entry, dtype, rank, width, true)),
    workspace: |_, _| 0,
    launch,
};

const USUAL: Entry = entry!("codebook_gemm_sm90");
const WIDE: Entry = entry!("codebook_gemm_sm90_wide");
const ANY: Entry = entry!("codebook_gemm_sm90_any");
const GROUPED: Entry = entry!("codebook_gemm_sm90_grouped");
const MANY: Entry = entry!("codebook_gemm_sm90_many");
/// Only of rank 16.
const ICACHE_WARM: Entry = entry!("codebook_gemm_sm90_icache_warm");
/// Only where [`predecodes`] says so.
const PREDECODE: Entry = entry!("codebook_gemm_sm90_predecode");
const BALANCED: Entry = entry!("codebook_gemm_sm90_balanced");

/// Every kernel of that form.
fn kernels(rank: u64, width: u32) -> impl Iterator<Item = Entry> {
    let predecode = [PREDECODE, BALANCED].into_iter().filter(move |_| predecodes(rank, width));
    [USUAL, WIDE, ANY, GROUPED, MANY].into_iter().chain((rank == 16).then_some(ICACHE_WARM)).chain(predecode)
}

/// Of d_in, what one buffer of the basis takes of a block, of rank 16.
const SHARE: u64 = 512;
/// Blocks that decode all they need of a tile's 16 adapters before they wait, and groups of columns of each, at most.
const PREDECODE_BLOCKS: u64 = 32;
const PREDECODE_GROUPS: u64 = 4;
/// Launches that are to be under way at once with a block of that kind an SM, which has no room for a second.
const UNDER_WAY: u64 = 4;

/// The same of clusters, on a device of `units` SMs.
fn cluster_sharing(op: &CodebookGemm, group: Group, cluster: u64, units: u64, x_early: bool) -> u64 {
    let most = match (x_early, op.adapters) {
        // All work but the last step is done before the launch before ends. The fewer blocks, the more launches are under way; but
        // a block is to finish its columns at once.
        (true, _) => group.widest.div_ceil(GROUP * HELD * u64::from(THREADS / 32)).max(16).next_multiple_of(CLUSTER),
        // Fewer blocks have less to wait for; but of many adapters each is to decode little after x is there.
        (false, 0..=1) => 32,
        (false, _) => 64,
    };
    // A launch takes one block an SM: the next one is to start beside it.
    (sharing(op, group, units, most) / cluster).max(1) * cluster
}

/// Whether a launch on x that another writes has few blocks, which decode everything before they wait: the fewer there are, the sooner a launch
/// ends. One of several tiles or slices fills too much of the device for that.
fn predecode(op: &CodebookGemm, group: Group, units: u64) -> bool {
    let blocks = op.tokens.div_ceil(ROWS) * group.slices * PREDECODE_BLOCKS;
    let groups = group.widest.div_ceil(GROUP).div_ceil(PREDECODE_BLOCKS);
    group.slices == 1 && op.adapters > 1 && predecodes(rank_of(op), width_of(op)) && groups <= PREDECODE_GROUPS && blocks * UNDER_WAY <= units
}

/// Whether a launch on x that another writes has one adapter and so few blocks that one an SM is enough: registers are then left to go the
/// way from x to y once before the wait.
fn icache_warm(op: &CodebookGemm, group: Group, units: u64) -> bool {
    group.slices == 1 && op.adapters <= 1 && rank_of(op) == 16 && op.tokens.div_ceil(ROWS) * PREDECODE_BLOCKS * UNDER_WAY <= units
}

/// Whether a launch on x that another writes shares out all pieces of its adapters among the warps, each of which decodes its first ones before it waits.
/// `basis_of`: whether the basis of each adapter is given.
fn balanced(op: &CodebookGemm, basis_of: bool) -> bool {
    let one_share = !basis_of && op.d_in <= CLUSTER * SHARE;
    one_share && !op.accumulate && op.adapters > 1 && predecodes(rank_of(op), width_of(op))
}

/// What only a launch knows.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// Its rows are whole multiples of 16 bytes.
    whole: bool,
    /// It may start before the launch before has ended.
    early: bool,
    /// No launch still under way writes x.
    x_early: bool,
    /// The basis of each adapter is given.
    basis_of: bool,
}

impl Known {
    /// All that a launch of `group` may know, whose rows are `whole` or not.
    fn all(group: Group, whole: bool) -> impl Iterator<Item = Self> {
        let bases: &[bool] = if group.one_basis { &[false, true] } else { &[true] };
        let starts = [(false, true), (true, true), (true, false)];
        starts.into_iter().flat_map(move |(early, x_early)| bases.iter().map(move |&basis_of| Self { whole, early, x_early, basis_of }))
    }
}

/// A launch: its kernel, the blocks that share a tile, and those of a cluster.
struct Shape {
    kernel: Entry,
    blocks: u64,
    cluster: u64,
}

impl Shape {
    fn of(op: &CodebookGemm, group: Group, units: u64, known: Known) -> Self {
        let dependent = known.early && !known.x_early;
        let (cluster, grouped) = if op.slices.len() < MANY_SLICES || group.slices == 1 { (CLUSTER, GROUPED) } else { (FEW, MANY) };
        let predecode = dependent && predecode(op, group, units);
        let blocks = if predecode {
            sharing(op, group, units, PREDECODE_BLOCKS).next_multiple_of(CLUSTER)
        } else {
            cluster_sharing(op, group, cluster, units, known.early && known.x_early)
        };
        // Of columns, of a block.
        let groups = group.widest.div_ceil(GROUP).div_ceil(blocks);
        let kernel = match (group.slices, known.whole, groups > u64::from(THREADS / 32)) {
            (2.., ..) => grouped,
            (_, false, _) => ANY,
            (_, true, true) if dependent && balanced(op, known.basis_of) => BALANCED,
            (_, true, true) => WIDE,
            (_, true, false) if predecode => PREDECODE,
            (_, true, false) if dependent && icache_warm(op, group, units) => ICACHE_WARM,
            (_, true, false) => USUAL,
        };
        Self { kernel, blocks, cluster }
    }
}

fn plan_unit(op: &CodebookGemm, target: &Target) -> Unit {
    let known = forms(op).into_iter().flat_map(|(group, whole)| Known::all(group, whole).map(move |known| (group, known)));
    let kernels = known.map(|(group, known)| Shape::of(op, group, target.units.into(), known).kernel);
    together(ANY, kernels, |entry| unit(entry, op.dtype, rank_of(op), width_of(op), true))
}

/// # Safety
/// As [`Plan::launch`].
unsafe fn launch(queue: &mut Queue, plan: &Plan<CodebookGemm>, _workspace: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    // Whether all launches still under way are this operation's.
    let mut own = false;
    each_group(op, args, |slices| {
        let group = Group::with(slices);
        let mut open = queue.take_open();
        let early = starts_early(&open, &slices.iter().flat_map(|(_, of)| read_early(args, of)).collect::<Vec<_>>());
        let cores = slices.iter().filter_map(|(_, of)| of.core.as_ref());
        let x_early = !early || starts_early(&open, &cores.chain([&args.x]).map(range).collect::<Vec<_>>());
        let mut params: Vec<_> = slices.iter().map(|(slice, of)| tile_params(op, args, slice, of, 1)).collect();
        let known = Known { whole: params.iter().all(whole), early, x_early, basis_of: params.iter().any(|params| params.input.basis_of != 0) };
        let Shape { kernel, blocks, cluster } = Shape::of(op, group, plan.target.units.into(), known);
        for params in &mut params {
            params.blocks = blocks as u32;
            params.x_early = u32::from(x_early);
            params.y_early = u32::from(x_early && own);
        }
        // Every y of an operation lies apart from the others, and from x.
        own |= !early;
        if !early {
            open.clear();
        }
        open.extend(slices.iter().map(|(_, of)| range(&of.y)));
        let launch = Launch {
            grid: [(op.tokens.div_ceil(ROWS) * blocks) as u32, 1, 1],
            shared_bytes: plan_shared(plan, true),
            cluster: [cluster as u32, 1, 1],
            overlap: early,
            ..Launch::new(1, THREADS)
        };
        // SAFETY: the caller's promise; and launches still under way write nothing that this one reads before it waits.
        unsafe { launch_group(queue, plan, &params, kernel, &launch)? };
        if op.tokens > 0 {
            queue.leave_open(open);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::cuda::codebook_gemm::entry::reach::{each_case, names};

    #[test]
    fn a_plan_has_every_kernel_that_its_launches_may_name_and_its_form_has_it() {
        let flags = |bits: u32| [1, 2, 4].map(|bit| bits & bit != 0);
        each_case(|op, target| {
            if supports(op, target, true).is_ok() {
                let names = names(&plan_unit(op, target));
                assert!(names.iter().all(|name| kernels(rank_of(op), width_of(op)).any(|kernel| kernel.name() == *name)), "{op:?}: {names:?}");
                for (group, whole) in forms(op) {
                    for [early, x_early, given] in (0..8).map(flags) {
                        // What does not start early need not ask whether x may; more than one basis is given.
                        let known = Known { whole, early, x_early: x_early || !early, basis_of: given || !group.one_basis };
                        let Shape { kernel, .. } = Shape::of(op, group, target.units.into(), known);
                        assert!(names.contains(&kernel.name()), "{kernel:?} {known:?} {op:?}: {names:?}");
                    }
                }
            }
        });
    }
}
