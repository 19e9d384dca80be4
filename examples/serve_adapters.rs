//! PEFT adapters, compressed to a shared basis and codes, applied token by token in one batch: `y += ΔW · x` of whichever adapter a token has.
//!
//! `cargo run --features compress --example serve_adapters`

use std::sync::Arc;

use trifuse::adapters::encode::{EncodeOptions, Source, encode};
use trifuse::adapters::engine::{Engine, EngineOptions, Target};
use trifuse::adapters::peft::open_all;
use trifuse::{DType, Result, backends::Choice, session::Session};

const FOLDERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/cli/data/adapters/B");
const PROJECTION: &str = "encoder.layer.0.attention.self.query";
const SIZE: usize = 384;

pub fn run(choice: &Choice) -> Result<()> {
    let adapters = open_all(&[FOLDERS])?;
    let sources: Vec<Source<'_>> = adapters.iter().map(Source::from).collect();
    let population = encode(&sources, &EncodeOptions { min_cosine: Some(0.99), ..Default::default() }, &|_, _| {})?;

    let mut session = Session::new(Arc::new(choice.open_any()?))?;
    let mut engine = Engine::open(&mut session, Box::new(population), EngineOptions::new(DType::F32))?;
    // The third token has the base model alone.
    let ids = [Some(engine.adapter("rust")?), Some(engine.adapter("sqlite")?), None];
    let batch = engine.batch(&mut session, &ids)?;
    let x = session.upload(&vec![0.1f32; ids.len() * SIZE])?;
    let y = session.upload(&vec![0f32; ids.len() * SIZE])?;
    engine.apply(&mut session, &batch, &x, SIZE as u64, &[Target { projection: PROJECTION, y: y.clone(), y_stride: SIZE as u64 }])?;
    let y: Vec<f32> = session.download(&y)?;
    for (row, id) in y.chunks(SIZE).zip(ids) {
        let norm = row.iter().map(|y| y * y).sum::<f32>().sqrt();
        println!("{} on {}: |ΔW · x| = {norm:.4}", id.map_or("the base model".into(), |id| format!("{id:?}")), session.caps().name);
        assert_eq!(norm > 0.0, id.is_some());
    }
    assert_ne!(y[..SIZE], y[SIZE..2 * SIZE], "two adapters");
    Ok(())
}

#[allow(dead_code, reason = "a test runs `run` alone")]
fn main() -> Result<()> {
    run(&std::env::var("TRIFUSE_BACKEND").unwrap_or_else(|_| "auto".into()).parse()?)
}
