//! Flash-decoding on sm90: `attention` of few queries over long caches, with keys loaded as TMA boxes.

use crate::backends::cuda::attention::choose;
use crate::backends::cuda::attention::early::early;
use crate::backends::cuda::attention::params::{AttentionParams, headers, parameters};
use crate::backends::cuda::attention::repack::{Rows, in_order};
use crate::backends::cuda::attention::sm80::tile::{self as sm80, key_rows};
use crate::backends::cuda::attention::sm80::unaligned;
use crate::backends::cuda::attention::sm90::decode_tile::{Config, HEADS, KEYS, LEAST_KEYS, PANEL, ROWS, Share, Tile, alike};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::pdl::starts_early;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::tensor_map::{Layout, Promotion, Swizzle};
use crate::backends::cuda::variant::{Configs, Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant, address, number, range};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::attention::{Form, Strides};
use crate::ops::{Attention, AttentionArgs};

pub(crate) const VARIANT: Variant<Attention> = Variant {
    name: "sm90_decode",
    label: "attention/sm90_decode",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HMMA"),
    supports,
    suits: choose::decode_boxes,
    configs: Some(Configs {
        names: |_| Config::ALL.map(Config::name).into(),
        choose: |op, target| number(Config::ALL.into_iter(), &choose::decode_boxes_config(op, target)),
    }),
    unit: |op, target| unit(config(op, target).tile(op), op.dtype),
    units: |_: Arch| Tile::all().flat_map(|tile| [DType::F16, DType::BF16].map(|dtype| unit(tile, dtype))).collect(),
    workspace: |op, target| published_bytes(op, config(op, target), target),
    launch,
};

/// The configuration that the target forces, or the fastest one.
fn config(op: &Attention, target: &Target) -> Config {
    target.configured(Config::ALL.into_iter()).unwrap_or_else(|| choose::decode_boxes_config(op, target))
}

params! {
    /// Parameters of the decode kernels: tensor maps of k and v, the common parameters, and the workspace.
    DecodeParams {
        k: map,
        v: map,
        common: AttentionParams,
        /// What each block publishes for the block that joins an item. All zero between launches.
        parts: [f32],
        /// Heads of a box.
        heads: u32,
        /// Whether k and v are evict-first in L2.
        once: u32,
        /// Whether the kernel reads keys before the PDL wait.
        early: u32,
        /// With `early`, how many of the last positions of each sequence are read after the wait; then whether q is.
        late: u32,
        late_q: u32,
        /// Shares of a launch over sequences of one length, with which the first keys are requested before the device has counted. They
        /// are: items that are cut among all blocks, whole items of each block, k-blocks of an item, and k-blocks of a stretch of cut
        /// items.
        cut_items: u32,
        whole: u32,
        steps: u32,
        each: u32,
    }
}

/// Up to this many bytes, k and v are evict-first in L2, so that what others wrote there need not be written back meanwhile. More bytes
/// cause that write-back in any case, and are read faster with the normal policy.
const MOST_ONCE: u64 = 512 << 20;

const ENTRY: &str = "attention_sm90_decode";

fn unit(tile: Tile, dtype: DType) -> Unit {
    let mut defines = sm80::Tile::exactly(tile.head_dim).defines(dtype, Arch(90));
    let shape = [("BOX_WARPS", tile.warps), ("BOX_RESIDENT", 8 / tile.warps), ("BOX_SLOTS", tile.slots()), ("BOX_MOST_ROWS", tile.rows)];
    for (name, value) in shape.into_iter().chain([("BOX_SHARED_BYTES", tile.shared_bytes().into())]) {
        defines.push((name, value.to_string()));
    }
    Unit {
        headers: [headers(), vec![("attention/decode_boxes_params.cuh", DecodeParams::cuda())]].concat(),
        defines,
        entries: &[ENTRY],
        shared_bytes: tile.shared_bytes(),
        also: vec![unaligned::unit(tile.head_dim, dtype)],
        ..Unit::new(
            format!("attention/sm90_decode {dtype} head_dim {} rows {} warps {}", tile.head_dim, tile.rows, tile.warps),
            source!("attention/sm90/decode.cu"),
        )
    }
}

/// Keys of a sequence that some row sees, where all sequences have one length.
fn seen(op: &Attention) -> u64 {
    op.kv_len - op.window.map_or(0, |window| op.kv_len.saturating_sub(op.q_len).saturating_sub(window))
}

/// The most bytes of k and v together.
fn kv_bytes(op: &Attention) -> u64 {
    [op.batch, op.kv_heads, op.kv_len, op.head_dim].into_iter().fold(4, u64::saturating_mul)
}

/// Bytes of what blocks publish: eight numbers for four columns of a row.
fn published_bytes(op: &Attention, config: Config, target: &Target) -> u64 {
    u64::from(target.units) * config.heads * key_rows(op) * (op.head_dim.next_multiple_of(16) / 4) * 32
}

/// The rows of k or v as TMA sees them: elements, tokens, heads, sequences or pages.
struct Described {
    dims: [u64; 4],
    strides: [u64; 3],
    box_dims: [u32; 4],
}

impl Described {
    fn new(op: &Attention, rows: &Rows, tokens: u64, heads: u64) -> Self {
        // The stride of an axis with one index is never used, but has to be legal.
        let legal = |count, stride| if count == 1 { 8 } else { stride };
        let Strides { batch, token, head } = rows.strides;
        Self {
            dims: [op.head_dim, rows.tokens, rows.heads, rows.batch],
            strides: [legal(rows.tokens, token), legal(rows.heads, head), legal(rows.batch, batch)],
            box_dims: [PANEL as u32, tokens as u32, heads as u32, 1],
        }
    }

    fn layout(&self, dtype: DType) -> Layout<'_> {
        Layout { dtype, dims: &self.dims, strides: &self.strides, box_dims: &self.box_dims, swizzle: Swizzle::B128, promotion: Promotion::B128 }
    }
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
    if key_rows(op) > ROWS {
        return Err(format!("{} rows share keys: expected at most {ROWS}", key_rows(op)));
    }
    if !HEADS.contains(&op.head_dim) || op.q.head != op.head_dim {
        return Err(format!("head_dim {}: expected one of {HEADS:?}, and heads of q end to end", op.head_dim));
    }
    match target.configured(Config::ALL.into_iter()) {
        Some(config) => config.can_take(op)?,
        // Any configuration will do.
        None => Config::ALL.into_iter().map(|config| config.can_take(op)).reduce(Result::or).unwrap_or(Ok(()))?,
    }
    let [q, k, v] = Rows::of(op);
    if !q.aligned(op.dtype) {
        return Err("rows of q do not lie multiples of 16 bytes apart".into());
    }
    // The boxes of all configurations are equally legal.
    let legal = |rows: &Rows| Described::new(op, rows, KEYS, 1).layout(op.dtype).validate();
    [k, v].iter().try_for_each(legal).map_err(|error: Error| error.to_string())
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let op = &plan.op;
    let config = config(op, &plan.target);
    let tile = config.tile(op);
    let common: AttentionParams = parameters(op, args, op.heads / op.kv_heads);
    if !sm80::aligned(op, &common) {
        // SAFETY: the caller's promise; the plan has the kernel for rows that start anywhere too.
        return unsafe { unaligned::launch(queue, plan, op.head_dim, op, args, [common.q, common.k, common.v]) };
    }
    // Overlapping launches gains where each is short.
    let mut open = queue.take_open();
    let late = open.late(&early(op, args));
    let late = late.filter(|late| *late < op.kv_len).and_then(|late| u32::try_from(late).ok());
    let late_q = !starts_early(&open, &[range(&args.q)]);
    if late.is_none() {
        open.clear();
    }
    open.extend([Some(&args.o), args.lse.as_ref(), Some(workspace)].into_iter().flatten().map(range));
    let [_, k, v] = Rows::of(op);
    let Share { heads, items, blocks } = config.share(op, plan.target.units);
    let tokens = config.tokens();
    let map = |rows: &Rows, start| Described::new(op, rows, tokens, heads).layout(op.dtype).encode_at(start);
    let (whole, cut_items) = if alike(op) { (items / blocks, items % blocks) } else { (0, 0) };
    let steps = seen(op).div_ceil(tokens);
    let params = DecodeParams {
        k: map(&k, common.k)?,
        v: map(&v, common.v)?,
        common,
        parts: address(workspace),
        heads: heads as u32,
        once: (kv_bytes(op) < MOST_ONCE).into(),
        early: late.is_some().into(),
        late: late.unwrap_or(0),
        late_q: late_q.into(),
        cut_items: cut_items as u32,
        whole: whole as u32,
        steps: steps as u32,
        each: (cut_items * steps).div_ceil(blocks).max(LEAST_KEYS / (tile.warps * KEYS)) as u32,
    };
    plan.most_shared(ENTRY)?;
    let launch = Launch { shared_bytes: tile.shared_bytes(), overlap: true, ..Launch::new(blocks as u32, ((tile.warps + 1) * 32) as u32) };
    // SAFETY: the caller's promise; the workspace is as large as the variant says, and zero; launches in flight write nothing that this one
    // reads before its PDL wait.
    unsafe { plan.launch(queue, ENTRY, &launch, &params)? };
    queue.leave_open(open);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::cuda::attention::sm90::decode_tile::{HALF, ROOM};

    #[test]
    fn every_kernel_fits() {
        for tile in Tile::all() {
            let room = if tile.warps == 8 { ROOM } else { HALF };
            assert!(u64::from(tile.shared_bytes()) <= room && tile.slots() >= 3, "{tile:?}");
        }
        assert_eq!([1, 5, 16].map(|rows| Tile::new(128, rows, 4).slots()), [6, 5, 4]);
        assert_eq!(Tile::new(128, 1, 8).slots(), 6);
    }
}
