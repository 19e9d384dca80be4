//! Matrix products with asynchronous copies and mma, for sm80.

pub(crate) mod cost;
pub(crate) mod tile;
pub(crate) mod units;
