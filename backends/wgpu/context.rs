//! What a device of this backend is, and how the driver is called: nothing that it says may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use super::compiled::Cache;
use super::fault::Faults;
use crate::device::Caps;
use crate::error::{Error, Result};

/// A device that wgpu reaches through Vulkan, Metal or DX12.
pub struct Wgpu {
    /// No other device of the process has it: what wgpu numbers, it numbers from the same start for each.
    pub(super) number: usize,
    pub(super) raw: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) caps: Caps,
    pub(super) limits: wgpu::Limits,
    pub(super) faults: Arc<Faults>,
    pub(super) pipelines: Mutex<Cache>,
    /// Bytes behind each operand that are bound with it: none, but in tests of this backend.
    pub(super) behind: u64,
}

impl Wgpu {
    /// Does `work`, and returns what the driver refused of it. Scopes are the calling thread's own, so that another
    /// queue's fault is not met here.
    pub(super) fn guard<T>(&self, work: impl FnOnce() -> T) -> std::result::Result<T, wgpu::Error> {
        let internal = self.raw.push_error_scope(wgpu::ErrorFilter::Internal);
        let memory = self.raw.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let validation = self.raw.push_error_scope(wgpu::ErrorFilter::Validation);
        let out = work();
        let errors = [pollster::block_on(validation.pop()), pollster::block_on(memory.pop()), pollster::block_on(internal.pop())];
        errors.into_iter().flatten().next().map_or(Ok(out), Err)
    }

    /// Waits for a submission, or for all of them.
    pub(super) fn poll(&self, during: &str, submission: Option<wgpu::SubmissionIndex>) -> Result<()> {
        let wait = wgpu::PollType::Wait { submission_index: submission, timeout: None };
        // wgpu panics where the device is lost while it is waited for.
        let poll = |how| catch_unwind(AssertUnwindSafe(|| self.raw.poll(how)));
        let polled = poll(wait);
        if !matches!(polled, Ok(Ok(_))) {
            // A submission that a lost device never took cannot be waited for; this tells the listener why.
            let _ = poll(wgpu::PollType::Poll);
        }
        self.faults.check(during)?;
        match polled {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(Error::device(during, error)),
            Err(_) => Err(Error::device(during, "the device was lost")),
        }
    }
}
