//! Errors that the driver reports. Nothing that a driver says may panic.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};

/// Reports that came outside any call that waits for them.
#[derive(Default)]
pub(super) struct Faults(Mutex<State>);

#[derive(Default)]
struct State {
    /// Why the device is gone for good, if it is.
    lost: Option<String>,
    /// The first error that no scope caught since the last check.
    uncaptured: Option<wgpu::Error>,
}

impl Faults {
    /// Listens to `device`. Without a listener, wgpu panics.
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

    /// Returns the error that was reported, if any. A lost device stays lost.
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
