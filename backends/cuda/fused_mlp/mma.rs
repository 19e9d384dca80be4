//! Both products of an MLP in sm80 tiles of mma.

use std::collections::HashSet;

use super::problem::{bring, chunks, intermediate_stride, up_strides};
use crate::backends::cuda::gemm::entry::gathered;
use crate::backends::cuda::gemm::repack::{Copies, padded, repack_unit};
use crate::backends::cuda::gemm::sm80::tile::MmaTile;
use crate::backends::cuda::gemm::sm80::units::{all_mma_units, mma_units};
use crate::backends::cuda::jit::{Arch, Unit};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{FusedMlp, FusedMlpArgs};

/// The unit of both products' kernels. It covers a chunk of a single token, which has no stride of X.
pub(crate) fn unit(op: &FusedMlp, tile: &MmaTile) -> Unit {
    let [x, w1] = up_strides(op);
    let up = |x| mma_units(op.dtype, tile, op.gated, [x, w1], op.d_model);
    let down = mma_units(op.dtype, tile, false, [intermediate_stride(op), op.w2_stride], op.d_ff);
    let own = [up(x), up(padded(op.d_model)), down].concat().into_iter().chain(Copies::of_mlp(op).unit(op.dtype));
    let mut met = HashSet::new();
    gathered(own.filter(|unit| met.insert(unit.entries))).unwrap_or_else(|| repack_unit(op.dtype))
}

/// The unit of every kernel.
pub(crate) fn units(arch: Arch) -> impl Iterator<Item = Unit> {
    [false, true].into_iter().flat_map(move |gated| all_mma_units(&MmaTile::on(arch), gated))
}

/// Enqueues both products of every chunk.
///
/// # Safety
/// The conditions of [`Plan::launch`] hold.
pub(crate) unsafe fn launch(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>, tile: &MmaTile) -> Result<()> {
    for [mut up, down] in chunks(plan, workspace, args)? {
        // SAFETY: the caller's promise; a chunk's intermediate fits into the workspace.
        unsafe {
            bring(queue, plan, workspace, &mut up)?;
            up.launch_mma(queue, plan, tile)?;
            down.launch_mma(queue, plan, tile)?;
        }
    }
    Ok(())
}
