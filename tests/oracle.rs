//! The oracle where case files do not reach: identities between operations, and answers worked out by hand.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use trifuse::DType;
use trifuse::ops::attention::{Attention, Form, Strides};
use trifuse::ops::checksum::checksum;
use trifuse::ops::index::{BlockKind, BlockMask, BlockShape, HostIndex, PageShape, PageTable, TokenAdapters, Varlen};
use trifuse::ops::pointwise::{Kind, Pointwise, Turn};
use trifuse_testkit::cases::{Posed, Problem, all};
use trifuse_testkit::oracle::attention::{Host, HostForm};
use trifuse_testkit::oracle::codebook_gemm::FactorHost;
use trifuse_testkit::oracle::{Define, Exact, pointwise};

fn problem(name: &str) -> Problem {
    all().into_iter().find(|case| case.name() == name).unwrap_or_else(|| panic!("no case {name}")).problem().unwrap()
}

/// The first output, all of it written.
fn first<O: Define>(op: &O, host: &O::Host) -> Vec<f64> {
    op.evaluate(host, Exact).unwrap()[0].elements.iter().map(|value| value.unwrap()).collect()
}

fn assert_close(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    for (index, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() < 1e-12, "element {index}: {a} and {b}");
    }
}

#[test]
fn a_delta_is_the_codebook_gemm_of_the_same_x() {
    let Problem::Linear(Posed { op, host }) = problem("linear/delta_rank16_f32") else { panic!() };
    let mut delta = host.delta.clone().unwrap();
    delta.x.clone_from(&host.x);
    delta.slices[0].y = vec![0.0; (op.tokens * op.d_out) as usize];
    let alone = first(&op.delta.clone().unwrap().with_accumulate(false), &delta);
    let base = first(&op.clone().with_delta(None), &trifuse_testkit::oracle::linear::Host { delta: None, ..host.clone() });
    let sum: Vec<f64> = alone.iter().zip(&base).map(|(a, b)| a + b).collect();
    assert_close(&first(&op, &host), &sum);
}

#[test]
fn an_overwriting_gemm_with_one_dense_factor_a_side_is_three_matrix_products() {
    let Problem::CodebookGemm(Posed { op, host }) = problem("codebook_gemm/clusters_then_clusters_f16") else { panic!() };
    let op = op.with_accumulate(false);
    let (d_in, d_out, rank) = (op.d_in as usize, op.slices[0].d_out as usize, op.slices[0].rank as usize);
    let dense = |factor: &FactorHost| match factor {
        FactorHost::Dense { values, basis_of } => (values.clone(), basis_of.clone().unwrap()),
        FactorHost::Coded { .. } => panic!(),
    };
    let ((input, input_of), (output, output_of)) = (dense(&host.slices[0].input), dense(&host.slices[0].output));
    let found = first(&op, &host);
    for (t, &adapter) in host.token_adapter.ids().iter().enumerate() {
        for o in 0..d_out {
            let expected = usize::try_from(adapter).map_or(0.0, |a| {
                let (i, w) = (&input[input_of.basis()[a] as usize * d_in * rank..], &output[output_of.basis()[a] as usize * d_out * rank..]);
                let weight = |c: usize| (0..rank).map(|j| i[c * rank + j] * w[o * rank + j]).sum::<f64>();
                host.scaling[a] * (0..d_in).map(|c| host.x[t * d_in + c] * weight(c)).sum::<f64>()
            });
            assert!((found[t * d_out + o] - expected).abs() < 1e-12, "token {t}, column {o}");
        }
    }
}

#[test]
fn grouped_heads_equal_repeated_keys_and_values() {
    let Problem::Attention(Posed { op, host }) = problem("attention/gqa_64_to_8_f32") else { panic!() };
    let (d, group) = (op.head_dim as usize, (op.heads / op.kv_heads) as usize);
    let repeat = |values: &[f64]| values.chunks_exact(d).flat_map(|head| head.repeat(group)).collect::<Vec<f64>>();
    let packed = Strides::bshd(op.kv_len, op.heads, op.head_dim);
    let repeated = op.clone().with_kv_heads(op.heads).with_k(packed).with_v(packed);
    let all_heads = Host { k: repeat(&host.k), v: repeat(&host.v), ..host.clone() };
    assert_eq!(first(&op, &host), first(&repeated, &all_heads));
}

#[test]
fn heads_first_is_the_same_attention() {
    let Problem::Attention(Posed { op, host }) = problem("attention/heads_first_f32") else { panic!() };
    let d = op.head_dim as usize;
    let turned = |values: &[f64], tokens: u64| {
        let (tokens, heads) = (tokens as usize, op.heads as usize);
        let at = |b: usize, s: usize, h: usize| ((b * heads + h) * tokens + s) * d;
        let places = (0..op.batch as usize).flat_map(|b| (0..tokens).flat_map(move |s| (0..heads).map(move |h| at(b, s, h))));
        places.flat_map(|place| values[place..place + d].to_vec()).collect::<Vec<f64>>()
    };
    let plain = Attention::dense(op.dtype, op.batch, [op.heads, op.kv_heads], [op.q_len, op.kv_len], op.head_dim).with_lse(true);
    let plain_host = Host { q: turned(&host.q, op.q_len), k: turned(&host.k, op.kv_len), v: turned(&host.v, op.kv_len), index: HostForm::None, slots: None };
    assert_eq!(turned(&first(&op, &host), op.q_len), first(&plain, &plain_host));
}

/// Attention over 100 × 130 with every block listed, of that kind.
fn listed(kind: BlockKind, bits: &[u32]) -> (Attention, Host) {
    let shape = BlockShape { block: 64, q_blocks: 2, kv_blocks: 3, patterns: 1, capacity: 6, masks: 1 };
    let mask = BlockMask::new(&[0, 3, 6], &[0, 1, 2, 0, 1, 2], &[kind; 6], bits, shape).unwrap();
    let op = Attention::dense(DType::F32, 1, [1, 1], [100, 130], 4).with_form(Form::Blocks(shape));
    let wave = |count: usize, step: f64| (0..count).map(|i| DType::F32.round((i as f64 * step).sin())).collect::<Vec<f64>>();
    (op, Host { q: wave(400, 0.7), k: wave(520, 1.3), v: wave(520, 2.1), index: HostForm::Blocks(mask), slots: None })
}

#[test]
fn blocks_that_are_all_there_are_no_mask_and_causal_blocks_the_causal_one() {
    for (kind, causal) in [(BlockKind::Full, false), (BlockKind::Causal, true)] {
        let (op, host) = listed(kind, &[]);
        let dense = op.clone().with_form(Form::Dense).with_causal(causal);
        assert_eq!(first(&op, &host), first(&dense, &Host { index: HostForm::None, ..host.clone() }));
    }
}

#[test]
fn a_bit_mask_of_one_key_a_query_copies_values() {
    // Query i of a block sees key 63 − i of each of the three blocks; the third has keys 128 and 129 alone.
    let mut bits = vec![0u32; 128];
    (0..64).for_each(|i| bits[i * 2 + (63 - i) / 32] = 1 << ((63 - i) % 32));
    let (op, host) = listed(BlockKind::Bits(0), &bits);
    let score = |i: usize, j: usize| (0..4).map(|c| host.q[i * 4 + c] * host.k[j * 4 + c]).sum::<f64>() / 2.0;
    let found = first(&op, &host);
    for i in [0, 1, 62, 63, 64, 99] {
        let keys: Vec<usize> = [63 - i % 64, 127 - i % 64, 191 - i % 64].into_iter().filter(|&j| j < 130).collect();
        let total: f64 = keys.iter().map(|&j| score(i, j).exp()).sum();
        let expected: Vec<f64> = (0..4).map(|c| keys.iter().map(|&j| score(i, j).exp() * host.v[j * 4 + c]).sum::<f64>() / total).collect();
        assert_close(&found[i * 4..][..4], &expected);
    }
}

fn row_operation(columns: u64, rows: u64, kind: Kind) -> Pointwise {
    Pointwise::new(DType::F32, rows, columns, kind)
}

#[test]
fn norms_have_their_values_by_hand() {
    let eps = 0f32.to_bits();
    let host = |x: &[f64]| pointwise::Host { weight: Some(vec![1.0, 1.0, 1.0, 2.0]), ..pointwise::Host::new(x.to_vec()) };
    // Mean 2.5, variance 1.25.
    let unit = 1.25f64.sqrt();
    let layer = pointwise::Host { bias: Some(vec![0.0, 0.0, 0.0, 5.0]), ..host(&[1.0, 2.0, 3.0, 4.0]) };
    let norm = first(&row_operation(4, 1, Kind::LayerNorm { eps, residual: false }), &layer);
    assert_close(&norm, &[-1.5 / unit, -0.5 / unit, 0.5 / unit, 3.0 / unit + 5.0]);
    // Mean square 4, after the residual.
    let rms = pointwise::Host { residual: Some(vec![0.0, 1.0, 0.0, 2.0]), ..host(&[2.0, 1.0, -2.0, 0.0]) };
    assert_close(&first(&row_operation(4, 1, Kind::RmsNorm { eps, residual: true }), &rms), &[1.0, 1.0, -1.0, 2.0]);
    let scaled = first(&row_operation(4, 2, Kind::L2Normalise), &pointwise::Host::new(vec![3.0, 0.0, 0.0, -4.0, 0.0, 0.0, 0.0, 0.0]));
    assert_close(&scaled, &[0.6, 0.0, 0.0, -0.8, 0.0, 0.0, 0.0, 0.0]);
}

#[test]
fn rotary_positions_turn_pairs_half_a_head_apart() {
    // Frequencies 1 and 10000^(−1/2) = 0.01; two heads a row.
    let op = row_operation(8, 2, Kind::Rope { head_dim: 4, turn: Turn::base(1e4) });
    let x = vec![1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 5.0, 6.0, 7.0, 8.0, 1.0, 2.0, 3.0, 4.0];
    let y = first(&op, &pointwise::Host { positions: Some(vec![3, 0]), ..pointwise::Host::new(x.clone()) });
    let (fast, slow) = (3f64, 0.03f64);
    assert_close(&y[..8], &[fast.cos(), slow.cos(), fast.sin(), slow.sin(), -fast.sin(), -slow.sin(), fast.cos(), slow.cos()]);
    assert_close(&y[8..], &x[8..]);
}

#[test]
fn rotary_positions_in_place_leave_what_lies_between_rows() {
    // Rows of 11 elements, of which two heads of 4 are turned.
    let kind = Kind::RopeInPlace { head_dim: 4, turn: Turn::base(1e4), stride: 11 };
    let rows: Vec<f64> = (0..30).map(|i| DType::F32.round((f64::from(i) * 0.7).sin())).collect();
    let host = |x: &[f64]| pointwise::Host { positions: Some(vec![5, 0, -3]), ..pointwise::Host::new(x.to_vec()) };
    let found = row_operation(8, 3, kind).evaluate(&host(&rows), Exact).unwrap().swap_remove(0).elements;
    let heads: Vec<f64> = rows.chunks(11).flat_map(|row| row[..8].to_vec()).collect();
    let turned = first(&row_operation(8, 3, Kind::Rope { head_dim: 4, turn: Turn::base(1e4) }), &host(&heads));
    assert_eq!(found.len(), 30);
    for (at, value) in found.into_iter().enumerate() {
        assert_eq!(value, (at % 11 < 8).then(|| turned[at / 11 * 8 + at % 11]), "element {at}");
    }
}

#[test]
fn new_tokens_go_where_the_last_positions_of_their_sequences_lie() {
    let shape = PageShape { batch: 2, pages: 2, page: 2, pool_pages: 3 };
    // Two new tokens each: positions 1 and 2 of the first sequence, over the end of a page; of the second, which has one token, the last.
    let pages = PageTable::new(&[1, 0, 2, 0], &[3, 1], shape).unwrap();
    let host = pointwise::Host { pages: Some(pages), ..pointwise::Host::new(vec![1.0, 9.0, 2.0, 9.0, 3.0, 9.0, 4.0]) };
    let found = row_operation(1, 4, Kind::Append { cache: shape, stride: 2 }).evaluate(&host, Exact).unwrap().swap_remove(0).elements;
    assert_eq!(found, [Some(2.0), None, None, Some(1.0), Some(4.0)]);
}

#[test]
fn embedding_pooling_and_addition_have_their_values_by_hand() {
    let table = pointwise::Host { ids: Some(TokenAdapters::new(&[2, -1, 0], 3).unwrap()), ..pointwise::Host::new(vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) };
    assert_close(&first(&row_operation(2, 3, Kind::Embedding { vocabulary: 3 }), &table), &[5.0, 6.0, 0.0, 0.0, 1.0, 2.0]);
    let sequences = Varlen::new(&[0, 2, 2, 3], &[0, 2, 2, 3], 2, 2).unwrap();
    let op = row_operation(2, 3, Kind::MeanPool(sequences.shape()));
    let rows = pointwise::Host { sequences: Some(sequences), ..pointwise::Host::new(vec![1.0, 2.0, 3.0, 6.0, 5.0, 7.0]) };
    assert_close(&first(&op, &rows), &[2.0, 4.0, 0.0, 0.0, 5.0, 7.0]);
    let sum = pointwise::Host { residual: Some(vec![10.0, 20.0]), ..pointwise::Host::new(vec![1.0, 2.0]) };
    assert_close(&first(&row_operation(2, 1, Kind::Add), &sum), &[11.0, 22.0]);
}

#[test]
fn operands_of_the_wrong_size_are_errors() {
    let Problem::Linear(Posed { op, mut host }) = problem("linear/bias_f16") else { panic!() };
    host.x.pop();
    assert!(op.evaluate(&host, Exact).is_err());
    let Problem::Attention(Posed { op, host }) = problem("attention/blocks_full_f16") else { panic!() };
    assert!(op.evaluate(&Host { index: HostForm::None, ..host }, Exact).is_err());
}

#[test]
fn checksums_are_those_of_the_host_and_of_no_bytes_the_first_multiplier() {
    for name in ["checksum/apart", "checksum/bytes7", "checksum/no_bytes"] {
        let Problem::Checksum(Posed { op, host }) = problem(name) else { panic!() };
        let words = first(&op, &host);
        assert_eq!(words.len() as u64, 2 * op.ranges);
        for (range, words) in words.chunks(2).enumerate() {
            let sum = checksum(&host.x[op.start(range as u64) as usize..][..op.bytes as usize]);
            assert_eq!(words, [sum as u32, (sum >> 32) as u32].map(|word| f64::from(word as i32)), "range {range} of {name}");
        }
    }
    assert_eq!(checksum(&[]), 0x4465_E068_0000_0001);
}
