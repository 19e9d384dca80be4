//! What a file holds of an encoded adapter: everything that the product depends on, and no more.

use half::f16;

use crate::adapters::certificate::Certificate;
use crate::adapters::encoded::{CodedColumns, EncodedAdapter, EncodedFactor, EncodedProjection, Matrix, Population};
use crate::ops::codes::CODEBOOK_LEN;

impl Population {
    /// The population that reading it back from a file would give. ΔW is equal to the last bit. Certificates are rounded, and never to the
    /// better side.
    pub fn as_stored(&self) -> Self {
        let adapters = self.adapters.iter().map(|(name, adapter)| (name.clone(), adapter.as_stored()));
        Self { projections: self.projections.clone(), adapters: adapters.collect() }
    }
}

impl EncodedAdapter {
    /// The adapter that reading it back from a file would give; see [`Population::as_stored`].
    pub fn as_stored(&self) -> Self {
        let projections = self.projections.iter().map(|(name, projection)| (name.clone(), projection.as_stored()));
        Self { config: self.config.clone(), projections: projections.collect() }
    }
}

impl EncodedProjection {
    /// The projection that reading it back from a file would give; see [`Population::as_stored`]. Elements of the core that meet a column
    /// of no bits are 0, and so are centroids that no column uses.
    pub fn as_stored(&self) -> Self {
        let core = self.core.as_ref().map(|core| {
            let mut core = core.clone();
            for (at, value) in core.data.iter_mut().enumerate() {
                if !(self.input.is_live(at / core.cols) && self.output.is_live(at % core.cols)) {
                    *value = 0.0;
                }
            }
            core
        });
        let (input, output) = (self.input.as_stored(), self.output.as_stored());
        Self { input, core, output, scaling: self.scaling, certificate: self.certificate.as_stored() }
    }

    /// Bytes of the codes, codebooks, core and plain factors in the file, without the entry of 60 to 120 bytes in the adapter's index. A
    /// core or codebook takes two bytes an element where every value is an f16, else four. Round its values to f16 first where that is good
    /// enough.
    pub fn stored_bytes(&self) -> u64 {
        let mut streams = Streams::default();
        streams.projection(&self.as_stored());
        streams.bytes()
    }
}

impl EncodedFactor {
    fn as_stored(&self) -> Self {
        match self {
            Self::Coded(coded) => {
                let used = used_entries(coded.columns.iter().map(|(width, _)| *width));
                let codebook = std::array::from_fn(|entry| if used[entry] { coded.codebook[entry] } else { 0.0 });
                Self::Coded(CodedColumns { d: coded.d, columns: coded.columns.clone(), codebook })
            }
            other => other.clone(),
        }
    }
}

impl Certificate {
    fn as_stored(&self) -> Self {
        Self {
            basis_energy: round(self.basis_energy, f64::floor),
            cos_factor: round(self.cos_factor, f64::floor),
            cos_delta: round(self.cos_delta, f64::floor),
            output_error_gaussian: round(self.output_error_gaussian, f64::ceil),
            output_error_held_out: self.output_error_held_out.map(|error| round(error, f64::ceil)),
            bits_per_element: round(self.bits_per_element, f64::ceil),
            ..self.clone()
        }
    }
}

/// Rounds to six decimals, `towards` the worse side. A value of six decimals stays, so that rounding twice is rounding once.
fn round(value: f64, towards: fn(f64) -> f64) -> f64 {
    const STEPS: f64 = 1e6;
    // Whole anyway; times the steps it may be past what float64 holds.
    if value.abs() >= 2f64.powi(53) {
        return value;
    }
    let near = (value * STEPS).round() / STEPS;
    if near == value { near } else { towards(value * STEPS) / STEPS }
}

/// The entries of a codebook record that columns of these widths use.
pub(super) fn used_entries(widths: impl Iterator<Item = crate::ops::codes::CodeWidth>) -> [bool; CODEBOOK_LEN] {
    let mut used = [false; CODEBOOK_LEN];
    for width in widths {
        for entry in width.stage1().chain(width.stage2()) {
            used[entry] = true;
        }
    }
    used
}

/// Width of the numbers of one codebook or core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub(super) enum Precision {
    Half,
    Single,
}

impl From<Precision> for u8 {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::Half => 16,
            Precision::Single => 32,
        }
    }
}

impl TryFrom<u8> for Precision {
    type Error = String;

    fn try_from(bits: u8) -> Result<Self, String> {
        match bits {
            16 => Ok(Self::Half),
            32 => Ok(Self::Single),
            other => Err(format!("expected 16 or 32 bits, found {other}")),
        }
    }
}

/// The numbers of an adapter, by type, in the order in which its index names them.
#[derive(Debug, Default)]
pub(super) struct Streams {
    pub(super) singles: Vec<f32>,
    pub(super) codes: Vec<u32>,
    pub(super) halves: Vec<f16>,
}

impl Streams {
    pub(super) fn bytes(&self) -> u64 {
        (self.singles.len() * 4 + self.codes.len() * 4 + self.halves.len() * 2) as u64
    }

    /// Appends numbers, as f16 where that loses nothing.
    pub(super) fn numbers(&mut self, values: &[f32]) -> Precision {
        if values.iter().all(|&value| f16::from_f32(value).to_f32().to_bits() == value.to_bits()) {
            self.halves.extend(values.iter().map(|&value| f16::from_f32(value)));
            Precision::Half
        } else {
            self.singles.extend(values);
            Precision::Single
        }
    }

    fn projection(&mut self, projection: &EncodedProjection) {
        self.factor(&projection.input);
        if let Some(core) = &projection.core {
            self.core(core);
        }
        self.factor(&projection.output);
    }

    /// Appends a core's leading rows and columns, the rest being zero.
    pub(super) fn core(&mut self, core: &Matrix<f32>) -> (Precision, usize, usize) {
        let set = |row: usize, col: usize| core.at(row, col) != 0.0;
        let rows = (0..core.rows).rev().find(|&row| (0..core.cols).any(|col| set(row, col))).map_or(0, |row| row + 1);
        let cols = (0..core.cols).rev().find(|&col| (0..core.rows).any(|row| set(row, col))).map_or(0, |col| col + 1);
        let block: Vec<f32> = (0..rows).flat_map(|row| (0..cols).map(move |col| core.at(row, col))).collect();
        (self.numbers(&block), rows, cols)
    }

    /// Appends the numbers that a factor owns, and returns the precision of its codebook, where it has one.
    pub(super) fn factor(&mut self, factor: &EncodedFactor) -> Option<Precision> {
        match factor {
            EncodedFactor::Shared(_) => None,
            EncodedFactor::Plain(values) => {
                self.halves.extend(&values.data);
                None
            }
            EncodedFactor::Coded(coded) => {
                let used = used_entries(coded.columns.iter().map(|(width, _)| *width));
                let entries: Vec<f32> = (0..CODEBOOK_LEN).filter(|&entry| used[entry]).map(|entry| coded.codebook[entry]).collect();
                for (_, words) in &coded.columns {
                    self.codes.extend(words);
                }
                Some(self.numbers(&entries))
            }
        }
    }
}
