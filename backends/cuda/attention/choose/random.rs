//! Random operations of all forms, for tests.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use crate::dtype::DType;
use crate::ops::Attention;
use crate::ops::attention::{Form, Strides};
use crate::ops::index::{BlockShape, MapShape, PageShape, VarlenShape};

fn pick<T: Copy>(rng: &mut ChaCha8Rng, all: &[T]) -> T {
    all[rng.random_range(0..all.len())]
}

/// A random length: few tokens, whole blocks, or any number.
fn tokens(rng: &mut ChaCha8Rng) -> u64 {
    match rng.random_range(0..4) {
        0 => pick(rng, &[1, 1, 1, 2, 4, 16]),
        1 => 128 * rng.random_range(1..=128),
        2 => rng.random_range(1..=600),
        _ => rng.random_range(1..=20_000),
    }
}

/// A random operation of any form. It may be invalid.
pub(super) fn random_op(rng: &mut ChaCha8Rng) -> Attention {
    let dtype = pick(rng, &[DType::F16, DType::BF16, DType::F16, DType::BF16, DType::F32]);
    let head_dim = if rng.random_bool(0.6) { pick(rng, &[32, 64, 80, 96, 112, 128, 128, 128, 192, 256]) } else { rng.random_range(1..=256) };
    let kv_heads = pick(rng, &[1, 2, 3, 4, 8, 16, 32]);
    let heads = [kv_heads * pick(rng, &[1, 1, 1, 2, 4, 8]), kv_heads];
    let batch = pick(rng, &[1, 1, 1, 2, 3, 4, 8, 16, 64, 300, 3000]);
    let q_len = tokens(rng);
    let kv_len = if rng.random_bool(0.5) { q_len } else { tokens(rng) };
    let dense = Attention::dense(dtype, batch, heads, [q_len, kv_len], head_dim);
    let mut op = match rng.random_range(0..6) {
        0 | 1 => strided(rng, dense),
        2 => {
            let (total_q, total_kv) = (rng.random_range(q_len..=q_len * batch), rng.random_range(kv_len..=kv_len * batch));
            Attention::varlen(dtype, VarlenShape { batch, total_q, total_kv, max_q: q_len, max_kv: kv_len }, heads, head_dim)
        }
        3 => {
            let page = pick(rng, &[1, 8, 16, 24, 32, 48, 64, 128, 256]);
            Attention::paged(dtype, PageShape { batch, pages: kv_len.div_ceil(page), page, pool_pages: 1 << 16 }, heads, q_len, head_dim)
        }
        lists => {
            let block = pick(rng, &[64, 128]);
            let [q_blocks, kv_blocks] = [q_len, kv_len].map(|tokens| tokens.div_ceil(u64::from(block)) as u32);
            let map = MapShape { block, q_blocks, kv_blocks, patterns: pick(rng, &[1, heads[0], heads[0] * batch]) as u32 };
            let capacity = (map.blocks() / pick(rng, &[1, 3, 10, 50])).clamp(1, 100_000_000) as u32;
            let listed = BlockShape { block, q_blocks, kv_blocks, patterns: map.patterns, capacity, masks: 0 };
            Attention { form: if lists == 4 { Form::Blocks(listed) } else { Form::BlockMap(map) }, ..dense }
        }
    };
    (op.causal, op.lse) = (rng.random_bool(0.4), rng.random_bool(0.2));
    op.window = rng.random_bool(0.15).then(|| rng.random_range(0..5000));
    if rng.random_bool(0.1) && !matches!(op.form, Form::Varlen(_) | Form::Paged(_)) {
        op.slots = Some(rng.random_range(1..=300));
    }
    if rng.random_bool(0.1) {
        op.scale = (-0.5).into();
    }
    op
}

/// The operation in other strides, now and then.
fn strided(rng: &mut ChaCha8Rng, mut op: Attention) -> Attention {
    if rng.random_bool(0.15) {
        op.o = Strides::bhsd(op.q_len, op.heads, op.head_dim);
    }
    if rng.random_bool(0.1) {
        (op.q.token, op.q.batch) = (op.q.token + 3, op.q.batch + 3 * op.q_len);
    }
    op
}
