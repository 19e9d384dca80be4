//! The device that is measured.

use trifuse::Result;
use trifuse::backends::{Choice, Visit};

/// Does `work` on the device that was chosen, under its own type where the backend is CUDA: what is measured there has no call through a table
/// in it. All others are of one type, since a copy of what measures takes a compiler seconds.
pub fn measured<V: Visit>(choice: &Choice, work: V) -> Result<V::Out> {
    let (backend, device, _) = choice.resolve()?;
    #[cfg(feature = "cuda")]
    if backend == "cuda" {
        return work.visit(<trifuse::backends::cuda::Cuda as trifuse::device::Open>::open(device)?);
    }
    work.visit(Choice::Named(backend, device).open_any()?)
}
