//! What an encoded adapter kept of the original, projection by projection.

/// The measures of one adapter in one projection. Shares and cosines are 1 where nothing was lost.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Certificate {
    /// The rung that was chosen.
    pub rung: super::encoded::Rung,
    /// Columns of the factors.
    pub rank: usize,
    /// Share of ‖ΔW‖² that the basis keeps, before any code.
    pub basis_energy: f64,
    /// Cosine of the coded factor and what it stands for.
    pub cos_factor: f64,
    /// Cosine of ΔW and the decoded ΔŴ, recomputed from exactly what the file holds.
    pub cos_delta: f64,
    /// ‖ΔW − ΔŴ‖ / ‖ΔW‖: the output error on Gaussian inputs, in expectation.
    pub output_error_gaussian: f64,
    /// ‖x·(ΔW − ΔŴ)ᵀ‖ / ‖x·ΔWᵀ‖ on calibration inputs held out from the encoding, where there were any.
    pub output_error_held_out: Option<f64>,
    /// Code bits an element of the private factors, headers and codebooks not counted.
    pub bits_per_element: f64,
    /// Bytes of this adapter's own tensors in the bundle; shared bases not counted.
    pub bytes: u64,
    /// Bytes of the same projection as plain LoRA in the input file.
    pub bytes_before: u64,
}
