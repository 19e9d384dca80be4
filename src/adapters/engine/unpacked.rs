//! An adapter's projection as two dense factors, as an engine holds it unpacked.

use crate::adapters::encoded::{EncodedProjection, Matrix, SharedProjection};
use crate::dtype::DType;
use crate::error::{Result, ensure};

/// Ranks of which the kernels for dense factors are compiled. Adapters between two of them share a launch.
const RANKS: [usize; 5] = [16, 32, 64, 128, 256];

/// The rank by which adapters share a launch; `None` where no kernel for dense factors takes so many columns.
pub fn bucket(rank: usize) -> Option<usize> {
    RANKS.into_iter().find(|&bucket| rank <= bucket)
}

/// The columns of an unpacked adapter: whole multiples of 16 bytes in any 16-bit type.
pub const fn padded(rank: usize) -> usize {
    rank.next_multiple_of(8)
}

/// Both factors of a projection, `[d_in, rank]` and `[d_out, rank]`, encoded in `dtype`, with zeros in the columns that the adapter lacks.
///
/// # Errors
/// A projection that does not fit `shared`; values that `dtype` cannot hold.
pub fn factors(projection: &EncodedProjection, shared: &SharedProjection, rank: usize, dtype: DType) -> Result<[Vec<u8>; 2]> {
    let (a, b) = projection.factors(shared)?;
    let input = a.transposed();
    let output = b.map(|value| value * f64::from(projection.scaling));
    let shift = shift(&input, &output, dtype);
    Ok([encode(&input, shift, rank, dtype)?, encode(&output, -shift, rank, dtype)?])
}

/// A factor times a power of two, with `rank` columns.
fn encode(factor: &Matrix<f64>, shift: i32, rank: usize, dtype: DType) -> Result<Vec<u8>> {
    let scale = f64::from(shift).exp2();
    let mut values = vec![0.0; factor.rows * rank];
    for (row, from) in values.chunks_exact_mut(rank.max(1)).zip(factor.data.chunks_exact(factor.cols.max(1))) {
        row.iter_mut().zip(from).for_each(|(to, from)| *to = from * scale);
    }
    let greatest = values.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    ensure(greatest <= largest(dtype), "adapter", format_args!("values that {dtype} holds, at most {}", largest(dtype)), greatest)?;
    Ok(dtype.encode(&values))
}

/// The largest finite value.
const fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65504.0,
        _ => 3.38e38,
    }
}

/// The power of two to move from the output factor to the input factor. f16 has few exponents: it moves where one of the factors would leave
/// the middle of them, and both then have about the same largest value.
fn shift(input: &Matrix<f64>, output: &Matrix<f64>, dtype: DType) -> i32 {
    let most = |factor: &Matrix<f64>| factor.data.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    let (input, output) = (most(input), most(output));
    let middle = |value: f64| (2f64.powi(-7)..=2f64.powi(12)).contains(&value);
    if dtype != DType::F16 || input == 0.0 || output == 0.0 || (middle(input) && middle(output)) {
        return 0;
    }
    ((output / input).log2() / 2.0).round() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_the_bucket_that_holds_them() {
        let buckets = [1, 16, 17, 64, 100, 256, 257].map(bucket);
        assert_eq!(buckets, [Some(16), Some(16), Some(32), Some(64), Some(128), Some(256), None]);
        assert_eq!([1, 8, 9, 64].map(padded), [8, 8, 16, 64]);
    }

    #[test]
    fn factors_of_f16_are_kept_among_its_exponents() {
        let of = |value: f64| Matrix { rows: 1, cols: 1, data: vec![value] };
        assert_eq!(shift(&of(0.5), &of(0.25), DType::F16), 0);
        assert_eq!(shift(&of(2f64.powi(-20)), &of(2f64.powi(14)), DType::F16), 17);
        assert_eq!(shift(&of(1.0), &of(2f64.powi(-14)), DType::F16), -7);
        assert_eq!(shift(&of(1.0), &of(2f64.powi(-14)), DType::BF16), 0);
        assert_eq!(shift(&of(0.0), &of(1.0), DType::F16), 0);
    }
}
