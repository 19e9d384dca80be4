//! The options of an encoding.

use super::calibration::Calibration;
use crate::adapters::certificate::Certificate;
use crate::adapters::encoded::Rung;
use crate::error::{Result, ensure};
use crate::ops::codes::CodeWidth;

/// Columns of a basis where nothing else is asked, as in S2LC.
pub const DEFAULT_RANK: usize = 16;
/// Bits an element where nothing else is asked.
pub const DEFAULT_BITS: f64 = 4.0;

/// The options of an encoding. Without any, it is S2LC's published form: one input basis of 16 columns a projection and output codes of 4
/// bits.
///
/// A required fidelity ([`Self::min_cosine`], [`Self::max_output_error`]) is met by every adapter in every projection, for the fewest
/// bytes, on any of the allowed rungs; or the encoding fails.
#[derive(Clone, Debug, Default)]
pub struct EncodeOptions {
    /// Columns of a shared basis.
    pub rank: Option<usize>,
    /// The share of the population's energy to keep, in 0..1. The smallest rank that keeps it is used, in place of a given rank.
    pub energy: Option<f64>,
    /// The most bytes of the bundle file over bytes of the adapters' factors (0.1 is ten times smaller). All of the file counts: codes,
    /// codebooks, bases, certificates, configurations, header. With no fidelity required, the result has the most fidelity for these bytes,
    /// about equal for all adapters.
    pub max_ratio: Option<f64>,
    /// The least cosine of ΔW and ΔŴ.
    pub min_cosine: Option<f64>,
    /// The greatest error of the output: on held-out calibration inputs where there are any, else on Gaussian inputs.
    pub max_output_error: Option<f64>,
    /// Bits an element of the coded factors, on average over the columns that the adapter's own rank fills.
    pub bits: Option<f64>,
    /// One width for all columns, instead of bits of each column's own.
    pub width: Option<CodeWidth>,
    /// The rungs that may be used. By default they are the shared rungs where a rank is given, since no other keeps that promise. They are
    /// every rung where a fidelity is required, and the published form where nothing is.
    pub rungs: Option<Vec<Rung>>,
    /// The seed of k-means.
    pub seed: u64,
    /// The inputs of the projections. A projection without inputs is encoded as if there were none. Inputs weight bases, codebooks and
    /// bits, unless a cosine is required. That is a measure of the weights themselves, and then inputs only measure the result.
    pub calibration: Option<Calibration>,
}

impl EncodeOptions {
    /// Checks the options by themselves.
    ///
    /// # Errors
    /// A value outside its range, or two that contradict each other.
    pub fn validate(&self) -> Result<()> {
        let inside = |name: &str, value: Option<f64>, least: f64, most: f64| {
            let fits = value.is_none_or(|value| value > least && value < most);
            ensure(fits, name, format_args!("above {least} and below {most}"), value.unwrap_or_default())
        };
        inside("energy", self.energy, 0.0, 1.0)?;
        inside("max ratio", self.max_ratio, 0.0, f64::INFINITY)?;
        inside("min cosine", self.min_cosine, 0.0, 1.0)?;
        inside("max output error", self.max_output_error, 0.0, 1.0)?;
        ensure(self.bits.is_none_or(|bits| bits > 0.0 && bits <= 7.0), "bits", "above 0 and at most 7", self.bits.unwrap_or_default())?;
        ensure(self.rank != Some(0), "rank", "at least 1", 0)?;
        ensure(self.rank.is_none() || self.energy.is_none(), "energy", "a rank or an energy, not both", "both")?;
        ensure(self.bits.is_none() || self.width.is_none(), "bits", "bits on average or one width for all, not both", "both")?;
        ensure(self.width != Some(CodeWidth::Zero), "width", "a width of at least two bits", "none")?;
        ensure(self.rungs.as_ref().is_none_or(|rungs| !rungs.is_empty()), "rungs", "at least one", "none")
    }

    /// Whether a fidelity is required.
    pub(crate) fn requires_fidelity(&self) -> bool {
        self.min_cosine.is_some() || self.max_output_error.is_some()
    }

    /// The rungs that may be used.
    pub(crate) fn allowed(&self) -> Vec<Rung> {
        use Rung::{ClusteredInput, Plain, PrivateCoded, SharedInput, SharedOutput};
        if let Some(rungs) = &self.rungs {
            return rungs.clone();
        }
        match (self.requires_fidelity(), self.rank.is_some(), self.max_ratio.is_some()) {
            (true, true, _) => vec![SharedInput, ClusteredInput, SharedOutput],
            (true, false, _) => vec![SharedInput, ClusteredInput, SharedOutput, PrivateCoded, Plain],
            (false, true, _) | (false, false, false) => vec![SharedInput],
            (false, false, true) => vec![SharedInput, SharedOutput, PrivateCoded],
        }
    }

    /// The share of the energy that may be lost: a requirement's, or what the asked bits lose anyway.
    pub(crate) fn allowed_loss(&self) -> f64 {
        // The limit is a hair inside what is asked, so that a reader's own rounding does not fall outside.
        let cosine = self.min_cosine.map_or(1.0, |cosine| (1.0 - cosine * cosine) * (1.0 - 1e-4));
        let error = self.max_output_error.map_or(1.0, |error| error * error * (1.0 - 1e-4));
        if self.requires_fidelity() { cosine.min(error) } else { 0.5 * 4f64.powf(-self.bits.unwrap_or(DEFAULT_BITS)) }
    }

    /// How the losses compare with what is required, which is met at 1 and below.
    pub(crate) fn shortfall(&self, certificate: &Certificate) -> f64 {
        let lost = |most: f64, reached: f64| reached / (most * (1.0 - 1e-4));
        let cosine = self.min_cosine.map_or(0.0, |least| lost(1.0 - least * least, 1.0 - certificate.cos_delta.max(0.0).powi(2)));
        let error = certificate.output_error_held_out.unwrap_or(certificate.output_error_gaussian);
        cosine.max(self.max_output_error.map_or(0.0, |most| lost(most * most, error * error)))
    }

    /// The requirement in words.
    pub(crate) fn asked(&self) -> String {
        let cosine = self.min_cosine.map(|least| format!("cos(ΔW) of at least {least}"));
        let error = self.max_output_error.map(|most| format!("an output error of at most {most}"));
        [cosine, error].into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }

    /// What a certificate reached, in the words of the requirement.
    pub(crate) fn reached(&self, certificate: &Certificate) -> String {
        let error = certificate.output_error_held_out.unwrap_or(certificate.output_error_gaussian);
        format!("cos(ΔW) {:.5} and output error {error:.5} on rung {:?}", certificate.cos_delta, certificate.rung)
    }
}
