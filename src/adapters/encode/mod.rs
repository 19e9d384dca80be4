//! The encoding of a population of LoRA adapters. Every projection is encoded by itself, in parallel. The result is the same on any number
//! of threads.

pub mod add;
mod allocate;
mod basis;
mod budget;
pub mod calibration;
mod codebook;
mod draft;
mod factor;
mod forecast;
mod ladder;
pub(crate) mod linalg;
mod lower;
mod measure;
mod metric;
mod options;
pub mod prefix;
mod room;
mod sources;
mod terms;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use crate::adapters::bundle;
use crate::adapters::encoded::{Population, Rung};
use crate::error::Result;
use basis::basis_bytes;
use ladder::climb;
pub use options::{DEFAULT_BITS, DEFAULT_RANK, EncodeOptions};
pub use sources::{Progress, Source};
use sources::{assemble, bytes_before, gather, with_members};

/// Encodes a population. The result is deterministic for the options' seed, whatever the number of threads.
///
/// # Errors
/// No adapters, two of one name, shapes that differ between adapters, values that are not finite, options out of range,
/// calibration inputs of another width or of none of the projections;
/// [`Error::Missed`](crate::error::Error::Missed) where the required fidelity cannot be had on the rungs that are allowed, or the required ratio.
pub fn encode(sources: &[Source<'_>], options: &EncodeOptions, progress: Progress<'_>) -> Result<Population> {
    options.validate()?;
    let by_path = gather(sources)?;
    if let Some(calibration) = &options.calibration {
        calibration.check_names(by_path.iter().map(|projection| projection.0))?;
    }
    let most = options.max_ratio.map(|ratio| (ratio * bytes_before(&by_path) as f64) as u64);
    if let Some(most) = most.filter(|_| !options.requires_fidelity() && options.allowed() != [Rung::Plain]) {
        return budget::encode_within(&by_path, sources, options, most, progress);
    }
    let done = AtomicUsize::new(0);
    let encoded = by_path.par_iter().map(|(path, users)| {
        let names: Vec<&str> = users.iter().map(|user| user.0).collect();
        let out = with_members(path, users, options, |members, setting| climb(path, &names, members, setting));
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, by_path.len());
        out
    });
    let population = assemble(&by_path, sources, encoded.collect())?;
    let Some(most) = most else { return Ok(population) };
    let reached = bundle::file_bytes(&population)?;
    if reached <= most {
        return Ok(population);
    }
    let asked = options.asked();
    let kept = if asked.is_empty() { String::new() } else { format!(" with {asked}; ask for less of that") };
    Err(budget::missed(most, bytes_before(&by_path), reached, &kept))
}

/// Payload bytes of a population before and after. They count codes, cores, plain values and bases, without headers.
pub fn payload_bytes(population: &Population) -> (u64, u64) {
    let own = population.adapters.values().flat_map(|adapter| adapter.projections.values());
    let (before, after) = own.fold((0, 0), |sum, p| (sum.0 + p.certificate.bytes_before, sum.1 + p.certificate.bytes));
    let bases = population.projections.values().flat_map(|shared| shared.input_bases.iter().chain(&shared.output_bases));
    (before, after + bases.map(basis_bytes).sum::<u64>())
}
