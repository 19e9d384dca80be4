use super::case::{Case, EDGES, OpKind, Posed, dtype_in_turn};
use super::draw::Draw;
use crate::oracle::attention::{Host, HostForm, key_rows, query_rows, span};
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::ops::attention::{Attention, Scale, Strides};

/// What the scores look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scores {
    /// Normal, of order one.
    Normal,
    /// Every one below zero.
    Negative,
    /// Every key the same.
    Equal,
    /// Around ±10,000, and exact in f32: with head_dim 64 they are multiples of 128, so that weights are 0 or tied.
    Huge,
}

/// Draws the operands of `op` with that index.
pub(super) fn pose(op: Attention, index: HostForm, scores: Scores, draw: &mut Draw) -> Posed<Attention> {
    let (queries, keys) = (query_rows(&op), key_rows(&op));
    let mut one_key: Option<Vec<f64>> = None;
    let q = tensor(op.q, queries, op.head_dim, || vector(&op, scores, 1.0, draw));
    let k = tensor(op.k, keys, op.head_dim, || match scores {
        Scores::Equal => one_key.get_or_insert_with(|| vector(&op, scores, 1.0, draw)).clone(),
        _ => vector(&op, scores, -1.0, draw),
    });
    let v = tensor(op.v, keys, op.head_dim, || draw.normal(op.dtype, op.head_dim, 1.0));
    Posed { op, host: Host { q, k, v, index, slots: None } }
}

/// A head of q or k. `sign` is that of a whole tensor, where scores have to be negative.
fn vector(op: &Attention, scores: Scores, sign: f64, draw: &mut Draw) -> Vec<f64> {
    match scores {
        Scores::Normal | Scores::Equal => draw.normal(op.dtype, op.head_dim, 1.0),
        Scores::Negative => draw.normal(op.dtype, op.head_dim, 1.0).into_iter().map(|value| sign * value.abs()).collect(),
        Scores::Huge => (0..op.head_dim).map(|_| [96.0, 128.0, -96.0, -128.0][draw.below(4) as usize]).collect(),
    }
}

/// A tensor laid out by `strides`, a vector for every sequence, token and head, NaN in the gaps.
fn tensor(strides: Strides, [batch, tokens, heads]: [u64; 3], head_dim: u64, mut vector: impl FnMut() -> Vec<f64>) -> Vec<f64> {
    let mut values = vec![f64::NAN; span(strides, [batch, tokens, heads], head_dim) as usize];
    for b in 0..batch {
        for (token, head) in (0..tokens).flat_map(|token| (0..heads).map(move |head| (token, head))) {
            let first = (b * strides.batch + token * strides.token + head * strides.head) as usize;
            values[first..first + head_dim as usize].copy_from_slice(&vector());
        }
    }
    values
}

/// A case whose index `index` draws.
pub(super) fn case_with(
    name: impl std::fmt::Display,
    op: Attention,
    scores: Scores,
    index: impl Fn(&Attention, &mut Draw) -> Result<HostForm> + Send + Sync + 'static,
) -> Case {
    Case::new(OpKind::Attention, format!("{name}_{}", op.dtype), move |draw| {
        let index = index(&op, draw)?;
        Ok(pose(op.clone(), index, scores, draw).into())
    })
}

fn case(name: impl std::fmt::Display, op: Attention) -> Case {
    case_with(name, op, Scores::Normal, |_, _| Ok(HostForm::None))
}

fn scored(name: &str, op: Attention, scores: Scores) -> Case {
    case_with(name, op, scores, |_, _| Ok(HostForm::None))
}

fn dense(dtype: DType, heads: [u64; 2], lengths: [u64; 2], head_dim: u64) -> Attention {
    Attention::dense(dtype, 1, heads, lengths, head_dim).with_lse(true)
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = lengths();
    cases.extend(masks());
    cases.extend(layouts());
    for (n, head_dim) in [1, 7, 16, 40, 64, 80, 107, 127, 128, 129, 255, 256].into_iter().enumerate() {
        cases.push(case(format!("head_dim{head_dim}"), dense(dtype_in_turn(n), [2, 2], [19, 37], head_dim)));
        cases.push(case(format!("head_dim{head_dim}_causal"), dense(dtype_in_turn(n + 1), [2, 1], [37, 37], head_dim).with_causal(true)));
    }
    for dtype in DType::ALL {
        let op = dense(dtype, [2, 2], [33, 70], 64);
        cases.push(scored("scores_all_negative", op.clone(), Scores::Negative));
        cases.push(scored("scores_all_equal", op.clone(), Scores::Equal));
        cases.push(scored("scores_1e4", op.clone(), Scores::Huge));
        cases.push(scored("scores_1e4_causal", op.clone().with_causal(true), Scores::Huge));
        cases.push(case("one_key", dense(dtype, [3, 3], [5, 1], 48)));
        cases.push(case("no_lse", op.clone().with_lse(false)));
        cases.push(case("scale_given", op.with_scale(Scale::from(0.25))));
    }
    cases
}

fn lengths() -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, edge) in EDGES.into_iter().enumerate() {
        cases.push(case(format!("q{edge}"), dense(dtype_in_turn(n), [2, 2], [edge, 40], 32)));
        cases.push(case(format!("kv{edge}"), dense(dtype_in_turn(n + 1), [2, 1], [9, edge], 40)));
        cases.push(case(format!("causal{edge}"), dense(dtype_in_turn(n + 2), [1, 1], [edge, edge], 24).with_causal(true)));
    }
    cases.push(case("kv4096", dense(DType::F16, [4, 1], [1, 4096], 64)));
    cases.push(case("kv4096_q3_causal", dense(DType::BF16, [4, 1], [3, 4096], 64).with_causal(true)));
    cases.push(case("q4096", dense(DType::F16, [1, 1], [4096, 33], 16)));
    cases.push(case("no_queries", dense(DType::F16, [2, 2], [0, 16], 32)).zero("zero queries: nothing is written"));
    cases.push(case("no_sequences", Attention::dense(DType::F16, 0, [2, 2], [8, 16], 32)).zero("zero sequences: nothing is written"));
    cases.push(case("no_keys", dense(DType::F16, [2, 2], [8, 0], 32)).zero("zero keys: every row is empty"));
    cases
}

fn masks() -> Vec<Case> {
    let mut cases = Vec::new();
    let causal = |op: Attention| op.with_causal(true);
    for dtype in DType::ALL {
        cases.push(case("causal_q_shorter", causal(dense(dtype, [2, 1], [29, 93], 48))));
        // Queries before the first key see nothing at all.
        cases.push(case("causal_q_longer", causal(dense(dtype, [2, 1], [93, 29], 48))));
        cases.push(case("window16", dense(dtype, [2, 1], [77, 77], 32).with_window(Some(16))));
        cases.push(case("window16_causal", causal(dense(dtype, [2, 1], [77, 101], 32)).with_window(Some(16))));
    }
    // Several tiles of a head: each group of a tile may have rows from another end of it, and queries before the first key fill one.
    cases.push(case("causal_tiles_d128", causal(dense(DType::F16, [3, 1], [330, 330], 128))));
    cases.push(case("causal_tiles_q_shorter_d96", causal(dense(DType::BF16, [2, 2], [150, 290], 96))));
    cases.push(case("causal_tiles_q_longer_d64", causal(dense(DType::F16, [2, 1], [400, 210], 64))));
    cases.push(case("window0_causal", causal(dense(DType::F16, [1, 1], [40, 40], 32)).with_window(Some(0))));
    cases.push(case("window_wider_than_all", dense(DType::F16, [1, 1], [40, 55], 32).with_window(Some(u64::MAX))));
    cases.push(case("window200_long", causal(dense(DType::F16, [1, 1], [257, 511], 32)).with_window(Some(200))));
    cases
}

fn layouts() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        cases.push(case("gqa_64_to_8", dense(dtype, [64, 8], [3, 65], 32)));
        cases.push(case("gqa_ragged_kv129", dense(dtype, [6, 2], [31, 129], 64).with_causal(true)));
        cases.push(case("mqa_batch3", Attention::dense(dtype, 3, [4, 1], [17, 33], 40).with_lse(true)));
        let heads_first = Strides::bhsd(21, 3, 56);
        let keys_first = Strides::bhsd(45, 3, 56);
        let op = Attention::dense(dtype, 2, [3, 3], [21, 45], 56).with_lse(true);
        cases.push(case("heads_first", op.with_q(heads_first).with_k(keys_first).with_v(keys_first).with_o(heads_first)));
    }
    // Query, key and value as one row of a projection, with slack: 2 + 1 + 1 heads of 33 elements in rows of 150.
    let packed = Strides { batch: 150 * 26, token: 150, head: 33 };
    let output = Strides { batch: 26 * 80 + 9, token: 80, head: 35 };
    let op = Attention::dense(DType::F16, 2, [2, 1], [26, 26], 33).with_lse(true);
    cases.push(case("strided_with_gaps", op.clone().with_q(packed).with_k(packed).with_v(packed).with_o(output)));
    // Values lie in another order than keys.
    let apart = Strides { batch: 150 * 29, token: 145, head: 47 };
    cases.push(case("strided_values_apart", dense(DType::F16, [4, 2], [26, 26], 33).with_k(packed).with_v(apart)));
    cases.push(case("strided_with_gaps_causal", op.with_dtype(DType::BF16).with_causal(true).with_q(packed).with_k(packed).with_v(packed).with_o(output)));
    cases
}
