//! The tile of `kernels/attention/simt_tile.cuh`, which the `simt` variants of `attention` and `prefix_attention` share.

/// Head dimensions that a kernel is compiled for. A head is padded to the next of them in shared memory.
pub(crate) const HELD: [u64; 4] = [32, 64, 128, 256];
/// Rows of a tile.
pub(crate) const ROWS: u64 = 16;
/// Keys of a tile.
pub(crate) const KEYS: u64 = 32;
/// Threads of a block. Eight share a row.
pub(crate) const THREADS: u32 = 128;

/// The least of [`HELD`] that has room for a head.
pub(crate) fn held(head_dim: u64) -> u64 {
    HELD.into_iter().find(|&held| head_dim <= held).unwrap_or(256)
}

/// Numbers of f32 that a tile keeps in shared memory: Q, K or V, and the scores, in rows of odd length.
pub(crate) fn numbers(held: u64) -> u64 {
    (ROWS + KEYS) * (held + 1) + ROWS * (KEYS + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_head_has_room() {
        for head_dim in 1..=256 {
            assert!(held(head_dim) >= head_dim && HELD.contains(&held(head_dim)));
        }
        assert_eq!((held(64), held(65), held(107)), (64, 128, 128));
    }
}
