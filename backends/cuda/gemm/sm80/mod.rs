//! Products on Ampere: asynchronous copies and mma.

pub(crate) mod cost;
pub(crate) mod tile;
pub(crate) mod units;
