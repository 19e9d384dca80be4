//! Flash-decoding: `attention` of few queries over long caches. The keys are split over blocks and joined in the same launch.

use crate::backends::cuda::attention::choose;
use crate::backends::cuda::attention::entry::{Entry, entry};
use crate::backends::cuda::attention::params::{AttentionParams, headers, parameters};
use crate::backends::cuda::attention::repack::in_order;
use crate::backends::cuda::attention::sm80::tile::{self as sm80, key_rows};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Configs, Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, address, number};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attention::Form;
use crate::ops::{Attention, AttentionArgs};

pub(crate) const VARIANT: Variant<Attention> = Variant {
    name: "sm80_decode",
    label: "attention/sm80_decode",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: choose::decode,
    configs: Some(Configs {
        names: |_| Config::ALL.map(|config| config.name().into()).into(),
        choose: |op, target| number(Config::ALL.into_iter(), &Config::fastest(op, target)),
    }),
    unit: |op, target| Tile::of(op, target).unit(Config::of(op, target).entry(), op.dtype),
    units,
    workspace: |op, target| Grid::of(op, target).workspace(Tile::of(op, target)),
    launch,
};

params! {
    /// Parameters of the decode kernels: the common ones and the workspace.
    DecodeParams {
        common: AttentionParams,
        /// Partial results, two for each block.
        parts: [f32],
        /// For each block, how many blocks have left their part of the sequence that starts in its stretch of keys. All are zero between
        /// launches.
        arrivals: [u32],
    }
}

/// Rows of a tile, and padding elements after a row in shared memory, in `kernels/attention/sm80/decode.cuh`.
const ROWS: u64 = 16;
const PADDING: u64 = 8;
/// The most rows that share keys. The workspace then has room for two parts of each.
const MOST_ROWS: u64 = 1 << 16;
/// The most k-blocks in all, so that 32 bits count them.
const LONGEST: u64 = 1 << 30;

/// A configuration of the decode kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Config {
    /// Whether a warp has two k-blocks in shared memory where there is room for three.
    shallow: bool,
    /// Whether rows may start anywhere.
    unaligned: bool,
}

impl Config {
    const ALL: [Self; 4] = [
        Self { shallow: false, unaligned: false },
        Self { shallow: true, unaligned: false },
        Self { shallow: false, unaligned: true },
        Self { shallow: true, unaligned: true },
    ];

    fn name(self) -> &'static str {
        match (self.shallow, self.unaligned) {
            (false, false) => "deep",
            (true, false) => "shallow",
            (false, true) => "deep-unaligned",
            (true, true) => "shallow-unaligned",
        }
    }

    /// The configuration that the target forces, or the fastest one.
    fn of(op: &Attention, target: &Target) -> Self {
        target.configured(Self::ALL.into_iter()).unwrap_or_else(|| Self::fastest(op, target))
    }

    fn fastest(op: &Attention, target: &Target) -> Self {
        let deep = Tile::exactly(sm80::held(op.head_dim), target.arch);
        Self { shallow: deep.stages > SHALLOW && choose::decode_shallow(op, target), unaligned: !sm80::rows_aligned(op) }
    }

    fn can_take(self, op: &Attention, target: &Target) -> std::result::Result<(), String> {
        if self.shallow && Tile::exactly(sm80::held(op.head_dim), target.arch).stages <= SHALLOW {
            return Err("there is no room for more than two steps of a warp in any case".into());
        }
        if !self.unaligned && !sm80::rows_aligned(op) {
            return Err("rows do not start on multiples of 16 bytes".into());
        }
        Ok(())
    }

    const fn entry(self) -> Entry {
        if self.unaligned { UNALIGNED } else { ALIGNED }
    }
}

/// Stages of the shallow ring: one is in use, and one in flight.
const SHALLOW: u64 = 2;

/// What a decode kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    /// Elements of a padded head.
    held: u64,
    /// Keys of a warp's k-block.
    keys: u64,
    warps: u64,
    /// K-blocks of a warp that are in shared memory or in flight to it.
    stages: u64,
}

impl Tile {
    fn of(op: &Attention, target: &Target) -> Self {
        let tile = Self::exactly(sm80::held(op.head_dim), target.arch);
        if Config::of(op, target).shallow { tile.shallow() } else { tile }
    }

    /// The deepest ring that fits. One block an SM leaves fewer parts to join than two.
    fn exactly(held: u64, arch: Arch) -> Self {
        let keys = if held <= 64 { 32 } else { 16 };
        let room = u64::from(arch.shared_bytes().unwrap_or(99 << 10));
        let choice = |(warps, stages)| Self { held, keys, warps, stages };
        let fits = |tile: &Self| u64::from(tile.shared_bytes()) + tile.static_bytes() <= room;
        [(8, 3), (8, 2), (4, 3), (4, 2), (2, 3)].map(choice).into_iter().find(fits).unwrap_or(choice((2, 2)))
    }

    fn shallow(self) -> Self {
        Self { stages: SHALLOW, ..self }
    }

    fn shared_bytes(self) -> u32 {
        let pitch = self.held + PADDING;
        // The copies may be one more item ahead than there are stages, so Q has one more set of rows.
        ((self.warps * self.stages * 2 * self.keys + (self.stages + 1) * ROWS) * pitch * 2) as u32
    }

    /// Bytes of shared memory that the kernel declares itself: maxima and sums, and a word.
    fn static_bytes(self) -> u64 {
        self.warps * ROWS * 8 + 16
    }

    /// Keys of a block's k-block, over all its warps.
    fn step(self) -> u64 {
        self.warps * self.keys
    }

    /// The unit of the kernel for rows that start at multiples of 16 bytes, or of the one for rows that start anywhere.
    fn unit(self, entry: Entry, dtype: DType) -> Unit {
        let mut defines = sm80::Tile::exactly(self.held).defines(dtype, Arch(80));
        let shape =
            [("DECODE_KEYS", self.keys), ("DECODE_WARPS", self.warps), ("DECODE_STAGES", self.stages), ("DECODE_SHARED_BYTES", self.shared_bytes().into())];
        defines.extend(shape.map(|(name, value)| (name, value.to_string())));
        defines.push(entry.defined());
        let word = if entry == UNALIGNED { " unaligned" } else { "" };
        Unit {
            headers: [headers(), vec![("attention/decode_params.cuh", DecodeParams::cuda())]].concat(),
            defines,
            entries: entry.list,
            shared_bytes: self.shared_bytes(),
            also: if entry == ALIGNED { vec![self.unit(UNALIGNED, dtype)] } else { Vec::new() },
            ..Unit::new(format!("attention/sm80_decode{word} {dtype} head_dim {} stages {}", self.held, self.stages), source!("attention/sm80/decode.cu"))
        }
    }
}

const ALIGNED: Entry = entry!("attention_sm80_decode");
const UNALIGNED: Entry = entry!("attention_sm80_decode_narrow");

/// The grid of a launch: each of `blocks` stretches of keys has one thread block for every tile of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Grid {
    blocks: u64,
    tiles: u64,
}

impl Grid {
    /// The grid of as many blocks as run at once. Lengths are read on the device, so the grid does not depend on them.
    fn of(op: &Attention, target: &Target) -> Self {
        let tiles = tiles(op);
        Self { blocks: (u64::from(target.units) / tiles).max(1), tiles }
    }

    /// Bytes of the partial results. These come first in the workspace, since they must start at multiples of 16 bytes.
    fn parts_bytes(self, tile: Tile) -> u64 {
        self.blocks * self.tiles * 2 * ROWS * (tile.held + 2) * 4
    }

    fn workspace(self, tile: Tile) -> u64 {
        self.parts_bytes(tile) + self.blocks * self.tiles * 4
    }
}

fn units(arch: Arch) -> Vec<Unit> {
    let both = |held| {
        let deep = Tile::exactly(held, arch);
        std::iter::once(deep).chain((deep.stages > SHALLOW).then_some(deep.shallow()))
    };
    let each = sm80::HELD.iter().copied().flat_map(both).flat_map(|tile| [ALIGNED, UNALIGNED].map(|entry| (tile, entry)));
    each.flat_map(|(tile, entry)| [DType::F16, DType::BF16].map(|dtype| tile.unit(entry, dtype))).collect()
}

fn tiles(op: &Attention) -> u64 {
    key_rows(op).div_ceil(ROWS).max(1)
}

fn supports(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    sm80::limits(op, target)?;
    in_order(op)?;
    if op.form.is_sparse() || matches!(op.form, Form::RaggedPaged(_)) {
        return Err("it runs neither the block-sparse form nor that of ragged pages".into());
    }
    if op.q_len == 0 || op.batch == 0 || op.kv_len == 0 {
        return Err("there is nothing to split".into());
    }
    let rows = key_rows(op);
    if rows > MOST_ROWS {
        return Err(format!("{rows} rows share keys: there is room for the parts of {MOST_ROWS}"));
    }
    let tile = Tile::exactly(sm80::held(op.head_dim), target.arch);
    let steps = (op.batch * op.kv_heads).saturating_mul(op.kv_len.div_ceil(tile.step()));
    if steps > LONGEST {
        return Err(format!("it takes {steps} steps, and they are counted in 30 bits"));
    }
    // With no configuration forced, rows may start anywhere.
    target.configured(Config::ALL.into_iter()).map_or(Ok(()), |config| config.can_take(op, target))
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let (tile, grid) = (Tile::of(op, &plan.target), Grid::of(op, &plan.target));
    let mut common = parameters(op, args, op.heads / op.kv_heads);
    common.tiles = grid.tiles as u32;
    let entry = if sm80::aligned(op, &common) { Config::of(op, &plan.target).entry() } else { UNALIGNED };
    let parts = address(workspace);
    let params = DecodeParams { common, parts, arrivals: parts + grid.parts_bytes(tile) };
    // The kernel's PDL wait stands before its first read.
    let overlap = plan.target.arch.0 >= 90;
    let launch = Launch { shared_bytes: tile.shared_bytes(), overlap, ..Launch::new((grid.blocks * grid.tiles) as u32, (tile.warps * 32) as u32) };
    // SAFETY: the caller's promise; the workspace is as large as `Grid::workspace` says, and its counters are zero.
    unsafe { plan.launch(queue, entry.name(), &launch, &params) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_head_fits_every_chip() {
        for (arch, held) in Arch::CHECKED.into_iter().flat_map(|arch| sm80::HELD.map(|held| (arch, held))) {
            let tile = Tile::exactly(held, arch);
            assert!(u64::from(tile.shared_bytes()) + tile.static_bytes() <= u64::from(arch.shared_bytes().unwrap_or(0)), "{arch} {tile:?}");
        }
        assert_eq!(Tile::exactly(128, Arch(90)), Tile { held: 128, keys: 16, warps: 8, stages: 3 });
    }

    #[test]
    fn both_rings_are_compiled() {
        let compiled = units(Arch(90));
        assert!([2, 3].iter().all(|stages| compiled.iter().any(|unit| unit.name == format!("attention/sm80_decode f16 head_dim 128 stages {stages}"))));
    }

    #[test]
    fn the_grid_fills_the_chip_whatever_the_batch() {
        let target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };
        let op = |batch, heads, q_len| Attention::dense(DType::F16, batch, heads, [q_len, 4096], 128);
        assert_eq!(Grid::of(&op(1, [32, 32], 1), &target), Grid { blocks: 132, tiles: 1 });
        assert_eq!(Grid::of(&op(64, [32, 8], 1), &target), Grid { blocks: 132, tiles: 1 });
        assert_eq!(Grid::of(&op(1, [48, 2], 1), &target), Grid { blocks: 66, tiles: 2 });
        assert_eq!(Grid::of(&op(1, [8, 1], 8), &target), Grid { blocks: 33, tiles: 4 });
    }

    #[test]
    fn rows_that_share_keys_are_limited_by_the_workspace() {
        let target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };
        let op = |batch, heads, q_len| Attention::dense(DType::F16, batch, heads, [q_len, 4096], 128);
        assert_eq!(supports(&op(16, [32, 8], 1), &target), Ok(()));
        assert_eq!(supports(&op(1, [32, 8], 16), &target), Ok(()));
        assert_eq!(supports(&op(1, [32, 32], 65), &target), Ok(()));
        assert!(supports(&op(1, [32, 32], (1 << 16) + 1), &target).is_err());
    }
}
