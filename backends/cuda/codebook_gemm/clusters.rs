//! The kernels of `sm90`, and what a launch of one is: which kernel, how many blocks share a tile of tokens, and how many of them are a cluster.

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
/// Only of rank 16.
pub(crate) const ICACHE_WARM: Entry = entry!("codebook_gemm_sm90_icache_warm");
/// Only where [`predecodes`] says so.
pub(crate) const AHEAD: Entry = entry!("codebook_gemm_sm90_predecode");
pub(crate) const LINE: Entry = entry!("codebook_gemm_sm90_balanced");

/// Every kernel of that form.
pub(crate) fn kernels(rank: u64, width: u32) -> impl Iterator<Item = Entry> {
    let ahead = [AHEAD, LINE].into_iter().filter(move |_| predecodes(rank, width));
    [USUAL, WIDE, ANY, GROUPED, MANY].into_iter().chain((rank == 16).then_some(ICACHE_WARM)).chain(ahead)
}

/// Of d_in, what one buffer of the basis takes of a block, of rank 16.
const SHARE: u64 = 512;

/// Whether y is written over, and a block's share of d_in fits into one buffer of the one basis, as [`LINE`] has it.
pub(crate) fn in_one_share(op: &CodebookGemm) -> bool {
    !op.accumulate && op.d_in <= CLUSTER * SHARE && predecodes(rank_of(op), width_of(op))
}

/// What only a launch knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// Its rows are whole multiples of 16 bytes.
    pub(crate) whole: bool,
    /// It may start before the launch before has ended.
    pub(crate) early: bool,
    /// No launch still under way writes x.
    pub(crate) x_early: bool,
    /// The basis of each adapter is given.
    pub(crate) basis_of: bool,
}

impl Known {
    /// All that a launch of `group` may know, whose rows are `whole` or not.
    pub(crate) fn all(group: Group, whole: bool) -> impl Iterator<Item = Self> {
        let bases: &[bool] = if group.one_basis { &[false, true] } else { &[true] };
        let starts = [(false, true), (true, true), (true, false)];
        starts.into_iter().flat_map(move |(early, x_early)| bases.iter().map(move |&basis_of| Self { whole, early, x_early, basis_of }))
    }
}

/// A launch: its kernel, the blocks that share a tile, and those of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) kernel: Entry,
    pub(crate) blocks: u64,
    pub(crate) cluster: u64,
}

/// The configurations: what each launch takes by what it knows, or one kernel and number of blocks for all launches that it can be of.
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
    /// Whether a launch of `group` can be of this kind: what it cannot read, or how many slices it has, no configuration changes.
    pub(crate) fn takes(&self, group: Group, known: Known) -> bool {
        match (self.kernel, group.slices > 1) {
            (GROUPED | MANY, several) => several,
            (_, true) => false,
            (ANY, _) => true,
            (LINE, _) => known.whole && !known.basis_of,
            _ => known.whole,
        }
    }

    /// Whether its kernel can compute `op`, in launches that it can be of, or why not.
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
