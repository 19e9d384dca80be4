//! A projection of a model with an adapter of its own on every token, in one operation: `y = relu(x · Wᵀ + ΔW · x)`, y written once.
//!
//! `cargo run --features compress --example linear_with_lora`

use std::sync::Arc;

use trifuse::adapters::encode::{EncodeOptions, Source, encode};
use trifuse::adapters::engine::{Engine, EngineOptions, Target};
use trifuse::adapters::peft::open_all;
use trifuse::ops::{Activation, Linear, LinearArgs};
use trifuse::{DType, Result, backends::Choice, session::Session};

const FOLDERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/cli/data/adapters/B");
const PROJECTION: &str = "encoder.layer.0.attention.self.query";
const SIZE: u64 = 384;

pub fn run(choice: &Choice) -> Result<()> {
    let adapters = open_all(&[FOLDERS])?;
    let sources: Vec<Source<'_>> = adapters.iter().map(Source::from).collect();
    let population = encode(&sources, &EncodeOptions { min_cosine: Some(0.99), ..Default::default() }, &|_, _| {})?;
    let mut session = Session::new(Arc::new(choice.open_any()?))?;
    let mut engine = Engine::open(&mut session, Box::new(population), EngineOptions::new(DType::F32))?;
    let ids = [Some(engine.adapter("rust")?), None, Some(engine.adapter("sqlite")?)];
    let (batch, tokens) = (engine.batch(&mut session, &ids)?, ids.len() as u64);

    let values = |count: u64, by: f32| (0..count).map(|at| (at as f32 * 0.7).sin() * by).collect::<Vec<f32>>();
    let (x, w) = (session.upload(&values(tokens * SIZE, 0.5))?, session.upload(&values(SIZE * SIZE, 0.05))?);
    let y = session.alloc_elements(DType::F32, tokens * SIZE)?;

    // What the engine would launch by itself goes into the product.
    let (delta, delta_args) = engine.delta(&batch, &[PROJECTION], &x, &y)?;
    let plan = session.plan(Linear::new(DType::F32, [tokens, SIZE, SIZE]).with_activation(Activation::Relu).with_delta(delta))?;
    session.run(&plan, &LinearArgs::new(x.clone(), w.clone(), y.clone()).with_delta(delta_args))?;
    let together: Vec<f32> = session.download(&y)?;

    // The same in three steps: the product, the adapters on top, the activation.
    let plain = session.plan(Linear::new(DType::F32, [tokens, SIZE, SIZE]))?;
    session.run(&plain, &LinearArgs::new(x.clone(), w, y.clone()))?;
    engine.apply(&mut session, &batch, &x, SIZE, &[Target { projection: PROJECTION, y: y.clone(), y_stride: SIZE }])?;
    let apart: Vec<f32> = session.download(&y)?;
    let worst = together.iter().zip(&apart).map(|(one, three)| (one - three.max(0.0)).abs()).fold(0.0, f32::max);
    println!("linear with adapters on {} by {}: {worst:.1e} from three steps", session.caps().name, plan.variant());
    assert!(worst < 1e-4 && together.iter().any(|y| *y > 0.0), "{worst}");
    Ok(())
}

#[allow(dead_code, reason = "a test runs `run` alone")]
fn main() -> Result<()> {
    run(&std::env::var("TRIFUSE_BACKEND").unwrap_or_else(|_| "auto".into()).parse()?)
}
