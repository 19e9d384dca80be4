//! Parameters that every kernel of `attention` takes.

use crate::backends::cuda::variant::params::params;
use crate::backends::cuda::variant::{Cuda, address, address_of};
use crate::ops::attention::{AttentionIndex, Form};
use crate::ops::{Attention, AttentionArgs};

params! {
    /// Parameters of every kernel of `attention`. Sizes and strides are in elements.
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
        /// Elements of the LSE from one head to the next.
        lse_head: u64,
        /// Pages of a sequence and tokens of a page, where the form is paged.
        pages: u64,
        page: u64,
        /// The sliding window; negative for none.
        window: i64,
        scale: f32,
        head_dim: i32,
        form: u32,
        causal: u32,
        /// Heads whose rows are packed into one tile.
        pack: u32,
        /// Block size, where the form is block-sparse. With the next three it is the block mask's shape.
        block: u32,
        q_blocks: u32,
        patterns: u32,
        capacity: u32,
        /// Tiles of a head's rows, or of a group's rows where heads are packed.
        tiles: u32,
        /// Heads whose tiles neighbouring blocks take, where blocks are persistent.
        band: u32,
    }
}

/// The header with [`AttentionParams`], which the host writes for every kernel of `attention`.
pub(crate) fn headers() -> Vec<(&'static str, String)> {
    vec![("attention/params.cuh", AttentionParams::cuda())]
}

/// The parameters of a kernel; `pack` heads are rows of one tile.
pub(crate) fn parameters(op: &Attention, args: &AttentionArgs<Cuda>, pack: u64) -> AttentionParams {
    let index = match &args.index {
        AttentionIndex::None => 0,
        AttentionIndex::Varlen(index) => address(index.slice()),
        AttentionIndex::Blocks(index) => address(index.slice()),
        AttentionIndex::BlockMap(index) => address(index.slice()),
        AttentionIndex::Paged(index) => address(index.slice()),
        AttentionIndex::RaggedPaged(index) => address(index.slice()),
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
        // No sequence is that long, and sums with it stay in range.
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
        // A map has become lists before this.
        Form::Dense | Form::BlockMap(_) => {}
        Form::Varlen(shape) => (params.form, params.lse_head) = (1, shape.total_q),
        Form::Blocks(shape) => {
            params.form = 2;
            (params.block, params.q_blocks, params.patterns, params.capacity) = (shape.block, shape.q_blocks, shape.patterns, shape.capacity);
        }
        Form::Paged(shape) => (params.form, params.pages, params.page) = (3, shape.pages, shape.page),
        Form::RaggedPaged(shape) => {
            (params.form, params.pages, params.page) = (4, shape.pages, shape.page);
            // Spare queries are taken as sequences of that many.
            (params.q_len, params.lse_head) = (op.q_len.max(1), shape.total_q);
        }
    }
    params
}
