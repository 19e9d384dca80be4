//! On backend `cpu` results do not depend on the number of threads, bit for bit.

#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use trifuse::backends::cpu::Cpu;
use trifuse::device::{Open, Slice};
use trifuse::ops::{Activation, Attention, AttentionArgs, FusedMlp, FusedMlpArgs, Linear, LinearArgs};
use trifuse::session::Session;
use trifuse::{DType, Result};

fn draw(session: &mut Session<Cpu>, dtype: DType, len: u64) -> Result<Slice<Cpu>> {
    let values: Vec<f64> = (0..len).map(|i| (i * 2_654_435_761 % 1009) as f64 / 512.0 - 1.0).collect();
    session.upload(&dtype.encode(&values))
}

/// The outputs of operations large enough to be cut into many pieces.
fn outputs(dtype: DType) -> Result<Vec<Vec<u8>>> {
    let mut session = Session::new(Arc::new(Cpu::open(0)?))?;
    let mut outputs = Vec::new();
    for [m, n, k] in [[1, 700, 513], [9, 300, 600], [200, 300, 600]] {
        let plan = session.plan(Linear::new(dtype, [m, k, n]))?;
        let (x, w, y) = (draw(&mut session, dtype, m * k)?, draw(&mut session, dtype, n * k)?, session.alloc(m * n * 4)?);
        session.run(&plan, &LinearArgs::new(x, w, y.clone()))?;
        outputs.push(session.read(&y)?);
    }
    // The second has its keys split.
    for (q_len, kv_len) in [(300, 300), (1, 3000)] {
        let plan = session.plan(Attention::dense(dtype, 1, [4, 2], [q_len, kv_len], 72))?;
        let [q, k, v] = [4 * q_len, 2 * kv_len, 2 * kv_len].map(|rows| draw(&mut session, dtype, rows * 72));
        let o = session.alloc(4 * q_len * 72 * 4)?;
        session.run(&plan, &AttentionArgs::new(q?, k?, v?, o.clone()))?;
        outputs.push(session.read(&o)?);
    }
    let (activation, d) = (Activation::Silu, [150, 128, 500, 96]);
    let [tokens, d_model, d_ff, d_out] = d;
    let plan = session.plan(FusedMlp::new(dtype, d, activation))?;
    let [x, w1, w2] = [tokens * d_model, d_ff * d_model, d_out * d_ff].map(|len| draw(&mut session, dtype, len));
    let y = session.alloc(tokens * d_out * 4)?;
    session.run(&plan, &FusedMlpArgs::new(x?, w1?, w2?, y.clone()))?;
    outputs.push(session.read(&y)?);
    Ok(outputs)
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for dtype in DType::ALL {
        let with = |threads: usize| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| outputs(dtype).unwrap());
        let one = with(1);
        assert!(one.iter().all(|bytes| bytes.iter().any(|&byte| byte != 0)));
        for threads in [2, 3, 8] {
            assert!(with(threads) == one, "{dtype}, {threads} threads");
        }
    }
}
