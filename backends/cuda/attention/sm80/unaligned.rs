//! The kernel for operands of `attention` whose rows start anywhere. Plans of other kernels fall back to it, since only the launch knows
//! where an operand starts.

use crate::backends::cuda::attention::params::{self, parameters};
use crate::backends::cuda::attention::sm80::tile::{ROWS, Tile, WARPS, band, pack, tiles, work};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, blocks};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Attention, AttentionArgs};

const ENTRY: &str = "attention_sm80_narrow";

/// The unit of the kernel for heads of up to `held` elements, whichever plan launches it.
pub(crate) fn unit(held: u64, dtype: DType) -> Unit {
    let tile = Tile::exactly(held);
    Unit {
        headers: params::headers(),
        defines: tile.defines(dtype, Arch(80)),
        entries: &[ENTRY],
        shared_bytes: tile.general_bytes(),
        ..Unit::new(format!("attention/sm80 unaligned {dtype} head_dim {held}"), source!("attention/sm80/unaligned.cu"))
    }
}

/// Launches the kernel for `op`, whose q, k and v start at `starts`.
///
/// # Safety
/// The conditions of [`Kernel::launch`](crate::backend::Kernel::launch) hold, and the plan has the [`unit`] of `held`.
pub(crate) unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, held: u64, op: &Attention, args: &AttentionArgs<Cuda>, starts: [u64; 3]) -> Result<()> {
    let mut params = parameters(op, args, pack(op));
    [params.q, params.k, params.v] = starts;
    (params.tiles, params.band) = (tiles(op, ROWS) as u32, band(op) as u32);
    // The kernel's PDL wait stands before its first read.
    let overlap = plan.target.arch.0 >= 90;
    let launch = Launch { shared_bytes: Tile::exactly(held).general_bytes(), overlap, ..Launch::new(blocks(work(op, ROWS)), (WARPS * 32) as u32) };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, ENTRY, &launch, &params) }
}
