//! How an operation runs on a device: one [`Kernel`] implementation for each pair, in one file.

use crate::device::{Device, Slice};
use crate::error::Result;
use crate::ops::{Attention, Checksum, CodebookGemm, FusedMlp, GroupedLinear, Linear, Op, Pointwise, PrefixAttention, Sample};

/// A device that can run `O`.
pub trait Kernel<O: Op>: Device {
    /// Everything decided ahead: the variant, its tiles, compiled code.
    type Plan: Send + 'static;

    /// The names of the variants, best first.
    fn variants(&self) -> &'static [&'static str];
    /// The names of what can compute `op`, whatever is faster: each variant, or `variant:config` for each configuration of a variant that
    /// has several.
    fn configs(&self, op: &O) -> Vec<String> {
        let able = self.variants().iter().filter(|name| self.plan(op, Some(name)).is_ok());
        able.map(|&name| name.to_owned()).collect()
    }
    /// Chooses a variant and compiles it. This may be slow. `only` names a variant, or a configuration as `variant:config`, and nothing
    /// else is then tried.
    ///
    /// # Errors
    /// [`Unsupported`](crate::Error::Unsupported) with every variant's reason. A backend that leaves `O` out returns it for every `op`.
    fn plan(&self, op: &O, only: Option<&str>) -> Result<Self::Plan>;
    /// Bytes of workspace that a launch needs.
    fn workspace_bytes(plan: &Self::Plan) -> u64;
    /// The workspace of a plan, as its first launch is to find it. Every launch leaves it so that the next may run.
    fn workspace(&self, plan: &Self::Plan) -> Result<Self::Buffer> {
        self.alloc(Self::workspace_bytes(plan))
    }
    /// Bytes that [`prepare`](Self::prepare) writes; 0 where it does nothing.
    fn prepared_bytes(_plan: &Self::Plan) -> u64 {
        0
    }
    /// Enqueues the work that does not depend on the rows of a launch. Other launches take its result from `prepared`.
    ///
    /// # Safety
    /// The contract of [`launch`](Self::launch) holds, and `prepared` has [`prepared_bytes`](Self::prepared_bytes).
    unsafe fn prepare(&self, _queue: &mut Self::Queue, _plan: &Self::Plan, _prepared: &Slice<Self>, _args: &O::Args<Self>) -> Result<()> {
        Ok(())
    }
    /// The variant that was chosen.
    fn variant(plan: &Self::Plan) -> &'static str;
    /// The configuration that was chosen, where the variant has several.
    fn config(_plan: &Self::Plan) -> Option<String> {
        None
    }
    /// Enqueues the work. It never allocates, compiles or waits, so that it may be captured.
    ///
    /// # Safety
    /// [`crate::ops::check`] accepted `args` for the `op` that was planned. `workspace` came from [`workspace`](Self::workspace) for this
    /// plan, and nothing else in flight or between launches uses it.
    unsafe fn launch(&self, queue: &mut Self::Queue, plan: &Self::Plan, workspace: &Slice<Self>, args: &O::Args<Self>) -> Result<()>;
}

/// A device that runs every operation.
pub trait Backend:
    Device
    + Kernel<CodebookGemm>
    + Kernel<Attention>
    + Kernel<PrefixAttention>
    + Kernel<FusedMlp>
    + Kernel<Linear>
    + Kernel<GroupedLinear>
    + Kernel<Pointwise>
    + Kernel<Sample>
    + Kernel<Checksum>
{
}

impl<D> Backend for D where
    D: Device
        + Kernel<CodebookGemm>
        + Kernel<Attention>
        + Kernel<PrefixAttention>
        + Kernel<FusedMlp>
        + Kernel<Linear>
        + Kernel<GroupedLinear>
        + Kernel<Pointwise>
        + Kernel<Sample>
        + Kernel<Checksum>
{
}
