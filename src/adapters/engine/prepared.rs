//! What a device prepared of adapters, as an engine keeps it.

use crate::backend::Kernel;
use crate::device::Slice;
use crate::ops::{CodebookGemm, CodebookGemmArgs};
use crate::session::Plan;

/// What a device prepared of the adapters of some projections.
pub struct Prepared<D: Kernel<CodebookGemm>> {
    pub plan: Plan<CodebookGemm, D>,
    pub args: CodebookGemmArgs<D>,
    pub at: Slice<D>,
    /// Version of the engine's arrays from which this was prepared.
    pub version: u64,
}
