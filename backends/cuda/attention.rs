//! `attention` on CUDA.

use super::attention_simt_tile::{self as simt_tile, HELD, ROWS, THREADS, held, numbers};
use super::jit::{Arch, Unit, source};
use super::kernel::{Launch, Plan, RunsOn, Table, TensorCores, Variant, address, address_of, blocks, names};
use super::params::params;
use super::{
    Cuda, Queue, attention_lists as lists, attention_short, attention_sm80, attention_sm90, attention_sm90_parts, attention_sm90_quartet,
    attention_sm90_ragged, attention_sm90_rotated, attention_sm90_steps, attention_split, attention_split_boxes,
};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attention::{AttentionIndex, Form};
use crate::ops::{Attention, AttentionArgs};

impl Table for Attention {
    const VARIANTS: &'static [Variant<Self>] = &VARIANTS;
    const NAMES: &'static [&'static str] = &names::<Self, { VARIANTS.len() }>(&VARIANTS);
}

const VARIANTS: [Variant<Attention>; 12] = [
    // The block-sparse form alone.
    attention_sm90_parts::VARIANT,
    // Rows that do not start on multiples of 16 bytes.
    attention_sm90_rotated::VARIANT,
    attention_sm90_quartet::VARIANT,
    attention_sm90_steps::VARIANT,
    attention_sm90::VARIANT,
    attention_short::VARIANT,
    attention_split_boxes::VARIANT,
    attention_split::VARIANT,
    // Sequences of their own lengths, of many queries.
    attention_sm90_ragged::AHEAD,
    attention_sm90_ragged::VARIANT,
    attention_sm80::VARIANT,
    SIMT,
];

const SIMT: Variant<Attention> = Variant {
    name: "simt",
    label: "attention/simt",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::Without("it serves f32 and every stride; the tensor cores round f32 to 11 bits"),
    covers: |_, _| Ok(()),
    unit: |op, _| unit(op.dtype, held(op.head_dim)),
    units: |_: Arch| DType::ALL.iter().flat_map(|&dtype| HELD.map(|head_dim| unit(dtype, head_dim))).collect(),
    workspace: |op, _| lists::workspace(op, |_| 0),
    launch,
};

params! {
    /// Sizes and strides in elements.
    AttentionParams {
        q: [const element],
        k: [const element],
        v: [const element],
        o: [element],
        lse: [f32],
        /// The words of the form's index.
        index: [const i32],
        batch: u64,
        heads: u64,
        kv_heads: u64,
        q_len: u64,
        kv_len: u64,
        q_batch: u64,
        q_token: u64,
        q_head: u64,
        k_batch: u64,
        k_token: u64,
        k_head: u64,
        v_batch: u64,
        v_token: u64,
        v_head: u64,
        o_batch: u64,
        o_token: u64,
        o_head: u64,
        /// Elements of the LSE from a head to the next.
        lse_head: u64,
        /// Paged: pages a sequence, tokens a page.
        pages: u64,
        page: u64,
        /// Negative for none.
        window: i64,
        scale: f32,
        head_dim: i32,
        form: u32,
        causal: u32,
        /// Heads that are rows of one tile.
        pack: u32,
        /// Block-sparse: as in the block mask's shape.
        block: u32,
        q_blocks: u32,
        patterns: u32,
        capacity: u32,
        /// Tiles of a head's rows (of the group's, where heads are packed).
        tiles: u32,
        /// Heads whose tiles are taken together, where blocks take tile after tile.
        band: u32,
    }
}

fn shared_bytes(held: u64) -> u32 {
    (numbers(held) * 4) as u32
}

fn unit(dtype: DType, held: u64) -> Unit {
    let mut headers = headers();
    headers.extend(lists::headers());
    headers.push(simt_tile::header());
    Unit {
        name: format!("attention/simt {dtype} head_dim {held}"),
        source: source!("attention/simt.cu"),
        headers,
        defines: vec![("ELEMENT", dtype.name().into()), ("HEAD_DIM_MAX", held.to_string()), ("SHARED_BYTES", shared_bytes(held).to_string())],
        entries: &["attention_simt", lists::ENTRY],
        shared_bytes: shared_bytes(held),
        also: Vec::new(),
    }
}

/// What the kernels of this operation share.
pub(crate) fn headers() -> Vec<(&'static str, String)> {
    let mut headers: Vec<_> = SHARED.iter().map(|&(name, text)| (name, text.to_owned())).collect();
    headers.push(("attention/params.cuh", AttentionParams::cuda()));
    headers
}

const SHARED: [(&str, &str); 8] = [
    ("attention/sequence.cuh", include_str!("../../kernels/attention/sequence.cuh")),
    ("attention/partial.cuh", include_str!("../../kernels/attention/partial.cuh")),
    ("attention/columns.cuh", include_str!("../../kernels/attention/columns.cuh")),
    ("attention/narrow.cuh", include_str!("../../kernels/attention/narrow.cuh")),
    ("attention/walk.cuh", include_str!("../../kernels/attention/walk.cuh")),
    ("attention/sm80_copies.cuh", include_str!("../../kernels/attention/sm80_copies.cuh")),
    ("attention/sm80_products.cuh", include_str!("../../kernels/attention/sm80_products.cuh")),
    ("attention/sm80.cuh", include_str!("../../kernels/attention/sm80.cuh")),
];

/// Heads that are rows of one tile: those that share keys, unless each has a pattern of its own.
fn pack(op: &Attention) -> u64 {
    match op.form {
        Form::Blocks(shape) if shape.patterns != 1 => 1,
        _ => op.heads / op.kv_heads,
    }
}

/// What every kernel takes; `pack` heads are rows of one tile.
pub(crate) fn parameters(op: &Attention, args: &AttentionArgs<Cuda>, pack: u64) -> AttentionParams {
    let index = match &args.index {
        AttentionIndex::None => 0,
        AttentionIndex::Varlen(index) => address(index.slice()),
        AttentionIndex::Blocks(index) => address(index.slice()),
        AttentionIndex::BlockMap(index) => address(index.slice()),
        AttentionIndex::Paged(index) => address(index.slice()),
    };
    let mut params = AttentionParams {
        q: address(&args.q),
        k: address(&args.k),
        v: address(&args.v),
        o: address(&args.o),
        lse: address_of(args.lse.as_ref()),
        index,
        batch: op.batch,
        heads: op.heads,
        kv_heads: op.kv_heads,
        q_len: op.q_len,
        kv_len: op.kv_len,
        q_batch: op.q.batch,
        q_token: op.q.token,
        q_head: op.q.head,
        k_batch: op.k.batch,
        k_token: op.k.token,
        k_head: op.k.head,
        v_batch: op.v.batch,
        v_token: op.v.token,
        v_head: op.v.head,
        o_batch: op.o.batch,
        o_token: op.o.token,
        o_head: op.o.head,
        lse_head: op.q_len,
        pages: 0,
        page: 1,
        // No sequence is as long as that, and sums with it stay in range.
        window: op.window.map_or(-1, |window| window.min(1 << 60) as i64),
        scale: op.scale_value(),
        head_dim: op.head_dim as i32,
        form: 0,
        causal: u32::from(op.causal),
        pack: pack as u32,
        block: 1,
        q_blocks: 0,
        patterns: 1,
        capacity: 0,
        tiles: 0,
        band: 1,
    };
    match op.form {
        // A map has become lists before it comes here.
        Form::Dense | Form::BlockMap(_) => {}
        Form::Varlen(shape) => (params.form, params.lse_head) = (1, shape.total_q),
        Form::Blocks(shape) => {
            params.form = 2;
            (params.block, params.q_blocks, params.patterns, params.capacity) = (shape.block, shape.q_blocks, shape.patterns, shape.capacity);
        }
        Form::Paged(shape) => (params.form, params.pages, params.page) = (3, shape.pages, shape.page),
    }
    params
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, workspace: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { lists::launch(queue, plan, workspace, args, launch_listed) }
}

unsafe fn launch_listed(queue: &mut Queue, plan: &Plan<Attention>, op: &Attention, _: &Slice<Cuda>, args: &AttentionArgs<Cuda>) -> Result<()> {
    let pack = pack(op);
    let work = op.batch * (op.heads / pack) * (op.q_len * pack).div_ceil(ROWS);
    let launch = Launch { shared_bytes: shared_bytes(held(op.head_dim)), ..Launch::new(blocks(work), THREADS) };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, "attention_simt", &launch, &parameters(op, args, pack)) }
}
