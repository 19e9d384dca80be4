//! The time of each launch by itself.

use super::timing::{Launched, Timing};
use super::{Plan, Session};
use crate::backend::Kernel;
use crate::device::Device;
use crate::error::Result;
use crate::ops::Op;

impl<D: Device> Session<D> {
    /// Runs `body`, and times each of its launches by itself, with an event between any two: a launch begins when all before it have ended, where those of a
    /// graph may overlap. Blocks.
    ///
    /// A device with its own [`clock`](Self::clock) waits for the host where its queue is empty, and counts that: put work before it that takes longer than the
    /// host takes for `body`.
    ///
    /// # Errors
    /// The errors of `body`; a call inside [`capture`](Self::capture), or in `body` what it cannot do outside one.
    pub fn time_launches(&mut self, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<Vec<Launched>> {
        let first = self.record_event()?;
        self.timing = Some(Timing { role: "", launches: Vec::new() });
        let done = body(self);
        let launches = self.timing.take().map(|timing| timing.launches).unwrap_or_default();
        done?;
        let mut before = first;
        let mut all = Vec::with_capacity(launches.len());
        for (launched, event) in launches {
            let seconds = self.elapsed(&before, &event)?;
            all.push(Launched { seconds, ..launched });
            before = event;
        }
        Ok(all)
    }

    /// Names what the launches from here on are for, where they are timed.
    #[cfg(feature = "llm")]
    pub(crate) fn role(&mut self, role: &'static str) {
        if let Some(timing) = &mut self.timing {
            timing.role = role;
        }
    }

    /// Notes a launch that was just put into the queue.
    pub(super) fn launched<O: Op>(&mut self, plan: &Plan<O, D>) -> Result<()>
    where
        D: Kernel<O>,
    {
        let event = self.record_event()?;
        if let Some(timing) = &mut self.timing {
            let (role, config) = (timing.role, plan.config());
            let own = Launched { role, operation: O::NAME, sizes: plan.op.sizes(), variant: plan.variant(), config, cost: plan.op.cost(), seconds: 0.0 };
            timing.launches.push((own, event));
        }
        Ok(())
    }
}
