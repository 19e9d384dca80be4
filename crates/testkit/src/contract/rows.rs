//! An answer may not depend on what else is in its batch: a row of an encoder's product gets the same bits whatever number of rows there are, from the
//! fewest that an encoder's batch has, and a row of a batch-invariant product from 16 rows on.

use std::sync::Arc;

use trifuse::backend::Backend;
use trifuse::ops::{Activation, Linear, LinearArgs};
use trifuse::session::Session;
use trifuse::{DType, Result};

use super::Test;
use super::work::noise;

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![
        ("a row of an encoder's product gets the same bits in a batch of any size", of_any_batch),
        ("a row of a batch-invariant product gets the same bits from each configuration, among any rows", by_any_kernel),
    ]
}

/// Rows of a batch, the fewest first.
const ROWS: [u64; 8] = [256, 320, 384, 512, 640, 1024, 1536, 2048];
/// Outputs and K: those of encoders of 384, 768 and 1,024 columns.
const PRODUCTS: [[u64; 2]; 11] =
    [[384, 384], [384, 1536], [1152, 384], [1536, 384], [768, 768], [2304, 768], [3072, 768], [768, 3072], [3072, 1024], [4096, 1024], [1024, 4096]];
/// Of those, how many a small device has time for.
const FEW: [usize; 2] = [2, 2];

fn of_any_batch<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let small = session.caps().multiprocessors < 32;
    let (rows, products) = if small { (&ROWS[..FEW[0]], &PRODUCTS[..FEW[1]]) } else { (&ROWS[..], &PRODUCTS[..]) };
    for dtype in [DType::F16, DType::BF16, DType::F32].into_iter().filter(|&dtype| small || dtype != DType::F32) {
        for (n, &[outputs, depth]) in products.iter().enumerate() {
            let op = |rows| Linear::new(dtype, [rows, depth, outputs]).with_bias(true).with_activation((n % 2 == 0).then_some(Activation::GeluErf));
            // A device that lacks a type says so.
            if session.plan(op(ROWS[0])).is_err() && dtype != DType::F32 {
                continue;
            }
            let most = rows.iter().copied().max().unwrap_or(0);
            let [x, w, bias] = [most * depth, outputs * depth, outputs].map(|len| session.upload(&drawn(dtype, len)));
            let (x, w, bias) = (x?, w?, bias?);
            let mut first: Option<Vec<u8>> = None;
            for &rows in rows {
                let plan = session.plan(op(rows))?;
                let y = session.alloc(rows * outputs * dtype.size())?;
                let x = x.sub_slice(0, rows * depth * dtype.size()).expect("rows of x");
                let args = LinearArgs::new(x, w.clone(), y.clone()).with_bias(Some(bias.clone()));
                session.run(&plan, &args)?;
                let mut found = session.read(&y)?;
                found.truncate((ROWS[0] * outputs * dtype.size()) as usize);
                let expected = first.get_or_insert_with(|| found.clone());
                assert!(*expected == found && found.iter().any(|&byte| byte != 0), "{rows} × {outputs} × {depth} {dtype}, {}", plan.variant());
            }
        }
    }
    Ok(())
}

/// `len` elements that are drawn, as bytes.
fn drawn(dtype: DType, len: u64) -> Vec<u8> {
    let few = dtype.encode(&(0..65_537).map(|i| f64::from(noise(len as u32, i)) / 1024.0 - 0.125).collect::<Vec<_>>());
    few.iter().copied().cycle().take((len * dtype.size()) as usize).collect()
}

/// Rows of a decoder's steps, and outputs and K of its products; how many of either a small device has time for.
const STEPS: [u64; 8] = [16, 24, 33, 64, 100, 128, 300, 2048];
const DECODERS: [[u64; 2]; 6] = [[96, 96], [576, 1536], [960, 576], [4096, 4096], [4096, 11008], [1016, 571]];
const SMALL: [usize; 2] = [4, 2];

fn by_any_kernel<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let small = session.caps().multiprocessors < 32;
    let (steps, products) = if small { (&STEPS[..SMALL[0]], &DECODERS[..SMALL[1]]) } else { (&STEPS[..], &DECODERS[..]) };
    for (dtype, wide) in [(DType::F16, false), (DType::BF16, false), (DType::F32, false), (DType::F16, true), (DType::BF16, true)] {
        for &[outputs, depth] in products {
            let stride = dtype.row_stride(depth);
            let op = |rows| {
                Linear::new(dtype, [rows, depth, outputs]).with_padded_weights().with_x_stride(stride).with_batch_invariant(true).with_wide_outputs(wide)
            };
            // A device that lacks a type says so.
            if session.plan(op(steps[0])).is_err() && dtype != DType::F32 {
                continue;
            }
            let most = steps.iter().copied().max().unwrap_or(0);
            let [x, w] = [most * stride, outputs * stride].map(|len| session.upload(&drawn(dtype, len)));
            let (x, w) = (x?, w?);
            let mut first: Option<Vec<u8>> = None;
            for &rows in steps {
                let x = x.sub_slice(0, rows * stride * dtype.size()).expect("rows of x");
                let y = session.alloc(rows * outputs * op(rows).y_dtype().size())?;
                for config in session.configs(&op(rows)) {
                    let plan = session.plan_variant(op(rows), Some(&config))?;
                    session.run(&plan, &LinearArgs::new(x.clone(), w.clone(), y.clone()))?;
                    let mut found = session.read(&y)?;
                    found.truncate((STEPS[0] * outputs * op(rows).y_dtype().size()) as usize);
                    let expected = first.get_or_insert_with(|| found.clone());
                    assert!(*expected == found && found.iter().any(|&byte| byte != 0), "{rows} × {outputs} × {depth} {dtype}, wide {wide}, {config}");
                }
            }
        }
    }
    Ok(())
}
