//! `attention` on Hopper: TMA, warp specialisation, wgmma.

pub(crate) mod block_sparse;
pub(crate) mod decode;
pub(crate) mod decode_tile;
pub(crate) mod intra_split;
pub(crate) mod ready;
pub(crate) mod schedule;
pub(crate) mod small_head;
pub(crate) mod stream_k;
pub(crate) mod tile;
pub(crate) mod unaligned;
pub(crate) mod varlen;
pub(crate) mod varlen_tile;

use crate::backends::cuda::attention::block_lists as lists;
use crate::backends::cuda::attention::block_pairs::Pairs;
use crate::backends::cuda::attention::entry::{Entry, entry};
use crate::backends::cuda::attention::sm80;
use crate::backends::cuda::attention::sm90::ready::{all_beside, beside, copies, limits, parts_at, ready, rows_of_16_bytes, writes_16_bytes};
use crate::backends::cuda::attention::sm90::schedule::{OneTile, cluster};
use crate::backends::cuda::attention::sm90::stream_k::StreamK;
use crate::backends::cuda::attention::sm90::tile::{HELD, LISTED, NARROW, ROWS, Tile, pairs_of_groups};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, TensorCores, Variant, address, blocks};
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
    supports: limits,
    suits: |_, _| Ok(()),
    configs: None,
    unit: |op, target| unit(op, target.units),
    units,
    workspace: |op, target| lists::workspace(op, |listed| parts_at(listed) + stream_k_bytes(listed, target.units)),
    launch,
};

/// The kernels, of which a plan launches one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    /// Blocks that stay take one tile after the other.
    Persistent,
    /// The two blocks of a cluster take neighbouring tiles and share their keys.
    Multicast,
    /// A block takes one tile.
    SingleTile,
    /// A block takes 64 rows from a causal head's end and 64 from its beginning.
    CausalPaired,
    /// Listed blocks of 128.
    Blocks,
    /// Listed blocks of 64.
    Pairs,
}

impl Kernel {
    const ALL: [Self; 6] = [Self::Persistent, Self::Multicast, Self::SingleTile, Self::CausalPaired, Self::Blocks, Self::Pairs];

    /// That of an operation without a map, on so many SMs.
    fn of(op: &Attention, tile: Tile, units: u32) -> Self {
        if StreamK::of(op, tile, units).is_some() {
            return Self::Multicast;
        }
        // O leaves by TMA.
        match OneTile::of(op, tile, units).filter(|_| rows_of_16_bytes(op)) {
            Some(OneTile::CausalPaired) => Self::CausalPaired,
            Some(OneTile::LateFirst | OneTile::InOrder) => Self::SingleTile,
            None if Pairs::of(op, ROWS).is_some() => Self::Pairs,
            None if matches!(op.form, Form::Blocks(_)) => Self::Blocks,
            None => Self::Persistent,
        }
    }

    /// Whether some operation takes it with these tiles. Listed blocks are as long as the steps of the heads that may have them.
    fn has(self, tile: Tile) -> bool {
        match self {
            Self::Persistent => true,
            Self::Multicast => tile.held > NARROW,
            Self::SingleTile => tile.rows() == ROWS,
            Self::CausalPaired => tile.rows() == ROWS && tile.keys() == ROWS,
            Self::Blocks | Self::Pairs => tile.rows() == ROWS && tile.held <= LISTED,
        }
    }

    const fn entry(self) -> Entry {
        match self {
            Self::Persistent => entry!("attention_sm90"),
            Self::Multicast => entry!("attention_sm90_multicast"),
            Self::SingleTile => entry!("attention_sm90_single_tile"),
            Self::CausalPaired => entry!("attention_sm90_causal_paired"),
            Self::Blocks => entry!("attention_sm90_blocks"),
            Self::Pairs => entry!("attention_sm90_pairs"),
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::Multicast => "multicast",
            Self::SingleTile => "single_tile",
            Self::CausalPaired => "causal_paired",
            Self::Blocks => "blocks",
            Self::Pairs => "pairs",
        }
    }

    fn unit(self, tile: Tile, dtype: DType, also: Vec<Unit>) -> Unit {
        let entry = self.entry();
        let mut unit = Unit { entries: entry.list, also, ..tile.unit(&format!("attention/sm90 {}", self.word()), source!("attention/sm90/tile.cu"), dtype) };
        if tile.rows() != ROWS {
            unit.name = format!("{} rows {}", unit.name, tile.rows());
        }
        unit.defines.push(entry.defined());
        unit
    }
}

fn unit(op: &Attention, units: u32) -> Unit {
    let tile = Tile::of(op, units);
    Kernel::of(&lists::listed(op), tile, units).unit(tile, op.dtype, beside(op, tile.held))
}

fn units(_: Arch) -> Vec<Unit> {
    let three = HELD.into_iter().filter(|&held| held <= NARROW).map(|held| Tile { held, consumers: 3 });
    let each = pairs_of_groups().chain(three).flat_map(|tile| Kernel::ALL.into_iter().filter(move |kernel| kernel.has(tile)).map(move |kernel| (kernel, tile)));
    each.flat_map(|(kernel, tile)| [DType::F16, DType::BF16].map(|dtype| kernel.unit(tile, dtype, all_beside(tile.held, dtype, tile.held <= LISTED)))).collect()
}

fn stream_k_bytes(op: &Attention, units: u32) -> u64 {
    let tile = Tile::of(op, units);
    StreamK::of(op, tile, units).map_or(0, |runs| runs.bytes(tile))
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { lists::launch(queue, plan, workspace, args, launch_listed) }
}

unsafe fn launch_listed(queue: &mut Queue, plan: &Plan<Attention>, op: &Attention, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let units = plan.target.units;
    let tile = Tile::of(op, units);
    let (runs, kernel) = (StreamK::of(op, tile, units), Kernel::of(op, tile, units));
    let entry = kernel.entry().name();
    let box_keys = if runs.is_some() { tile.keys() / 2 } else { tile.keys() };
    // SAFETY: the caller's promise.
    let Some(mut params) = (unsafe { ready(queue, plan, op, workspace, args, tile, box_keys)? }) else { return Ok(()) };
    if let Some(runs) = runs {
        (params.common.tiles, params.work) = (runs.units as u32, runs.work as u32);
        if runs.cut {
            params.parts = address(workspace) + parts_at(op);
            params.arrivals = params.parts + runs.parts_bytes(tile);
        }
        let launch = Launch { shared_bytes: tile.shared_bytes(), cluster: [2, 1, 1], overlap: true, ..Launch::new(blocks(2 * runs.clusters), tile.threads()) };
        // SAFETY: the caller's promise; the workspace is as large as the variant says, and its counters are zero.
        return unsafe { plan.launch(queue, entry, &launch, &params) };
    }
    if let Some(order) = OneTile::of(op, tile, units).filter(|_| matches!(kernel, Kernel::SingleTile | Kernel::CausalPaired)) {
        if !writes_16_bytes(&params.common) {
            let starts = [params.common.q, params.common.k, params.common.v];
            // SAFETY: the caller's promise; the plan has the kernel for rows that start anywhere.
            return unsafe { sm80::unaligned::launch(queue, plan, tile.held, &copies(op).reads(op), args, starts) };
        }
        let grid = order.grid(op, params.common.tiles);
        let launch = Launch { grid, shared_bytes: tile.shared_bytes(), overlap: true, ..Launch::new(1, tile.threads()) };
        // SAFETY: the caller's promise.
        return unsafe { plan.launch(queue, entry, &launch, &params) };
    }
    let (work, cluster) = (u64::from(params.work), cluster(op, units));
    let resident = if cluster > 1 { work } else { work.min(units.into()) };
    params.queue = if work > resident { address(workspace) } else { 0 };
    // It waits for the launch before, and reads nothing until then.
    let cluster_blocks = [cluster as u32, 1, 1];
    let launch =
        Launch { shared_bytes: tile.shared_bytes(), cluster: cluster_blocks, overlap: true, ..Launch::new(blocks(resident * cluster), tile.threads()) };
    // SAFETY: the caller's promise; the counter in the workspace is zero.
    unsafe { plan.launch(queue, entry, &launch, &params) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::index::MapShape;

    const UNITS: u32 = 132;

    #[test]
    fn narrow_heads_have_three_groups_where_tiles_are_many() {
        let op = |heads, tokens, head_dim| Attention::dense(DType::F16, 1, [heads, heads], [tokens, tokens], head_dim);
        let of = |heads, tokens, head_dim| Tile::of(&op(heads, tokens, head_dim), UNITS).rows();
        assert_eq!([of(32, 4096, 64), of(8, 16384, 64), of(32, 4096, 32), of(32, 1024, 64), of(4, 1024, 64), of(32, 4096, 80)], [192, 192, 192, 128, 128, 128]);
        for tokens in (64..20_000).step_by(192) {
            let tile = Tile::of(&op(3, tokens, 64), UNITS);
            assert!(tile.consumers == 2 || cluster(&op(3, tokens, 64), UNITS) == 1);
        }
    }

    #[test]
    fn a_plan_has_the_kernels_that_it_can_launch_and_no_others() {
        let names = |op: &Attention| unit(op, UNITS).all().into_iter().map(|unit| unit.entries).collect::<Vec<_>>().concat();
        let op = |tokens, head_dim| Attention::dense(DType::F16, 1, [32, 32], [tokens, tokens], head_dim);
        assert_eq!(names(&op(4096, 128)), ["attention_sm90_multicast", "attention_sm80_narrow"]);
        assert_eq!(names(&Attention { causal: true, ..op(4096, 128) }), ["attention_sm90", "attention_sm80_narrow"]);
        assert_eq!(names(&Attention { causal: true, ..op(512, 128) }), ["attention_sm90_causal_paired", "attention_sm80_narrow"]);
        assert_eq!(names(&op(512, 107)), ["attention_sm90", "attention_sm80_narrow", "attention_repack"]);
        let map = |block: u32| MapShape { block, q_blocks: 4096 / block, kv_blocks: 4096 / block, patterns: 1 };
        let of = |block| names(&Attention { form: Form::BlockMap(map(block)), ..op(4096, 128) });
        assert_eq!(of(128), ["attention_sm90_blocks", "attention_sm80_narrow", "attention_lists"]);
        assert_eq!(of(64), ["attention_sm90_pairs", "attention_sm80_narrow", "attention_pairs", "attention_lists"]);
    }

    #[test]
    fn every_kernel_that_a_plan_may_take_is_compiled() {
        let compiled: Vec<String> = units(Arch(90)).into_iter().map(|unit| unit.name).collect();
        for (heads, tokens, causal, head_dim) in (1..=256)
            .flat_map(|head_dim| [(32, 512, true), (32, 512, false), (32, 8192, true), (32, 8192, false), (1, 999, true)].map(|(h, t, c)| (h, t, c, head_dim)))
        {
            let op = Attention { causal, ..Attention::dense(DType::BF16, 1, [heads, heads], [tokens, tokens], head_dim) };
            assert!(compiled.contains(&unit(&op, UNITS).name), "{}", unit(&op, UNITS).name);
        }
    }
}
