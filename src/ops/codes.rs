//! The packing of codes into words: one bit order for every backend and for files.
//!
//! A coded factor is a matrix `[d, R]`, stored column by column. A column of width `w` holds one `w`-bit field for each of its `d`
//! elements. It is padded with zero fields to a multiple of 32 elements, so that it fills whole 32-bit little-endian words. Element `e`
//! takes bits `e·w .. (e+1)·w` of the column, least significant bit first. Every 32nd element therefore starts on a word, and a field may
//! straddle two words.
//!
//! A two-stage field holds the first stage in its low bits: `i1 | i2 << 4` in seven bits, or one byte a stage.

use crate::error::{Error, Result};

/// The width of a field in bits, and what the field indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeWidth {
    /// No bits: the whole column is zero.
    Zero,
    /// 4 centroids.
    Two,
    /// 8 centroids.
    Three,
    /// 16 centroids.
    Four,
    /// 16 centroids, and 8 of the residual, in seven bits.
    FourThree,
    /// 16 centroids, and 8 of the residual, a byte each: the layout of the reference system.
    Bytes,
}

/// Entries of one adapter's codebook record, in `f32`, equal for every width: see [`CodeWidth::stage1`].
pub const CODEBOOK_LEN: usize = 52;

impl CodeWidth {
    /// Every width, narrowest first.
    pub const ALL: [Self; 6] = [Self::Zero, Self::Two, Self::Three, Self::Four, Self::FourThree, Self::Bytes];

    /// Bits a field.
    pub const fn bits(self) -> u32 {
        match self {
            Self::Zero => 0,
            Self::Two => 2,
            Self::Three => 3,
            Self::Four => 4,
            Self::FourThree => 7,
            Self::Bytes => 16,
        }
    }

    /// The width with that many bits a field.
    pub fn from_bits(bits: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|width| width.bits() == bits)
    }

    /// The range of the first stage's centroids in the codebook record.
    pub const fn stage1(self) -> std::ops::Range<usize> {
        match self {
            Self::Zero => 0..0,
            Self::Two => 0..4,
            Self::Three => 4..12,
            Self::Four => 12..28,
            Self::FourThree | Self::Bytes => 28..44,
        }
    }

    /// The range of the second stage's centroids in the codebook record; empty for one stage.
    pub const fn stage2(self) -> std::ops::Range<usize> {
        match self {
            Self::FourThree | Self::Bytes => 44..52,
            _ => 52..52,
        }
    }

    /// The field of indices `i1` and `i2`. Both are in range, as [`pack`] checks.
    const fn join(self, i1: u8, i2: u8) -> u32 {
        match self {
            Self::FourThree => i1 as u32 | (i2 as u32) << 4,
            Self::Bytes => i1 as u32 | (i2 as u32) << 8,
            _ => i1 as u32,
        }
    }

    /// The indices `(i1, i2)` of a field; `i2` is 0 where there is one stage.
    pub const fn split(self, field: u32) -> (u8, u8) {
        match self {
            Self::FourThree => ((field & 15) as u8, (field >> 4 & 7) as u8),
            Self::Bytes => (field as u8, (field >> 8) as u8),
            _ => (field as u8, 0),
        }
    }

    /// 32-bit words of a column of `d` elements.
    pub const fn column_words(self, d: u64) -> u64 {
        d.div_ceil(32) * self.bits() as u64
    }
}

/// Packs one column: `codes1` and, where there are two stages, `codes2` (else empty), one index an element.
///
/// # Errors
/// An index that the width's codebook does not have.
pub fn pack(width: CodeWidth, codes1: &[u8], codes2: &[u8]) -> Result<Vec<u32>> {
    let second = |e: usize| codes2.get(e).copied().unwrap_or(0);
    let bits = width.bits() as usize;
    let mut words = vec![0u32; width.column_words(codes1.len() as u64) as usize];
    let [first, last] = [width.stage1().len().max(1), width.stage2().len().max(1)];
    for (e, &i1) in codes1.iter().enumerate() {
        let i2 = second(e);
        // The error's text is made only where there is an error, since this runs for every element.
        if usize::from(i1) >= first || usize::from(i2) >= last {
            return Err(Error::invalid("codes", format!("indices below {first} and, of the second stage, below {last}"), format!("{i1}, {i2} at element {e}")));
        }
        let field = u64::from(width.join(i1, i2)) << (e * bits % 32);
        if bits > 0 {
            words[e * bits / 32] |= field as u32;
            if field >> 32 != 0 {
                words[e * bits / 32 + 1] |= (field >> 32) as u32;
            }
        }
    }
    Ok(words)
}

/// The field of element `e` in a packed column.
///
/// # Panics
/// The column ends before that element.
pub fn field(width: CodeWidth, column: &[u32], e: usize) -> u32 {
    let bits = width.bits() as usize;
    if bits == 0 {
        return 0;
    }
    let (word, shift) = (e * bits / 32, e * bits % 32);
    let high = if shift + bits > 32 { column[word + 1] } else { 0 };
    let both = u64::from(column[word]) | u64::from(high) << 32;
    (both >> shift) as u32 & ((1u32 << bits) - 1)
}

/// Checks that every field of a packed column of `d` elements indexes its codebook, and that the padding is zero.
pub fn validate_column(width: CodeWidth, column: &[u32], d: usize) -> Result<()> {
    if column.len() as u64 != width.column_words(d as u64) {
        return Err(Error::invalid("codes", format!("{} words a column", width.column_words(d as u64)), column.len()));
    }
    let [first, last] = [width.stage1().len().max(1), width.stage2().len().max(1)];
    for e in 0..d.next_multiple_of(32) {
        let value = field(width, column, e);
        let (i1, i2) = width.split(value);
        if usize::from(i1) >= first || usize::from(i2) >= last || (e >= d && value != 0) {
            return Err(Error::invalid("codes", "indices inside the codebook, and zero padding", format!("field {value:#x} at element {e} of {d}")));
        }
    }
    Ok(())
}

/// Widens a packed column: `out[e] = stage1[i1] + stage2[i2]`, from one adapter's codebook record.
///
/// # Panics
/// A column or a codebook record that is too short: see [`validate_column`].
pub fn decode_column(width: CodeWidth, column: &[u32], codebook: &[f32], out: &mut [f32]) {
    let (stage1, stage2) = (&codebook[width.stage1()], &codebook[width.stage2()]);
    for (e, value) in out.iter_mut().enumerate() {
        let (i1, i2) = width.split(field(width, column, e));
        let first = stage1.get(usize::from(i1)).copied().unwrap_or(0.0);
        *value = first + stage2.get(usize::from(i2)).copied().unwrap_or(0.0);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn column() -> impl Strategy<Value = (CodeWidth, Vec<(u8, u8)>)> {
        proptest::sample::select(CodeWidth::ALL.to_vec()).prop_flat_map(|width| {
            let first = 0..width.stage1().len().max(1) as u8;
            let second = 0..width.stage2().len().max(1) as u8;
            (Just(width), proptest::collection::vec((first, second), 0..150))
        })
    }

    proptest! {
        #[test]
        fn packing_is_undone_by_reading_fields((width, codes) in column()) {
            let (codes1, codes2): (Vec<u8>, Vec<u8>) = codes.iter().copied().unzip();
            let words = pack(width, &codes1, &codes2).unwrap();
            validate_column(width, &words, codes.len()).unwrap();
            for (e, &pair) in codes.iter().enumerate() {
                prop_assert_eq!(width.split(field(width, &words, e)), pair);
            }
        }
    }

    #[test]
    fn the_bit_order_is_the_documented_one() {
        // Three seven-bit fields: bits 0..7, 7..14, 14..21; field 4 straddles bits 28..35.
        let words = pack(CodeWidth::FourThree, &[1, 2, 3, 0, 15], &[0, 0, 7, 0, 7]).unwrap();
        assert_eq!(words.len(), 7);
        assert_eq!(words[0], 1 | 2 << 7 | (3 | 7 << 4) << 14 | 0xf << 28);
        assert_eq!(words[1], 7);
    }

    #[test]
    fn an_index_outside_the_codebook_is_refused() {
        assert!(pack(CodeWidth::Three, &[8], &[]).is_err());
        assert!(pack(CodeWidth::FourThree, &[0], &[8]).is_err());
        assert!(validate_column(CodeWidth::Bytes, &[16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1).is_err());
    }
}
