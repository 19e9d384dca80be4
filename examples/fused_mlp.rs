//! A SwiGLU MLP in one operation, its intermediate never in memory at full size, checked against plain loops in float64.
//!
//! `cargo run --example fused_mlp`

use std::sync::Arc;

use trifuse::ops::{Activation, FusedMlp, FusedMlpArgs};
use trifuse::{DType, Result, backends::Choice, session::Session};

const TOKENS: usize = 5;
const D_MODEL: usize = 64;
const D_FF: usize = 172;

/// Numbers between -0.2 and 0.2 that look drawn.
fn values(count: usize, seed: f32) -> Vec<f32> {
    (0..count).map(|at| (at as f32 * 0.7 + seed).sin() * 0.2).collect()
}

/// Row `row` of `w`, of as many columns as `x`, times `x`.
fn dot(w: &[f32], row: usize, x: &[f64]) -> f64 {
    w[row * x.len()..][..x.len()].iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()
}

pub fn run(choice: &Choice) -> Result<()> {
    let mut session = Session::new(Arc::new(choice.open_any()?))?;
    let op = FusedMlp::new(DType::F32, [TOKENS, D_MODEL, D_FF, D_MODEL].map(|size| size as u64), Activation::Silu).with_gated(true);
    let plan = session.plan(op)?;
    let x = values(TOKENS * D_MODEL, 0.1);
    let [up, gate, down] = [0.2, 0.3, 0.4].map(|seed| values(D_MODEL * D_FF, seed));
    let y = session.alloc_elements(DType::F32, (TOKENS * D_MODEL) as u64)?;
    let args = FusedMlpArgs::new(session.upload(&x)?, session.upload(&up)?, session.upload(&down)?, y.clone()).with_wg(session.upload(&gate)?);
    session.run(&plan, &args)?;
    let found: Vec<f32> = session.download(&y)?;

    let mut worst: f64 = 0.0;
    for (x, found) in x.chunks(D_MODEL).zip(found.chunks(D_MODEL)) {
        let x: Vec<f64> = x.iter().copied().map(f64::from).collect();
        let silu = |z: f64| z / (1.0 + (-z).exp());
        let hidden: Vec<f64> = (0..D_FF).map(|row| silu(dot(&gate, row, &x)) * dot(&up, row, &x)).collect();
        worst = found.iter().enumerate().map(|(row, found)| (f64::from(*found) - dot(&down, row, &hidden)).abs()).fold(worst, f64::max);
    }
    println!("fused_mlp on {} by {}, {} bytes of workspace: greatest error {worst:.1e}", session.caps().name, plan.variant(), plan.workspace_bytes());
    assert!(worst < 1e-5, "{worst}");
    Ok(())
}

#[allow(dead_code, reason = "a test runs `run` alone")]
fn main() -> Result<()> {
    run(&std::env::var("TRIFUSE_BACKEND").unwrap_or_else(|_| "auto".into()).parse()?)
}
