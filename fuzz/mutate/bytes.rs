//! Changes of bytes, for what has no other form and for what a mutator of a form never makes.

use rand::Rng as _;

use super::{Rng, few, one};

/// Lengths and counts at which readers go wrong.
const SIZES: [u64; 14] = [0, 1, 7, 8, 255, 256, 65_535, 1 << 20, 24 << 20, (24 << 20) + 1, 1 << 31, 1 << 32, 1 << 62, u64::MAX];

/// The bytes with one to six changes.
pub fn change(rng: &mut Rng, mut bytes: Vec<u8>) -> Vec<u8> {
    for _ in 0..few(rng) {
        if bytes.is_empty() {
            bytes.push(rng.random());
        }
        let length = bytes.len();
        let at = rng.random_range(0..length);
        let most = *one(rng, &[1, 4, 16, 256]);
        let end = at + rng.random_range(0..=(length - at).min(most));
        let run = bytes[at..end].to_vec();
        match rng.random_range(0..10) {
            0 | 1 => bytes[at] ^= 1 << rng.random_range(0..8),
            2 => bytes[at] = rng.random(),
            3 => bytes[at] = *one(rng, b"0123456789-[]{}\",:e.nul\\/\n\x00\x1b\xff"),
            4 => bytes.truncate(at),
            5 => drop(bytes.drain(at..end)),
            6 => drop(bytes.splice(at..at, run)),
            7 => bytes[at..end].fill(*one(rng, &[0, 0x7f, 0x80, 0xff])),
            8 => {
                let to = rng.random_range(0..=length - run.len());
                bytes[to..to + run.len()].copy_from_slice(&run);
            }
            _ => length_in_front(rng, &mut bytes),
        }
    }
    bytes
}

/// Writes a length over the first eight bytes: an odd one, or one near the true one.
fn length_in_front(rng: &mut Rng, bytes: &mut [u8]) {
    let true_one = bytes.len() as u64;
    let length = if rng.random() { *one(rng, &SIZES) } else { true_one.wrapping_sub(rng.random_range(0..18)) };
    let written = bytes.len().min(8);
    bytes[..written].copy_from_slice(&length.to_le_bytes()[..written]);
}
