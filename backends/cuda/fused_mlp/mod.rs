//! `fused_mlp` on CUDA: its variants, best first.

pub(crate) mod choose;
pub(crate) mod gemm;
pub(crate) mod mma;
pub(crate) mod problem;
pub(crate) mod simt;
pub(crate) mod skinny;
pub(crate) mod skinny_tile;
pub(crate) mod tile;

use simt::SIMT;

use crate::backends::cuda::variant::{Table, Variant, count, names};
use crate::ops::FusedMlp;

impl Table for FusedMlp {
    const VARIANTS: &'static [Variant<Self>] = &VARIANTS;
    const NAMES: &'static [&'static str] = &names::<Self, { count(&VARIANTS) }>(&VARIANTS);
}

const VARIANTS: [Variant<FusedMlp>; 2] = [Variant { configs: Some(choose::GEMM), ..gemm::GEMM }, SIMT];
