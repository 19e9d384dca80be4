//! Split-K of `linear`, where K is long and whole tiles are few. Pairs of blocks have a part of K each, and their sums meet in L2
//! (`kernels/gemm/sm90/split_k_multicast.cuh`).

use crate::backends::cuda::gemm::problem::Product;
use crate::backends::cuda::gemm::sm90::start::{WgmmaLaunch, kernel_of};
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::gemm::sm90::units::SplitKParams;
use crate::backends::cuda::linear::problem::repacked_bytes;
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, address};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::Linear;

/// Bytes of the partial sums of `tile`, and of their counts. None where K is whole, or its parts meet in a cluster.
pub(crate) fn split_k_bytes(tile: &WgmmaTile, op: &Linear) -> [u64; 2] {
    let (parts, blocks) = (tile.parts(), tile.blocks(op.tokens, op.d_out, false));
    if tile.meets_outside() { [blocks / parts * (parts - 1) * WgmmaTile::ROWS * tile.columns * 4, blocks * 2 * 4] } else { [0; 2] }
}

/// Enqueues the product. Its partial sums lie behind the copies in the workspace.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold.
pub(crate) unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, product: &Product<'_>, how: &WgmmaLaunch) -> Result<()> {
    let (gemm, launch) = product.wgmma_start(how, &plan.target)?;
    let sums = address(workspace) + repacked_bytes(&plan.op);
    let params = SplitKParams { gemm, sums, arrived: sums + split_k_bytes(&how.tile, &plan.op)[0] };
    // SAFETY: the caller's promise; the workspace is as large as the variant says, and its counts are zero.
    unsafe { plan.launch_of(queue, how.unit, kernel_of(&gemm).name(), &launch, &params) }
}
