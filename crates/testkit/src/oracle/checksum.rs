//! Checksums by the definition: byte after byte.

use super::{Define, Output, Rounding, pitched_len};
use trifuse::dtype::DType;
use trifuse::error::{Result, ensure};
use trifuse::ops::Checksum;
use trifuse::ops::checksum::multiplier;

/// The operands on the host; see [`trifuse::ops::ChecksumArgs`].
#[derive(Clone, Debug)]
pub struct Host {
    /// `[ranges, bytes]`, from the first byte to the last.
    pub x: Vec<u8>,
}

/// The checksum of a range: each byte counts as many times as its place in its word and the word's multiplier say.
fn checksum(bytes: &[u8]) -> u64 {
    let ended = bytes.iter().chain([&1]).enumerate();
    ended.map(|(at, byte)| multiplier(at as u32 / 4).wrapping_mul(u64::from(*byte) << (8 * (at % 4)))).fold(0, u64::wrapping_add)
}

impl Define for Checksum {
    type Host = Host;

    fn dtype(&self) -> DType {
        DType::F32
    }

    fn evaluate<R: Rounding>(&self, host: &Host, _: R) -> Result<Vec<Output>> {
        use trifuse::ops::Op;
        self.validate()?;
        let (expected, found) = (pitched_len(self.ranges, self.bytes, self.start(1)), host.x.len());
        ensure(found as u64 == expected, "checksum: x", format_args!("{expected} bytes"), found)?;
        // A checksum is right or wrong: there is no rounding in it.
        let sums = (0..self.ranges).map(|range| checksum(&host.x[self.start(range) as usize..][..self.bytes as usize]));
        let words = sums.flat_map(|sum| [sum as u32, (sum >> 32) as u32]).map(|word| f64::from(word as i32));
        Ok(vec![Output { integers: true, ..Output::packed("sums", DType::F32, words.collect()) }])
    }

    fn disordered(&self, host: &Host) -> Vec<(&'static str, Host)> {
        let x: Vec<u8> = host.x.iter().rev().copied().collect();
        if x == host.x { Vec::new() } else { vec![("x", Host { x })] }
    }
}
