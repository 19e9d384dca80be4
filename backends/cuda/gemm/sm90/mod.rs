//! Matrix products with TMA and wgmma, for sm90.

pub(crate) mod cost;
pub(crate) mod rows;
pub(crate) mod skinny;
pub(crate) mod skinny_config;
pub(crate) mod skinny_tile;
pub(crate) mod start;
pub(crate) mod tile;
pub(crate) mod tiles;
pub(crate) mod units;
