//! The device of this backend.

use std::sync::Arc;

use super::memory::Budget;
use crate::device::Caps;

/// The machine's processors.
pub struct Cpu {
    pub(super) caps: Caps,
    pub(super) budget: Arc<Budget>,
}
