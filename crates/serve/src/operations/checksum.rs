//! XXH64 (Collet), of bytes that come in pieces.

const PRIMES: [u64; 5] = [0x9E37_79B1_85EB_CA87, 0xC2B2_AE3D_27D4_EB4F, 0x1656_67B1_9E37_79F9, 0x85EB_CA77_C2B2_AE63, 0x27D4_EB2F_1656_67C5];
/// Bytes that are taken at once.
const STRIPE: usize = 32;

/// A digest with seed 0.
#[derive(Clone, Debug)]
pub struct Xxh64 {
    lanes: [u64; 4],
    /// What does not fill a stripe yet.
    rest: Vec<u8>,
    total: u64,
}

impl Default for Xxh64 {
    fn default() -> Self {
        let [first, second, ..] = PRIMES;
        Self { lanes: [first.wrapping_add(second), second, 0, first.wrapping_neg()], rest: Vec::with_capacity(STRIPE), total: 0 }
    }
}

fn round(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(PRIMES[1])).rotate_left(31).wrapping_mul(PRIMES[0])
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn stripe(lanes: &mut [u64; 4], bytes: &[u8]) {
    let (words, _) = bytes.as_chunks::<8>();
    lanes.iter_mut().zip(words).for_each(|(lane, word)| *lane = round(*lane, u64::from_le_bytes(*word)));
}

impl Xxh64 {
    /// Takes the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.total = self.total.wrapping_add(bytes.len() as u64);
        if !self.rest.is_empty() {
            let (head, tail) = bytes.split_at(bytes.len().min(STRIPE - self.rest.len()));
            self.rest.extend_from_slice(head);
            bytes = tail;
            if self.rest.len() < STRIPE {
                return;
            }
            stripe(&mut self.lanes, &self.rest);
            self.rest.clear();
        }
        let stripes = bytes.chunks_exact(STRIPE);
        self.rest.extend_from_slice(stripes.remainder());
        stripes.for_each(|bytes| stripe(&mut self.lanes, bytes));
    }

    /// The digest of all bytes.
    pub fn digest(&self) -> u64 {
        let [first, second, third, fourth, fifth] = PRIMES;
        let mut hash = fifth;
        if self.total >= STRIPE as u64 {
            let turns = [1, 7, 12, 18];
            hash = self.lanes.iter().zip(turns).fold(0u64, |sum, (lane, turn)| sum.wrapping_add(lane.rotate_left(turn)));
            hash = self.lanes.iter().fold(hash, |hash, lane| (hash ^ round(0, *lane)).wrapping_mul(first).wrapping_add(fourth));
        }
        hash = hash.wrapping_add(self.total);
        let words = self.rest.chunks_exact(8);
        let rest = words.remainder();
        hash = words.fold(hash, |hash, bytes| (hash ^ round(0, word(bytes))).rotate_left(27).wrapping_mul(first).wrapping_add(fourth));
        let (four, ones) = rest.split_at(if rest.len() >= 4 { 4 } else { 0 });
        if !four.is_empty() {
            hash = (hash ^ word(four).wrapping_mul(first)).rotate_left(23).wrapping_mul(second).wrapping_add(third);
        }
        hash = ones.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte).wrapping_mul(fifth)).rotate_left(11).wrapping_mul(first));
        hash = (hash ^ hash >> 33).wrapping_mul(second);
        hash = (hash ^ hash >> 29).wrapping_mul(third);
        hash ^ hash >> 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Digests of the bytes 0, 1, 2 … up to a count, by the reference implementation in C.
    const REFERENCE: [(usize, u64); 15] = [
        (0, 0xEF46_DB37_51D8_E999),
        (1, 0xE934_A84A_DB05_2768),
        (3, 0xE5C7_BB45_33BC_65DD),
        (4, 0xFFCE_D860_4453_CC1E),
        (7, 0x14CC_643F_630C_72D2),
        (8, 0x884A_1736_14B8_1B8D),
        (12, 0x424A_F23F_1F08_DCA5),
        (31, 0xC346_D2B5_9B4D_8EE1),
        (32, 0xCBF5_9C51_16FF_32B4),
        (33, 0x0C53_5D1A_CAFB_8EAD),
        (63, 0xE26A_A9E2_A95F_8E4F),
        (64, 0xF7C6_7301_DB67_13F0),
        (100, 0x6AC1_E580_3216_6597),
        (255, 0x0F7D_9750_7CAA_D693),
        (256, 0x1FAC_BE84_06CD_904B),
    ];

    fn of(bytes: &[u8]) -> u64 {
        let mut digest = Xxh64::default();
        digest.update(bytes);
        digest.digest()
    }

    #[test]
    fn digests_are_those_of_the_reference() {
        let counted: Vec<u8> = (0..=255).collect();
        for (bytes, expected) in REFERENCE {
            assert_eq!(of(&counted[..bytes]), expected, "{bytes} bytes");
        }
    }

    #[test]
    fn pieces_give_the_digest_of_the_whole() {
        let bytes: Vec<u8> = (0..1000u32).map(|at| ((at * 7919) >> 3) as u8).collect();
        for size in [1, 3, 31, 32, 33, 100, 999] {
            let mut digest = Xxh64::default();
            bytes.chunks(size).for_each(|piece| digest.update(piece));
            assert_eq!(digest.digest(), of(&bytes), "pieces of {size}");
        }
    }
}
