//! The kernels of `sm90`, and the kind of a launch: its kernel, the blocks that share a tile of tokens, and the blocks of a cluster.

use std::iter::once;

use super::entry::{Entry, entry};
use super::launch::{Group, forms};
use super::tile::{CLUSTER, FEW, GROUP, predecodes, rank_of, width_of};
use crate::ops::CodebookGemm;

pub(crate) const USUAL: Entry = entry!("codebook_gemm_sm90");
pub(crate) const WIDE: Entry = entry!("codebook_gemm_sm90_wide");
pub(crate) const ANY: Entry = entry!("codebook_gemm_sm90_any");
pub(crate) const GROUPED: Entry = entry!("codebook_gemm_sm90_grouped");
pub(crate) const MANY: Entry = entry!("codebook_gemm_sm90_many");
/// The kernel that warms the instruction cache, for rank 16 alone.
pub(crate) const ICACHE_WARM: Entry = entry!("codebook_gemm_sm90_icache_warm");
/// The kernel that decodes before its PDL wait, compiled where [`predecodes`] says so.
pub(crate) const AHEAD: Entry = entry!("codebook_gemm_sm90_predecode");
pub(crate) const LINE: Entry = entry!("codebook_gemm_sm90_balanced");

/// Every kernel of a rank and a width of codes.
pub(crate) fn kernels(rank: u64, width: u32) -> impl Iterator<Item = Entry> {
    let ahead = [AHEAD, LINE].into_iter().filter(move |_| predecodes(rank, width));
    [USUAL, WIDE, ANY, GROUPED, MANY].into_iter().chain((rank == 16).then_some(ICACHE_WARM)).chain(ahead)
}

/// Elements of d_in that one buffer of the basis holds of a block's share, at rank 16.
const SHARE: u64 = 512;

/// Whether y is overwritten, and a block's share of d_in fits into one buffer of the one basis, as [`LINE`] needs.
pub(crate) fn in_one_share(op: &CodebookGemm) -> bool {
    !op.accumulate && op.d_in <= CLUSTER * SHARE && predecodes(rank_of(op), width_of(op))
}

/// What only a launch knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// Whether rows are whole multiples of 16 bytes.
    pub(crate) whole: bool,
    /// Whether the launch may start before the one before has ended (PDL).
    pub(crate) early: bool,
    /// Whether no launch in flight writes x.
    pub(crate) x_early: bool,
    /// Whether the basis of each adapter is given.
    pub(crate) basis_of: bool,
}

impl Known {
    /// Everything that a launch of `group` may know, whose rows are `whole` or not.
    pub(crate) fn all(group: Group, whole: bool) -> impl Iterator<Item = Self> {
        let bases: &[bool] = if group.one_basis { &[false, true] } else { &[true] };
        let starts = [(false, true), (true, true), (true, false)];
        starts.into_iter().flat_map(move |(early, x_early)| bases.iter().map(move |&basis_of| Self { whole, early, x_early, basis_of }))
    }
}

/// The kind of a launch: its kernel, the blocks that share a tile, and the blocks of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) kernel: Entry,
    pub(crate) blocks: u64,
    pub(crate) cluster: u64,
}

/// The configurations. `None` lets each launch choose by what it knows; the others fix a kernel and a number of blocks where a launch can
/// be of that kind.
pub(crate) fn configs() -> impl Iterator<Item = Option<Shape>> {
    let of = |kernel, cluster| move |blocks| Some(Shape { kernel, blocks, cluster });
    let clusters = [USUAL, WIDE, ANY, GROUPED, ICACHE_WARM, AHEAD, LINE].into_iter().flat_map(move |kernel| [8, 16, 32, 64].map(of(kernel, CLUSTER)));
    once(None).chain(clusters).chain([2, 8, 32].map(of(MANY, FEW)))
}

/// The name of a configuration.
pub(crate) fn config(shape: Option<Shape>) -> String {
    let Some(Shape { kernel, blocks, .. }) = shape else { return "by-launch".into() };
    let word = kernel.name().strip_prefix("codebook_gemm_sm90").unwrap_or_default().trim_start_matches('_');
    format!("{}-{blocks}", if word.is_empty() { "plain" } else { word })
}

impl Shape {
    /// Whether a launch of `group` can be of this kind. No configuration changes what it can read, or how many slices it has.
    pub(crate) fn takes(&self, group: Group, known: Known) -> bool {
        match (self.kernel, group.slices > 1) {
            (GROUPED | MANY, several) => several,
            (_, true) => false,
            (ANY, _) => true,
            (LINE, _) => known.whole && !known.basis_of,
            _ => known.whole,
        }
    }

    /// Whether the kernel can compute `op` in launches of this kind, or why not.
    pub(crate) fn computes(&self, op: &CodebookGemm) -> std::result::Result<(), String> {
        let (rank, width, forms) = (rank_of(op), width_of(op), forms(op));
        if !kernels(rank, width).any(|kernel| kernel == self.kernel) {
            return Err(format!("{}: it is not compiled for rank {rank} and codes of {width} bits", self.kernel.name()));
        }
        if self.kernel == LINE && !(in_one_share(op) && forms.iter().all(|(group, _)| group.one_basis)) {
            return Err("y is added to, or blocks have more than a buffer's share of one basis".into());
        }
        let several = forms.iter().any(|(group, _)| group.slices > 1);
        let launches = forms.iter().any(|&(group, whole)| self.takes(group, Known { whole, early: false, x_early: true, basis_of: false }));
        if several != matches!(self.kernel, GROUPED | MANY) || !launches {
            return Err(format!("{}: no launch has so many slices, or rows that it can read", self.kernel.name()));
        }
        let columns = forms.iter().map(|(group, _)| group.widest.div_ceil(GROUP).next_multiple_of(self.cluster)).max().unwrap_or(0);
        if self.blocks > columns { Err(format!("{} blocks, with columns for {columns}", self.blocks)) } else { Ok(()) }
    }
}
