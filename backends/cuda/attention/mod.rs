//! `attention` on CUDA: its variants, best first.

pub(crate) mod block_lists;
pub(crate) mod block_pairs;
pub(crate) mod choose;
pub(crate) mod early;
pub(crate) mod entry;
pub(crate) mod params;
pub(crate) mod repack;
pub(crate) mod simt;
pub(crate) mod simt_tile;
pub(crate) mod sm80;
pub(crate) mod sm90;

use simt::SIMT;

use crate::backends::cuda::variant::{Table, Variant, count, names};
use crate::ops::Attention;

impl Table for Attention {
    const VARIANTS: &'static [Variant<Self>] = &VARIANTS;
    const NAMES: &'static [&'static str] = &names::<Self, { count(&VARIANTS) }>(&VARIANTS);
}

const VARIANTS: [Variant<Attention>; 12] = [
    // Rows that do not start at multiples of 16 bytes.
    sm90::unaligned::VARIANT,
    sm90::small_head::VARIANT,
    sm90::intra_split::VARIANT,
    sm90::VARIANT,
    sm80::varlen_short::VARIANT,
    sm80::decode_block::VARIANT,
    sm90::decode::VARIANT,
    sm80::decode::VARIANT,
    // Varlen sequences with many queries.
    sm90::varlen::VARIANT,
    // Steps of a server.
    sm80::ragged_pages::VARIANT,
    sm80::VARIANT,
    SIMT,
];
