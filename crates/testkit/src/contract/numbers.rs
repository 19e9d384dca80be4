//! What is not a number among the operands shows in every result that depends on it, and in no other: a fault that turned into
//! zeros would be taken for an answer.

use std::sync::Arc;

use crate::cases::OpKind;
use crate::conformance::variants;
use trifuse::backend::{Backend, Kernel};
use trifuse::ops::attention::{AttentionIndex, Form};
use trifuse::ops::codebook_gemm::{Factor, FactorArgs};
use trifuse::ops::index::{BlockMap, MapShape, Varlen, VarlenShape};
use trifuse::ops::pointwise::Kind;
use trifuse::ops::prefix_attention::{Factors, FactorsArgs};
use trifuse::ops::{
    Activation, Attention, AttentionArgs, FusedMlp, FusedMlpArgs, Linear, LinearArgs, Op, Pointwise, PointwiseArgs, PrefixAttention, PrefixAttentionArgs,
};
use trifuse::session::{Plan, Session};
use trifuse::{DType, Error, Result};

use super::Test;

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![
        ("what is not a number shows in attention", in_attention),
        ("what is not a number shows in attention over a prefix", in_prefix),
        ("what is not a number shows in a norm", in_norms),
        ("what is not a number shows in a product", in_products),
    ]
}

fn draw(count: u64) -> Vec<f64> {
    (0..count).map(|i| (i * 7919 % 1013) as f64 / 1013.0 - 0.49).collect()
}

/// Calls with every configuration that takes `op` on this device; where the device is small, with the chosen one of every variant.
fn each<O: Op, B: Backend + Kernel<O>>(
    session: &mut Session<B>,
    kind: OpKind,
    op: &O,
    mut with: impl FnMut(&mut Session<B>, &Plan<O, B>) -> Result<()>,
) -> Result<()> {
    let small = session.caps().multiprocessors < 32;
    let names = if small { variants(&**session.device(), kind).iter().map(ToString::to_string).collect() } else { session.configs(op) };
    for name in &names {
        match session.plan_variant(op.clone(), Some(name)) {
            Err(Error::Unsupported { .. }) => {}
            plan => with(session, &plan?)?,
        }
    }
    Ok(())
}

/// One sequence of `queries` over `keys`, heads of 4 over 2.
struct Shape {
    op: Attention,
    queries: usize,
    keys: usize,
}

const HEADS: [u64; 2] = [4, 2];

fn shapes(dtype: DType) -> Vec<Shape> {
    let of = |op: Attention, [queries, keys]: [u64; 2]| Shape { op: op.with_lse(true), queries: queries as usize, keys: keys as usize };
    let dense = |lengths: [u64; 2], head_dim: u64| of(Attention::dense(dtype, 1, HEADS, lengths, head_dim), lengths);
    let causal = |shape: Shape| Shape { op: shape.op.with_causal(true), ..shape };
    let varlen = VarlenShape { batch: 1, max_q: 100, max_kv: 100, total_q: 100, total_kv: 100 };
    let map = MapShape { block: 64, q_blocks: 3, kv_blocks: 3, patterns: 1 };
    vec![
        dense([1, 700], 64),
        dense([70, 150], 64),
        dense([130, 130], 107),
        dense([130, 130], 160),
        causal(dense([130, 130], 32)),
        of(Attention::varlen(dtype, varlen, HEADS, 32), [100, 100]),
        of(Attention::dense(dtype, 1, HEADS, [192, 192], 64).with_form(Form::BlockMap(map)), [192, 192]),
    ]
}

fn in_attention<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    for dtype in DType::ALL {
        for shape in shapes(dtype) {
            each(&mut session, OpKind::Attention, &shape.op, |session, plan| {
                // A query, and a key of the first head of keys.
                [false, true].into_iter().try_for_each(|of_key| attend(session, plan, &shape, of_key))
            })?;
        }
    }
    Ok(())
}

/// One element of a query of head 1 is not a number, or one of a key that heads 0 and 1 read.
fn attend<B: Backend>(session: &mut Session<B>, plan: &Plan<Attention, B>, shape: &Shape, of_key: bool) -> Result<()> {
    let Shape { op, queries, keys } = shape;
    let (dtype, head_dim, [heads, kv_heads]) = (op.dtype, op.head_dim as usize, HEADS.map(|heads| heads as usize));
    let index = match op.form {
        Form::Varlen(_) => AttentionIndex::Varlen(session.index(&Varlen::new(&[0, *queries as i32], &[0, *keys as i32], *queries as u64, *keys as u64)?)?),
        Form::BlockMap(shape) => AttentionIndex::BlockMap(session.index(&BlockMap::new(&[1; 9], shape)?)?),
        _ => AttentionIndex::None,
    };
    let (row, key, rows) = (queries / 2, keys / 2, queries * heads);
    let [mut q, mut k, v] = [rows, keys * kv_heads, keys * kv_heads].map(|rows| draw((rows * head_dim) as u64));
    match of_key {
        true => k[key * kv_heads * head_dim + head_dim - 1] = f64::NAN,
        false => q[(row * heads + 1) * head_dim] = f64::NAN,
    }
    let [q, k, v, o] = [q, k, v, vec![7.0; rows * head_dim]].map(|values| session.upload(&dtype.encode(&values)));
    let (o, lse) = (o?, session.upload(&vec![7.0f32; rows])?);
    session.run(plan, &AttentionArgs::new(q?, k?, v?, o.clone()).with_index(index).with_lse(Some(lse.clone())))?;
    let (o, lse) = (dtype.decode(&session.read(&o)?), session.download::<f32>(&lse)?);
    for (number, values) in o.chunks(head_dim).enumerate() {
        let (query, head) = (number / heads, number % heads);
        let sees = !op.causal || key + queries <= query + keys;
        let none = if of_key { head < heads / kv_heads && sees } else { query == row && head == 1 };
        let lse = lse[head * queries + query];
        let right = lse.is_nan() == none && values.iter().all(|value| value.is_nan() == none);
        assert!(right, "{} of {op:?}, of a key: {of_key}: query {query}, head {head}: {values:?}, LSE {lse}", plan.variant());
    }
    Ok(())
}

fn in_prefix<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let (head_dim, tokens, rank, [heads, kv_heads]) = (32, 150, 8, HEADS);
    let factors = Factors::new(rank, Factor::Dense { bases: 1 }, Factor::Dense { bases: 1 });
    for dtype in DType::ALL {
        let op = PrefixAttention::new(dtype, 1, HEADS, [3, tokens], head_dim, [factors; 2]);
        each(&mut session, OpKind::PrefixAttention, &op, |session, plan| {
            let mut q = draw(3 * heads * head_dim);
            q[0] = f64::NAN;
            let mut dense = |values: Vec<f64>| Ok::<_, Error>(FactorArgs::Dense { values: session.upload(&dtype.encode(&values))?, basis_of: None });
            let factors = FactorsArgs::new(dense(draw(tokens * rank))?, dense(draw(kv_heads * head_dim * rank))?);
            let [q, o] = [q, vec![7.0; (3 * heads * head_dim) as usize]].map(|values| session.upload(&dtype.encode(&values)));
            let (o, lse) = (o?, session.upload(&[7.0f32; 12])?);
            session.run(plan, &PrefixAttentionArgs::new(q?, factors.clone(), factors, o.clone(), lse.clone()))?;
            let (o, lse) = (dtype.decode(&session.read(&o)?), session.download::<f32>(&lse)?);
            let what = format!("{} of {dtype}", plan.variant());
            assert!(o.iter().enumerate().all(|(at, value)| value.is_nan() == (at < head_dim as usize)), "{what}");
            assert!(lse.iter().enumerate().all(|(at, value)| value.is_nan() == (at == 0)), "{what}: {lse:?}");
            Ok(())
        })?;
    }
    Ok(())
}

fn in_norms<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let eps = 1e-5f32.to_bits();
    for dtype in DType::ALL {
        for columns in [37usize, 384, 2048, 9000] {
            for kind in [Kind::RmsNorm { eps, residual: false }, Kind::LayerNorm { eps, residual: false }, Kind::L2Normalise] {
                let plan = match session.plan(Pointwise::new(dtype, 3, columns as u64, kind)) {
                    Err(Error::Unsupported { .. }) => continue,
                    plan => plan?,
                };
                let mut x = draw(3 * columns as u64);
                x[columns + 5] = f64::NAN;
                let [x, ones, y] = [x, vec![1.0; columns], vec![7.0; 3 * columns]].map(|values| session.upload(&dtype.encode(&values)));
                let (ones, y) = (ones?, y?);
                let weight = (kind != Kind::L2Normalise).then(|| ones.clone());
                let bias = matches!(kind, Kind::LayerNorm { .. }).then_some(ones);
                session.run(&plan, &PointwiseArgs::new(x?, y.clone()).with_weight(weight).with_bias(bias))?;
                let y = dtype.decode(&session.read(&y)?);
                assert!(y.iter().enumerate().all(|(at, value)| value.is_nan() == (at / columns == 1)), "{kind:?} of {columns} columns, {dtype}");
            }
        }
    }
    Ok(())
}

fn in_products<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let (d, d_out) = (72, 136);
    let shapes = [(1, Activation::Silu), (5, Activation::GeluTanh), (70, Activation::Relu), (130, Activation::GeluErf)];
    for (dtype, (tokens, activation)) in DType::ALL.into_iter().flat_map(|dtype| shapes.map(|shape| (dtype, shape))) {
        // An element of a row of x, which shows in that row, or one of a row of w, which shows in that column.
        let (row, column) = (tokens as usize / 2, 99);
        for of_x in [true, false] {
            let [mut x, mut w, w2] = [tokens * d, d_out * d, d * d_out].map(draw);
            if of_x {
                x[row * d as usize + 5] = f64::NAN;
            } else {
                w[column * d as usize + 71] = f64::NAN;
            }
            let [x, w, w2] = [x, w, w2].map(|values| session.upload(&dtype.encode(&values)));
            let (x, w, w2) = (x?, w?, w2?);
            let shows = |at: usize, width: u64| if of_x { at / width as usize == row } else { width == d || at % width as usize == column };
            let wrong = |found: &[f64], width: u64| found.iter().enumerate().find(|&(at, value)| value.is_nan() != shows(at, width)).map(|(at, _)| at);

            let op = Linear::new(dtype, [tokens, d, d_out]).with_activation(Some(activation));
            each(&mut session, OpKind::Linear, &op, |session, plan| {
                let y = session.upload(&dtype.encode(&vec![7.0; (tokens * d_out) as usize]))?;
                session.run(plan, &LinearArgs::new(x.clone(), w.clone(), y.clone()))?;
                let y = dtype.decode(&session.read(&y)?);
                assert_eq!(wrong(&y, d_out), None, "where NaN is missing or too much first: {} of {op:?}, of x: {of_x}", plan.variant());
                Ok(())
            })?;
            // A column of the intermediate that is no number shows in all of y.
            let op = FusedMlp::new(dtype, [tokens, d, d_out, d], activation);
            each(&mut session, OpKind::FusedMlp, &op, |session, plan| {
                let y = session.upload(&dtype.encode(&vec![7.0; (tokens * d) as usize]))?;
                let args = FusedMlpArgs::new(x.clone(), w.clone(), w2.clone(), y.clone());
                session.run(plan, &args)?;
                let y = dtype.decode(&session.read(&y)?);
                assert_eq!(wrong(&y, d), None, "where NaN is missing or too much first: {} of {op:?}, of x: {of_x}", plan.variant());
                Ok(())
            })?;
        }
    }
    Ok(())
}
