//! Two products recorded once and replayed on new data: a replay neither plans nor checks again, and on a GPU costs one launch.
//!
//! `cargo run --example capture_graph`

use std::sync::Arc;

use trifuse::ops::{Activation, Linear, LinearArgs};
use trifuse::{DType, Result, backends::Choice, session::Session};

const SIZE: u64 = 96;

pub fn run(choice: &Choice) -> Result<()> {
    let mut session = Session::new(Arc::new(choice.open_any()?))?;
    let plan = session.plan(Linear::new(DType::F32, [1, SIZE, SIZE]).with_activation(Activation::Relu))?;
    // Twice the identity: each product doubles what is positive.
    let weight: Vec<f32> = (0..SIZE * SIZE).map(|at| if at % (SIZE + 1) == 0 { 2.0 } else { 0.0 }).collect();
    let w = session.upload(&weight)?;
    let [x, between, y] = [session.alloc_elements(DType::F32, SIZE)?, session.alloc_elements(DType::F32, SIZE)?, session.alloc_elements(DType::F32, SIZE)?];
    let (first, second) = (LinearArgs::new(x.clone(), w.clone(), between.clone()), LinearArgs::new(between, w, y.clone()));
    // Inside, `run` records and nothing else may be called. The graph holds on to all memory that it names.
    let graph = session.capture(|session| {
        session.run(&plan, &first)?;
        session.run(&plan, &second)
    })?;
    for step in 0..3 {
        let input: Vec<f32> = (0..SIZE).map(|at| at as f32 - 10.0 * step as f32).collect();
        session.write(&x, bytemuck::cast_slice(&input))?;
        let before = session.record_event()?;
        session.replay(&graph)?;
        let after = session.record_event()?;
        let found: Vec<f32> = session.download(&y)?;
        assert!(input.iter().zip(&found).all(|(x, y)| *y == 4.0 * x.max(0.0)), "step {step}");
        let seconds = session.elapsed(&before, &after)?;
        println!("replay {step} on {}: right, {:.1} µs", session.caps().name, seconds * 1e6);
    }
    Ok(())
}

#[allow(dead_code, reason = "a test runs `run` alone")]
fn main() -> Result<()> {
    run(&std::env::var("TRIFUSE_BACKEND").unwrap_or_else(|_| "auto".into()).parse()?)
}
