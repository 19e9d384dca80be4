//! What an encoded adapter kept of the original, projection by projection.

#[cfg(feature = "compress")]
use {
    super::encode::linalg::{Mat, dot, mul, solve_gram, widen},
    super::encoded::{EncodedFactor, EncodedProjection, Matrix, Rung, SharedProjection},
    super::peft::Lora,
    half::f16,
};

use crate::error::{Result, ensure};

/// More than any projection takes: the figures of a whole file can be added up without care.
const MAX_BYTES: u64 = 1 << 40;

/// The measures of one adapter in one projection. Shares and cosines are 1 where nothing was lost.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Certificate {
    /// The rung that was chosen.
    pub rung: super::encoded::Rung,
    /// Columns of the factors.
    pub rank: usize,
    /// Share of ‖ΔW‖² that the basis keeps, before any code.
    pub basis_energy: f64,
    /// Cosine of ΔŴ and the part of ΔW that lies in the basis: what the codes alone keep. For the published form, an
    /// orthonormal V with codes for U, it is cos(U, Û).
    pub cos_factor: f64,
    /// Cosine of ΔW and the decoded ΔŴ, recomputed from exactly what the file holds.
    pub cos_delta: f64,
    /// ‖ΔW − ΔŴ‖ / ‖ΔW‖: the output error on Gaussian inputs, in expectation.
    pub output_error_gaussian: f64,
    /// ‖x·(ΔW − ΔŴ)ᵀ‖ / ‖x·ΔWᵀ‖ on calibration inputs held out from the encoding, where there were any.
    pub output_error_held_out: Option<f64>,
    /// Whether calibration inputs of this projection weighted its encoding. Where there were some and this is false, they
    /// only measured it.
    pub calibrated: bool,
    /// Code bits an element of the private factors, headers and codebooks not counted. A factor counts `min(R, r)`
    /// columns: those that a LoRA of rank r can fill.
    pub bits_per_element: f64,
    /// Bytes of this adapter's own codes, centroids, core and plain values; shared bases and headers not counted.
    pub bytes: u64,
    /// Bytes of the same projection as plain LoRA in the input file.
    pub bytes_before: u64,
}

impl Certificate {
    /// Checks that these are measures of something: files from outside may say anything.
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

#[cfg(feature = "compress")]
impl Certificate {
    /// Measures `encoded` against the `original`, in float64, from exactly what is held. `held_out` are inputs
    /// `[rows, d_in]` that had no part in the encoding; whether others had is not to be seen, so `calibrated` is false. ΔW is
    /// never formed: every measure is a sum over products of the factors' Gram matrices. An original of zeros is kept (cosine 1)
    /// where the encoding is zero too.
    ///
    /// # Errors
    /// An encoded projection that does not decode.
    pub fn measure(original: &Lora, encoded: &EncodedProjection, shared: &SharedProjection, held_out: Option<&Matrix>) -> Result<Self> {
        let (a_hat, b_hat) = encoded.factors(shared)?;
        let (a, b) = (widen(&original.a), widen(&original.b));
        let (r, n) = (a.nrows(), a.nrows() + a_hat.rows);
        // [A; Â] as columns and [sB, −ŝB̂]: their product is the error.
        let inner = Mat::from_fn(a.ncols(), n, |i, j| if j < r { a[(j, i)] } else { a_hat.at(j - r, i) });
        let scale = |j: usize| if j < r { f64::from(original.scaling) } else { -f64::from(encoded.scaling) };
        let outer = Mat::from_fn(b.nrows(), n, |i, j| scale(j) * if j < r { b[(i, j)] } else { b_hat.at(i, j - r) });
        let outer = mul(outer.transpose(), outer.as_ref());
        let plain = Errors::new(&mul(inner.transpose(), inner.as_ref()), &outer, r);
        let held_out = held_out.map(|rows| {
            let seen = mul(widen(rows).as_ref(), inner.as_ref());
            Errors::new(&mul(seen.transpose(), seen.as_ref()), &outer, r).relative()
        });

        let basis_energy = match (&encoded.input, &encoded.output) {
            (EncodedFactor::Shared(basis), _) => share_kept(&shared.input_bases[*basis], &inner.subcols(0, r).to_owned(), &outer, &plain)?,
            (_, EncodedFactor::Shared(basis)) => {
                let scaled = Mat::from_fn(b.nrows(), r, |i, j| f64::from(original.scaling) * b[(i, j)]);
                share_kept(&shared.output_bases[*basis], &scaled, &mul(inner.transpose(), inner.as_ref()), &plain)?
            }
            _ => 1.0,
        };
        let cos_delta = plain.cosine();
        let cos_factor = if basis_energy > 0.0 { (cos_delta / basis_energy.sqrt()).clamp(-1.0, 1.0) } else { cos_delta };
        Ok(Self {
            rung: rung(encoded, shared),
            rank: encoded.core.as_ref().map_or(b_hat.cols, |core| core.rows),
            basis_energy,
            cos_factor,
            cos_delta,
            output_error_gaussian: plain.relative(),
            output_error_held_out: held_out,
            calibrated: false,
            bits_per_element: bits_per_element(encoded, r),
            bytes: encoded.stored_bytes(),
            bytes_before: original.bytes(),
        })
    }
}

/// `‖ΔW‖²`, `⟨ΔW, ΔŴ⟩`, `‖ΔŴ‖²` and `‖ΔW − ΔŴ‖²` in the inner product of some inputs.
#[cfg(feature = "compress")]
struct Errors {
    original: f64,
    cross: f64,
    encoded: f64,
    error: f64,
}

#[cfg(feature = "compress")]
impl Errors {
    fn new(inner: &Mat, outer: &Mat, r: usize) -> Self {
        let rest = inner.nrows() - r;
        let block = |i: usize, j: usize, rows: usize, cols: usize| dot(inner.submatrix(i, j, rows, cols), outer.submatrix(i, j, rows, cols));
        Self { original: block(0, 0, r, r), cross: -block(0, r, r, rest), encoded: block(r, r, rest, rest), error: dot(inner.as_ref(), outer.as_ref()) }
    }

    fn cosine(&self) -> f64 {
        match (self.original > 0.0, self.encoded > 0.0) {
            (true, true) => (self.cross / (self.original * self.encoded).sqrt()).clamp(-1.0, 1.0),
            (false, false) => 1.0,
            _ => 0.0,
        }
    }

    fn relative(&self) -> f64 {
        match (self.original > 0.0, self.encoded > 0.0) {
            (true, _) => (self.error.max(0.0) / self.original).sqrt(),
            (false, false) => 0.0,
            // An answer where there should be none: there is no scale to hold it against, so it counts as all wrong.
            (false, true) => 1.0,
        }
    }
}

/// The share of the energy in the span of a basis: `columns [d, r]` are the original's factor on that side, `far` the
/// Gram matrix of the other side in its first r rows and columns.
#[cfg(feature = "compress")]
fn share_kept(basis: &Matrix<f16>, columns: &Mat, far: &Mat, errors: &Errors) -> Result<f64> {
    if errors.original <= 0.0 {
        return Ok(1.0);
    }
    let basis = widen(basis);
    let seen = mul(basis.transpose(), columns.as_ref());
    let inside = mul(seen.transpose(), solve_gram(&mul(basis.transpose(), basis.as_ref()), &seen)?.as_ref());
    let r = columns.ncols();
    Ok((dot(inside.as_ref(), far.submatrix(0, 0, r, r)) / errors.original).clamp(0.0, 1.0))
}

#[cfg(feature = "compress")]
fn rung(encoded: &EncodedProjection, shared: &SharedProjection) -> Rung {
    match (&encoded.input, &encoded.output) {
        (EncodedFactor::Shared(_), _) if shared.input_bases.len() > 1 => Rung::ClusteredInput,
        (EncodedFactor::Shared(_), _) => Rung::SharedInput,
        (_, EncodedFactor::Shared(_)) => Rung::SharedOutput,
        (EncodedFactor::Coded(_), _) | (_, EncodedFactor::Coded(_)) => Rung::PrivateCoded,
        _ => Rung::Plain,
    }
}

/// Code bits over elements; 16 for a plain factor; a shared one has none of its own.
#[cfg(feature = "compress")]
fn bits_per_element(encoded: &EncodedProjection, r: usize) -> f64 {
    let [input, output] = [&encoded.input, &encoded.output].map(|factor| match factor {
        EncodedFactor::Shared(_) => (0.0, 0.0),
        EncodedFactor::Coded(coded) => {
            let bits: u32 = coded.columns.iter().map(|column| column.0.bits()).sum();
            (f64::from(bits) * coded.d as f64, (coded.d * coded.columns.len().min(r)) as f64)
        }
        EncodedFactor::Plain(values) => (16.0 * values.data.len() as f64, values.data.len() as f64),
    });
    let elements = input.1 + output.1;
    if elements > 0.0 { (input.0 + output.0) / elements } else { 0.0 }
}
