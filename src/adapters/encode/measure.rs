//! The measurement of what an encoded adapter kept of the original.

use half::f16;

use super::linalg::{Mat, dot, mul, solve_gram, widen};
use crate::adapters::certificate::Certificate;
use crate::adapters::encoded::{EncodedFactor, EncodedProjection, Matrix, Rung, SharedProjection};
use crate::adapters::peft::Lora;
use crate::error::Result;

impl Certificate {
    /// Measures `encoded` against the `original`, in float64, from exactly what is held. `held_out` are inputs `[rows, d_in]` that had no
    /// part in the encoding. Whether others had cannot be seen, so `calibrated` is false. ΔW is never formed: every measure is a sum over
    /// products of the factors' Gram matrices. An original of zeros is kept (cosine 1) where the encoding is zero too.
    ///
    /// # Errors
    /// An encoded projection that does not decode.
    pub fn measure(original: &Lora, encoded: &EncodedProjection, shared: &SharedProjection, held_out: Option<&Matrix>) -> Result<Self> {
        let (a_hat, b_hat) = encoded.factors(shared)?;
        let (a, b) = (widen(&original.a), widen(&original.b));
        let (r, n) = (a.nrows(), a.nrows() + a_hat.rows);
        // The columns are [A; Â] and [sB, −ŝB̂], whose product is the error.
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

/// The quantities `‖ΔW‖²`, `⟨ΔW, ΔŴ⟩`, `‖ΔŴ‖²` and `‖ΔW − ΔŴ‖²` in the inner product of some inputs.
struct Errors {
    original: f64,
    cross: f64,
    encoded: f64,
    error: f64,
}

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
            // An answer where there should be none has no scale to be held against, so it counts as all wrong.
            (false, true) => 1.0,
        }
    }
}

/// The share of the energy in the span of a basis. `columns [d, r]` are the original's factor on that side. `far` is the Gram matrix of the
/// other side in its first r rows and columns.
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

fn rung(encoded: &EncodedProjection, shared: &SharedProjection) -> Rung {
    match (&encoded.input, &encoded.output) {
        (EncodedFactor::Shared(_), _) if shared.input_bases.len() > 1 => Rung::ClusteredInput,
        (EncodedFactor::Shared(_), _) => Rung::SharedInput,
        (_, EncodedFactor::Shared(_)) => Rung::SharedOutput,
        (EncodedFactor::Coded(_), _) | (_, EncodedFactor::Coded(_)) => Rung::PrivateCoded,
        _ => Rung::Plain,
    }
}

/// Code bits over elements. A plain factor has 16, and a shared one none of its own.
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
