//! The sizes of projections of one x in one launch.

use serde::{Deserialize, Serialize};

use trifuse::error::{Error, Result};
use trifuse::ops::CodeWidth;

/// The sizes of a launch. Token `t` is on adapter `t mod adapters`, or the tokens of an adapter are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// Rows of x.
    pub tokens: u64,
    /// Adapters.
    pub adapters: u32,
    /// Bits of a code.
    pub bits: u32,
    /// Columns of x.
    pub d_in: u64,
    /// Columns of each y.
    pub d_out: u64,
    /// Columns of both factors.
    pub rank: u64,
    /// Projections, each a slice of the launch.
    pub slices: u64,
    /// Whether y is added to.
    pub accumulate: bool,
    /// Whether the tokens of an adapter are neighbours, as those of a sentence are.
    pub sorted: bool,
}

impl Sizes {
    /// What `--shape` searches.
    pub(in super::super) fn name(&self) -> String {
        let Self { tokens, adapters, bits, d_in, d_out, rank, slices, accumulate, sorted } = self;
        let form = if *accumulate { "added" } else { "written" };
        let order = if *sorted { " sorted" } else { "" };
        format!("{form} {slices} x {d_in}-{d_out} r{rank} of {bits} bits tokens{tokens} adapters{adapters}{order}")
    }

    pub(super) fn width(&self) -> Result<CodeWidth> {
        let width = CodeWidth::from_bits(self.bits).filter(|width| width.bits() > 0);
        width.ok_or_else(|| Error::invalid("bits", "a width of codes: 2, 3, 4, 7 or 16", self.bits))
    }

    /// The adapter of a token.
    pub(super) fn adapter_of(&self, token: u64) -> u32 {
        let adapters = u64::from(self.adapters.max(1));
        (if self.sorted { token * adapters / self.tokens.max(1) } else { token % adapters }) as u32
    }
}
