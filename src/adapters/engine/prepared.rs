//! The prepared form of adapters, as an engine keeps it.

use crate::backend::Kernel;
use crate::device::Slice;
use crate::ops::{CodebookGemm, CodebookGemmArgs};
use crate::session::Plan;

/// The result of [`Session::prepare`](crate::session::Session::prepare) for the adapters of some projections.
pub struct Prepared<D: Kernel<CodebookGemm>> {
    pub plan: Plan<CodebookGemm, D>,
    pub args: CodebookGemmArgs<D>,
    pub at: Slice<D>,
    /// Version of the engine's arrays that were prepared.
    pub version: u64,
}
