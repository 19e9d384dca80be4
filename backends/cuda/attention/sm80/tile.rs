//! The tile of `kernels/attention/sm80/tile.cuh`: what its kernels are compiled for, how blocks share the rows, and its limits.

use crate::backends::cuda::attention::params::AttentionParams;
use crate::backends::cuda::attention::repack::Rows;
use crate::backends::cuda::jit::Arch;
use crate::backends::cuda::variant::Target;
use crate::dtype::DType;
use crate::ops::Attention;

/// Head dimensions that a kernel is compiled for. A head is padded to the next of them in shared memory.
pub(crate) const HELD: [u64; 12] = [16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256];
/// Keys of a k-block, warps, and rows of an mma instruction in `kernels/attention/sm80/copies.cuh`.
pub(crate) const KEYS: u64 = 64;
pub(crate) const WARPS: u64 = 4;
const STEP: u64 = 16;
/// Elements in 128 bytes. A row in shared memory is a multiple of this long.
const LINE: u64 = 64;
/// Rows of a thread block.
pub(crate) const ROWS: u64 = WARPS * STEP;
/// The largest head dimension for which a warp of the wide kernel has registers for twice the rows. Above it, two warps share rows, and
/// exchange their weights and a number of each row.
const TWICE: u64 = 128;
const HANDED_BYTES: u32 = (2 * ROWS * KEYS + WARPS * 2 * STEP * 4) as u32;
/// Shared memory of a thread block on the smallest chips.
const SMALLEST: u32 = 99 << 10;

/// The head dimension that a kernel for heads of `head_dim` elements is compiled for.
pub(crate) fn held(head_dim: u64) -> u64 {
    HELD.into_iter().find(|&held| head_dim <= held).unwrap_or(256)
}

/// What a kernel is compiled for: the elements of a padded head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile(u64);

impl Tile {
    pub(crate) fn of(op: &Attention) -> Self {
        Self(held(op.head_dim))
    }

    /// The tile of heads padded to `held` elements, one of [`HELD`].
    pub(crate) const fn exactly(held: u64) -> Self {
        Self(held)
    }

    pub(crate) const fn held(self) -> u64 {
        self.0
    }

    /// Rows of a thread block of the wide kernel.
    pub(crate) fn wide_rows(self) -> u64 {
        if self.0 <= TWICE { 2 * ROWS } else { ROWS }
    }

    /// Shared memory of a thread block of the general kernel.
    pub(crate) fn general_bytes(self) -> u32 {
        self.tile_bytes(ROWS)
    }

    /// Shared memory of a thread block of the wide kernel.
    pub(crate) fn wide_bytes(self) -> u32 {
        self.tile_bytes(self.wide_rows()) + if self.0 <= TWICE { 0 } else { HANDED_BYTES }
    }

    fn tile_bytes(self, rows: u64) -> u32 {
        ((rows + 2 * KEYS) * self.0.next_multiple_of(LINE) * 2) as u32
    }

    /// Whether a thread block of the wide kernel fits an SM. Only 256 elements do not, on the small chips of Ampere and Ada.
    pub(crate) fn has_wide(self, arch: Arch) -> bool {
        self.wide_bytes() <= arch.shared_bytes().unwrap_or(SMALLEST)
    }

    /// The definitions that every kernel of these tiles is compiled with.
    pub(crate) fn defines(self, dtype: DType, _: Arch) -> Vec<(&'static str, String)> {
        vec![("ELEMENT", dtype.name().into()), ("HEAD_DIM", self.0.to_string())]
    }
}

/// Heads whose rows are packed into one tile. Where queries are few, the heads that share keys fill a tile. Where they are many, each head
/// has tiles of its own.
pub(crate) fn pack(op: &Attention) -> u64 {
    let group = op.heads / op.kv_heads;
    match op.form {
        form if form.is_sparse() => 1,
        _ if op.q_len >= ROWS => 1,
        _ => group,
    }
}

/// Query rows that share keys: those of a sequence, for every head of a group.
pub(crate) fn key_rows(op: &Attention) -> u64 {
    op.q_len.saturating_mul(op.heads / op.kv_heads)
}

/// Thread blocks for a head, or for a group of packed heads.
pub(crate) fn tiles(op: &Attention, rows: u64) -> u64 {
    (op.q_len * pack(op)).div_ceil(rows)
}

/// Heads whose tiles neighbouring blocks take, late queries first. In causal sequences late queries have the most work.
pub(crate) fn band(op: &Attention) -> u64 {
    if op.causal { op.batch * (op.heads / pack(op)) } else { 1 }
}

/// Thread blocks of the whole operation.
pub(crate) fn work(op: &Attention, rows: u64) -> u64 {
    (op.batch * (op.heads / pack(op))).saturating_mul(tiles(op, rows))
}

/// Whether rows of q, k and v lie multiples of 16 bytes apart.
pub(crate) fn rows_aligned(op: &Attention) -> bool {
    Rows::of(op).iter().all(|rows| rows.aligned(op.dtype))
}

/// Whether every row of q, k and v starts at a multiple of 16 bytes.
pub(crate) fn aligned(op: &Attention, params: &AttentionParams) -> bool {
    rows_aligned(op) && [params.q, params.k, params.v].iter().all(|start| start.is_multiple_of(16))
}

/// Whether the tensor cores, 32-bit positions and shared memory allow the operation, or why not.
pub(crate) fn limits(op: &Attention, target: &Target) -> std::result::Result<(), String> {
    if op.dtype == DType::F32 {
        return Err("the tensor cores round f32 to 11 bits".into());
    }
    // Positions are sums of two lengths, and a window may reach below zero.
    let longest = 1 << 29;
    if op.q_len.saturating_mul(pack(op)) > longest || op.kv_len > longest {
        return Err(format!("positions are 32-bit numbers: at most {longest} queries and keys"));
    }
    if !(op.scale_value().abs() * std::f32::consts::LOG2_E).is_finite() {
        return Err("the scale times log2(e) is not finite".into());
    }
    let work = work(op, ROWS);
    if work > 1 << 30 {
        return Err(format!("it needs {work} blocks of threads, and they are counted in 30 bits"));
    }
    let shared = Tile::of(op).general_bytes();
    if shared > target.shared_bytes {
        return Err(format!("a block needs {shared} bytes of shared memory, and there are {}", target.shared_bytes));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target { arch: Arch(90), units: 132, shared_bytes: 99 << 10, config: None };

    #[test]
    fn every_head_dim_has_a_tile_that_fits_the_smallest_chip() {
        for head_dim in 1..=256 {
            let op = Attention::dense(DType::F16, 2, [32, 8], [5000, 5000], head_dim);
            let Tile(held) = Tile::of(&op);
            assert!(held >= head_dim && held < head_dim + 32 && HELD.contains(&held));
            assert_eq!(limits(&op, &TARGET), Ok(()));
        }
    }

    #[test]
    fn a_tile_lies_in_one_row_of_blocks() {
        assert!([64, 128].iter().all(|block| block % ROWS == 0 && block % KEYS == 0));
    }

    #[test]
    fn what_is_not_covered_says_why() {
        let op = Attention::dense(DType::F32, 1, [1, 1], [1, 1], 64);
        assert!(limits(&op, &TARGET).is_err());
        let long = Attention::dense(DType::F16, 1, [1, 1], [1, 1 << 30], 64);
        assert!(limits(&long, &TARGET).is_err());
    }
}
