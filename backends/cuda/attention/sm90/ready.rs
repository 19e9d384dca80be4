//! What comes before a tiled sm90 kernel of `attention`: limits, the units beside it, copies of operands, the plan of 64-key blocks, tensor
//! maps.

use crate::backends::cuda::attention::block_lists as lists;
use crate::backends::cuda::attention::block_pairs::{self as pairs, Pairs};
use crate::backends::cuda::attention::params::{AttentionParams, parameters};
use crate::backends::cuda::attention::repack::{self as repack, Repack, Rows};
use crate::backends::cuda::attention::sm80::{tile as sm80, unaligned};
use crate::backends::cuda::attention::sm90::schedule::band;
use crate::backends::cuda::attention::sm90::tile::{GROUP, LISTED, PANEL, ROWS, Tile, TmaParams, WIDEST, work};
use crate::backends::cuda::jit::Unit;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::tensor_map::{Layout, Promotion, Swizzle, TensorMap};
use crate::backends::cuda::variant::{Cuda, Plan, Target, address};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::attention::{Form, Strides};
use crate::ops::{Attention, AttentionArgs};

/// Rows that a warp writes together.
pub(crate) const WARP_ROWS: u64 = 16;
/// Where copies of operands begin in the workspace. The counter from which blocks take their next tile comes before them.
const COPIES_AT: u64 = 256;

/// The copies of operands that TMA cannot read in place. For TMA, strides and the place in a row at which a box starts are multiples of 16
/// bytes.
pub(crate) fn copies(op: &Attention) -> Repack {
    Repack::of(op, |rows| rows.aligned(op.dtype))
}

/// Bytes of the workspace, without the lists of a map.
pub(crate) fn own_bytes(op: &Attention) -> u64 {
    COPIES_AT + copies(op).bytes() + Pairs::of(op, ROWS).map_or(0, Pairs::bytes)
}

/// Where partial results begin in the workspace.
pub(crate) fn parts_at(op: &Attention) -> u64 {
    own_bytes(op).next_multiple_of(256)
}

/// The units that a plan launches beside its own kernel, whose heads are padded to `held` elements.
pub(crate) fn beside(op: &Attention, held: u64) -> Vec<Unit> {
    let listed = lists::listed(op);
    let plan = Pairs::of(&listed, ROWS).map(|_| pairs::unit());
    [Some(unaligned::unit(held, op.dtype)), copies(&listed).unit(), plan, lists::unit_of(op)].into_iter().flatten().collect()
}

/// Every unit that [`beside`] may give. Kernels that walk over lists have those that make lists and their plan too.
pub(crate) fn all_beside(held: u64, dtype: DType, walks_lists: bool) -> Vec<Unit> {
    let mut all = vec![unaligned::unit(held, dtype), repack::unit()];
    all.extend(walks_lists.then(|| [pairs::unit(), lists::unit()]).into_iter().flatten());
    all
}

/// The rows of one operand as TMA sees them: elements, tokens, heads, sequences.
pub(crate) struct Described {
    dims: [u64; 4],
    strides: [u64; 3],
    box_dims: [u32; 4],
}

impl Described {
    /// The description of `rows` in boxes of `box_rows` rows, for a panel of `width` elements.
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

/// Whether the tiles can compute an operation, or why not. Every variant of them starts from this.
pub(crate) fn limits(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    sm80::limits(op, target)?;
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
    Rows::of(&copies(op).reads(op)).iter().try_for_each(|rows| described(op, rows)).map_err(|error: Error| error.to_string())
}

/// Whether TMA can be told of rows of `op`, or why not.
pub(crate) fn described(op: &Attention, rows: &Rows) -> Result<()> {
    Described::new(op.head_dim, rows, ROWS, PANEL).layout(op.dtype).validate()
}

/// Whether every row of the output starts at a multiple of 16 bytes, if the first does.
pub(crate) fn rows_of_16_bytes(op: &Attention) -> bool {
    [op.o.batch, op.o.token, op.o.head, op.head_dim].iter().all(|elements| (elements * op.dtype.size()).is_multiple_of(16))
}

/// Whether every row of the output starts at a multiple of 16 bytes.
pub(crate) fn writes_16_bytes(params: &AttentionParams) -> bool {
    let strides = [params.o_batch, params.o_token, params.o_head, params.head_dim as u64].map(|elements| elements * 2);
    params.o.is_multiple_of(16) && strides.iter().all(|bytes| bytes.is_multiple_of(16))
}

/// Enqueues what comes before the kernel: copies of operands, and the plan of 64-key blocks. Returns the kernel's parameters, without a
/// counter. K and V come in boxes of `box_keys`, or of half as many with 64-key blocks. None where an operand starts off a multiple of 16
/// bytes: another kernel has then computed everything.
///
/// # Safety
/// The conditions of [`Kernel::launch`](crate::backend::Kernel::launch) hold. `workspace` has [`own_bytes`], and the plan the units of
/// [`beside`] for `tile`.
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
    let part =
        |at: u64, bytes: u64| workspace.sub_slice(at, bytes).ok_or_else(|| Error::invalid("workspace", format!("{bytes} bytes from {at} on"), workspace.len));
    let rest = part(COPIES_AT, copies.bytes())?;
    let op = &copies.reads(op);
    // SAFETY: the caller's promise; a workspace is a buffer of its own.
    let starts = unsafe { copies.launch(queue, plan, &rest, args)? };
    // `limits` has checked the strides. Only the launch knows where operands start.
    if starts.iter().any(|start| !start.is_multiple_of(16)) {
        // SAFETY: the caller's promise; the plan has that kernel too.
        unsafe { unaligned::launch(queue, plan, tile.held, op, args, starts)? };
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
        // Where TMA cannot write the rows of o, no kernel uses this map.
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

    const TARGET: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };

    #[test]
    fn every_head_that_registers_hold_is_covered() {
        let op = |head_dim| Attention::dense(DType::F16, 2, [32, 8], [4096, 4096], head_dim);
        for head_dim in 1..=256 {
            assert_eq!(limits(&op(head_dim), &TARGET), Ok(()));
            assert!(held(head_dim) >= head_dim);
        }
        let listed = |head_dim| {
            let shape = BlockShape { block: 128, q_blocks: 32, kv_blocks: 32, patterns: 1, capacity: 300, masks: 0 };
            Attention { form: Form::Blocks(shape), ..op(head_dim) }
        };
        assert_eq!(limits(&listed(128), &TARGET), Ok(()));
        assert!(limits(&listed(129), &TARGET).is_err());
    }

    #[test]
    fn rows_are_copied_only_where_tma_cannot_read_them() {
        let packed = |head_dim| Attention::dense(DType::F16, 4, [32, 2], [2048, 2048], head_dim);
        assert_eq!(copies(&packed(112)).bytes(), 0);
        assert_eq!(copies(&packed(107)).bytes(), 4 * 2048 * (32 + 2 + 2) * 112 * 2);
        let rows = |heads: u64| Strides { batch: 2048 * heads * 112, token: heads * 112, head: 112 };
        let spaced = Attention { q: rows(32), k: rows(2), ..packed(107) };
        assert_eq!(copies(&spaced).bytes(), 4 * 2048 * 2 * 112 * 2, "only v");
        assert_eq!(limits(&spaced, &TARGET), Ok(()));
    }
}
