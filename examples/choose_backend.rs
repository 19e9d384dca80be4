//! Every backend that this build and this machine have, opened at run time as one type, gives the same answer.
//!
//! `cargo run --example choose_backend`

use std::sync::Arc;

use trifuse::backends::{AnyDevice, Choice, find};
use trifuse::ops::{Linear, LinearArgs};
use trifuse::{DType, Error, Result, session::Session};

/// A product of whole numbers, which every backend computes exactly.
fn product(device: AnyDevice) -> Result<Vec<f32>> {
    let mut session = Session::new(Arc::new(device))?;
    let plan = session.plan(Linear::new(DType::F32, [3, 4, 2]))?;
    let x = session.upload(&(0..12).map(|at| at as f32).collect::<Vec<_>>())?;
    let w = session.upload(&[1f32, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0])?;
    let y = session.alloc_elements(DType::F32, 6)?;
    session.run(&plan, &LinearArgs::new(x, w, y.clone()))?;
    session.download(&y)
}

pub fn run(choice: &Choice) -> Result<()> {
    for found in find() {
        match found.devices {
            Ok(devices) => println!("{}: {}", found.backend, devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>().join(", ")),
            Err(error) => println!("{}: {error}", found.backend),
        }
    }
    // A name may come from a configuration: `auto`, `cpu`, `wgpu:1`.
    assert_eq!(product(choice.open_any()?)?, [0.0, 6.0, 4.0, 22.0, 8.0, 38.0]);
    for name in ["cpu", "wgpu", "cuda"] {
        match name.parse::<Choice>()?.open_any() {
            Ok(device) => println!("{name} computes {:?}", product(device)?),
            // What is missing, and what to install.
            Err(Error::NoBackend { reason, .. }) => println!("{name} is not here: {reason}"),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[allow(dead_code, reason = "a test runs `run` alone")]
fn main() -> Result<()> {
    run(&std::env::var("TRIFUSE_BACKEND").unwrap_or_else(|_| "auto".into()).parse()?)
}
