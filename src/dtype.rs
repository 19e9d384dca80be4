//! Element types, and exact conversion on the host.

use std::any::TypeId;

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::error::{Error, Result};

/// The element type of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE 754 binary16: 11 significant bits.
    F16,
    /// The upper half of a binary32: 8 significant bits.
    BF16,
    /// IEEE 754 binary32: 24 significant bits.
    F32,
}

impl DType {
    /// Every element type, narrowest first.
    pub const ALL: [Self; 3] = [Self::F16, Self::BF16, Self::F32];

    /// The element type that a Rust type is, if it is one.
    pub fn of<T: 'static>() -> Option<Self> {
        let types = [(TypeId::of::<f16>(), Self::F16), (TypeId::of::<bf16>(), Self::BF16), (TypeId::of::<f32>(), Self::F32)];
        types.into_iter().find(|(known, _)| *known == TypeId::of::<T>()).map(|(_, dtype)| dtype)
    }

    /// Bytes an element.
    pub const fn size(self) -> u64 {
        match self {
            Self::F16 | Self::BF16 => 2,
            Self::F32 => 4,
        }
    }

    /// Elements from a row of `columns` to the next, where every row starts at a multiple of 16 bytes. That is `columns`, or up to 15 bytes
    /// more. A GPU's copy engine needs such rows.
    pub const fn row_stride(self, columns: u64) -> u64 {
        match columns.checked_next_multiple_of(16 / self.size()) {
            Some(stride) => stride,
            None => u64::MAX,
        }
    }

    /// `f16`, `bf16` or `f32`, as in case files and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
        }
    }

    /// The significant bits of the format, the implied one counted.
    pub const fn significand_bits(self) -> u32 {
        match self {
            Self::F16 => 11,
            Self::BF16 => 8,
            Self::F32 => 24,
        }
    }

    /// The distance from |`value`| to the next number of this type: one unit in the last place.
    pub fn ulp(self, value: f64) -> f64 {
        let least_exponent = match self {
            Self::F16 => -14,
            Self::BF16 | Self::F32 => -126,
        };
        let exponent = if value == 0.0 { least_exponent } else { value.abs().log2().floor().max(f64::from(least_exponent)) as i32 };
        2f64.powi(exponent - (self.significand_bits() as i32 - 1))
    }

    /// `value` rounded once to this type, to nearest, ties to even.
    pub fn round(self, value: f64) -> f64 {
        match self {
            Self::F16 => f16::from_f64(sticky(value)).to_f64(),
            Self::BF16 => bf16::from_f64(sticky(value)).to_f64(),
            Self::F32 => f64::from(value as f32),
        }
    }

    /// `values` as little-endian elements of this type, each rounded once.
    pub fn encode(self, values: &[f64]) -> Vec<u8> {
        match self {
            Self::F16 => elements(values, |v| f16::from_f64(sticky(v)).to_le_bytes()),
            Self::BF16 => elements(values, |v| bf16::from_f64(sticky(v)).to_le_bytes()),
            Self::F32 => elements(values, |v| (v as f32).to_le_bytes()),
        }
    }

    /// `values` as little-endian elements of this type, each rounded once.
    pub fn encode_f32(self, values: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0; values.len() * self.size() as usize];
        self.encode_f32_into(values, &mut bytes);
        bytes
    }

    /// Writes `values` to `bytes`, which has room for just them, as [`encode_f32`](Self::encode_f32) gives them.
    pub(crate) fn encode_f32_into(self, values: &[f32], bytes: &mut [u8]) {
        match self {
            Self::F16 => rounded(values, bytes, <[f16]>::convert_from_f32_slice, f16::to_le_bytes),
            Self::BF16 => rounded(values, bytes, <[bf16]>::convert_from_f32_slice, bf16::to_le_bytes),
            Self::F32 => bytes.chunks_exact_mut(4).zip(values).for_each(|(element, value)| element.copy_from_slice(&value.to_le_bytes())),
        }
    }

    /// Whether little-endian elements of this type are all finite: no exponent of all ones.
    pub fn all_finite(self, bytes: &[u8]) -> bool {
        let is = |bits: [u8; 2], exponent: u16| u16::from_le_bytes(bits) & exponent != exponent;
        // No element ends the search, and each has a size that is known here, so that the processor looks at many at once.
        match self {
            Self::F16 => bytes.chunks_exact(2).fold(true, |all, b| all & is([b[0], b[1]], 0x7c00)),
            Self::BF16 => bytes.chunks_exact(2).fold(true, |all, b| all & is([b[0], b[1]], 0x7f80)),
            Self::F32 => bytes.chunks_exact(4).fold(true, |all, b| all & is([b[2], b[3]], 0x7f80)),
        }
    }

    /// Little-endian elements of this type, widened exactly. A trailing part of an element is left out.
    pub fn decode(self, bytes: &[u8]) -> Vec<f64> {
        match self {
            Self::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f64()).collect(),
            Self::BF16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f64()).collect(),
            Self::F32 => bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect(),
        }
    }

    /// Little-endian elements of this type as f32, which holds each of them.
    pub fn decode_f32(self, bytes: &[u8]) -> Vec<f32> {
        let mut values = vec![0.0; bytes.len() / self.size() as usize];
        self.decode_f32_into(bytes, &mut values);
        values
    }

    /// Writes elements to `values`, which has room for just them, as [`decode_f32`](Self::decode_f32) gives them.
    pub(crate) fn decode_f32_into(self, bytes: &[u8], values: &mut [f32]) {
        match self {
            Self::F16 => widened(bytes, values, <[f16]>::convert_to_f32_slice, f16::from_le_bytes),
            Self::BF16 => widened(bytes, values, <[bf16]>::convert_to_f32_slice, bf16::from_le_bytes),
            Self::F32 => bytes.chunks_exact(4).zip(values).for_each(|(b, value)| *value = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        }
    }
}

/// The bytes of all values, one after another.
fn elements<T: Copy, const N: usize>(values: &[T], bytes_of: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * N];
    for (element, &value) in bytes.chunks_exact_mut(N).zip(values) {
        element.copy_from_slice(&bytes_of(value));
    }
    bytes
}

/// Writes the bytes of values that `round` rounds many at a time, as processors have instructions for.
fn rounded<T: Pod>(values: &[f32], bytes: &mut [u8], round: impl Fn(&mut [T], &[f32]), bytes_of: impl Fn(T) -> [u8; 2]) {
    const MANY: usize = 1024;
    // Straight to where they are to be, where that is a place for them.
    if let Some(made) = bytemuck::try_cast_slice_mut(bytes).ok().filter(|made: &&mut [T]| cfg!(target_endian = "little") && made.len() == values.len()) {
        return round(made, values);
    }
    let mut made = [T::zeroed(); MANY];
    for (to, from) in bytes.chunks_mut(2 * MANY).zip(values.chunks(MANY)) {
        let made = &mut made[..from.len()];
        round(made, from);
        to.chunks_exact_mut(2).zip(made).for_each(|(element, &mut value)| element.copy_from_slice(&bytes_of(value)));
    }
}

/// Writes the values of elements that `widen` widens many at a time, as processors have instructions for.
fn widened<T: Pod>(bytes: &[u8], values: &mut [f32], widen: impl Fn(&[T], &mut [f32]), of_bytes: impl Fn([u8; 2]) -> T) {
    const MANY: usize = 1024;
    if let Some(read) = bytemuck::try_cast_slice(bytes).ok().filter(|read: &&[T]| cfg!(target_endian = "little") && read.len() == values.len()) {
        return widen(read, values);
    }
    let mut read = [T::zeroed(); MANY];
    for (to, from) in values.chunks_mut(MANY).zip(bytes.chunks(2 * MANY)) {
        let read = &mut read[..to.len()];
        read.iter_mut().zip(from.chunks_exact(2)).for_each(|(element, bytes)| *element = of_bytes([bytes[0], bytes[1]]));
        widen(read, to);
    }
}

/// `value` with its low 32 bits folded into one. `half` looks at the upper half of an f64 alone, and so takes a value just above a midpoint
/// for the midpoint.
fn sticky(value: f64) -> f64 {
    let bits = value.to_bits();
    f64::from_bits(bits >> 32 << 32 | u64::from(bits as u32 != 0) << 32)
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for DType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name).ok_or_else(|| Error::invalid("dtype", "f16, bf16 or f32", format!("{name:?}")))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_pattern_survives_a_round_trip() {
        for dtype in [DType::F16, DType::BF16] {
            let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            let values = dtype.decode(&bytes);
            let again = dtype.encode(&values);
            for (index, (a, b)) in bytes.chunks_exact(2).zip(again.chunks_exact(2)).enumerate() {
                assert!(a == b || values[index].is_nan(), "{dtype} {index:#06x}");
            }
        }
    }

    #[test]
    fn finite_elements_are_told_from_others() {
        for dtype in DType::ALL {
            let bits = |value: f64| dtype.encode(&[0.5, value]);
            assert!(dtype.all_finite(&bits(-3.0)) && dtype.all_finite(&dtype.encode_f32(&[0.25, -3.0])));
            assert!([f64::NAN, f64::INFINITY, f64::NEG_INFINITY].into_iter().all(|value| !dtype.all_finite(&bits(value))), "{dtype}");
        }
    }

    #[test]
    fn elements_are_the_same_numbers_in_f32_and_in_f64() {
        for dtype in DType::ALL {
            // Every exponent, with odd lengths and what is left of a row behind whole elements.
            let all: Vec<u8> = (0..=u16::MAX).step_by(7).flat_map(u16::to_le_bytes).collect();
            let bytes = &all[..all.len() - 3];
            let (narrow, wide) = (dtype.decode_f32(bytes), dtype.decode(bytes));
            assert_eq!((narrow.len(), wide.len()), (bytes.len() / dtype.size() as usize, narrow.len()));
            // Also where elements lie at odd addresses.
            let moved = [&[0], bytes].concat();
            let odd = [dtype.decode_f32(&moved[1..]), dtype.decode_f32(bytes)].map(|values| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>());
            assert_eq!(odd[0], odd[1], "{dtype}");
            let finite: Vec<f32> = narrow.iter().copied().filter(|value| value.is_finite()).collect();
            let (even, mut at_odd) = (dtype.encode_f32(&finite), vec![0; finite.len() * dtype.size() as usize + 1]);
            dtype.encode_f32_into(&finite, &mut at_odd[1..]);
            assert!(even == at_odd[1..], "{dtype}");
            assert!(narrow.iter().zip(&wide).all(|(one, other)| f64::from(*one) == *other || one.is_nan() && other.is_nan()), "{dtype}");
        }
    }

    #[test]
    fn what_lies_just_above_a_midpoint_rounds_up() {
        for (dtype, half_ulp) in [(DType::F16, 2f64.powi(-11)), (DType::BF16, 2f64.powi(-8))] {
            assert_eq!(dtype.round(1.0 + half_ulp), 1.0);
            assert_eq!(dtype.round(1.0 + half_ulp + f64::EPSILON), 1.0 + 2.0 * half_ulp);
            assert_eq!(dtype.decode(&dtype.encode(&[1.0 + half_ulp + f64::EPSILON])), [1.0 + 2.0 * half_ulp]);
        }
    }

    #[test]
    fn ulp_is_the_distance_to_the_next_number() {
        assert_eq!(DType::F16.ulp(1.0), 2f64.powi(-10));
        assert_eq!(DType::F16.ulp(-1.5), 2f64.powi(-10));
        assert_eq!(DType::F16.ulp(2048.0), 2.0);
        assert_eq!(DType::F16.ulp(0.0), 2f64.powi(-24));
        assert_eq!(DType::BF16.ulp(1.0), 2f64.powi(-7));
        assert_eq!(DType::F32.ulp(1.0), 2f64.powi(-23));
    }

    #[test]
    fn names_parse_back() {
        for dtype in DType::ALL {
            assert_eq!(dtype.name().parse::<DType>().unwrap(), dtype);
        }
        assert!("f64".parse::<DType>().is_err());
    }
}
