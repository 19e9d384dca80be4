//! `fused_mlp` on CUDA: its variants, best first.

pub(crate) mod choose;
pub(crate) mod problem;
pub(crate) mod simt;
pub(crate) mod skinny;
pub(crate) mod skinny_tile;
pub(crate) mod tile;

use simt::SIMT;

use crate::backends::cuda::variant::{Table, Variant, names};
use crate::ops::FusedMlp;

impl Table for FusedMlp {
    const VARIANTS: &'static [Variant<Self>] = &VARIANTS;
    const NAMES: &'static [&'static str] = &names::<Self, { VARIANTS.len() }>(&VARIANTS);
}

const VARIANTS: [Variant<FusedMlp>; 5] =
    [Variant { suits: choose::skinny_tile, ..skinny_tile::SKINNY_TILE }, skinny::SKINNY, Variant { suits: choose::tiles, ..tile::SM90 }, tile::SM80, SIMT];
