//! Waiting for a moment of a queue, and not for what was put in behind it.

use super::{Event, Session};
use crate::device::Device;
use crate::error::Result;

impl<D: Device> Session<D> {
    /// Blocks until an event of this session has passed, and reports what failed before it. A device that cannot wait for less is waited for whole.
    pub fn wait(&mut self, event: &Event<D>) -> Result<()> {
        self.elapsed(event, event).map(drop)
    }
}
