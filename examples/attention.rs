//! Causal attention with grouped heads, on the device that `TRIFUSE_BACKEND` names or the best there is, checked against plain loops in float64.
//!
//! `cargo run --example attention`

use std::sync::Arc;

use trifuse::ops::{Attention, AttentionArgs};
use trifuse::{DType, Result, backends::Choice, session::Session};

const TOKENS: usize = 48;
const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;

/// Numbers between -1 and 1 that look drawn.
fn values(count: usize, seed: f32) -> Vec<f32> {
    (0..count).map(|at| (at as f32 * 0.7 + seed).sin()).collect()
}

/// Element `e` of head `h` of query `t`: softmax over the keys up to `t`, times the values.
fn expected(q: &[f32], k: &[f32], v: &[f32], [t, h, e]: [usize; 3]) -> f64 {
    // Four heads of q share one of k and v.
    let shared = h / (HEADS / KV_HEADS);
    let key = |of: &[f32], j: usize, i: usize| f64::from(of[(j * KV_HEADS + shared) * HEAD_DIM + i]);
    let score = |j| (0..HEAD_DIM).map(|i| f64::from(q[(t * HEADS + h) * HEAD_DIM + i]) * key(k, j, i)).sum::<f64>() / (HEAD_DIM as f64).sqrt();
    let weights: Vec<f64> = (0..=t).map(|j| f64::exp(score(j))).collect();
    weights.iter().enumerate().map(|(j, weight)| weight * key(v, j, e)).sum::<f64>() / weights.iter().sum::<f64>()
}

pub fn run(choice: &Choice) -> Result<()> {
    let mut session = Session::new(Arc::new(choice.open_any()?))?;
    let [heads, kv_heads, tokens] = [HEADS as u64, KV_HEADS as u64, TOKENS as u64];
    let op = Attention::dense(DType::F32, 1, [heads, kv_heads], [tokens, tokens], HEAD_DIM as u64).with_causal(true);
    let plan = session.plan(op)?; // Chooses a kernel and compiles it. Keep the plan.
    let [q, k, v] = [(HEADS, 0.1), (KV_HEADS, 0.2), (KV_HEADS, 0.3)].map(|(heads, seed)| values(TOKENS * heads * HEAD_DIM, seed));
    let o = session.alloc_elements(DType::F32, (TOKENS * HEADS * HEAD_DIM) as u64)?;
    let args = AttentionArgs::new(session.upload(&q)?, session.upload(&k)?, session.upload(&v)?, o.clone());
    session.run(&plan, &args)?; // Does not wait; `download` does.
    let found: Vec<f32> = session.download(&o)?;
    let all = (0..TOKENS).flat_map(|t| (0..HEADS).flat_map(move |h| (0..HEAD_DIM).map(move |e| [t, h, e])));
    let worst = all.zip(&found).map(|(at, found)| (f64::from(*found) - expected(&q, &k, &v, at)).abs()).fold(0.0, f64::max);
    println!("attention on {} by {}: greatest error {worst:.1e}", session.caps().name, plan.variant());
    assert!(worst < 1e-5, "{worst}");
    Ok(())
}

#[allow(dead_code, reason = "a test runs `run` alone")]
fn main() -> Result<()> {
    run(&std::env::var("TRIFUSE_BACKEND").unwrap_or_else(|_| "auto".into()).parse()?)
}
