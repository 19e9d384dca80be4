//! The device of this backend, and calls into the driver. Nothing that the driver says may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use super::compiled::Cache;
use super::fault::Faults;
use crate::device::Caps;
use crate::error::{Error, Result};

/// A device that wgpu reaches through Vulkan, Metal or DX12.
pub struct Wgpu {
    /// The device's number, unique in the process. wgpu itself numbers what it makes from the same start for each device.
    pub(super) number: usize,
    pub(super) raw: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) caps: Caps,
    pub(super) limits: wgpu::Limits,
    pub(super) faults: Arc<Faults>,
    pub(super) pipelines: Mutex<Cache>,
    /// Bytes behind each operand that are bound with it. There are none, except in tests of this backend.
    pub(super) behind: u64,
}

impl Wgpu {
    /// Does `work`, and returns what the driver refused of it. Error scopes are the calling thread's own, so another queue's fault is not
    /// caught here.
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
        // wgpu panics where the device is lost during a wait.
        let poll = |how| catch_unwind(AssertUnwindSafe(|| self.raw.poll(how)));
        let polled = poll(wait);
        if !matches!(polled, Ok(Ok(_))) {
            // A submission that a lost device never took cannot be waited for. This poll tells the listener why.
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
