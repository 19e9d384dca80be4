//! `attention` on sm90: TMA, warp specialisation, wgmma.

pub(crate) mod block_sparse;
pub(crate) mod config;
pub(crate) mod decode;
pub(crate) mod decode_tile;
pub(crate) mod intra_split;
pub(crate) mod ready;
pub(crate) mod schedule;
pub(crate) mod slots;
pub(crate) mod small_head;
pub(crate) mod stream_k;
pub(crate) mod tile;
pub(crate) mod unaligned;
pub(crate) mod varlen;
pub(crate) mod varlen_tile;

use config::Config;

use crate::backends::cuda::attention::block_lists as lists;
use crate::backends::cuda::attention::block_pairs::Pairs;
use crate::backends::cuda::attention::choose;
use crate::backends::cuda::attention::entry::{Entry, entry};
use crate::backends::cuda::attention::sm90::ready::{all_beside, beside, limits, parts_at, ready, writes_16_bytes};
use crate::backends::cuda::attention::sm90::schedule::{one_tile_grid, paired_grid};
use crate::backends::cuda::attention::sm90::slots::{SlotParams, in_place};
use crate::backends::cuda::attention::sm90::stream_k::StreamK;
use crate::backends::cuda::attention::sm90::tile::{HELD, LISTED, NARROW, ROWS, Tile, pairs_of_groups};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Configs, Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, address, blocks, number};
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
    suits: choose::unsplit,
    configs: Some(Configs {
        names: |_| Config::ALL.map(Config::name).into(),
        choose: |op, target| number(Config::ALL.into_iter(), &choose::tiles(op, target.units)),
    }),
    unit,
    units,
    workspace: |op, target| {
        let all = in_place(config(op, target), op);
        let op = all.as_ref().unwrap_or(op);
        lists::workspace(op, |listed| parts_at(listed) + parts_bytes(op, target))
    },
    launch,
};

/// The configuration that the target forces, or the fastest one.
fn config(op: &Attention, target: &Target) -> Config {
    target.configured(Config::ALL.into_iter()).unwrap_or_else(|| choose::tiles(op, target.units))
}

fn supports(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    limits(op, target)?;
    // With no configuration forced, persistent blocks take every operation.
    target.configured(Config::ALL.into_iter()).map_or(Ok(()), |config| config.can_take(&lists::listed(op)))
}

/// The kernels of `kernels/attention/sm90/tile.cu`, and that of `slots.cu`. A plan launches one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    /// Persistent blocks take one tile after another, or clusters share one tile each.
    Persistent,
    /// The two blocks of a cluster take neighbouring tiles and share their keys by multicast.
    Multicast,
    /// A block takes one tile.
    SingleTile,
    /// A block takes 64 rows from a causal head's end and 64 from its beginning.
    CausalPaired,
    /// Listed blocks of 128 keys.
    Blocks,
    /// Listed blocks of 64 keys.
    Pairs,
    /// Listed blocks of 128 keys, of sequences that lie at slots.
    Slots,
}

impl Kernel {
    const ALL: [Self; 7] = [Self::Persistent, Self::Multicast, Self::SingleTile, Self::CausalPaired, Self::Blocks, Self::Pairs, Self::Slots];

    /// The kernel of a configuration for an operation without a map, whose sequences lie in order. None for `SplitKv`, whose kernels have another source.
    fn of(config: Config, op: &Attention) -> Option<Self> {
        match config {
            Config::Multicast { .. } => Some(Self::Multicast),
            Config::SingleTile => Some(Self::SingleTile),
            Config::CausalPaired => Some(Self::CausalPaired),
            Config::SplitKv => None,
            Config::Persistent(_) | Config::Cluster(_) if Pairs::of(op, ROWS).is_some() => Some(Self::Pairs),
            Config::Persistent(_) | Config::Cluster(_) if matches!(op.form, Form::Blocks(_)) => Some(Self::Blocks),
            Config::Persistent(_) | Config::Cluster(_) => Some(Self::Persistent),
        }
    }

    /// Whether the kernel is compiled for these tiles. Listed blocks are as long as a k-block of the heads that may have them.
    fn has(self, tile: Tile) -> bool {
        match self {
            Self::Persistent => true,
            Self::Multicast => tile.held > NARROW,
            Self::SingleTile => tile.rows() == ROWS,
            Self::CausalPaired => tile.rows() == ROWS && tile.keys() == ROWS,
            Self::Blocks | Self::Pairs | Self::Slots => tile.rows() == ROWS && tile.held <= LISTED,
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
            Self::Slots => entry!("attention_sm90_slots"),
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
            Self::Slots => "slots",
        }
    }

    /// The kernel's unit, with what a plan launches besides. Where O turns out to start off a multiple of 16 bytes, persistent blocks
    /// replace those with one tile.
    fn unit(self, tile: Tile, dtype: DType, also: Vec<Unit>) -> Unit {
        let instead = matches!(self, Self::SingleTile | Self::CausalPaired).then(|| Self::Persistent.unit(tile, dtype, Vec::new()));
        let (entry, also) = (self.entry(), also.into_iter().chain(instead).collect());
        let source = if self == Self::Slots { source!("attention/sm90/slots.cu") } else { source!("attention/sm90/tile.cu") };
        let mut unit = Unit { entries: entry.list, also, ..tile.unit(&format!("attention/sm90 {}", self.word()), source, dtype) };
        if self == Self::Slots {
            unit.headers.push(("attention/slot_params.cuh", SlotParams::cuda()));
        }
        if tile.rows() != ROWS {
            unit.name = format!("{} rows {}", unit.name, tile.rows());
        }
        unit.defines.push(entry.defined());
        unit
    }
}

fn unit(op: &Attention, target: &Target) -> Unit {
    let (config, listed) = (config(op, target), lists::listed(op));
    let tile = config.tile(op);
    if in_place(config, op).is_some() {
        return Kernel::Slots.unit(tile, op.dtype, Vec::from_iter(lists::unit_of(op)));
    }
    let also = beside(op, tile.held);
    match Kernel::of(config, &listed) {
        Some(kernel) => kernel.unit(tile, op.dtype, also),
        None => block_sparse::unit(&listed, tile, also),
    }
}

fn units(_: Arch) -> Vec<Unit> {
    let three = HELD.into_iter().filter(|&held| held <= NARROW).map(|held| Tile { held, consumers: 3 });
    let each = pairs_of_groups().chain(three).flat_map(|tile| Kernel::ALL.into_iter().filter(move |kernel| kernel.has(tile)).map(move |kernel| (kernel, tile)));
    let own =
        each.flat_map(|(kernel, tile)| [DType::F16, DType::BF16].map(|dtype| kernel.unit(tile, dtype, all_beside(tile.held, dtype, tile.held <= LISTED))));
    own.chain(block_sparse::units()).collect()
}

/// Bytes of the workspace for partial results.
fn parts_bytes(op: &Attention, target: &Target) -> u64 {
    let config = config(op, target);
    let tile = config.tile(op);
    match config {
        Config::Multicast { streamk } => StreamK::of(op, tile, target.units, streamk).bytes(tile),
        Config::SplitKv => block_sparse::bytes(op, target.units),
        _ => 0,
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { lists::launch(queue, plan, workspace, args, launch_listed) }
}

unsafe fn launch_listed(queue: &mut Queue, plan: &Plan<Attention>, op: &Attention, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let (units, config) = (plan.target.units, config(&plan.op, &plan.target));
    let tile = config.tile(op);
    let all = in_place(config, op);
    let Some(kernel) = all.as_ref().map(|_| Kernel::Slots).or_else(|| Kernel::of(config, op)) else {
        // SAFETY: the caller's promise; that is the plan's kernel then.
        return unsafe { block_sparse::launch(queue, plan, op, workspace, args) };
    };
    let box_keys = if kernel == Kernel::Multicast { tile.keys() / 2 } else { tile.keys() };
    // SAFETY: the caller's promise.
    let Some(mut params) = (unsafe { ready(queue, plan, all.as_ref().unwrap_or(op), workspace, args, tile, box_keys)? }) else { return Ok(()) };
    let slots = all.map(|_| SlotParams::of(op, params, args));
    params = slots.as_ref().map_or(params, |slots| slots.tiles);
    // The kernel's PDL wait stands before its first read.
    let base = Launch { shared_bytes: tile.shared_bytes(), overlap: true, ..Launch::new(1, tile.threads()) };
    let (kernel, launch) = match config {
        Config::Multicast { streamk } => {
            let runs = StreamK::of(op, tile, units, streamk);
            (params.common.tiles, params.work) = (runs.units as u32, runs.work as u32);
            if runs.cut {
                params.parts = address(workspace) + parts_at(op);
                params.arrivals = params.parts + runs.parts_bytes(tile);
            }
            (kernel, Launch { cluster: [2, 1, 1], grid: [blocks(2 * runs.clusters), 1, 1], ..base })
        }
        Config::SingleTile if writes_16_bytes(&params.common) => (kernel, Launch { grid: one_tile_grid(op, params.common.tiles), ..base }),
        Config::CausalPaired if writes_16_bytes(&params.common) => (kernel, Launch { grid: paired_grid(op, params.common.tiles), ..base }),
        Config::Cluster(size) => (kernel, Launch { cluster: [size as u32, 1, 1], grid: [blocks(u64::from(params.work) * size), 1, 1], ..base }),
        _ => {
            let resident = params.work.min(units);
            params.queue = if params.work > resident { address(workspace) } else { 0 };
            let kernel = if matches!(kernel, Kernel::SingleTile | Kernel::CausalPaired) { Kernel::Persistent } else { kernel };
            (kernel, Launch { grid: [resident, 1, 1], ..base })
        }
    };
    // SAFETY: the caller's promise; the workspace is as large as the variant says, and its counters are zero.
    unsafe {
        match slots {
            Some(slots) => plan.launch(queue, kernel.entry().name(), &launch, &SlotParams { tiles: params, ..slots }),
            None => plan.launch(queue, kernel.entry().name(), &launch, &params),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::index::MapShape;

    const TARGET: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };

    #[test]
    fn a_plan_has_the_kernels_that_it_can_launch_and_no_others() {
        let names = |op: &Attention| unit(op, &TARGET).all().into_iter().map(|unit| unit.entries).collect::<Vec<_>>().concat();
        let op = |tokens, head_dim| Attention::dense(DType::F16, 1, [32, 32], [tokens, tokens], head_dim);
        assert_eq!(names(&op(4096, 128)), ["attention_sm90_multicast", "attention_sm80_narrow"]);
        assert_eq!(names(&Attention { causal: true, ..op(4096, 128) }), ["attention_sm90", "attention_sm80_narrow"]);
        assert_eq!(names(&Attention { causal: true, ..op(512, 128) }), ["attention_sm90_causal_paired", "attention_sm80_narrow", "attention_sm90"]);
        assert_eq!(names(&op(512, 107)), ["attention_sm90", "attention_sm80_narrow", "attention_repack"]);
        let map = |block: u32| MapShape { block, q_blocks: 4096 / block, kv_blocks: 4096 / block, patterns: 1 };
        let of = |block| names(&Attention { form: Form::BlockMap(map(block)), ..op(4096, 128) });
        assert_eq!(of(128), ["attention_sm90_block_sparse_blocks", "attention_sm80_narrow", "attention_lists"]);
        assert_eq!(of(64), ["attention_sm90_block_sparse_pairs", "attention_sm80_narrow", "attention_pairs", "attention_lists"]);
    }
}
