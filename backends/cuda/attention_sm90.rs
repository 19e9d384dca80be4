//! `attention` on Hopper: TMA, warp specialisation, wgmma.

use super::attention::{AttentionParams, headers, parameters};
use super::attention_repack::{self as repack, Repack, Rows};
use super::attention_sm80 as sm80;
use super::jit::{Arch, Unit, source};
use super::kernel::{Launch, Plan, RunsOn, Target, TensorCores, Variant, address, blocks};
use super::params::declare;
use super::tma::{Layout, Swizzle, TensorMap};
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::attention::{Form, Strides};
use crate::ops::{Attention, AttentionArgs};

pub(crate) const VARIANT: Variant<Attention> = Variant {
    name: "sm90",
    label: "attention/sm90",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    covers,
    unit: |op, _| unit(op.dtype, held(op.head_dim), maps(&copies(op).reads(op))),
    units,
    workspace: |op, _| COPIES_AT + copies(op).bytes(),
    launch,
};

/// Descriptions of q, k and v, and what every variant takes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct TmaParams<const MAPS: usize> {
    q: [TensorMap; MAPS],
    k: [TensorMap; MAPS],
    v: [TensorMap; MAPS],
    common: AttentionParams,
    /// Where blocks ask for their next tile: zero between launches. Null where each has one.
    queue: u64,
    /// Tiles.
    work: u32,
}

impl<const MAPS: usize> TmaParams<MAPS> {
    /// The same struct for the kernel.
    fn cuda() -> String {
        let map = |name| format!("tensor_map {name}[{MAPS}]");
        let fields = [map("q"), map("k"), map("v"), "AttentionParams common".into(), "u32 *queue".into(), "u32 work".into()];
        declare("TmaParams", &fields.each_ref().map(String::as_str), size_of::<Self>())
    }
}

/// Rows of a block, keys of a step, and stages of the ring in `kernels/attention/sm90.cu`.
const ROWS: u64 = 128;
const KEYS: u64 = 128;
const STAGES: u64 = 2;
/// Bytes of keys and values that stay in the second-level cache, of 50 MB.
const CACHED_BYTES: u64 = 24 << 20;
/// Bytes for the barriers.
const BARRIERS: u64 = 256;
/// Elements of a copied row: 128 bytes, as wide as the swizzle.
const PANEL: u64 = 64;
/// Of the workspace: the counter that blocks take their next tile from comes first, copies of operands here.
const COPIES_AT: u64 = 256;
/// Head dimensions that a kernel is compiled for: of a head between two, products go as far as the next.
const HELD: [u64; 6] = [32, 64, 80, 96, 112, 128];
const LONGEST: u64 = HELD[HELD.len() - 1];
/// Descriptions of an operand whose heads start at different remainders of 16 bytes: one for each.
const REMAINDERS: usize = 8;

fn held(head_dim: u64) -> u64 {
    HELD.into_iter().find(|&held| head_dim <= held).unwrap_or(LONGEST)
}

fn shared_bytes(held: u64) -> u32 {
    ((ROWS + 2 * STAGES * KEYS) * held.next_multiple_of(PANEL) * 2 + BARRIERS) as u32
}

fn unit(dtype: DType, held: u64, maps: usize) -> Unit {
    let mut headers = headers();
    headers.extend(repack::headers());
    headers.push(("attention/sm90.cuh", include_str!("../../kernels/attention/sm90.cuh").into()));
    headers.push(("attention/tma_params.cuh", if maps == 1 { TmaParams::<1>::cuda() } else { TmaParams::<REMAINDERS>::cuda() }));
    let mut defines = sm80::Tile::exactly(held).defines(dtype, Arch(90));
    defines.push(("TMA_SHARED_BYTES", shared_bytes(held).to_string()));
    defines.push(("MAPS", maps.to_string()));
    Unit {
        name: format!("attention/sm90 {dtype} head_dim {held}{}", if maps == 1 { "" } else { ", heads anywhere" }),
        source: source!("attention/sm90.cu"),
        headers,
        defines,
        entries: &["attention_sm90", "attention_sm90_blocks", repack::ENTRY],
        shared_bytes: shared_bytes(held),
    }
}

fn units(_: Arch) -> Vec<Unit> {
    let forms = || HELD.iter().flat_map(|&held| [1, REMAINDERS].map(|maps| (held, maps)));
    forms().flat_map(|(held, maps)| [DType::F16, DType::BF16].map(|dtype| unit(dtype, held, maps))).collect()
}

const fn aligned(stride: u64) -> bool {
    // Of 16 bits.
    stride.is_multiple_of(8)
}

/// Whether TMA can read rows where they are: where a head starts is free, since a box may start anywhere along a row, but the
/// strides from token to token and from sequence to sequence are multiples of 16 bytes in every description.
fn readable(rows: &Rows) -> bool {
    (rows.tokens <= 1 || aligned(rows.strides.token)) && (rows.batch <= 1 || aligned(rows.strides.batch))
}

/// The operands that are copied first.
fn copies(op: &Attention) -> Repack {
    Repack::of(op, readable)
}

/// Descriptions of each operand of what is read.
fn maps(read: &Attention) -> usize {
    let whole = Rows::of(read).iter().all(|rows| rows.heads <= 1 || aligned(rows.strides.head));
    if whole { 1 } else { REMAINDERS }
}

/// Heads `class`, `class` + `maps` and so on of one operand as TMA sees them: elements, tokens, heads, sequences.
struct Class {
    dims: [u64; 4],
    strides: [u64; 3],
    box_dims: [u32; 4],
}

impl Class {
    /// Rows start `first` elements past the start of the description.
    fn new(head_dim: u64, rows: &Rows, box_rows: u64, [class, maps]: [u64; 2], first: u64) -> Self {
        let heads = rows.heads.saturating_sub(class).div_ceil(maps);
        // The stride of an axis with one index is never used, but has to be legal.
        let legal = |count, stride| if count == 1 { 8 } else { stride };
        let Strides { batch, token, head } = rows.strides;
        Self {
            dims: [first + head_dim, rows.tokens, heads, rows.batch],
            strides: [legal(rows.tokens, token), legal(heads, head.saturating_mul(maps)), legal(rows.batch, batch)],
            box_dims: [PANEL as u32, box_rows as u32, 1, 1],
        }
    }

    fn layout(&self, dtype: DType) -> Layout<'_> {
        Layout { dtype, dims: &self.dims, strides: &self.strides, box_dims: &self.box_dims, swizzle: Swizzle::B128 }
    }
}

/// The descriptions of one operand that starts at `start`: one for each remainder of 16 bytes at which heads start.
fn describe<const MAPS: usize>(op: &Attention, rows: &Rows, box_rows: u64, start: u64) -> Result<[TensorMap; MAPS]> {
    let mut maps = [TensorMap::NONE; MAPS];
    for (class, map) in maps.iter_mut().enumerate().take(rows.heads as usize) {
        let class = class as u64;
        let at = start + class * rows.strides.head * op.dtype.size();
        *map = Class::new(op.head_dim, rows, box_rows, [class, MAPS as u64], at % 16 / op.dtype.size()).layout(op.dtype).encode_at(at - at % 16)?;
    }
    Ok(maps)
}

fn covers(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    sm80::covers(op, target)?;
    match op.form {
        Form::Dense => {}
        Form::Blocks(shape) if u64::from(shape.block) == ROWS => {}
        Form::Blocks(shape) => return Err(format!("blocks of {}: a tile has {ROWS} rows", shape.block)),
        _ => return Err("it runs the dense and the block-sparse form".into()),
    }
    if op.head_dim > LONGEST {
        return Err(format!("head_dim {} > {LONGEST}: O does not fit in its registers", op.head_dim));
    }
    if op.scale_value() <= 0.0 {
        return Err("the scale is not positive".into());
    }
    if op.q_len < ROWS / 2 || op.batch == 0 || op.kv_len == 0 {
        return Err(format!("q_len {}: a tile has {ROWS} rows", op.q_len));
    }
    let read = copies(op).reads(op);
    let maps = maps(&read) as u64;
    let legal = |rows: &Rows| Class::new(op.head_dim, rows, ROWS, [0, maps], 7).layout(op.dtype).validate();
    Rows::of(&read).iter().try_for_each(legal).map_err(|error: Error| error.to_string())
}

/// Tiles of all heads and sequences.
fn work(op: &Attention) -> u64 {
    op.batch * op.heads * op.q_len.div_ceil(ROWS)
}

/// Heads whose keys and values fit the second-level cache together, with room for what else goes through it.
fn band(op: &Attention) -> u64 {
    let keys = 2 * op.kv_len * op.head_dim * op.dtype.size();
    let together = (CACHED_BYTES / keys.max(1)).max(1) * (op.heads / op.kv_heads);
    together.min(op.batch * op.heads).max(1)
}

/// Blocks that share the keys of a tile: as many as fill the GPU, as long as each has four steps.
fn cluster(op: &Attention, units: u32) -> u64 {
    let steps = match op.form {
        Form::Blocks(shape) => u64::from(shape.capacity / (shape.patterns * shape.q_blocks).max(1)),
        _ => op.kv_len.div_ceil(KEYS),
    };
    [8, 4, 2].into_iter().find(|&size| work(op) * size <= u64::from(units) && steps >= 4 * size).unwrap_or(1)
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let copies = copies(&plan.op);
    let room = workspace.len.saturating_sub(COPIES_AT);
    let rest = workspace.part(COPIES_AT, room).ok_or_else(|| Error::invalid("workspace", format!("at least {COPIES_AT} bytes"), workspace.len))?;
    let op = copies.reads(&plan.op);
    // SAFETY: the caller's promise; a workspace is a buffer of its own.
    unsafe {
        let starts = copies.launch(queue, plan, &rest, args)?;
        match maps(&op) {
            1 => attend::<1>(queue, plan, &op, workspace, args, starts),
            _ => attend::<REMAINDERS>(queue, plan, &op, workspace, args, starts),
        }
    }
}

/// `op` on operands that start there.
///
/// # Safety
/// As [`Plan::launch`].
unsafe fn attend<const MAPS: usize>(
    queue: &mut Queue,
    plan: &Plan<Attention>,
    op: &Attention,
    workspace: &Slice<Cuda>,
    args: &AttentionArgs<Cuda>,
    starts: [u64; 3],
) -> Result<()> {
    let mut common = parameters(op, args, 1);
    [common.q, common.k, common.v] = starts;
    (common.tiles, common.band) = (op.q_len.div_ceil(ROWS) as u32, band(op) as u32);
    let [q, k, v] = Rows::of(op);
    let (work, cluster) = (work(op), cluster(op, plan.target.units));
    let resident = if cluster > 1 { work } else { work.min(plan.target.units.into()) };
    let params = TmaParams::<MAPS> {
        q: describe(op, &q, ROWS, starts[0])?,
        k: describe(op, &k, KEYS, starts[1])?,
        v: describe(op, &v, KEYS, starts[2])?,
        common,
        queue: if work > resident { address(workspace) } else { 0 },
        work: work as u32,
    };
    let entry = if matches!(op.form, Form::Blocks(_)) { "attention_sm90_blocks" } else { "attention_sm90" };
    let grid = blocks(resident * cluster);
    let launch = Launch { shared_bytes: shared_bytes(held(op.head_dim)), cluster: [cluster as u32, 1, 1], ..Launch::new(grid, 384) };
    // SAFETY: the caller's promise; the counter in the workspace is zero.
    unsafe { plan.launch(queue, entry, &launch, &params) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10 };

    #[test]
    fn every_head_that_registers_hold_is_covered() {
        let op = |head_dim| Attention::dense(DType::F16, 2, [32, 8], [4096, 4096], head_dim);
        for head_dim in 1..=128 {
            assert_eq!(covers(&op(head_dim), &TARGET), Ok(()));
            assert!(held(head_dim) >= head_dim);
        }
        assert!(covers(&op(129), &TARGET).is_err());
    }

    #[test]
    fn rows_are_copied_only_where_tma_cannot_read_them() {
        let of = |op: &Attention| (maps(&copies(op).reads(op)), copies(op).bytes());
        let packed = |heads, head_dim| Attention::dense(DType::F16, 4, heads, [2048, 2048], head_dim);
        assert_eq!(of(&packed([32, 32], 112)), (1, 0));
        // Tokens are 32 · 107 elements apart: 428 · 16 bytes.
        assert_eq!(of(&packed([32, 32], 107)), (8, 0));
        // Only those of k and v are not.
        assert_eq!(of(&packed([32, 2], 107)), (8, 2 * 4 * 2048 * 2 * 112 * 2));
        let rows = Strides::bhsd(2048, 32, 107);
        let op = Attention { q: rows, k: rows, v: rows, ..packed([32, 32], 107) };
        assert_eq!(of(&op), (1, 3 * 4 * 2048 * 32 * 112 * 2));
        assert!(covers(&op, &TARGET).is_ok());
    }

    #[test]
    fn few_tiles_are_shared_by_clusters() {
        let op = |heads, queries, keys| Attention::dense(DType::F16, 1, [heads, heads], [queries, keys], 64);
        let of = |heads, queries, keys| cluster(&op(heads, queries, keys), TARGET.units);
        assert_eq!((of(32, 4096, 4096), of(1, 8192, 8192), of(1, 2048, 4096), of(8, 512, 512)), (1, 2, 8, 1));
    }

    #[test]
    fn heads_are_taken_together_while_their_keys_are_cached() {
        let op = |heads, keys| Attention::dense(DType::F16, 2, heads, [keys, keys], 128);
        assert_eq!([band(&op([32, 32], 16384)), band(&op([32, 8], 16384)), band(&op([32, 32], 512))], [3, 12, 64]);
    }

    #[test]
    fn stages_fit() {
        assert!(HELD.iter().all(|&held| shared_bytes(held) <= 227 << 10));
    }
}
