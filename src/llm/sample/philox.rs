//! Random numbers without a state: Philox 4x32-10 (Salmon and others, 2011), and noise made of them.

/// The multipliers of a round, and what the key grows by.
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Philox 4x32 with 10 rounds: four random words of a counter and a key.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], [mut left, mut right]) = (counter, key);
    for _ in 0..10 {
        let [first, second] = [u64::from(a) * u64::from(MULTIPLIERS[0]), u64::from(c) * u64::from(MULTIPLIERS[1])];
        [a, b, c, d] = [(second >> 32) as u32 ^ b ^ left, second as u32, (first >> 32) as u32 ^ d ^ right, first as u32];
        (left, right) = (left.wrapping_add(WEYL[0]), right.wrapping_add(WEYL[1]));
    }
    [a, b, c, d]
}

/// Gumbel noise of a token: `-ln(-ln(1 - u))` with u of 32 bits, strictly between 0 and 1.
///
/// The key is the seed, low word first. The counter is `[id / 4, position, 0, 0]`, and the token takes word `id % 4`: one call serves four
/// neighbours. `1 - u` stands for `u` since a small u, which the largest noise comes from, is exact in float32 too.
pub fn noise(seed: u64, position: u32, id: u32) -> f64 {
    let words = philox4x32([id / 4, position, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let u = (f64::from(words[id as usize % 4]) + 0.5) / 4_294_967_296.0;
    -(-(-u).ln_1p()).ln()
}
