//! A sentence's embedding may not depend on what else is in its batch: a row of an encoder's product gets the same bits whatever number of rows there are,
//! from the fewest that an encoder's batch has.

use std::sync::Arc;

use trifuse::backend::Backend;
use trifuse::ops::{Activation, Linear, LinearArgs};
use trifuse::session::Session;
use trifuse::{DType, Result};

use super::Test;
use super::work::noise;

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![("a row of an encoder's product gets the same bits in a batch of any size", of_any_batch)]
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
            let drawn = |seed: u32, len: u64| {
                let few = dtype.encode(&(0..65_537).map(|i| f64::from(noise(seed, i)) / 1024.0 - 0.125).collect::<Vec<_>>());
                few.iter().copied().cycle().take((len * dtype.size()) as usize).collect::<Vec<u8>>()
            };
            let most = rows.iter().copied().max().unwrap_or(0);
            let [x, w, bias] = [most * depth, outputs * depth, outputs].map(|len| session.upload(&drawn(len as u32, len)));
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
