//! `codebook_gemm` on CUDA: its variants, best first.

pub(crate) mod choose;
pub(crate) mod choose_dense;
pub(crate) mod choose_launch;
pub(crate) mod clusters;
pub(crate) mod dense;
pub(crate) mod dense_pair;
pub(crate) mod entry;
pub(crate) mod factor;
pub(crate) mod launch;
pub(crate) mod long_tile;
pub(crate) mod order;
pub(crate) mod prepare;
pub(crate) mod segments;
pub(crate) mod sgmv;
pub(crate) mod sgmv_dense;
pub(crate) mod sgmv_dense_fused;
pub(crate) mod sgmv_fused;
pub(crate) mod sgmv_long;
pub(crate) mod sgmv_simt;
pub(crate) mod simt;
pub(crate) mod sm80;
pub(crate) mod sm90;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
pub(crate) mod tile;

use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Plan, Table, Variant, count, names};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{CodebookGemm, CodebookGemmArgs};

impl Table for CodebookGemm {
    const VARIANTS: &'static [Variant<Self>] = &VARIANTS;
    const NAMES: &'static [&'static str] = &names::<Self, { count(&VARIANTS) }>(&VARIANTS);

    fn prepared_bytes(plan: &Plan<Self>) -> u64 {
        prepare::prepared_bytes(plan)
    }

    unsafe fn prepare(queue: &mut Queue, plan: &Plan<Self>, prepared: &Slice<Cuda>, args: &CodebookGemmArgs<Cuda>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { prepare::unpack(queue, plan, prepared, args) }
    }
}

const VARIANTS: [Variant<CodebookGemm>; 9] = [
    sgmv_dense_fused::SGMV_DENSE_FUSED,
    sgmv_dense::SGMV_DENSE,
    sgmv_long::SGMV_LONG,
    sgmv_simt::SGMV_SIMT,
    sgmv_fused::SGMV_FUSED,
    sgmv::SGMV,
    sm90::SM90,
    sm80::SM80,
    simt::SIMT,
];
