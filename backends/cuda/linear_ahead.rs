//! `linear` on many rows of X that start anywhere, where those of W do not: X is copied by the product's own launch
//! (`kernels/tile/repack_ahead.cuh`).

use super::gemm::{GemmParams, Product, elements};
use super::kernel::{Plan, address};
use super::params::params;
use super::repack::{Copies, padded};
use super::wgmma::{Shares, WgmmaLaunch, WgmmaTile};
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::Linear;

params! {
    /// A product whose X is copied ahead of it.
    AheadParams {
        gemm: GemmParams,
        /// Of X, in rows on multiples of 16 bytes.
        copies: [element],
        /// Of the warps that are done, and of every 128 rows and chunk of K, the copies that are there. All zero between launches.
        copied: [u32],
    }
}

/// Rows from which on a launch in front of the product takes longer: with fewer the first copies are what is waited for.
const LEAST_ROWS: u64 = 512;
/// A row has no fewer elements than a word of 16 bytes.
const LEAST_DEPTH: u64 = 8;
/// Elements of K of a chunk.
const CHUNK: u64 = 256;

/// The header of [`AheadParams`].
pub(super) fn ahead_header() -> (&'static str, String) {
    ("linear/ahead_params.cuh", AheadParams::cuda())
}

/// Whether the product's launch copies X itself. Tiles of two widths have no form for it.
pub(super) fn copies_ahead(op: &Linear, tile: &WgmmaTile) -> bool {
    Copies::of(op) == Copies { x: true, w: false } && tile.shares == Shares::W && !tile.has_widths() && op.tokens >= LEAST_ROWS && op.d_in >= LEAST_DEPTH
}

/// Bytes of the counts that it takes.
pub(super) fn counts_bytes(op: &Linear, tile: &WgmmaTile) -> u64 {
    let groups = op.tokens.div_ceil(WgmmaTile::ROWS);
    if copies_ahead(op, tile) { (1 + groups.saturating_mul(op.d_in.div_ceil(CHUNK))).saturating_mul(4) } else { 0 }
}

/// Puts the product into the queue. Rows of the weights start on multiples of 16 bytes, X anywhere.
///
/// # Safety
/// As [`Plan::launch`].
pub(super) unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, product: Product<'_>, how: &WgmmaLaunch) -> Result<()> {
    let (x, x_stride, stride) = (address(&product.x), product.x_stride, padded(product.depth));
    let copies = elements(workspace, product.dtype, 0, product.rows * stride)?;
    // What TMA reads are the copies.
    let (gemm, launch) = Product { x: copies.clone(), x_stride: stride, ..product }.wgmma_start(how, &plan.target)?;
    let params = AheadParams { gemm: GemmParams { x, x_stride, ..gemm }, copies: address(&copies), copied: address(&copies) + copies.len };
    // SAFETY: the caller's promise; the workspace is as large as the variant says, and its counts are zero.
    unsafe { plan.launch(queue, how.entry_of(&gemm), &launch, &params) }
}
