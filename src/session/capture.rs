//! A capture that ends whatever happens in it.

use super::Session;
use crate::device::Device;
use crate::error::Result;

/// A capture under way, which ends with this: also where the work that is recorded panics, else the session would record for ever.
pub struct Capture<'a, D: Device>(pub &'a mut Session<D>);

/// The buffers that were named, and the graph.
pub type Ended<D> = (Vec<<D as Device>::Buffer>, Result<<D as Device>::Graph>);

impl<D: Device> Capture<'_, D> {
    /// What was recorded, and the buffers it names; nothing where the capture has ended.
    pub fn end(&mut self) -> Option<Ended<D>> {
        let session = &mut *self.0;
        let retained = session.recording.take()?;
        Some((retained, session.device.end_capture(&mut session.queue)))
    }
}

impl<D: Device> Drop for Capture<'_, D> {
    fn drop(&mut self) {
        // A panic is on its way: nobody is left to tell.
        drop(self.end());
    }
}
