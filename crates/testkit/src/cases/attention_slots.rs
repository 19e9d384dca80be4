//! Attention of sequences that lie at slots: in any order, some more than once, others not at all.

use super::attention::{Scores, pose};
use super::attention_forms::{ALL, FULL, RowLengths, listed_blocks, map_index};
use super::case::{Case, OpKind};
use super::draw::Draw;
use crate::oracle::attention::HostForm;
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::ops::attention::{Attention, Form, Strides};
use trifuse::ops::index::{BlockKind, BlockMap, BlockShape, MapShape, Slots};

/// The slots of a batch, and how many there are.
#[derive(Clone, Copy)]
struct At(&'static [i32], u32);

/// A case of `op`, whose batch is that of the slots. Slots that no sequence has hold NaN.
fn case(name: &str, op: Attention, At(slots, room): At, index: impl Fn(&Attention, &mut Draw) -> Result<HostForm> + Send + Sync + 'static) -> Case {
    let op = op.with_slots(room).with_lse(true);
    Case::new(OpKind::Attention, format!("slots_{name}_{}", op.dtype), move |draw| {
        let index = index(&op, draw)?;
        let mut posed = pose(op.clone(), index, Scores::Normal, draw);
        let host = &mut posed.host;
        for slot in (0..room).filter(|slot| !slots.contains(&(*slot as i32))) {
            for (values, strides) in [(&mut host.q, op.q), (&mut host.k, op.k), (&mut host.v, op.v)] {
                let end = values.len();
                let at = |slot: u32| end.min((u64::from(slot) * strides.batch) as usize);
                values[at(slot)..at(slot + 1)].fill(f64::NAN);
            }
        }
        host.slots = Some(Slots::new(slots, room)?);
        Ok(posed.into())
    })
}

/// Dense attention of sequences at those slots.
fn dense(dtype: DType, at: At, heads: [u64; 2], lengths: [u64; 2], head_dim: u64) -> Attention {
    Attention::dense(dtype, at.0.len() as u64, heads, lengths, head_dim)
}

/// Patterns of blocks.
#[derive(Clone, Copy)]
enum Patterns {
    One,
    PerHead,
    PerSequence,
}

/// The sizes of a map for `op`.
fn map_shape(op: &Attention, block: u32, patterns: Patterns) -> MapShape {
    let [q_blocks, kv_blocks] = [op.q_len, op.kv_len].map(|length| length.div_ceil(u64::from(block)) as u32);
    let patterns = match patterns {
        Patterns::One => 1,
        Patterns::PerHead => op.heads as u32,
        Patterns::PerSequence => (op.batch * op.heads) as u32,
    };
    MapShape { block, q_blocks, kv_blocks, patterns }
}

fn mapped(name: &str, op: Attention, at: At, block: u32, patterns: Patterns) -> Case {
    let shape = map_shape(&op, block, patterns);
    case(name, op.with_form(Form::BlockMap(shape)), at, move |_, draw| map_index(shape, draw))
}

fn listed(name: &str, op: Attention, at: At, block: u32, patterns: Patterns, kinds: &'static [BlockKind]) -> Case {
    let MapShape { block, q_blocks, kv_blocks, patterns } = map_shape(&op, block, patterns);
    let shape = BlockShape { block, q_blocks, kv_blocks, patterns, capacity: patterns * q_blocks * kv_blocks + 3, masks: 3 };
    case(name, op.with_form(Form::Blocks(shape)), at, move |_, draw| {
        listed_blocks(shape, kinds, draw, |draw, place| RowLengths::Half.there(draw, &shape, place))
    })
}

const SOME: At = At(&[4, 0, 4], 5);
const MORE: At = At(&[2, 0, 1, 2], 3);
const MANY: At = At(&[7, 0, 3, 3, 6, 1, 2, 7, 5, 0, 1, 1, 6, 3, 2, 0, 5, 7, 6, 3, 2, 2, 1, 0, 7, 6, 5, 3, 2, 1, 0, 7, 5, 5, 3, 0, 6, 2, 1, 7, 3, 5, 0, 2], 8);

pub(super) fn cases() -> Vec<Case> {
    let none = |_: &Attention, _: &mut Draw| Ok(HostForm::None);
    let (f16, bf16) = (DType::F16, DType::BF16);
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        cases.push(case("dense", dense(dtype, SOME, [4, 2], [33, 70], 64), SOME, none));
        cases.push(mapped("block_map", dense(dtype, SOME, [2, 1], [200, 200], 48), SOME, 64, Patterns::PerSequence));
        cases.push(listed("blocks_all_kinds", dense(dtype, MORE, [2, 1], [150, 257], 32), MORE, 64, Patterns::PerHead, ALL));
    }
    for dtype in [f16, bf16] {
        // What a server asks for: a head, and a map for each sequence.
        cases.push(mapped("block_map128", dense(dtype, MORE, [1, 1], [300, 300], 64), MORE, 128, Patterns::PerSequence));
        cases.push(mapped("block_map128_gqa_causal", dense(dtype, SOME, [4, 2], [290, 390], 128).with_causal(true), SOME, 128, Patterns::PerSequence));
        cases.push(listed("blocks128_all_kinds", dense(dtype, MORE, [2, 2], [300, 430], 80), MORE, 128, Patterns::PerSequence, ALL));
        cases.push(mapped("block_map128_d32", dense(dtype, SOME, [1, 1], [130, 140], 32), SOME, 128, Patterns::PerSequence));
        // More tiles than a large GPU takes at once.
        cases.push(mapped("block_map128_many", dense(dtype, MANY, [2, 1], [300, 300], 40), MANY, 128, Patterns::PerSequence));
        // Few tiles, each of which several blocks of a GPU share.
        cases.push(listed("blocks128_long", dense(dtype, At(&[1], 2), [2, 2], [300, 2100], 64), At(&[1], 2), 128, Patterns::One, FULL));
        cases.push(case("many_queries_d128", dense(dtype, SOME, [2, 2], [130, 200], 128), SOME, none));
    }
    cases.push(case("causal_window_d96", dense(f16, SOME, [2, 1], [150, 290], 96).with_causal(true).with_window(Some(60)), SOME, none));
    cases.push(case("one_query", dense(f16, MORE, [8, 2], [1, 700], 64), MORE, none));
    cases.push(listed(
        "blocks128_window_causal",
        dense(f16, SOME, [2, 2], [300, 300], 32).with_causal(true).with_window(Some(50)),
        SOME,
        128,
        Patterns::One,
        FULL,
    ));
    // Rows that do not start on multiples of 16 bytes, and slots with room behind their rows.
    cases.push(mapped("block_map128_d107", dense(f16, SOME, [3, 1], [150, 257], 107), SOME, 128, Patterns::PerSequence));
    let apart = |rows: u64, heads: u64| Strides { batch: rows * heads * 72 + 136, token: heads * 72, head: 72 };
    let spaced = |op: Attention| {
        let (q, k) = (apart(op.q_len, op.heads), apart(op.kv_len, op.kv_heads));
        op.with_q(q).with_k(k).with_v(k)
    };
    cases.push(case("spaced", spaced(dense(bf16, SOME, [2, 1], [70, 130], 64)), SOME, none));
    cases.push(mapped("spaced_block_map128", spaced(dense(f16, MORE, [2, 1], [300, 300], 64)), MORE, 128, Patterns::PerSequence));
    let heads_first = |op: Attention| {
        let (q, k) = (Strides::bhsd(op.q_len, op.heads, op.head_dim), Strides::bhsd(op.kv_len, op.kv_heads, op.head_dim));
        op.with_q(q).with_o(q).with_k(k).with_v(k)
    };
    cases.push(case("heads_first", heads_first(dense(DType::F32, SOME, [3, 3], [21, 45], 56)), SOME, none));
    cases.push(mapped("heads_first_block_map128", heads_first(dense(f16, SOME, [2, 2], [257, 257], 64)), SOME, 128, Patterns::PerHead));
    cases.push(case("no_sequences", dense(f16, At(&[], 2), [2, 2], [8, 16], 32), At(&[], 2), none).zero("zero sequences: nothing is written"));
    cases.push(tokens_8064());
    cases
}

/// Sets as they are resident on a server, with the blocks of a diagonal, and a column for each sequence.
fn tokens_8064() -> Case {
    const AT: At = At(&[2, 0], 3);
    let op = dense(DType::F16, AT, [1, 1], [8064, 8064], 64);
    let shape = map_shape(&op, 128, Patterns::PerSequence);
    case("block_map128_8064_tokens", op.with_form(Form::BlockMap(shape)), AT, move |_, _| {
        let place = |at: u64| {
            let (column, row) = (at % u64::from(shape.kv_blocks), at / u64::from(shape.kv_blocks));
            let (row, pattern) = (row % u64::from(shape.q_blocks), row / u64::from(shape.q_blocks));
            u8::from(column == row || column == 11 + 17 * pattern)
        };
        let bytes: Vec<u8> = (0..shape.blocks()).map(place).collect();
        Ok(HostForm::BlockMap(BlockMap::new(&bytes, shape)?))
    })
}
