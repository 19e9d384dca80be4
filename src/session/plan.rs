//! An operation made ready.

use crate::backend::Kernel;
use crate::device::Slice;
use crate::ops::Op;

/// An operation ready to run: its variant chosen and compiled, its workspace allocated. Belongs to one session.
pub struct Plan<O: Op, D: Kernel<O>> {
    pub(super) op: O,
    pub(super) inner: D::Plan,
    pub(super) workspace: Slice<D>,
    pub(super) session: u64,
}

impl<O: Op, D: Kernel<O>> Plan<O, D> {
    /// The operation.
    pub fn op(&self) -> &O {
        &self.op
    }

    /// The variant that was chosen.
    pub fn variant(&self) -> &'static str {
        D::variant(&self.inner)
    }

    /// The configuration of it, where it has several.
    pub fn config(&self) -> Option<String> {
        D::config(&self.inner)
    }

    /// Bytes of workspace it holds.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace.len
    }
}
