//! Work that is recorded instead of run.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::counters::now;
use super::{Graph, Session};
use crate::device::Device;
use crate::error::Result;

impl<D: Device> Session<D> {
    /// [`capture`](Self::capture) for any body, compiled once.
    pub(super) fn record(&mut self, body: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<Graph<D>> {
        self.outside_capture("capture")?;
        let began = now();
        self.device.begin_capture(&mut self.queue)?;
        self.recording = Some(Vec::new());
        // Else a session whose capture panicked would record for ever, and run nothing.
        let done = catch_unwind(AssertUnwindSafe(|| body(self)));
        let retained = self.recording.take().unwrap_or_default();
        let raw = self.device.end_capture(&mut self.queue);
        done.unwrap_or_else(|panic| resume_unwind(panic))?;
        let raw = raw?;
        self.counted.graph();
        self.counted.graph_time.since(began);
        Ok(Graph { raw, session: self.id, _retained: retained })
    }
}
