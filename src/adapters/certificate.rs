//! What an encoded adapter kept of the original, projection by projection.

use crate::error::{Result, ensure};

/// More bytes than any projection takes, so that the figures of a whole file add up without overflow.
const MAX_BYTES: u64 = 1 << 40;

/// The measures of one adapter in one projection. Shares and cosines are 1 where nothing was lost.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Certificate {
    /// The rung that was chosen.
    pub rung: Rung,
    /// Columns of the factors.
    pub rank: usize,
    /// The share of ‖ΔW‖² that the basis keeps, before any code.
    pub basis_energy: f64,
    /// Cosine of ΔŴ and the part of ΔW that lies in the basis, which is what the codes alone keep. For the published form, an orthonormal V
    /// with codes for U, it is cos(U, Û).
    pub cos_factor: f64,
    /// Cosine of ΔW and the decoded ΔŴ, recomputed from exactly what the file holds.
    pub cos_delta: f64,
    /// The expected output error on Gaussian inputs, ‖ΔW − ΔŴ‖ / ‖ΔW‖.
    pub output_error_gaussian: f64,
    /// The output error ‖x·(ΔW − ΔŴ)ᵀ‖ / ‖x·ΔWᵀ‖ on calibration inputs held out from the encoding, where there were any.
    pub output_error_held_out: Option<f64>,
    /// Whether calibration inputs of this projection weighted its encoding. If there were some and this is false, they only measured it.
    pub calibrated: bool,
    /// Code bits an element of the private factors, without headers and codebooks. A factor counts `min(R, r)` columns: those that a LoRA
    /// of rank r can fill.
    pub bits_per_element: f64,
    /// Bytes of this adapter's own codes, centroids, core and plain values, without shared bases and headers.
    pub bytes: u64,
    /// Bytes of this projection as plain LoRA in the input file.
    pub bytes_before: u64,
}

impl Certificate {
    /// The measures of factors that are kept as they are, in f16, and take `bytes` as they did before.
    pub const fn plain(rank: usize, bytes: u64) -> Self {
        Self {
            rung: Rung::Plain,
            rank,
            basis_energy: 1.0,
            cos_factor: 1.0,
            cos_delta: 1.0,
            output_error_gaussian: 0.0,
            output_error_held_out: None,
            calibrated: false,
            bits_per_element: 16.0,
            bytes,
            bytes_before: bytes,
        }
    }

    /// Checks that the figures can be measures: files from outside may say anything.
    ///
    /// # Errors
    /// A share or a cosine above 1, an error below 0, a number that is not finite, or 2^40 bytes.
    pub fn validate(&self) -> Result<()> {
        let cosines = [self.cos_factor, self.cos_delta].iter().all(|cosine| (-1.0..=1.0).contains(cosine));
        let counted = [self.output_error_gaussian, self.output_error_held_out.unwrap_or_default(), self.bits_per_element];
        let counted = counted.iter().all(|value| value.is_finite() && *value >= 0.0);
        let sound = cosines && counted && (0.0..=1.0).contains(&self.basis_energy) && self.bytes.max(self.bytes_before) < MAX_BYTES;
        ensure(sound, "certificate", "cosines and shares of at most 1, errors of at least 0, fewer than 2^40 bytes", format_args!("{self:?}"))
    }
}

/// The rungs of the ladder, cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// One input basis for all adapters, and output codes: S2LC as published.
    SharedInput,
    /// One of several input bases, and output codes.
    ClusteredInput,
    /// One output basis for all adapters, and input codes.
    SharedOutput,
    /// Both factors are private and coded.
    PrivateCoded,
    /// Plain f16 LoRA: nothing is lost but the rounding.
    Plain,
}
