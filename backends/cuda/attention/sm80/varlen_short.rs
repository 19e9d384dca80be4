//! Varlen `attention` of many short sequences, as a text encoder has.

use crate::backends::cuda::attention::choose;
use crate::backends::cuda::attention::entry::{Entry, entry};
use crate::backends::cuda::attention::params::{AttentionParams, headers, parameters};
use crate::backends::cuda::attention::repack::Rows;
use crate::backends::cuda::attention::sm80::{tile as sm80, unaligned};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Configs, Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, blocks, number};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attention::Form;
use crate::ops::{Attention, AttentionArgs};

pub(crate) const VARIANT: Variant<Attention> = Variant {
    name: "sm80_varlen_short",
    label: "attention/sm80_varlen_short",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: choose::varlen_short,
    configs: Some(Configs {
        names: |_| Config::ALL.map(|config| config.name().into()).into(),
        choose: |op, target| number(Config::ALL.into_iter(), &Config::fastest(op, target)),
    }),
    unit: |op, target| Tile::of(op).unit(Config::of(op, target).entry(), op.dtype),
    units,
    workspace: |_, _| 0,
    launch,
};

params! {
    /// Parameters of the short varlen kernels: the common ones and the number of tiles.
    VarlenShortParams {
        common: AttentionParams,
        work: u32,
        /// Tiles that share a sequence's rows. Each has some of the heads.
        groups: u32,
    }
}

/// Head dimensions that a kernel is compiled for.
const HELD: [u64; 2] = [32, 64];
/// Queries of a tile in `kernels/attention/sm80/varlen_short.cuh`, and the most keys of a k-block.
const ROWS: u64 = 128;
/// Warps that multiply. One more warp copies.
const WARPS: u64 = 4;
/// Padding elements after a row in shared memory.
const PADDING: u64 = 8;
/// What a kernel is compiled for: the elements of a padded head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile(u64);

impl Tile {
    fn of(op: &Attention) -> Self {
        Self(HELD.into_iter().find(|&held| op.head_dim <= held).unwrap_or(HELD[1]))
    }

    /// Bytes of shared memory: two stages of Q, K and V.
    fn shared_bytes(self) -> u32 {
        (2 * 3 * ROWS * (self.0 + PADDING) * 2) as u32
    }

    /// Blocks of the plain kernel that an SM of Hopper holds at a time, by their registers and shared memory. Of the general kernel it
    /// holds one less.
    fn resident(self) -> u64 {
        if self.0 <= 32 { 3 } else { 2 }
    }

    fn unit(self, entry: Entry, dtype: DType) -> Unit {
        let mut defines = sm80::Tile::exactly(self.0).defines(dtype, Arch(80));
        let shape = [("VARLEN_SHORT_WARPS", WARPS), ("VARLEN_SHORT_TOGETHER", self.resident()), ("VARLEN_SHORT_SHARED_BYTES", self.shared_bytes().into())];
        defines.extend(shape.map(|(name, value)| (name, value.to_string())));
        defines.push(entry.defined());
        let word = if entry == GENERAL { " general" } else { "" };
        Unit {
            headers: [headers(), vec![("attention/varlen_short_params.cuh", VarlenShortParams::cuda())]].concat(),
            defines,
            entries: entry.list,
            shared_bytes: self.shared_bytes(),
            also: vec![unaligned::unit(self.0, dtype)],
            ..Unit::new(format!("attention/sm80_varlen_short{word} {dtype} head_dim {}", self.0), source!("attention/sm80/varlen_short.cu"))
        }
    }
}

const PLAIN: Entry = entry!("attention_sm80_varlen_short");
const GENERAL: Entry = entry!("attention_sm80_varlen_short_general");

/// A configuration of the short varlen kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Config {
    /// Whether the kernel is the general one, which takes more registers.
    general: bool,
    /// Heads of a tile. Where most sequences are short enough, a tile takes two heads a k-block. This changes no sum.
    heads: u64,
}

impl Config {
    const ALL: [Self; 4] =
        [Self { general: false, heads: 1 }, Self { general: false, heads: 2 }, Self { general: true, heads: 1 }, Self { general: true, heads: 2 }];

    fn name(self) -> &'static str {
        match (self.general, self.heads) {
            (false, 1) => "plain",
            (false, _) => "plain-2heads",
            (true, 1) => "general",
            (true, _) => "general-2heads",
        }
    }

    /// The configuration that the target forces, or the fastest one.
    fn of(op: &Attention, target: &Target) -> Self {
        target.configured(Self::ALL.into_iter()).unwrap_or_else(|| Self::fastest(op, target))
    }

    fn fastest(op: &Attention, target: &Target) -> Self {
        let one = Self { general: wants_general(op), heads: 1 };
        let two = Self { heads: 2, ..one };
        let blocks = u64::from(target.units) * one.resident(Tile::of(op));
        if two.can_take(op).is_ok() && choose::two_short_heads(op, ROWS, two.work(op), blocks) { two } else { one }
    }

    fn can_take(self, op: &Attention) -> std::result::Result<(), String> {
        if !self.general && wants_general(op) {
            return Err("a causal mask, a window or an LSE takes the general kernel".into());
        }
        // Heads that share keys would have to lie next to each other.
        if self.heads > 1 && op.heads != op.kv_heads {
            return Err("heads of a tile have keys of their own".into());
        }
        Ok(())
    }

    const fn entry(self) -> Entry {
        if self.general { GENERAL } else { PLAIN }
    }

    /// Blocks that an SM holds at a time.
    fn resident(self, tile: Tile) -> u64 {
        tile.resident() - u64::from(self.general)
    }

    /// Tiles of the operation: each has `heads` heads of [`ROWS`] rows of a sequence.
    fn work(self, op: &Attention) -> u64 {
        op.batch * op.heads.div_ceil(self.heads) * op.q_len.div_ceil(ROWS)
    }
}

/// Whether the plain kernel cannot compute an operation.
fn wants_general(op: &Attention) -> bool {
    op.causal || op.window.is_some() || op.lse
}

fn units(arch: Arch) -> Vec<Unit> {
    let fits = |tile: &Tile| arch.shared_bytes().is_none_or(|room| tile.shared_bytes() <= room);
    let each = HELD.map(Tile).into_iter().filter(fits).flat_map(|tile| [PLAIN, GENERAL].map(|entry| (tile, entry)));
    each.flat_map(|(tile, entry)| [DType::F16, DType::BF16].map(|dtype| tile.unit(entry, dtype))).collect()
}

fn supports(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    sm80::limits(op, target)?;
    if !matches!(op.form, Form::Varlen(_)) {
        return Err("it runs the form of sequences end to end".into());
    }
    if op.batch == 0 {
        return Err("there are no sequences".into());
    }
    if op.head_dim > HELD[1] {
        return Err(format!("head_dim {} > {}: two stages of keys do not fit beside another block", op.head_dim, HELD[1]));
    }
    if op.scale_value() <= 0.0 {
        return Err("the scale is not positive".into());
    }
    if !Rows::of(op).iter().all(|rows| rows.aligned(op.dtype)) {
        return Err("rows do not start on multiples of 16 bytes".into());
    }
    let shared = Tile::of(op).shared_bytes();
    if shared + 256 > target.shared_bytes {
        return Err(format!("a block needs {shared} bytes of shared memory, and there are {}", target.shared_bytes));
    }
    // With no configuration forced, one of one head a tile computes it.
    target.configured(Config::ALL.into_iter()).map_or(Ok(()), |config| config.can_take(op))
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, _workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let (op, tile) = (&plan.op, Tile::of(&plan.op));
    let mut common = parameters(op, args, op.heads / op.kv_heads);
    if !sm80::aligned(op, &common) {
        let starts = [common.q, common.k, common.v];
        // SAFETY: the caller's promise; the plan has the kernel for rows that start anywhere.
        return unsafe { unaligned::launch(queue, plan, tile.0, op, args, starts) };
    }
    let config = Config::of(op, &plan.target);
    let (work, entry, resident) = (config.work(op), config.entry(), u64::from(plan.target.units) * config.resident(tile));
    (common.tiles, common.band) = (op.q_len.div_ceil(ROWS) as u32, config.heads as u32);
    let params = VarlenShortParams { common, work: work as u32, groups: op.heads.div_ceil(config.heads) as u32 };
    // The kernel's PDL wait stands before its first read.
    let overlap = plan.target.arch.0 >= 90;
    let launch = Launch { shared_bytes: tile.shared_bytes(), overlap, ..Launch::new(blocks(work.min(resident)), ((WARPS + 1) * 32) as u32) };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, entry.name(), &launch, &params) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::index::VarlenShape;

    const TARGET: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };

    fn encoder(batch: u64, tokens: u64, longest: u64) -> Attention {
        let shape = VarlenShape { batch, total_q: tokens, total_kv: tokens, max_q: longest, max_kv: longest };
        Attention::varlen(DType::F16, shape, [12, 12], 32)
    }

    #[test]
    fn every_batch_of_sentences_is_covered() {
        for (batch, tokens, longest) in [(1, 3, 3), (1, 17, 17), (32, 4096, 128), (1024, 54_000, 100), (7, 900, 256), (2, 513, 512)] {
            assert_eq!(supports(&encoder(batch, tokens, longest), &TARGET), Ok(()), "{batch} sentences of at most {longest}");
        }
        assert!(supports(&encoder(1, 513, 513), &TARGET).is_ok() && choose::varlen_short(&encoder(1, 513, 513), &TARGET).is_err());
        assert!(supports(&Attention::dense(DType::F16, 1, [12, 12], [128, 128], 32), &TARGET).is_err());
        assert!(supports(&Attention { scale: (-1.0).into(), ..encoder(1, 3, 3) }, &TARGET).is_err());
    }

    #[test]
    fn heads_go_together_where_most_sentences_are_short_and_many() {
        let of = |batch, tokens, longest| Config::fastest(&encoder(batch, tokens, longest), &TARGET).heads;
        assert_eq!([of(1024, 54_000, 100), of(1024, 131_072, 128), of(32, 1700, 100)], [2, 1, 1]);
    }

    #[test]
    fn a_chip_of_little_shared_memory_has_the_kernels_that_fit_it() {
        assert_eq!([units(Arch(86)).len(), units(Arch(80)).len(), units(Arch(90)).len()], [4, 8, 8]);
        let small = Target { arch: Arch(86), units: 82, shared_bytes: 99 << 10, config: None };
        assert_eq!(supports(&encoder(32, 4096, 128), &small), Ok(()));
        assert!(supports(&Attention { head_dim: 64, ..encoder(32, 4096, 128) }, &small).is_err());
    }
}
