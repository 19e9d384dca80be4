//! `attention` on Hopper: TMA, warp specialisation, wgmma.

pub(crate) mod block_sparse;
pub(crate) mod decode;
pub(crate) mod intra_split;
pub(crate) mod schedule;
pub(crate) mod small_head;
pub(crate) mod stream_k;
pub(crate) mod tile;
pub(crate) mod unaligned;
pub(crate) mod varlen;

use crate::backends::cuda::attention::block_lists as lists;
use crate::backends::cuda::attention::block_pairs::Pairs;
use crate::backends::cuda::attention::params::{AttentionParams, parameters};
use crate::backends::cuda::attention::repack::{Repack, Rows};
use crate::backends::cuda::attention::sm80;
use crate::backends::cuda::attention::sm90::schedule::{OneTile, band, cluster};
use crate::backends::cuda::attention::sm90::stream_k::Runs;
use crate::backends::cuda::attention::sm90::tile::{GROUP, LISTED, PANEL, ROWS, Tile, TmaParams, WIDEST, units, work};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::tensor_map::{Layout, Promotion, Swizzle, TensorMap};
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, address, blocks};
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
    supports,
    suits: |_, _| Ok(()),
    unit: |op, target| Tile::of(op, target.units).unit(op.dtype),
    units,
    workspace: |op, target| lists::workspace(op, |listed| parts_at(listed) + runs_bytes(listed, target.units)),
    launch,
};

/// Rows that a warp writes together.
pub(crate) const WARP_ROWS: u64 = 16;
/// Of the workspace: the counter that blocks take their next tile from comes first, copies of operands here.
const COPIES_AT: u64 = 256;

/// The operands that TMA cannot read where they are, and that are copied first: strides are multiples of 16 bytes to it, and so is
/// the place along a row at which a box starts.
fn copies(op: &Attention) -> Repack {
    Repack::of(op, |rows| rows.aligned(op.dtype))
}

/// Of the workspace, without lists of a map.
pub(crate) fn own_bytes(op: &Attention) -> u64 {
    COPIES_AT + copies(op).bytes() + Pairs::of(op, ROWS).map_or(0, Pairs::bytes)
}

/// Where parts of tiles begin in the workspace.
pub(crate) fn parts_at(op: &Attention) -> u64 {
    own_bytes(op).next_multiple_of(256)
}

fn runs_bytes(op: &Attention, units: u32) -> u64 {
    let tile = Tile::of(op, units);
    Runs::of(op, tile, units).map_or(0, |runs| runs.bytes(tile))
}

/// The rows of one operand as TMA sees them: elements, tokens, heads, sequences.
pub(crate) struct Described {
    dims: [u64; 4],
    strides: [u64; 3],
    box_dims: [u32; 4],
}

impl Described {
    /// Boxes have that many rows of a panel of `width` elements.
    pub(crate) fn new(head_dim: u64, rows: &Rows, box_rows: u64, width: u64) -> Self {
        // The stride of an axis with one index is never used, but has to be legal.
        let legal = |count, stride| if count == 1 { 8 } else { stride };
        let Strides { batch, token, head } = rows.strides;
        Self {
            dims: [head_dim, rows.tokens, rows.heads, rows.batch],
            strides: [legal(rows.tokens, token), legal(rows.heads, head), legal(rows.batch, batch)],
            box_dims: [width as u32, box_rows as u32, 1, 1],
        }
    }

    pub(crate) fn layout(&self, dtype: DType) -> Layout<'_> {
        let swizzle = if self.box_dims[0] == PANEL as u32 { Swizzle::B128 } else { Swizzle::B64 };
        Layout { dtype, dims: &self.dims, strides: &self.strides, box_dims: &self.box_dims, swizzle, promotion: Promotion::B256 }
    }
}

pub(crate) fn supports(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    sm80::supports(op, target)?;
    let op = &*lists::listed(op);
    match op.form {
        Form::Dense => {}
        Form::Blocks(_) => Pairs::of(op, ROWS).map_or(Ok(()), Pairs::validate)?,
        _ => return Err("it runs the dense and the block-sparse form".into()),
    }
    if op.head_dim > WIDEST {
        return Err(format!("head_dim {} > {WIDEST}: O does not fit in its registers", op.head_dim));
    }
    if op.form.is_sparse() && op.head_dim > LISTED {
        return Err(format!("head_dim {} > {LISTED}: shared memory has no room for steps as long as blocks are", op.head_dim));
    }
    if op.scale_value() <= 0.0 {
        return Err("the scale is not positive".into());
    }
    if op.q_len < ROWS / 2 || op.batch == 0 || op.kv_len == 0 {
        return Err(format!("q_len {}: a tile has {ROWS} rows", op.q_len));
    }
    let legal = |rows: &Rows| Described::new(op.head_dim, rows, ROWS, PANEL).layout(op.dtype).validate();
    Rows::of(&copies(op).reads(op)).iter().try_for_each(legal).map_err(|error: Error| error.to_string())
}

/// Whether every row of the output starts on a multiple of 16 bytes.
pub(crate) fn writes_16_bytes(params: &AttentionParams) -> bool {
    let strides = [params.o_batch, params.o_token, params.o_head, params.head_dim as u64].map(|elements| elements * 2);
    params.o.is_multiple_of(16) && strides.iter().all(|bytes| bytes.is_multiple_of(16))
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { lists::launch(queue, plan, workspace, args, launch_listed) }
}

unsafe fn launch_listed(queue: &mut Queue, plan: &Plan<Attention>, op: &Attention, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let tile = Tile::of(op, plan.target.units);
    let runs = Runs::of(op, tile, plan.target.units);
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
        return unsafe { plan.launch(queue, "attention_sm90_neighbours", &launch, &params) };
    }
    if let Some(order) = OneTile::of(op, tile, plan.target.units).filter(|_| writes_16_bytes(&params.common)) {
        let (entry, grid) = (order.entry(), order.grid(op, params.common.tiles));
        let launch = Launch { grid, shared_bytes: tile.shared_bytes(), overlap: true, ..Launch::new(1, tile.threads()) };
        // SAFETY: the caller's promise.
        return unsafe { plan.launch(queue, entry, &launch, &params) };
    }
    let (work, cluster) = (u64::from(params.work), cluster(op, plan.target.units));
    let resident = if cluster > 1 { work } else { work.min(plan.target.units.into()) };
    params.queue = if work > resident { address(workspace) } else { 0 };
    let entry = match op.form {
        Form::Blocks(_) if params.pairs != 0 => "attention_sm90_pairs",
        Form::Blocks(_) => "attention_sm90_blocks",
        _ => "attention_sm90",
    };
    let grid = blocks(resident * cluster);
    // It waits for the launch before, and reads nothing until then.
    let launch = Launch { shared_bytes: tile.shared_bytes(), cluster: [cluster as u32, 1, 1], overlap: true, ..Launch::new(grid, tile.threads()) };
    // SAFETY: the caller's promise; the counter in the workspace is zero.
    unsafe { plan.launch(queue, entry, &launch, &params) }
}

/// Puts into the queue what comes before the kernel: copies of operands, the plan of blocks of 64. Gives what the kernel takes, with no
/// counter yet, K and V in boxes of `box_keys`, half as many where blocks are of 64; nothing where operands start anywhere, and another kernel
/// has taken all of the work.
///
/// # Safety
/// As [`Kernel::launch`](crate::backend::Kernel::launch); `workspace` has [`own_bytes`], and the plan's module the kernels of `tile`.
pub(crate) unsafe fn ready(
    queue: &mut Queue,
    plan: &Plan<Attention>,
    op: &Attention,
    workspace: &Slice<Cuda>,
    args: &AttentionArgs<Cuda>,
    tile: Tile,
    box_keys: u64,
) -> Result<Option<TmaParams>> {
    let (copies, pairs) = (copies(op), Pairs::of(op, ROWS));
    let part = |at: u64, bytes: u64| workspace.part(at, bytes).ok_or_else(|| Error::invalid("workspace", format!("{bytes} bytes from {at} on"), workspace.len));
    let rest = part(COPIES_AT, copies.bytes())?;
    let op = &copies.reads(op);
    // SAFETY: the caller's promise; a workspace is a buffer of its own.
    let starts = unsafe { copies.launch(queue, plan, &rest, args)? };
    // Strides are legal, as `supports` has seen; where the operands start is known only now.
    if starts.iter().any(|start| !start.is_multiple_of(16)) {
        // SAFETY: the caller's promise; this module holds the kernel too.
        unsafe { sm80::launch_tile(queue, plan, sm80::Tile::exactly(tile.held), op, args, starts)? };
        return Ok(None);
    }
    let mut common = parameters(op, args, 1);
    [common.q, common.k, common.v] = starts;
    (common.tiles, common.band) = (op.q_len.div_ceil(tile.rows()) as u32, band(op) as u32);
    let planned = pairs.map(|pairs| part(COPIES_AT + copies.bytes(), pairs.bytes()).map(|room| (pairs, room))).transpose()?;
    if let Some((pairs, room)) = &planned {
        // SAFETY: the caller's promise; that part of the workspace is the plan's alone.
        unsafe { pairs.launch(queue, plan, room, common.index)? };
    }
    let [q, k, v] = Rows::of(op);
    let box_keys = if pairs.is_some() { box_keys / 2 } else { box_keys };
    let map =
        |rows: &Rows, box_rows, width, start| -> Result<TensorMap> { Described::new(op.head_dim, rows, box_rows, width).layout(op.dtype).encode_at(start) };
    let q_map = map(&q, GROUP, PANEL, starts[0])?;
    let o = Rows { strides: op.o, ..q };
    Ok(Some(TmaParams {
        q: q_map,
        k: map(&k, box_keys, PANEL, starts[1])?,
        v: map(&v, box_keys, PANEL, starts[2])?,
        common,
        queue: 0,
        pairs: planned.as_ref().map_or(0, |(_, room)| address(room)),
        work: work(op, tile.rows()) as u32,
        region: pairs.map_or(0, Pairs::region) as u32,
        k_tail: map(&k, box_keys, tile.tail(), starts[1])?,
        // Where rows of o are not what TMA can write nothing uses it.
        o: if writes_16_bytes(&common) { map(&o, WARP_ROWS, PANEL, common.o)? } else { q_map },
        parts: 0,
        arrivals: 0,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::cuda::attention::sm90::tile::held;
    use crate::backends::cuda::jit::Arch;
    use crate::ops::index::BlockShape;

    const TARGET: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10 };

    #[test]
    fn every_head_that_registers_hold_is_covered() {
        let op = |head_dim| Attention::dense(DType::F16, 2, [32, 8], [4096, 4096], head_dim);
        for head_dim in 1..=256 {
            assert_eq!(supports(&op(head_dim), &TARGET), Ok(()));
            assert!(held(head_dim) >= head_dim);
        }
        let listed = |head_dim| {
            let shape = BlockShape { block: 128, q_blocks: 32, kv_blocks: 32, patterns: 1, capacity: 300, masks: 0 };
            Attention { form: Form::Blocks(shape), ..op(head_dim) }
        };
        assert_eq!(supports(&listed(128), &TARGET), Ok(()));
        assert!(supports(&listed(129), &TARGET).is_err());
    }

    #[test]
    fn rows_are_copied_only_where_tma_cannot_read_them() {
        let packed = |head_dim| Attention::dense(DType::F16, 4, [32, 2], [2048, 2048], head_dim);
        assert_eq!(copies(&packed(112)).bytes(), 0);
        assert_eq!(copies(&packed(107)).bytes(), 4 * 2048 * (32 + 2 + 2) * 112 * 2);
        let rows = |heads: u64| Strides { batch: 2048 * heads * 112, token: heads * 112, head: 112 };
        let spaced = Attention { q: rows(32), k: rows(2), ..packed(107) };
        assert_eq!(copies(&spaced).bytes(), 4 * 2048 * 2 * 112 * 2, "only v");
        assert_eq!(supports(&spaced, &TARGET), Ok(()));
    }

    #[test]
    fn narrow_heads_have_three_groups_where_tiles_are_many() {
        let op = |heads, tokens, head_dim| Attention::dense(DType::F16, 1, [heads, heads], [tokens, tokens], head_dim);
        let of = |heads, tokens, head_dim| Tile::of(&op(heads, tokens, head_dim), TARGET.units).rows();
        assert_eq!([of(32, 4096, 64), of(8, 16384, 64), of(32, 4096, 32), of(32, 1024, 64), of(4, 1024, 64), of(32, 4096, 80)], [192, 192, 192, 128, 128, 128]);
        for tokens in (64..20_000).step_by(192) {
            let tile = Tile::of(&op(3, tokens, 64), TARGET.units);
            assert!(tile.consumers == 2 || cluster(&op(3, tokens, 64), TARGET.units) == 1);
        }
    }
}
