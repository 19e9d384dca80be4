//! The rows of the states that a step draws from, side by side.

use crate::backend::Backend;
use crate::ops::Pointwise;
use crate::ops::index::{Index, TokenAdapters};
use crate::session::Plan;

/// Brings some rows of the states together.
pub struct Gather<D: Backend> {
    pub rows: Index<TokenAdapters, D>,
    pub plan: Plan<Pointwise, D>,
}
