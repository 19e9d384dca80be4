//! Noise made of random numbers without a state.

use crate::ops::sample::philox4x32;

/// Gumbel noise of a token: `-ln(-ln(1 - u))` with u of 32 bits, strictly between 0 and 1.
///
/// The key is the seed, low word first. The counter is `[id / 4, position, 0, 0]`, and the token takes word `id % 4`: one call serves four
/// neighbours. `1 - u` stands for `u` since a small u, which the largest noise comes from, is exact in float32 too.
pub fn noise(seed: u64, position: u32, id: u32) -> f64 {
    let words = philox4x32([id / 4, position, 0, 0], [seed as u32, (seed >> 32) as u32]);
    let u = (f64::from(words[id as usize % 4]) + 0.5) / 4_294_967_296.0;
    -(-(-u).ln_1p()).ln()
}
