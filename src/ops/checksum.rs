//! Checksums of ranges of bytes, made where the bytes are.

use derive_where::derive_where;

use super::setters::setters;
use super::{Access, Cost, Op, Operand, Translate, expect_size, expect_stride};
use crate::device::{Device, Slice};
use crate::error::{Result, ensure};

/// The most bytes of a range.
pub const MAX_BYTES: u64 = (1 << 33) - 1;

/// The descriptor of checksums: 64 bits for each of some ranges of equal length.
///
/// A range is followed by a byte 1 and by zeros up to a whole word. Its checksum is the sum of its words of 32 bits (little-endian, from place 0), each
/// times the [`multiplier`] of its place, modulo 2⁶⁴. The order of a sum of whole numbers does not matter: however a device divides the work, the
/// bits are the same, and [`checksum`] gives them on the host.
///
/// Multipliers are 1 modulo 4, and no two places have the same lowest 33 bits. So two ranges have different checksums for certain where they differ
/// - within one word, in up to 32 bits;
/// - by two flipped bits, wherever they are;
/// - by two words that changed places;
/// - by any number of zeros at the end;
/// - by the last 1 to 3 bytes, which one of them lacks, where the other's length is a multiple of 4.
///
/// Of other changes that are random one in 2⁶⁴ goes unseen. It finds damage, not forgery: whoever may choose the bytes can keep the checksum.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Checksum {
    /// Ranges, each with a checksum of its own.
    pub ranges: u64,
    /// Bytes of a range, at most [`MAX_BYTES`].
    pub bytes: u64,
    /// Bytes from the start of a range to the start of the next, `bytes` at least.
    pub stride: u64,
}

/// The operands of checksums.
#[derive_where(Clone, Debug)]
#[non_exhaustive]
pub struct ChecksumArgs<D: Device> {
    /// `[ranges, bytes]`, read. It may start at any byte.
    pub x: Slice<D>,
    /// The checksums, `[ranges]` as u64 of two words, the low one first; written.
    pub sums: Slice<D>,
}

impl<D: Device> ChecksumArgs<D> {
    /// Operands from `x` to `sums`.
    pub fn new(x: Slice<D>, sums: Slice<D>) -> Self {
        Self { x, sums }
    }

    setters! {
        with_x: x = Slice<D>;
        with_sums: sums = Slice<D>;
    }
}

impl Checksum {
    /// Checksums of ranges that lie one behind the other.
    pub const fn new(ranges: u64, bytes: u64) -> Self {
        Self { ranges, bytes, stride: bytes }
    }

    /// Bytes from the first range to the one of this number; 0 where ranges have none.
    pub const fn start(&self, range: u64) -> u64 {
        if self.bytes == 0 { 0 } else { self.stride * range }
    }

    setters! {
        with_ranges: ranges = u64;
        with_bytes: bytes = u64;
        with_stride: stride = u64;
    }
}

impl Op for Checksum {
    const NAME: &'static str = "checksum";
    type Args<D: Device> = ChecksumArgs<D>;

    fn validate(&self) -> Result<()> {
        ensure(self.bytes <= MAX_BYTES, "checksum: bytes", format_args!("at most {MAX_BYTES}"), self.bytes)?;
        expect_stride("checksum: stride", self.stride, self.bytes)?;
        expect_size("checksum: x", &[self.ranges, self.stride])?;
        expect_size("checksum: sums", &[self.ranges, 8])
    }

    fn sizes(&self) -> [u64; 3] {
        [self.ranges, 1, self.bytes]
    }

    fn cost(&self) -> Cost {
        // Some twenty operations on whole numbers for each word.
        let flops = 20.0 * self.ranges as f64 * (self.bytes / 4 + 1) as f64;
        Cost { executed_flops: flops, useful_flops: flops, dense_flops: flops, bytes: self.ranges as f64 * (self.bytes as f64 + 8.0) }
    }

    fn translate<A: Device, B: Device>(args: &ChecksumArgs<A>, to: &Translate<'_, A, B>) -> Result<ChecksumArgs<B>> {
        Ok(ChecksumArgs { x: to.slice(&args.x)?, sums: to.slice(&args.sums)? })
    }

    fn operands<'a, D: Device>(&self, args: &'a ChecksumArgs<D>, see: &mut dyn FnMut(Operand<'a, D>)) -> Result<()> {
        see(Operand::pitched("x", Access::Read, &args.x, [self.ranges, self.bytes], self.stride, 1u64));
        see(Operand::packed("sums", Access::Write, &args.sums, 2 * self.ranges, 4u64));
        Ok(())
    }
}

/// What the word at a place counts times: 64 bits, of which the lowest two are 01. The next 31 are the place, of which 31 bits count, mixed so that
/// none is lost (the rounds of MurmurHash3's finalizer, by Appleby); the highest 31 are mixed from those.
#[inline(always)]
pub const fn multiplier(place: u32) -> u64 {
    const BITS: u32 = u32::MAX >> 1;
    let mut low = place & BITS;
    low ^= low >> 16;
    low = low.wrapping_mul(0x85EB_CA6B) & BITS;
    low ^= low >> 13;
    low = low.wrapping_mul(0xC2B2_AE35) & BITS;
    low ^= low >> 16;
    let mut high = low.wrapping_mul(0x27D4_EB2F).wrapping_add(0x1656_67B1);
    high ^= high >> 15;
    high = high.wrapping_mul(0x9E37_79B1);
    high ^= high >> 16;
    ((high & !1) as u64) << 32 | (low as u64) << 2 | 1
}

/// The checksum of a range, as [`Checksum`] defines it.
pub fn checksum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks();
    sum_words(words, 0).wrapping_add(sum_end(rest, words.len() as u32))
}

/// What whole words from a place on add to a checksum.
#[inline(always)]
pub(crate) fn sum_words(words: &[[u8; 4]], first: u32) -> u64 {
    let one = |sum: u64, (at, word): (usize, &[u8; 4])| {
        let product = multiplier(first.wrapping_add(at as u32)).wrapping_mul(u64::from(u32::from_le_bytes(*word)));
        sum.wrapping_add(product)
    };
    words.iter().enumerate().fold(0, one)
}

/// What the end of a range adds to a checksum: the bytes behind its whole words, of which there are as many as `place`, and the byte 1.
pub(crate) fn sum_end(rest: &[u8], place: u32) -> u64 {
    let word = rest.iter().chain([&1]).rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    multiplier(place).wrapping_mul(word)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Checksums of `7i + 3 mod 256` for `i` from 0 up to a length, which a program in Python gave by the definition.
    const KNOWN: [(usize, u64); 10] = [
        (0, 0x4465_E068_0000_0001),
        (1, 0x3312_0938_0000_0103),
        (3, 0x16DD_B138_0111_0A03),
        (4, 0xCBE7_B0D4_79FA_9010),
        (5, 0xBD13_4189_DCDE_5296),
        (31, 0xC559_855A_A6CC_DFF0),
        (64, 0xE292_07C3_B34D_D425),
        (255, 0xAC76_5199_F000_037C),
        (256, 0x72F2_FDB8_66B1_E59D),
        (1000, 0x5181_17DD_7B55_2B6B),
    ];

    fn known(length: usize) -> Vec<u8> {
        (0..length).map(|at| (7 * at + 3) as u8).collect()
    }

    /// `bytes` with a changed copy.
    fn changed(bytes: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let mut other = bytes.to_vec();
        change(&mut other);
        checksum(&other)
    }

    #[test]
    fn checksums_are_those_of_another_program() {
        for (length, expected) in KNOWN {
            assert_eq!(checksum(&known(length)), expected, "{length} bytes");
        }
    }

    #[test]
    fn no_two_places_count_the_same() {
        let near = (0..1 << 16).chain((1 << 31) - (1 << 12)..1 << 31);
        let mut met = HashSet::new();
        for place in near {
            assert_eq!(multiplier(place) % 4, 1);
            assert!(met.insert(multiplier(place) & ((1 << 33) - 1)), "{place}");
        }
        assert_eq!(multiplier(1 << 31), multiplier(0), "31 bits count");
    }

    #[test]
    fn one_flipped_bit_is_seen_and_two_are() {
        let bytes = known(41);
        let sum = checksum(&bytes);
        let flip = |bytes: &mut [u8], bit: usize| bytes[bit / 8] ^= 1 << (bit % 8);
        for one in 0..8 * bytes.len() {
            assert_ne!(changed(&bytes, |bytes| flip(bytes, one)), sum, "bit {one}");
            for other in 0..one {
                let both = |bytes: &mut Vec<u8>| [one, other].into_iter().for_each(|bit| flip(bytes, bit));
                assert_ne!(changed(&bytes, both), sum, "bits {one} and {other}");
            }
        }
    }

    #[test]
    fn words_that_changed_places_are_seen() {
        // They differ in their highest bit alone, the least of all differences.
        let mut bytes = vec![0; 256];
        for odd in (0..64).step_by(2) {
            bytes[4 * odd + 3] = 0x80;
        }
        let sum = checksum(&bytes);
        for (one, other) in (0..64).flat_map(|one| (0..one).map(move |other| (one, other))) {
            let swap = |bytes: &mut Vec<u8>| (0..4).for_each(|byte| bytes.swap(4 * one + byte, 4 * other + byte));
            assert_eq!(changed(&bytes, swap) == sum, (one - other) % 2 == 0, "words {one} and {other}");
        }
    }

    #[test]
    fn an_end_that_is_missing_is_seen() {
        for bytes in [known(64), known(61), vec![0; 64], vec![1; 63], vec![0xff; 64]] {
            let sums: HashSet<u64> = (0..=bytes.len()).map(|length| checksum(&bytes[..length])).collect();
            assert_eq!(sums.len(), bytes.len() + 1, "{bytes:?}");
        }
    }

    #[test]
    fn ranges_that_are_too_long_or_lie_on_each_other_are_refused() {
        assert!(Checksum::new(2, MAX_BYTES).validate().is_ok());
        assert!(Checksum::new(1, MAX_BYTES + 1).validate().is_err());
        assert!(Checksum::new(2, 9).with_stride(8).validate().is_err());
        assert_eq!(Checksum::new(3, 0).with_stride(8).start(2), 0);
    }
}
