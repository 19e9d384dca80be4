//! The tiles of sm90 varlen `attention`: their configurations, how many there may be, and the boxes that load their keys.

use crate::backends::cuda::attention::sm90::schedule::MOST_BLOCKS;
use crate::backends::cuda::attention::sm90::tile::{LISTED, NARROW, Tile, held, keys};
use crate::ops::Attention;
use crate::ops::attention::Form;

/// The fewest keys of a box. A box of pages has at most as many keys as a page.
pub(crate) const LEAST_BOX: u64 = 16;

/// A configuration of `sm90_varlen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Warpgroups of a tile.
    pub(crate) groups: u64,
    /// Whether all page numbers of a k-block are read at once, before there is room for its keys.
    pub(crate) lookahead: bool,
    /// Blocks that share the keys of a tile.
    pub(crate) cluster: u64,
}

impl Config {
    pub(crate) const ALL: [Self; 7] = [
        Self::new(2, false, 1),
        Self::new(3, false, 1),
        Self::new(2, true, 1),
        Self::new(3, true, 1),
        Self::new(2, true, 2),
        Self::new(2, true, 4),
        Self::new(2, true, 8),
    ];

    pub(crate) const fn new(groups: u64, lookahead: bool, cluster: u64) -> Self {
        Self { groups, lookahead, cluster }
    }

    /// The configuration's name in `--variant sm90_varlen:config`.
    pub(crate) fn name(self) -> String {
        let groups = if self.groups == 2 { String::new() } else { format!("-{}wg", self.groups) };
        let cluster = if self.cluster == 1 { String::new() } else { format!("-cluster{}", self.cluster) };
        format!("{}{groups}{cluster}", if self.lookahead { "lookahead" } else { "persistent" })
    }

    /// What the configuration's kernel for an operation is compiled for.
    pub(crate) fn tile(self, op: &Attention) -> Tile {
        Tile { held: held(op.head_dim).max(NARROW), consumers: self.groups }
    }

    /// Whether the configuration's kernel is compiled for heads padded to `held` elements.
    pub(crate) fn has(self, held: u64) -> bool {
        (self.groups == 2 || held == NARROW) && (!self.lookahead || [NARROW, LISTED].contains(&held))
    }

    /// Whether the configuration's kernel can compute an operation that the variant can, or why not.
    pub(crate) fn can_take(self, op: &Attention) -> std::result::Result<(), String> {
        let tile = self.tile(op);
        if !self.has(tile.held) {
            return Err(format!("head_dim {}: three groups are for heads of {NARROW}, lookahead for {NARROW} and {LISTED}", op.head_dim));
        }
        if most_work(op, tile.rows()).saturating_mul(self.cluster) > MOST_BLOCKS {
            return Err(format!("a grid of more than {MOST_BLOCKS} blocks"));
        }
        Ok(())
    }
}

/// Keys of a box.
pub(crate) fn box_keys(op: &Attention) -> u64 {
    let step = keys(held(op.head_dim).max(NARROW));
    match op.form {
        Form::Paged(shape) => 1 << shape.page.trailing_zeros().min(step.trailing_zeros()),
        _ => step,
    }
}

/// The most tiles of all heads. Only the device knows how long each sequence is.
pub(crate) fn most_work(op: &Attention, rows: u64) -> u64 {
    let each = op.batch * op.q_len.div_ceil(rows);
    let all = match op.form {
        Form::Varlen(shape) => each.min((shape.total_q + op.batch * (rows - 1)) / rows),
        _ => each,
    };
    all * op.heads
}
