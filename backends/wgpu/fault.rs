//! What the driver reports, as errors: nothing that a driver says may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Wgpu;
use crate::error::{Error, Result};

/// What was reported outside any call that waits for it.
#[derive(Default)]
pub(super) struct Faults(Mutex<State>);

#[derive(Default)]
struct State {
    /// The device is gone for good.
    lost: Option<String>,
    /// The first error that no scope caught, since it was last asked for.
    uncaptured: Option<wgpu::Error>,
}

impl Faults {
    /// Listens to `device`; without a listener, wgpu panics.
    pub fn watch(device: &wgpu::Device) -> Arc<Self> {
        let faults = Arc::new(Self::default());
        let listener = Arc::clone(&faults);
        device.on_uncaptured_error(Arc::new(move |error| {
            listener.state().uncaptured.get_or_insert(error);
        }));
        let listener = Arc::clone(&faults);
        device.set_device_lost_callback(move |reason, message| {
            listener.state().lost.get_or_insert(format!("the device was lost ({reason:?}): {message}"));
        });
        faults
    }

    /// The error that was reported, if any. A lost device stays lost.
    pub fn check(&self, during: &str) -> Result<()> {
        let mut state = self.state();
        if let Some(lost) = &state.lost {
            return Err(Error::device(during, lost.clone()));
        }
        state.uncaptured.take().map_or(Ok(()), |error| Err(Error::device(during, error)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
