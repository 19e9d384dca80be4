//! The kernel for operands of `attention` whose rows start anywhere: other kernels' plans fall back to it, since where an operand starts is known
//! only at launch.

use crate::backends::cuda::attention::params::{self, parameters};
use crate::backends::cuda::attention::sm80::tile::{ROWS, Tile, WARPS, band, pack, tiles, work};
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, blocks};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{Attention, AttentionArgs};

const ENTRY: &str = "attention_sm80_narrow";

/// The kernel for heads of up to `held` elements, whichever plan launches it.
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

/// Launches it for `op`, whose q, k and v start at `starts`.
///
/// # Safety
/// As [`Kernel::launch`](crate::backend::Kernel::launch); the plan has [`unit`] of `held`.
pub(crate) unsafe fn launch(queue: &mut Queue, plan: &Plan<Attention>, held: u64, op: &Attention, args: &AttentionArgs<Cuda>, starts: [u64; 3]) -> Result<()> {
    let mut params = parameters(op, args, pack(op));
    [params.q, params.k, params.v] = starts;
    (params.tiles, params.band) = (tiles(op, ROWS) as u32, band(op) as u32);
    // It waits for the launch before, and reads nothing until then.
    let overlap = plan.target.arch.0 >= 90;
    let launch = Launch { shared_bytes: Tile::exactly(held).general_bytes(), overlap, ..Launch::new(blocks(work(op, ROWS)), (WARPS * 32) as u32) };
    // SAFETY: the caller's promise.
    unsafe { plan.launch(queue, ENTRY, &launch, &params) }
}
