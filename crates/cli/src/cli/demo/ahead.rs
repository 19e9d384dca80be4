//! Kernels compiled before they are needed: each takes a second, and those of a bundle are known once it is written.

use std::collections::HashSet;
use std::sync::Arc;

use trifuse::Result;
use trifuse::adapters::bundle::Bundle;
use trifuse::adapters::engine::{Engine, EngineOptions};
use trifuse::backends::AnyDevice;
use trifuse::device::{Device, Kind};
use trifuse::session::Session;

use super::inputs::groups;
use super::serve::{Job, TOKENS, dtype};

/// Has a device compile what a job is served by, each kernel by a thread. What fails here fails again, and says so, when it is served.
pub fn compile(device: &Arc<AnyDevice>, job: &Job<'_>) {
    // A processor compiles nothing, and has the adapters to encode.
    if device.caps().kind != Kind::Cpu {
        planned(device, job).unwrap_or_default();
    }
}

fn planned(device: &Arc<AnyDevice>, job: &Job<'_>) -> Result<()> {
    let mut session = Session::new(Arc::clone(device))?;
    let dtype = dtype(device.caps());
    let bundle = Bundle::open(&job.bundle)?;
    let groups = groups(&bundle, job.activations, TOKENS, dtype);
    let engine = Engine::open(&mut session, Box::new(bundle), EngineOptions::new(dtype))?;
    let mut all = HashSet::new();
    for group in &groups {
        let targets: Vec<(&str, u64)> = group.projections.iter().map(|(path, d_out)| (path.as_str(), *d_out as u64)).collect();
        all.extend(engine.operations(TOKENS, group.d_in as u64, &targets)?);
    }
    std::thread::scope(|scope| {
        for op in all {
            scope.spawn(move || Session::new(Arc::clone(device))?.plan(op).map(drop));
        }
    });
    Ok(())
}
