//! Several sessions at once.

use std::sync::Arc;

use trifuse::backend::Backend;
use trifuse::device::Slice;
use trifuse::ops::{Attention, AttentionArgs, Linear, LinearArgs, PointwiseArgs};
use trifuse::session::Session;
use trifuse::{DType, Result};

use super::Test;
use super::work::{Adapted, LEN, Sum, noise, plan_any};

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![
        ("two sessions at once give the serial result bit for bit", at_once),
        ("a session moves to another thread", moved),
        ("sessions share memory that was waited for", shared),
    ]
}

/// What one session computes, each operation several times over.
fn work<B: Backend>(device: &Arc<B>, seed: u32) -> Result<Vec<Vec<u8>>> {
    let mut session = Session::new(device.clone())?;
    let drawn = |session: &mut Session<B>, dtype: DType, seed: u32, len: u64| -> Result<Slice<B>> {
        let values: Vec<f64> = (0..len as usize).map(|i| f64::from(noise(seed, i)) / 64.0 - 2.0).collect();
        session.upload(&dtype.encode(&values))
    };
    let [rows, d_out, d_in] = [65, 130, 259];
    let linear = plan_any(&session, |dtype| Linear::new(dtype, [rows, d_in, d_out]))?;
    let dtype = linear.op().dtype;
    let linear_args = LinearArgs::new(
        drawn(&mut session, dtype, seed, rows * d_in)?,
        drawn(&mut session, dtype, seed + 1, d_out * d_in)?,
        session.alloc(rows * d_out * dtype.size())?,
    );
    let attention = plan_any(&session, |dtype| Attention::dense(dtype, 2, [4, 2], [33, 300], 40))?;
    let dtype = attention.op().dtype;
    let attention_args = AttentionArgs::new(
        drawn(&mut session, dtype, seed + 2, 2 * 33 * 4 * 40)?,
        drawn(&mut session, dtype, seed + 3, 2 * 300 * 2 * 40)?,
        drawn(&mut session, dtype, seed + 4, 2 * 300 * 2 * 40)?,
        session.alloc(2 * 33 * 4 * 40 * dtype.size())?,
    );
    let adapted = Adapted::new(&mut session, &[0, 3, 3, -1, 5, 1, 0, 0, 2, 4, -1, 5], [seed, 2, 3, 4, 5, 6])?;
    let mut results = Vec::new();
    for _ in 0..4 {
        session.run(&linear, &linear_args)?;
        session.run(&attention, &attention_args)?;
        adapted.run(&mut session)?;
        for y in [&linear_args.y, &attention_args.o, adapted.y()] {
            results.push(session.read(y)?);
        }
    }
    Ok(results)
}

fn at_once<B: Backend>(device: &Arc<B>) -> Result<()> {
    let serial = [work(device, 10)?, work(device, 20)?];
    assert_ne!(serial[0][0], serial[1][0]);
    for _ in 0..3 {
        let both = std::thread::scope(|scope| {
            let threads = [10, 20].map(|seed| scope.spawn(move || work(device, seed)));
            threads.map(|thread| thread.join().expect("a thread does not panic"))
        });
        for (at_once, serial) in both.into_iter().zip(&serial) {
            assert!(at_once? == *serial, "a session's result depends on another's work");
        }
    }
    Ok(())
}

/// Operands that one session wrote and waited for, read by several at once, each of which writes its own.
fn shared<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut first = Session::new(device.clone())?;
    let sum = Sum::new(&mut first, 1.0, 2.0)?;
    first.synchronize()?;
    let (x, residual) = (&sum.args.x, &sum.args.residual);
    let run = || -> Result<Vec<f32>> {
        let mut session = Session::new(device.clone())?;
        let (plan, y) = (session.plan(Sum::<B>::op())?, session.upload(&[f32::NAN; LEN])?);
        let args = PointwiseArgs::new(x.clone(), y.clone()).with_residual(residual.clone());
        for _ in 0..50 {
            session.run(&plan, &args)?;
        }
        session.download(&y)
    };
    let found = std::thread::scope(|scope| {
        let threads = [(); 3].map(|()| scope.spawn(run));
        threads.map(|thread| thread.join().expect("a thread does not panic"))
    });
    for y in found {
        assert_eq!(y?, [3.0; LEN]);
    }
    Ok(())
}

fn moved<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let slice = session.upload(&[5u8; 32])?;
    let read = std::thread::scope(|scope| scope.spawn(|| session.read(&slice)).join().expect("a thread does not panic"))?;
    assert_eq!(read, [5; 32]);
    Ok(())
}
