//! The order of steps: each is planned, launched and read, and where the host has no part in between, the next one is launched before it is read.
//!
//! The token of a request that goes on is then on the device alone, and is copied from what the sampler drew to what the next step reads. A request
//! that turns out to have ended has a row too many in the next step, whose token is dropped. Its pages and its seat are free at once: later steps
//! write them after that row.

use super::batching::Engine;
use super::flight::Flight;
use super::output::Output;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::llm::schedule::{Finish, Plan, Sampled};
use crate::llm::step::RequestId;

impl<D: Backend> Engine<D> {
    /// Computes one step, and adds what was drawn and what has ended to `outputs`. False where there was nothing to compute. Where the device works
    /// beside the host ([`EngineOptions::ahead`](super::EngineOptions)), the step after it is planned and launched first, of the requests that are there now.
    ///
    /// `now` is a time in any unit, which deadlines share.
    ///
    /// # Errors
    /// A device that fails: the requests of the step have then ended, and `outputs` says so. The others go on in the next step.
    pub fn step(&mut self, now: u64, outputs: &mut Vec<Output>) -> Result<bool> {
        let first = match self.flight.take() {
            Some(flight) => flight,
            None => match self.begin(now, outputs)? {
                Some(flight) => flight,
                None => return Ok(false),
            },
        };
        let next = if first.is_free() { self.begin(now, outputs) } else { Ok(None) };
        self.steps_ahead += u64::from(matches!(next, Ok(Some(_))));
        let mut done = self.settle(first, outputs);
        if let Some(next) = next? {
            if done.is_ok() && next.is_free() {
                self.flight = Some(next);
                self.ground()?;
            } else {
                // What the first one was to leave behind is not there for the next.
                let work = if done.is_ok() { next.work } else { Err(Error::device("the step before", "it failed")) };
                done = done.and(self.settle(Flight { work, ..next }, outputs));
            }
        }
        done.map(|()| true)
    }

    /// Plans a step and launches it; `None` where there is nothing to compute.
    fn begin(&mut self, now: u64, outputs: &mut Vec<Output>) -> Result<Option<Flight<D>>> {
        let mut plan = std::mem::take(&mut self.spare);
        self.scheduler.plan(now, &mut plan, &mut self.finished)?;
        self.load(&plan)?;
        // Before a step is read: what ended by this plan is told of no more.
        self.end(outputs);
        if plan.number == 0 {
            self.spare = plan;
            return Ok(None);
        }
        let work = self.launch(&plan);
        Ok(Some(Flight { plan, work }))
    }

    /// Reads the tokens of a step, and tells of them and of what has ended.
    fn settle(&mut self, flight: Flight<D>, outputs: &mut Vec<Output>) -> Result<()> {
        let Flight { plan, work } = flight;
        let mut drawn = Vec::new();
        let failed = match work.and_then(|work| self.tokens(&plan, work)) {
            Ok(choices) => {
                for (request, choice) in choices {
                    match choice {
                        Ok(choice) => drawn.push((request, choice)),
                        Err(error) => self.fail(request, &error)?,
                    }
                }
                None
            }
            Err(error) => {
                plan.step.sequences.iter().try_for_each(|span| self.fail(span.request, &error))?;
                self.scheduler.forget_prefixes();
                Some(error)
            }
        };
        let sampled: Vec<Sampled> = drawn.iter().map(|(request, choice)| Sampled { request: *request, token: choice.token }).collect();
        self.scheduler.report(plan.number, &sampled, &mut self.finished)?;
        let read = self.read.drain(..).filter(|(request, _)| self.live.contains_key(request));
        outputs.extend(read.map(|(request, choices)| Output::Prompt { request, choices }));
        for (request, choice) in drawn {
            if let Some(live) = self.live.get_mut(&request) {
                live.tokens.push(choice.token);
                outputs.push(Output::Token { request, choice });
            }
        }
        self.end(outputs);
        self.spare = plan;
        failed.map_or(Ok(()), Err)
    }

    /// Lets go of the step that is not read where all of its requests have ended.
    pub(super) fn ground(&mut self) -> Result<()> {
        let unwanted = |flight: &mut Flight<D>| !flight.plan.step.sequences.iter().any(|span| self.live.contains_key(&span.request));
        let Some(Flight { plan, .. }) = self.flight.take_if(unwanted) else { return Ok(()) };
        self.scheduler.report(plan.number, &[], &mut self.finished)?;
        self.spare = plan;
        Ok(())
    }

    /// Puts the adapters on the device that a plan asks for.
    fn load(&mut self, plan: &Plan) -> Result<()> {
        self.loading = !plan.loads.is_empty();
        let Some(adapted) = &mut self.adapted else { return Ok(()) };
        for load in &plan.loads {
            match adapted.load(&mut self.model.session, load) {
                Ok(()) => self.scheduler.adapter_loaded(load.adapter)?,
                Err(error) => {
                    let before = self.finished.len();
                    self.scheduler.adapter_failed(load.adapter, &mut self.finished)?;
                    let why = error.to_string();
                    self.errors.extend(self.finished[before..].iter().map(|finished| (finished.request, why.clone())));
                }
            }
        }
        Ok(())
    }

    /// Ends a request because of an error.
    fn fail(&mut self, request: RequestId, error: &Error) -> Result<()> {
        if let Some(finished) = self.scheduler.finish(request, Finish::Error)? {
            self.finished.push(finished);
            self.errors.insert(request, error.to_string());
        }
        Ok(())
    }

    /// Tells of the requests that have ended.
    fn end(&mut self, outputs: &mut Vec<Output>) {
        let mut finished = std::mem::take(&mut self.finished);
        for finished in finished.drain(..) {
            self.forget(finished.request);
            outputs.push(Output::Ended { finished, error: self.errors.remove(&finished.request) });
        }
        // For its memory.
        self.finished = finished;
    }
}
