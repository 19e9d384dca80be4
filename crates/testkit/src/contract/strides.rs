//! Weights packed at load, in rows on multiples of 16 bytes.

use std::sync::Arc;

use trifuse::backend::Backend;
use trifuse::ops::attention::{AttentionIndex, Strides};
use trifuse::ops::index::{HostIndex, PageShape, PageTable, Varlen};
use trifuse::ops::{Activation, Attention, AttentionArgs, FusedMlp, FusedMlpArgs, Linear, LinearArgs};
use trifuse::session::Session;
use trifuse::{DType, Error, Result};

use super::Test;

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![
        ("rows are uploaded apart", uploaded),
        ("weights packed at load give the same bits", same_bits),
        ("strides shorter than a row are refused", short),
        ("an infinite row leaves the others alone", neighbours),
        ("strides that a form does not use may be anything", unused),
    ]
}

fn draw(count: u64) -> Vec<f32> {
    (0..count).map(|i| (i * 7919 % 1013) as f32 / 1013.0 - 0.49).collect()
}

fn uploaded<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let apart = session.upload_rows(&[1u32, 2, 3, 4, 5, 6], 3, 5)?;
    assert_eq!(session.download::<u32>(&apart)?, [1, 2, 3, 0, 0, 4, 5, 6, 0, 0]);
    let packed = session.upload_rows(&[1u32, 2, 3, 4], 2, 2)?;
    assert_eq!(session.download::<u32>(&packed)?, [1, 2, 3, 4]);
    for (values, columns, stride) in [(5, 2, 4), (4, 2, 1), (4, 0, 4)] {
        let refused = session.upload_rows(&vec![0u32; values], columns, stride);
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{values} values, {columns} columns, {stride}");
    }
    // A row of any type takes at most 15 bytes more.
    for dtype in DType::ALL {
        for columns in 1..40 {
            let [row, stride] = [columns, dtype.row_stride(columns)].map(|elements| elements * dtype.size());
            assert!(stride.is_multiple_of(16) && (row..row + 16).contains(&stride), "{columns} of {dtype}");
        }
    }
    Ok(())
}

/// f32: every backend has one variant for it, whatever the strides.
fn same_bits<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    for tokens in [1, 3, 9, 70] {
        let (d_in, d_out) = (133, 66);
        let (x, w) = (draw(tokens * d_in), draw(d_out * d_in));
        let packed = Linear::new(DType::F32, [tokens, d_in, d_out]);
        let padded = packed.clone().with_padded_weights().with_x_stride(d_in + 4);
        assert_ne!(packed.w_stride, padded.w_stride);
        let mut results = Vec::new();
        for op in [packed, padded] {
            let y = session.alloc(tokens * d_out * 4)?;
            let (x, w) = (session.upload_rows(&x, d_in, op.x_stride)?, session.upload_rows(&w, d_in, op.w_stride)?);
            let plan = session.plan(op)?;
            session.run(&plan, &LinearArgs::new(x, w, y.clone()))?;
            results.push(session.read(&y)?);
        }
        assert!(results[0] == results[1] && results[0].iter().any(|&byte| byte != 0), "linear, {tokens} rows");

        let [d_model, d_ff] = [d_in, 91];
        let [w1, wg, w2] = [draw(d_ff * d_model), draw(d_ff * d_model + 1)[1..].to_vec(), draw(d_out * d_ff)];
        let packed = FusedMlp::new(DType::F32, [tokens, d_model, d_ff, d_out], Activation::Silu).with_gated(true);
        let padded = packed.clone().with_padded_weights().with_x_stride(d_model + 4);
        let mut results = Vec::new();
        for op in [packed, padded] {
            let y = session.alloc(tokens * d_out * 4)?;
            let args = FusedMlpArgs::new(
                session.upload_rows(&x, d_model, op.x_stride)?,
                session.upload_rows(&w1, d_model, op.w1_stride)?,
                session.upload_rows(&w2, d_ff, op.w2_stride)?,
                y.clone(),
            )
            .with_wg(Some(session.upload_rows(&wg, d_model, op.w1_stride)?));
            let plan = session.plan(op)?;
            session.run(&plan, &args)?;
            results.push(session.read(&y)?);
        }
        assert!(results[0] == results[1] && results[0].iter().any(|&byte| byte != 0), "fused_mlp, {tokens} tokens");
    }
    Ok(())
}

/// Rows that start anywhere are read with some of the next one's elements, and of the one before.
fn neighbours<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let (tokens, d_in, wild) = (300usize, 133usize, [7usize, 130, 299]);
    for (dtype, d_out) in [(DType::F32, 66), (DType::F16, 72), (DType::BF16, 66)] {
        let op = Linear::new(dtype, [tokens as u64, d_in as u64, d_out]).with_padded_weights();
        let plan = match session.plan(op) {
            Err(Error::Unsupported { .. }) => continue,
            plan => plan?,
        };
        let encoded = |values: &[f32]| dtype.encode(&values.iter().map(|&value| f64::from(value)).collect::<Vec<_>>());
        let size = dtype.size();
        let w = session.upload_rows(&encoded(&draw(d_out * d_in as u64)), d_in as u64 * size, plan.op().w_stride * size)?;
        let mut results = Vec::new();
        for value in [0.25, f32::INFINITY, f32::NAN] {
            let mut x = draw((tokens * d_in) as u64);
            for row in wild {
                x[row * d_in..(row + 1) * d_in].fill(value);
            }
            let (x, y) = (session.upload(&encoded(&x))?, session.alloc(tokens as u64 * d_out * size)?);
            session.run(&plan, &LinearArgs::new(x, w.clone(), y.clone()))?;
            let mut bytes = session.read(&y)?;
            for row in wild {
                bytes[row * (d_out * size) as usize..(row + 1) * (d_out * size) as usize].fill(0);
            }
            results.push(bytes);
        }
        assert!(results[0] == results[1] && results[0] == results[2] && results[0].iter().any(|&byte| byte != 0), "{dtype}");
    }
    Ok(())
}

fn short<B: Backend>(device: &Arc<B>) -> Result<()> {
    let session = Session::new(device.clone())?;
    let linear = Linear::new(DType::F32, [4, 33, 5]);
    let mlp = FusedMlp::new(DType::F32, [4, 33, 21, 9], Activation::Relu);
    let told = |result: Result<()>, name: &str| match result {
        Err(Error::Invalid { subject, .. }) => assert!(subject.contains(name), "{subject}"),
        other => panic!("{name}: {other:?}"),
    };
    told(session.plan(linear.clone().with_x_stride(32)).map(drop), "x_stride");
    told(session.plan(linear.with_w_stride(32)).map(drop), "w_stride");
    told(session.plan(mlp.clone().with_x_stride(32)).map(drop), "x_stride");
    told(session.plan(mlp.clone().with_w1_stride(0)).map(drop), "w1_stride");
    told(session.plan(mlp.with_w2_stride(20)).map(drop), "w2_stride");
    Ok(())
}

/// From sequence to sequence of those that lie end to end; from page to page of a pool of one.
fn unused<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let varlen = Varlen::new(&[0, 2, 3, 7], &[0, 1, 4, 9], 4, 5)?;
    let table = PageTable::new(&[0, 0, 0], &[3, 9, 7], PageShape { batch: 3, pages: 1, page: 9, pool_pages: 1 })?;
    let varlen = (Attention::varlen(DType::F32, varlen.shape(), [1, 1], 8), AttentionIndex::Varlen(session.index(&varlen)?));
    let paged = (Attention::paged(DType::F32, table.shape(), [1, 1], 2, 8), AttentionIndex::Paged(session.index(&table)?));
    for (usual, index) in [varlen, paged] {
        let far = |strides: Strides| Strides { batch: u64::MAX, ..strides };
        let [mut odd, all] = [usual.clone(), usual.clone()];
        (odd.k, odd.v) = (far(odd.k), far(odd.v));
        if matches!(index, AttentionIndex::Varlen(_)) {
            (odd.q, odd.o) = (far(odd.q), far(odd.o));
        }
        let mut results = Vec::new();
        for op in [all, odd] {
            let [q, k, v, o] = [1, 2, 3, 4].map(|seed| session.upload(&draw(72 + seed)[seed as usize..]));
            let (plan, o) = (session.plan(op)?, o?);
            session.run(&plan, &AttentionArgs::new(q?, k?, v?, o.clone()).with_index(index.clone()))?;
            results.push(session.read(&o)?);
        }
        assert!(results[0] == results[1], "{usual:?}");
    }
    Ok(())
}
