//! `prefix_attention` on CUDA: its variants, best first.

pub(crate) mod grid;
pub(crate) mod simt;
pub(crate) mod sm80;

use simt::SIMT;

use crate::backends::cuda::variant::{Table, Variant, count, names};
use crate::ops::PrefixAttention;

impl Table for PrefixAttention {
    const VARIANTS: &'static [Variant<Self>] = &VARIANTS;
    const NAMES: &'static [&'static str] = &names::<Self, { count(&VARIANTS) }>(&VARIANTS);
}

const VARIANTS: [Variant<PrefixAttention>; 2] = [sm80::VARIANT, SIMT];
