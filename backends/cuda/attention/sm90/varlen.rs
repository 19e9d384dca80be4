//! Varlen `attention` on sm90. Sequence lengths lie on the device; keys lie end to end or in pages.

use crate::backends::cuda::attention::choose;
use crate::backends::cuda::attention::entry::{Entry, entry};
use crate::backends::cuda::attention::params::parameters;
use crate::backends::cuda::attention::repack::{self as repack, Repack, Rows};
use crate::backends::cuda::attention::sm80::{tile as sm80, unaligned};
use crate::backends::cuda::attention::sm90::ready::Described;
use crate::backends::cuda::attention::sm90::tile::{GROUP, HELD, LISTED, NARROW, PANEL, Tile, TmaParams, define};
use crate::backends::cuda::attention::sm90::varlen_tile::{Config, LEAST_BOX, box_keys, most_work};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::tensor_map::TensorMap;
use crate::backends::cuda::variant::{Configs, Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, address, blocks, number};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::attention::Form;
use crate::ops::{Attention, AttentionArgs};

pub(crate) const VARIANT: Variant<Attention> = Variant {
    name: "sm90_varlen",
    label: "attention/sm90_varlen",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports,
    suits: choose::varlen,
    configs: Some(Configs {
        names: |_| Config::ALL.map(Config::name).into(),
        choose: |op, target| number(Config::ALL.into_iter(), &choose::varlen_config(op, target.units)),
    }),
    unit: |op, target| unit(config(op, target), kernel(op), config(op, target).tile(op), op.dtype, copies(op).unit()),
    units,
    workspace: |op, _| COPIES_AT + copies(op).bytes(),
    launch,
};

/// The configuration that the target forces, or the fastest one.
fn config(op: &Attention, target: &Target) -> Config {
    target.configured(Config::ALL.into_iter()).unwrap_or_else(|| choose::varlen_config(op, target.units))
}

params! {
    /// Parameters of the varlen kernels: those of the tiles, and how keys are loaded.
    VarlenParams {
        tiles: TmaParams,
        /// Keys of a box, a power of two. This many keys of a k-block lie in one page.
        box_keys: u32,
        /// Keys of a head that fit L2 together.
        band_keys: u32,
    }
}

/// Where copies of operands begin in the workspace. The counter from which blocks take their next tile comes before them.
const COPIES_AT: u64 = 256;
/// Bytes of keys and values that stay in L2, which has 50 MB.
const CACHED_BYTES: u64 = 24 << 20;
/// The most sequences for whose order a block has room beside its tiles.
const SPANS: u64 = 2048;
/// Bytes of the sequences' order, with one place more than there are sequences.
const PLAN_BYTES: u32 = ((SPANS + 1) * 8).next_multiple_of(16) as u32;

const VARLEN: Entry = entry!("attention_sm90_varlen");
const PAGED: Entry = entry!("attention_sm90_paged");

/// The kernel that an operation takes.
fn kernel(op: &Attention) -> Entry {
    if matches!(op.form, Form::Paged(_)) { PAGED } else { VARLEN }
}

/// The unit of a configuration's kernel, with what its plans launch besides.
fn unit(config: Config, entry: Entry, tile: Tile, dtype: DType, copies: Option<Unit>) -> Unit {
    let (form, word) = (if entry == PAGED { "paged" } else { "varlen" }, if config.lookahead { " lookahead" } else { "" });
    let mut unit = tile.unit(&format!("attention/sm90_varlen{word} {form}"), source!("attention/sm90/varlen.cu"), dtype);
    unit.name = format!("{} rows {}", unit.name, tile.rows());
    unit.headers.push(("attention/varlen_params.cuh", VarlenParams::cuda()));
    define(&mut unit, &[("PLAN_SPANS", SPANS), ("PLAN_BYTES", PLAN_BYTES.into())]);
    unit.defines.push(entry.defined());
    if config.lookahead {
        define(&mut unit, &[("VARLEN_LOOKAHEAD", 1)]);
    }
    unit.shared_bytes += PLAN_BYTES;
    Unit { entries: entry.list, also: std::iter::once(unaligned::unit(tile.held, dtype)).chain(copies).collect(), ..unit }
}

/// The unit that copies operands. Pages are never copied.
fn copying(entry: Entry) -> Option<Unit> {
    (entry == VARLEN).then(repack::unit)
}

fn units(_: Arch) -> Vec<Unit> {
    // Clusters run the kernel of single blocks.
    let configs = || Config::ALL.into_iter().filter(|config| config.cluster == 1);
    let wide = HELD.into_iter().filter(|&held| held >= NARROW);
    let tiles = wide.flat_map(|held| configs().filter(move |config| config.has(held)).map(move |config| (config, Tile { held, consumers: config.groups })));
    let kernels = tiles.flat_map(|(config, tile)| [VARLEN, PAGED].map(|entry| (config, entry, tile)));
    kernels.flat_map(|(config, entry, tile)| [DType::F16, DType::BF16].map(|dtype| unit(config, entry, tile, dtype, copying(entry)))).collect()
}

/// The copies of operands that TMA cannot read in place. Of a pool of pages an operation may use few.
fn copies(op: &Attention) -> Repack {
    let paged = matches!(op.form, Form::Paged(_));
    Repack::of(op, |rows| paged || rows.aligned(op.dtype))
}

fn supports(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    sm80::limits(op, target)?;
    if !matches!(op.form, Form::Varlen(_) | Form::Paged(_)) {
        return Err("it runs the forms of sequences end to end and of pages".into());
    }
    if op.head_dim > LISTED {
        return Err(format!("head_dim {} > {LISTED}: shared memory has no room for two tiles of Q", op.head_dim));
    }
    if op.scale_value() <= 0.0 {
        return Err("the scale is not positive".into());
    }
    if op.q_len < GROUP {
        return Err(format!("q_len {}: a warp group has {GROUP} rows", op.q_len));
    }
    if op.batch > SPANS {
        return Err(format!("{} sequences: shared memory has room for the order of {SPANS}", op.batch));
    }
    let rows = Rows::of(&copies(op).reads(op));
    if rows.iter().any(|rows| rows.batch * rows.tokens == 0 || rows.tokens > i32::MAX as u64) {
        return Err("no tokens, or more than TMA counts".into());
    }
    if box_keys(op) < LEAST_BOX {
        return Err(format!("pages of no multiple of {LEAST_BOX} keys"));
    }
    if !rows.iter().all(|rows| rows.aligned(op.dtype)) {
        return Err("rows in pages do not start on multiples of 16 bytes".into());
    }
    let legal = |rows: &Rows| Described::new(op.head_dim, rows, GROUP, PANEL).layout(op.dtype).validate();
    rows.iter().try_for_each(legal).map_err(|error: Error| error.to_string())?;
    // With no configuration forced, persistent blocks of two warpgroups take every operation.
    target.configured(Config::ALL.into_iter()).map_or(Ok(()), |config| config.can_take(op))
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let (config, copies) = (config(&plan.op, &plan.target), copies(&plan.op));
    let (tile, cluster) = (config.tile(&plan.op), config.cluster);
    let room = workspace.sub_slice(COPIES_AT, copies.bytes()).ok_or_else(|| Error::invalid("workspace", "room for copies", workspace.len))?;
    let op = &copies.reads(&plan.op);
    // SAFETY: the caller's promise; a workspace is a buffer of its own.
    let starts = unsafe { copies.launch(queue, plan, &room, args)? };
    if starts.iter().any(|start| !start.is_multiple_of(16)) {
        // SAFETY: the caller's promise; the plan has the kernel for rows that start anywhere.
        return unsafe { unaligned::launch(queue, plan, tile.held, op, args, starts) };
    }
    let mut common = parameters(op, args, 1);
    [common.q, common.k, common.v] = starts;
    let ([q, k, v], box_keys) = (Rows::of(op), box_keys(op));
    let map =
        |rows: &Rows, box_rows, width, start| -> Result<TensorMap> { Described::new(op.head_dim, rows, box_rows, width).layout(op.dtype).encode_at(start) };
    let work = most_work(op, tile.rows());
    // The blocks of a cluster take one tile together.
    let resident = if cluster > 1 { work } else { work.min(plan.target.units.into()) };
    let q = map(&q, GROUP, PANEL, starts[0])?;
    let tiles = TmaParams {
        q,
        k: map(&k, box_keys, PANEL, starts[1])?,
        v: map(&v, box_keys, PANEL, starts[2])?,
        common,
        queue: if work > resident { address(workspace) } else { 0 },
        pairs: 0,
        work: work as u32,
        region: 0,
        k_tail: map(&k, box_keys, tile.tail(), starts[1])?,
        o: q,
        parts: 0,
        arrivals: 0,
    };
    let band_keys = CACHED_BYTES / (2 * op.head_dim * op.dtype.size());
    let params = VarlenParams { tiles, box_keys: box_keys as u32, band_keys: band_keys as u32 };
    // The kernel's PDL wait stands before its first read.
    let (shared_bytes, cluster_blocks) = (tile.shared_bytes() + PLAN_BYTES, [cluster as u32, 1, 1]);
    let launch = Launch { shared_bytes, cluster: cluster_blocks, overlap: true, ..Launch::new(blocks(resident * cluster), tile.threads()) };
    // SAFETY: the caller's promise; the counter in the workspace is zero.
    unsafe { plan.launch(queue, kernel(op).name(), &launch, &params) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::index::{PageShape, VarlenShape};

    const TARGET: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };

    fn varlen(batch: u64, total: u64, longest: u64, head_dim: u64) -> Attention {
        let shape = VarlenShape { batch, total_q: total, total_kv: total, max_q: longest, max_kv: longest };
        Attention::varlen(DType::F16, shape, [32, 8], head_dim)
    }

    fn paged(page: u64, q_len: u64, head_dim: u64) -> Attention {
        Attention::paged(DType::F16, PageShape { batch: 4, pages: 16, page, pool_pages: 99 }, [32, 8], q_len, head_dim)
    }

    #[test]
    fn long_sequences_of_every_head_are_covered() {
        for head_dim in 1..=256 {
            let op = varlen(8, 9000, 3000, head_dim);
            assert_eq!(supports(&op, &TARGET).is_ok(), head_dim <= 128, "{head_dim}");
            assert_eq!(supports(&op, &TARGET).and_then(|()| choose::varlen(&op, &TARGET)).is_ok(), (17..=128).contains(&head_dim), "{head_dim}");
            assert_eq!(supports(&paged(48, 512, head_dim), &TARGET).is_ok(), head_dim <= 128 && head_dim.is_multiple_of(8), "{head_dim}");
        }
        assert!(
            supports(&varlen(8, 500, 63, 64), &TARGET).is_err()
                && supports(&paged(24, 512, 64), &TARGET).is_err()
                && supports(&paged(64, 63, 64), &TARGET).is_err()
        );
        assert!(supports(&varlen(3000, 90_000, 100, 128), &TARGET).is_err(), "more sequences than there is room for");
        assert!(supports(&Attention::dense(DType::F16, 1, [8, 8], [512, 512], 64), &TARGET).is_err());
    }

    #[test]
    fn a_box_lies_in_one_page_and_in_one_step() {
        let of = |page, head_dim| box_keys(&paged(page, 512, head_dim));
        assert_eq!([of(16, 128), of(48, 128), of(64, 128), of(256, 64)], [16, 16, 64, 128]);
    }

    #[test]
    fn there_are_blocks_for_every_tile_that_sequences_may_have() {
        // 31 sequences of one token, and a long one.
        let op = varlen(32, 4000 + 31, 4000, 128);
        assert_eq!(most_work(&op, 128), 32 * 63);
        assert!(most_work(&op, 128) >= 32 * (4000u64.div_ceil(128) + 31));
        assert_eq!(most_work(&paged(64, 300, 128), 128), 32 * 4 * 3);
    }

    #[test]
    fn everything_fits() {
        assert!(units(Arch(90)).iter().all(|unit| unit.shared_bytes <= 227 << 10));
    }
}
