//! `attention` of few queries over long caches on Hopper: keys come as boxes of TMA.

use super::attention::{AttentionParams, headers, parameters};
use super::attention_repack::Rows;
use super::attention_sm80 as sm80;
use super::jit::{Arch, Unit, source};
use super::kernel::{Launch, Plan, RunsOn, Target, TensorCores, Variant, address};
use super::params::params;
use super::tma::{Layout, Promotion, Swizzle};
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::attention::{Form, Strides};
use crate::ops::{Attention, AttentionArgs};

pub(crate) const VARIANT: Variant<Attention> = Variant {
    name: "sm90_split",
    label: "attention/sm90_split",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HMMA"),
    covers,
    unit: |op, _| Tile::of(op).unit(op.dtype),
    units: |_: Arch| Tile::all().flat_map(|tile| [DType::F16, DType::BF16].map(|dtype| tile.unit(dtype))).collect(),
    workspace: |op, target| parts_bytes(op, target) + u64::from(target.units) * 4,
    launch,
};

params! {
    /// Descriptions of k and v, what every variant takes, and the workspace.
    SplitBoxesParams {
        k: map,
        v: map,
        common: AttentionParams,
        /// Two parts a block.
        parts: [f32],
        /// Of each block: blocks that have left their part of the item that starts in its stretch. All zero between launches.
        arrivals: [u32],
        /// Of a box.
        heads: u32,
        /// Whether k and v are the first to leave the second-level cache.
        once: u32,
    }
}

/// Warps that multiply, keys of a step of theirs, and rows of a matrix instruction, in `kernels/attention/split_boxes.cuh`.
const WARPS: u64 = 8;
const KEYS: u64 = 16;
const ROWS: u64 = 16;
/// Elements of a row of a box: 128 bytes, as wide as the swizzle.
const PANEL: u64 = 64;
/// Shared memory of a block, but for what the kernel declares itself.
const ROOM: u64 = 226 << 10;
const MOST_SLOTS: u64 = 12;
/// Head dimensions that a kernel is compiled for: Q is read as it lies, without padding.
const HEADS: [u64; 5] = [64, 80, 96, 112, 128];
/// Steps on the line of all steps, that it is counted in 32 bits.
const LONGEST: u64 = 1 << 30;
/// Steps of a multiprocessor from which on the rate decides, and not what is fixed in a launch.
const LEAST_STEPS: u64 = 16;
/// Multiprocessors that share an item, at most: its parts are joined by one.
const MOST_PARTS: u64 = 4;
/// Bytes of k and v from which on they go through the second-level cache as anything else. Fewer are the first to leave it, so that what others
/// wrote there need not be written back meanwhile; many have that written back in any case, and are read faster so.
const MOST_ONCE: u64 = 512 << 20;

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    head_dim: u64,
    /// Rows that share keys, at most.
    rows: u64,
}

impl Tile {
    fn of(op: &Attention) -> Self {
        Self { head_dim: op.head_dim, rows: if rows(op) <= ROWS / 2 { ROWS / 2 } else { ROWS } }
    }

    fn all() -> impl Iterator<Item = Self> {
        HEADS.into_iter().flat_map(|head_dim| [ROWS / 2, ROWS].map(|rows| Self { head_dim, rows }))
    }

    /// Of K or V of a step of a block.
    fn slot_bytes(self) -> u64 {
        self.head_dim.div_ceil(PANEL) * WARPS * KEYS * PANEL * 2
    }

    /// What the warps leave for each other.
    fn left_bytes(self) -> u64 {
        WARPS * self.rows * part_row(self.head_dim)
    }

    fn slots(self) -> u64 {
        ((ROOM - self.left_bytes()) / self.slot_bytes()).min(MOST_SLOTS)
    }

    fn shared_bytes(self) -> u32 {
        (self.slots() * self.slot_bytes() + self.left_bytes()) as u32
    }

    fn unit(self, dtype: DType) -> Unit {
        let mut headers = headers();
        headers.push(("attention/split_line.cuh", include_str!("../../kernels/attention/split_line.cuh").into()));
        headers.push(("attention/split_boxes.cuh", include_str!("../../kernels/attention/split_boxes.cuh").into()));
        headers.push(("attention/split_boxes_params.cuh", SplitBoxesParams::cuda()));
        let mut defines = sm80::Tile::exactly(self.head_dim).defines(dtype, Arch(90));
        for (name, value) in [("BOX_SLOTS", self.slots()), ("BOX_MOST_ROWS", self.rows), ("BOX_SHARED_BYTES", self.shared_bytes().into())] {
            defines.push((name, value.to_string()));
        }
        Unit {
            name: format!("attention/sm90_split {dtype} head_dim {} rows {}", self.head_dim, self.rows),
            source: source!("attention/split_boxes.cu"),
            headers,
            defines,
            entries: &["attention_split_boxes", "attention_sm80_narrow"],
            shared_bytes: self.shared_bytes(),
        }
    }
}

/// Rows of a sequence and of the heads that share its keys.
fn rows(op: &Attention) -> u64 {
    op.q_len.saturating_mul(op.heads / op.kv_heads)
}

/// Of k and v together, at most.
fn kv_bytes(op: &Attention) -> u64 {
    [op.batch, op.kv_heads, op.kv_len, op.head_dim].into_iter().fold(4, u64::saturating_mul)
}

/// Bytes of a row of a part: O, maximum and sum, on multiples of 16.
fn part_row(head_dim: u64) -> u64 {
    (head_dim + 4) * 4
}

/// Parts come first in the workspace: they have to lie on multiples of 16 bytes.
fn parts_bytes(op: &Attention, target: &Target) -> u64 {
    u64::from(target.units) * 2 * box_heads(op) * rows(op) * part_row(op.head_dim)
}

/// Tokens of a box, which is a step of a block and lies in one page.
fn box_tokens(op: &Attention) -> u64 {
    let whole = |tokens: &u64| !matches!(op.form, Form::Paged(shape) if !shape.page.is_multiple_of(*tokens));
    [WARPS * KEYS, 64, 32].into_iter().find(whole).unwrap_or(KEYS)
}

/// Heads of a box.
fn box_heads(op: &Attention) -> u64 {
    WARPS * KEYS / box_tokens(op)
}

/// The rows of k or v as TMA sees them: elements, tokens, heads, sequences or pages.
struct Described {
    dims: [u64; 4],
    strides: [u64; 3],
    box_dims: [u32; 4],
}

impl Described {
    fn new(op: &Attention, rows: &Rows) -> Self {
        // The stride of an axis with one index is never used, but has to be legal.
        let legal = |count, stride| if count == 1 { 8 } else { stride };
        let Strides { batch, token, head } = rows.strides;
        Self {
            dims: [op.head_dim, rows.tokens, rows.heads, rows.batch],
            strides: [legal(rows.tokens, token), legal(rows.heads, head), legal(rows.batch, batch)],
            box_dims: [PANEL as u32, box_tokens(op) as u32, box_heads(op) as u32, 1],
        }
    }

    fn layout(&self, dtype: DType) -> Layout<'_> {
        Layout { dtype, dims: &self.dims, strides: &self.strides, box_dims: &self.box_dims, swizzle: Swizzle::B128, promotion: Promotion::B128 }
    }
}

fn covers(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    sm80::covers(op, target)?;
    if op.form.is_sparse() {
        return Err("it does not run the block-sparse form".into());
    }
    if op.q_len == 0 || op.batch == 0 || op.kv_len == 0 {
        return Err("there is nothing to split".into());
    }
    if rows(op) > ROWS {
        return Err(format!("{} rows share keys: expected at most {ROWS}", rows(op)));
    }
    if !HEADS.contains(&op.head_dim) || op.q.head != op.head_dim {
        return Err(format!("head_dim {}: expected one of {HEADS:?}, and heads of q end to end", op.head_dim));
    }
    let (tokens, heads) = (box_tokens(op), box_heads(op));
    // A step of a window starts anywhere, and would end in another page.
    if matches!(op.form, Form::Paged(shape) if op.window.is_some() || !shape.page.is_multiple_of(tokens)) {
        return Err(format!("pages: expected multiples of {tokens} tokens, and no window"));
    }
    if !op.kv_heads.is_multiple_of(heads) {
        return Err(format!("{} heads of keys: {heads} heads of a page are a box", op.kv_heads));
    }
    let (items, units) = (op.batch * (op.kv_heads / heads), u64::from(target.units));
    let steps = items.saturating_mul(op.kv_len.div_ceil(tokens));
    if steps < LEAST_STEPS * units || items * MOST_PARTS < units {
        return Err(format!("{steps} steps of {items} sequences and heads: what is fixed in a launch decides on {units} multiprocessors"));
    }
    if steps > LONGEST {
        return Err(format!("it takes {steps} steps, and they are counted in 30 bits"));
    }
    let [q, k, v] = Rows::of(op);
    if !q.aligned(op.dtype) {
        return Err("rows of q do not lie multiples of 16 bytes apart".into());
    }
    let legal = |rows: &Rows| Described::new(op, rows).layout(op.dtype).validate();
    [k, v].iter().try_for_each(legal).map_err(|error: Error| error.to_string())
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let tile = Tile::of(op);
    let common: AttentionParams = parameters(op, args, op.heads / op.kv_heads);
    if !sm80::aligned(op, &common) {
        // SAFETY: the caller's promise; this module holds the kernel for rows that start anywhere too.
        return unsafe { sm80::launch_tile(queue, plan, sm80::Tile::exactly(op.head_dim), op, args, [common.q, common.k, common.v]) };
    }
    let [_, k, v] = Rows::of(op);
    let map = |rows: &Rows, start| Described::new(op, rows).layout(op.dtype).encode_at(start);
    let parts = address(workspace);
    let params = SplitBoxesParams {
        k: map(&k, common.k)?,
        v: map(&v, common.v)?,
        common,
        parts,
        arrivals: parts + parts_bytes(op, &plan.target),
        heads: box_heads(op) as u32,
        once: (kv_bytes(op) < MOST_ONCE).into(),
    };
    // It waits for the launch before, and reads nothing until then.
    let launch = Launch { shared_bytes: tile.shared_bytes(), overlap: true, ..Launch::new(plan.target.units, ((WARPS + 1) * 32) as u32) };
    // SAFETY: the caller's promise; the workspace is as large as the variant says, and its counters are zero.
    unsafe { plan.launch(queue, "attention_split_boxes", &launch, &params) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::index::PageShape;

    const TARGET: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10 };

    #[test]
    fn every_kernel_fits() {
        for tile in Tile::all() {
            assert!(u64::from(tile.shared_bytes()) <= ROOM && tile.slots() >= 3, "{tile:?}");
        }
        assert_eq!(Tile { head_dim: 128, rows: 8 }.slots(), 6);
    }

    #[test]
    fn long_caches_of_many_heads_are_taken() {
        let covered = |batch, heads, kv_len| covers(&Attention::dense(DType::F16, batch, heads, [1, kv_len], 128), &TARGET).is_ok();
        assert!(covered(16, [32, 32], 4096) && covered(16, [32, 8], 4096) && covered(64, [32, 8], 8192));
        assert!(!covered(1, [32, 32], 4096) && !covered(1, [32, 8], 32768) && !covered(64, [32, 1], 8192));
    }

    #[test]
    fn a_box_lies_in_one_page() {
        let heads = |page| {
            let shape = PageShape { batch: 64, pages: 8192 / page, page, pool_pages: 1 << 16 };
            let op = Attention::paged(DType::F16, shape, [32, 8], 1, 128);
            covers(&op, &TARGET).is_ok().then(|| box_heads(&op))
        };
        assert_eq!([heads(8), heads(16), heads(48), heads(64), heads(256)], [None, Some(8), Some(8), Some(2), Some(1)]);
    }
}
