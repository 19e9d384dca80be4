//! What the tiled sm90 kernels of `attention` are compiled for, and their parameters.

use crate::backends::cuda::attention::params::{AttentionParams, headers};
use crate::backends::cuda::attention::sm80::tile as sm80;
use crate::backends::cuda::jit::{Arch, Source, Unit};
use crate::backends::cuda::variant::params::params;
use crate::dtype::DType;
use crate::ops::Attention;

params! {
    /// Parameters of the tiled kernels: tensor maps of q, k and v, and the common parameters.
    TmaParams {
        q: map,
        k: map,
        v: map,
        common: AttentionParams,
        /// The counter from which blocks take their next tile, zero between launches. Null where each block has one tile.
        queue: [u32],
        /// The plan of 64-key blocks, where there is one.
        pairs: [i32],
        /// Tiles of the operation.
        work: u32,
        /// Columns that a pattern has room for in the plan.
        region: u32,
        /// Tensor map of the last panel of k.
        k_tail: map,
        /// Tensor map of o, where blocks have one tile each.
        o: map,
        /// Partial sums of each slot: what a warp summed over a part of its rows' keys.
        parts: [f32],
        /// For each slot and warp, how many parts have arrived. All are zero between launches.
        arrivals: [u32],
    }
}

/// Rows of a tile, except with three warpgroups.
pub(crate) const ROWS: u64 = 128;
/// Rows of a warpgroup.
pub(crate) const GROUP: u64 = 64;
/// The most elements of a head with which registers hold a third warpgroup.
pub(crate) const NARROW: u64 = 64;
/// Bytes for the barriers.
const BARRIERS: u64 = 512;
/// Elements of a copied row: 128 bytes, as wide as the swizzle.
pub(crate) const PANEL: u64 = 64;
/// Head dimensions that a kernel is compiled for with k-blocks of [`KEYS`]. Products of a head between two of them go as far as the next.
pub(crate) const HELD: [u64; 6] = [32, 64, 80, 96, 112, 128];
/// Keys of a k-block, and of a block in a list.
const KEYS: u64 = 128;
/// Wider heads, and the keys of their k-blocks. Shared memory has room for these beside one tile of Q.
pub(crate) const WIDE: [(u64, u64); 8] = [(144, 128), (160, 128), (176, 112), (192, 112), (208, 80), (224, 80), (240, 80), (256, 80)];
/// The longest head for which blocks are listed, and the longest of all.
pub(crate) const LISTED: u64 = HELD[HELD.len() - 1];
pub(crate) const WIDEST: u64 = WIDE[WIDE.len() - 1].0;

pub(crate) fn held(head_dim: u64) -> u64 {
    HELD.into_iter().chain(WIDE.map(|(held, _)| held)).find(|&held| head_dim <= held).unwrap_or(WIDEST)
}

/// Keys of a k-block, by the head dimension that a kernel is compiled for.
pub(crate) fn keys(held: u64) -> u64 {
    WIDE.into_iter().find(|&(wide, _)| wide == held).map_or(KEYS, |(_, keys)| keys)
}

/// What a kernel is compiled for: elements of a head, and warpgroups that multiply. Each of these has 64 rows of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) held: u64,
    pub(crate) consumers: u64,
}

impl Tile {
    pub(crate) const fn rows(self) -> u64 {
        self.consumers * GROUP
    }

    pub(crate) fn keys(self) -> u64 {
        keys(self.held)
    }

    /// Tiles of Q that shared memory has room for.
    const fn q_stages(self) -> u64 {
        if self.held <= LISTED { 2 } else { 1 }
    }

    /// K-blocks in the ring.
    const fn stages(self) -> u64 {
        if self.held <= NARROW && self.consumers == 2 { 4 } else { 2 }
    }

    /// Threads of a block: the warpgroups that multiply, and one that copies.
    pub(crate) const fn threads(self) -> u32 {
        (self.consumers as u32 + 1) * 128
    }

    pub(crate) fn shared_bytes(self) -> u32 {
        let (row, k_row) = (self.held.next_multiple_of(PANEL), self.held.next_multiple_of(PANEL) - PANEL + self.tail());
        ((self.q_stages() * self.rows() * row + self.stages() * self.keys() * (k_row + row)) * 2 + BARRIERS) as u32
    }

    /// Bytes of a block's partial sums over some of the keys: O as the registers hold it, then maxima and sums.
    pub(crate) const fn sums_bytes(self) -> u64 {
        self.consumers * 128 * (self.held / 2 + 4) * 4
    }

    /// Elements of a row of the last panel of K. Wide heads use half a panel where that is enough, which leaves room for more keys.
    pub(crate) fn tail(self) -> u64 {
        if self.held > LISTED && (1..=PANEL / 2).contains(&(self.held % PANEL)) { PANEL / 2 } else { PANEL }
    }

    /// The unit of a kernel of `source`, without its entry and the entry's own definitions. `name` stands before the shape in the unit's
    /// name.
    pub(crate) fn unit(self, name: &str, source: Source, dtype: DType) -> Unit {
        let mut defines = sm80::Tile::exactly(self.held).defines(dtype, Arch(90));
        defines.extend([
            ("CONSUMERS", self.consumers.to_string()),
            ("RING_STAGES", self.stages().to_string()),
            ("BLOCK_KEYS", self.keys().to_string()),
            ("TAIL_BYTES", (self.tail() * 2).to_string()),
            ("Q_STAGES", self.q_stages().to_string()),
            ("TMA_SHARED_BYTES", self.shared_bytes().to_string()),
            ("BARRIER_BYTES", BARRIERS.to_string()),
        ]);
        Unit {
            headers: [headers(), vec![("attention/tma_params.cuh", TmaParams::cuda())]].concat(),
            defines,
            shared_bytes: self.shared_bytes(),
            ..Unit::new(format!("{name} {dtype} head_dim {}", self.held), source)
        }
    }
}

/// Sets these definitions of a unit, in place of earlier ones of the same name.
pub(crate) fn define(unit: &mut Unit, defines: &[(&'static str, u64)]) {
    unit.defines.retain(|(name, _)| defines.iter().all(|(other, _)| name != other));
    unit.defines.extend(defines.iter().map(|(name, value)| (*name, value.to_string())));
}

/// The tiles of two warpgroups that kernels are compiled for, one for each head dimension.
pub(crate) fn pairs_of_groups() -> impl Iterator<Item = Tile> {
    HELD.into_iter().chain(WIDE.map(|(held, _)| held)).map(|held| Tile { held, consumers: 2 })
}

/// Tiles of all heads and sequences.
pub(crate) fn work(op: &Attention, rows: u64) -> u64 {
    op.batch * op.heads * op.q_len.div_ceil(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_fit() {
        assert!(HELD.iter().all(|&held| Tile { held, consumers: if held <= NARROW { 3 } else { 2 } }.shared_bytes() <= 227 << 10));
        assert!(WIDE.iter().all(|&(held, keys)| keys % 16 == 0 && Tile { held, consumers: 2 }.shared_bytes() <= 227 << 10));
    }
}
