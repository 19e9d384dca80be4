//! A plan: an operation that is ready to run.

use crate::backend::Kernel;
use crate::device::Slice;
use crate::ops::Op;

/// A plan: an operation whose variant is chosen and compiled, and whose workspace is allocated. It belongs to one session.
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

    /// The configuration that was chosen, where the variant has several.
    pub fn config(&self) -> Option<String> {
        D::config(&self.inner)
    }

    /// Bytes of the plan's workspace.
    pub fn workspace_bytes(&self) -> u64 {
        self.workspace.len
    }
}
