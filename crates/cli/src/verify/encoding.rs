//! Test 1: what encoding keeps, on real adapters, recomputed from what is held and compared with what is certified.
//!
//! The reference asks for cos(U, Û) > 0.99 and a mean error below 0.005 on random U. The cosine of ΔW is what a model
//! sees, and an error means something only beside the spread of the values, so both are asked of ΔW.

use rayon::prelude::*;

use super::findings::Findings;
use super::samples::Samples;
use super::served::{cosine, delta_of, deltas, encode_all, one_layer};
use trifuse::adapters::encode::EncodeOptions;
use trifuse::adapters::encoded::Rung;
use trifuse::error::{Error, Result};
use trifuse::ops::CodeWidth;

/// The fidelity that is asked for where one is.
const MIN_COSINE: f64 = 0.99;

/// The most that the mean |ΔW − ΔŴ| / σ may be where cos(ΔW, ΔŴ) is at least `cos` and ΔŴ is no longer than ΔW, as what
/// rounding to centroids and leaving out directions give: then ‖ΔW − ΔŴ‖² ≤ 2 (1 − cos) ‖ΔW‖², and a mean is below the
/// root of the mean square.
fn most_error(cos: f64) -> f64 {
    (2.0 * (1.0 - cos)).sqrt()
}

pub fn findings(samples: &Samples) -> Result<Findings> {
    let adapters = one_layer(&samples.adapters);
    let mut found = Findings::default();
    let coded = EncodeOptions { rungs: Some(vec![Rung::PrivateCoded]), width: Some(CodeWidth::FourThree), ..EncodeOptions::default() };
    let required = EncodeOptions { min_cosine: Some(MIN_COSINE), ..EncodeOptions::default() };
    let kinds = [("16 + 8 centroids", coded, 0.03), ("min cosine 0.99", required, most_error(MIN_COSINE))];
    let populations = kinds.par_iter().map(|(_, options, _)| encode_all(&adapters, options)).collect::<Result<Vec<_>>>()?;
    for ((label, _, most), population) in kinds.into_iter().zip(populations) {
        let (mut least_factor, mut least_delta, mut worst_error, mut worst_claim) = (1f64, 1f64, 0f64, 0f64);
        for path in population.projections.keys() {
            let decoded = deltas(&population, path)?;
            for adapter in adapters.iter().filter(|adapter| adapter.modules.contains_key(path)) {
                let original = delta_of(&adapter.modules[path]);
                let (Some(kept), Some(encoded)) = (decoded.get(&adapter.name), population.adapters.get(&adapter.name)) else {
                    return Err(Error::invalid(format!("adapter {}: {path}", adapter.name), "an encoding", "none"));
                };
                let certificate = &encoded.projections[path].certificate;
                let cos = cosine(original.data.iter().copied(), kept.data.iter().copied());
                let count = original.data.len() as f64;
                let deviation = (original.data.iter().map(|v| v * v).sum::<f64>() / count).sqrt();
                let mean_error = original.data.iter().zip(&kept.data).map(|(a, b)| (a - b).abs()).sum::<f64>() / count;
                least_factor = least_factor.min(certificate.cos_factor);
                least_delta = least_delta.min(cos);
                worst_error = worst_error.max(mean_error / deviation);
                worst_claim = worst_claim.max((certificate.cos_delta - cos).abs());
            }
        }
        found.at_least(format!("{label}: least cos(U, Û)"), least_factor, MIN_COSINE);
        found.at_least(format!("{label}: least cos(ΔW, ΔŴ)"), least_delta, MIN_COSINE);
        found.at_most(format!("{label}: greatest mean |ΔW − ΔŴ| / σ"), worst_error, most);
        found.at_most(format!("{label}: certificate against recomputed cosine"), worst_claim, 1e-6);
    }
    Ok(found)
}
