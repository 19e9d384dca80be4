//! Test 2: a mixed batch served from the compressed form, on every rung of the ladder, against float64.
//!
//! The reference allows an error of 0.05 whatever the size of the values. Here the rule is that of
//! [`trifuse_testkit::tolerance`]: within twice the error of the plain computation in the operand's own precision.

use rayon::prelude::*;

use super::findings::Findings;
use super::samples::Samples;
use super::served::{apply, deltas, encode_all, one_layer, times};
use trifuse::adapters::encode::EncodeOptions;
use trifuse::adapters::encoded::{Population, Rung};
use trifuse::adapters::engine::{AdapterId, Engine, EngineOptions};
use trifuse::backend::Backend;
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::session::Session;
use trifuse_testkit::cases::Draw;
use trifuse_testkit::tolerance::Tolerance;

const TOKENS: usize = 37;
const DTYPE: DType = DType::F16;
const RUNGS: [Rung; 5] = [Rung::SharedInput, Rung::ClusteredInput, Rung::SharedOutput, Rung::PrivateCoded, Rung::Plain];

pub fn findings<D: Backend>(session: &mut Session<D>, samples: &Samples) -> Result<Findings> {
    let adapters = one_layer(&samples.adapters);
    let mut found = Findings::default();
    // A rung alone may not reach a fidelity, so none is asked: this is about serving what was encoded.
    let options = |rung| EncodeOptions { rungs: Some(vec![rung]), rank: Some(8), ..EncodeOptions::default() };
    // A layer has fewer projections than a host has cores: the rungs are encoded side by side.
    let populations = RUNGS.par_iter().map(|&rung| encode_all(&adapters, &options(rung))).collect::<Result<Vec<_>>>()?;
    for (rung, population) in RUNGS.iter().zip(&populations) {
        let worst = serve(session, population, &format!("{rung:?}"))?;
        found.at_most(format!("{rung:?}: greatest error over what is allowed"), worst.0, 1.0);
        found.at_most(format!("{rung:?}: relative L2 error"), worst.1, 1e-3);
    }
    Ok(found)
}

/// The worst error of any projection, as a share of what is allowed, and the worst relative L2 error.
fn serve<D: Backend>(session: &mut Session<D>, population: &Population, seed: &str) -> Result<(f64, f64)> {
    let mut engine = Engine::open(session, Box::new(population.clone()), EngineOptions::new(DTYPE))?;
    let names: Vec<(String, AdapterId)> = engine.adapters().map(|(name, id)| (name.to_owned(), id)).collect();
    let mut draw = Draw::seeded(seed);
    // One more than there are adapters: the last is the base model alone.
    let choice: Vec<Option<&(String, AdapterId)>> = (0..TOKENS).map(|_| names.get(draw.below(names.len() as u32 + 1) as usize)).collect();
    let ids: Vec<Option<AdapterId>> = choice.iter().map(|choice| choice.map(|(_, id)| *id)).collect();
    let batch = engine.batch(session, &ids)?;
    let (mut worst, mut worst_l2) = (0f64, 0f64);
    // Projections of one width read one x, and go in one call.
    let mut by_width: std::collections::BTreeMap<usize, Vec<&str>> = std::collections::BTreeMap::new();
    for (path, shared) in &population.projections {
        by_width.entry(shared.d_in).or_default().push(path);
    }
    for (d_in, paths) in by_width {
        let x = draw.normal(DTYPE, (TOKENS * d_in) as u64, 1.0);
        let inputs: Vec<Vec<f64>> = paths.iter().map(|path| draw.normal(DTYPE, (TOKENS * population.projections[*path].d_out) as u64, 0.1)).collect();
        let targets: Vec<(&str, &[f64])> = paths.iter().copied().zip(inputs.iter().map(Vec::as_slice)).collect();
        let outputs = apply(session, &mut engine, &batch, DTYPE, &x, &targets)?;
        for ((path, y), output) in targets.iter().zip(outputs) {
            let deltas = deltas(population, path)?;
            let d_out = y.len() / TOKENS;
            let answers = y.par_chunks_exact(d_out).enumerate().flat_map(|(token, before)| {
                let delta = choice[token].and_then(|(name, _)| deltas.get(name));
                let added = delta.map_or_else(|| vec![0.0; d_out], |delta| times(delta, &x[token * d_in..(token + 1) * d_in]));
                // Step by step a plain program rounds the delta, then the sum.
                let answer = |(before, added): (&f64, f64)| (Some(before + added), Some(DTYPE.round(before + DTYPE.round(added))));
                before.iter().zip(added).map(answer).collect::<Vec<_>>()
            });
            let (reference, plain): (Vec<_>, Vec<_>) = answers.unzip();
            let metrics = Tolerance::new(DTYPE, &reference, &plain, 0.0).compare(&reference, &output)?;
            worst = worst.max(metrics.max_abs / metrics.tolerance.max_abs);
            worst_l2 = worst_l2.max(metrics.relative_l2);
        }
    }
    Ok((worst, worst_l2))
}
