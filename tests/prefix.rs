//! A shared prefix as factors: what its attention is, and what a device holds of an encoded one.
#![cfg(all(feature = "cpu", feature = "compress"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use trifuse::adapters::encode::prefix::encode_prefix;
use trifuse::adapters::encoded::{EncodedFactor, Matrix};
use trifuse::adapters::prefix::{DevicePrefix, KEY, PREFIX, VALUE};
use trifuse::backends::cpu::Cpu;
use trifuse::device::Open;
use trifuse::ops::codebook_gemm::Factor;
use trifuse::ops::{Attention, Op};
use trifuse::session::Session;
use trifuse::{DType, Error};
use trifuse_testkit::cases::{Draw, Posed, Problem, all};
use trifuse_testkit::oracle::attention::{Host, HostForm};
use trifuse_testkit::oracle::{Define, Exact, Output};

fn values(output: &Output) -> Vec<f64> {
    output.elements.iter().map(|value| value.unwrap()).collect()
}

fn assert_close(a: &[f64], b: &[f64], most: f64) {
    assert_eq!(a.len(), b.len());
    for (index, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() < most, "element {index}: {a} and {b}");
    }
}

/// One sequence: a prefix of 77 tokens in factors, and 9 keys of its own.
#[test]
fn prefix_and_own_keys_joined_are_attention_over_both() {
    let case = all().into_iter().find(|case| case.name() == "prefix_attention/join_f32").unwrap();
    let Problem::PrefixAttention(Posed { op, mut host }) = case.problem().unwrap() else { panic!() };
    let op = op.with_batch(1);
    let (rows, own_keys) = ((op.q_len * op.heads * op.head_dim) as usize, 9);
    host.q.truncate(rows);

    let mut draw = Draw::seeded("keys of its own");
    let [own_k, own_v] = [(); 2].map(|()| draw.normal(DType::F32, own_keys * op.width(), 1.0));
    let prefix = [op.tokens, op.width()];
    let (k, v) = (host.key.rebuild(op.key, prefix, Exact).unwrap(), host.value.rebuild(op.value, prefix, Exact).unwrap());
    let attend = |k: Vec<f64>, v: Vec<f64>| {
        let keys = k.len() as u64 / op.width();
        let over = Attention::dense(op.dtype, 1, [op.heads, op.kv_heads], [op.q_len, keys], op.head_dim).with_lse(true);
        over.evaluate(&Host { q: host.q.clone(), k, v, index: HostForm::None, slots: None }, Exact).unwrap()
    };
    let both = attend([k, own_k.clone()].concat(), [v, own_v.clone()].concat());
    let own = attend(own_k, own_v);
    host.before = Some((values(&own[0]), values(&own[1])));
    let joined = op.evaluate(&host, Exact).unwrap();
    for (found, expected) in joined.iter().zip(&both) {
        assert_close(&values(found), &values(expected), 1e-12);
    }
}

/// `[tokens, width]` of few directions and some noise.
fn cache(seed: &str, tokens: usize, width: usize) -> Matrix {
    let mut draw = Draw::seeded(seed);
    let [left, right, noise] = [tokens * 6, 6 * width, tokens * width].map(|count| draw.normal(DType::F32, count as u64, 1.0));
    let at = |i: usize| (0..6).map(|r| left[i / width * 6 + r] * right[r * width + i % width]).sum::<f64>() + 0.02 * noise[i];
    Matrix { rows: tokens, cols: width, data: (0..tokens * width).map(|i| at(i) as f32).collect() }
}

#[test]
fn a_device_holds_what_the_codes_decode_to_and_fewer_bytes() {
    let (heads, queries) = (2u64, 5u64);
    for (tokens, width) in [(40, 96), (150, 64)] {
        let made = encode_prefix(&cache("keys", tokens, width), &cache("values", tokens, width), 0.99).unwrap();
        let mut session = Session::new(Arc::new(Cpu::open(0).unwrap())).unwrap();
        let device = DevicePrefix::new(&mut session, &made.population, DType::F32).unwrap();
        let op = device.attention(1, [heads, heads], queries).unwrap();
        // The shorter side is dense: the core is part of it.
        let dense = |factor| matches!(factor, Factor::Dense { .. });
        assert_eq!([dense(op.key.coefficients), dense(op.key.basis)], [tokens < width, tokens > width], "{tokens} × {width}");

        let q = Draw::seeded("queries").normal(DType::F32, queries * width as u64, 1.0);
        let upload = |session: &mut Session<Cpu>, values: &[f64]| session.upload(&DType::F32.encode(values)).unwrap();
        let (q_slice, o) = (upload(&mut session, &q), upload(&mut session, &vec![f64::NAN; q.len()]));
        let lse = session.alloc(op.rows() * 4).unwrap();
        let plan = session.plan(op.clone()).unwrap();
        session.run(&plan, &device.args(q_slice, o.clone(), lse)).unwrap();
        let found = DType::F32.decode(&session.read(&o).unwrap());

        let whole = |path: &str| {
            let delta = made.population.adapters[PREFIX].projections[path].delta(&made.population.projections[path]).unwrap();
            // A weight's change is [width, tokens].
            (0..tokens * width).map(|at| delta.data[at % width * tokens + at / width]).collect::<Vec<f64>>()
        };
        let plain = Attention::dense(DType::F32, 1, [heads, heads], [queries, tokens as u64], width as u64 / heads);
        let expected = plain.evaluate(&Host { q, k: whole(KEY), v: whole(VALUE), index: HostForm::None, slots: None }, Exact).unwrap();
        assert_close(&found, &values(&expected[0]), 1e-4);

        let half = DevicePrefix::new(&mut session, &made.population, DType::F16).unwrap();
        assert!(2 * half.bytes() < made.plain_bytes, "{} of {}", half.bytes(), made.plain_bytes);
    }
}

#[test]
fn what_is_no_prefix_is_refused() {
    let mut population = encode_prefix(&cache("keys", 8, 16), &cache("values", 8, 16), 0.9).unwrap().population;
    let mut session = Session::new(Arc::new(Cpu::open(0).unwrap())).unwrap();
    let device = DevicePrefix::new(&mut session, &population, DType::F16).unwrap();
    assert!(matches!(device.attention(1, [3, 3], 1), Err(Error::Invalid { .. })), "16 elements are no three heads");
    let whole = device.attention(1, [2, 1], 1).unwrap();
    assert!(whole.validate().is_ok() && whole.clone().with_tokens(0).validate().is_err());
    let mut other = whole;
    other.key.rank = 0;
    assert!(other.validate().is_err());
    let mut short = population.clone();
    let projection = short.adapters.get_mut(PREFIX).unwrap().projections.get_mut(KEY).unwrap();
    for factor in [&mut projection.input, &mut projection.output] {
        if let EncodedFactor::Coded(coded) = factor {
            coded.columns.iter_mut().for_each(|(_, words)| words.truncate(0));
        }
    }
    assert!(matches!(DevicePrefix::new(&mut session, &short, DType::F16), Err(Error::Invalid { .. })), "columns without their words");
    population.adapters.clear();
    assert!(matches!(DevicePrefix::new(&mut session, &population, DType::F16), Err(Error::Invalid { .. })));
}
