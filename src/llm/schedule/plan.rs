//! A plan: which requests the next step advances, and which adapters are to be loaded.

use super::adapters::Place;
use super::request::{AdapterId, Finish, Finished, Phase};
use super::scheduler::Scheduler;
use crate::error::Result;
use crate::llm::step::{RequestId, Row, SampleRow, Span, Step, Token};

/// What is to be done next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The step's number, from 1, by which its tokens are reported. 0 where the step is empty: it is neither run nor reported.
    pub number: u64,
    /// The work of the model.
    pub step: Step,
    /// Adapters to load. No step that was planned and not reported names their slots.
    pub loads: Vec<Load>,
    /// Requests that lost their pages and wait again, latest first.
    pub preempted: Vec<RequestId>,
}

/// An adapter to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The adapter to load. Its end is told by [`Scheduler::adapter_loaded`] or [`Scheduler::adapter_failed`].
    pub adapter: AdapterId,
    /// Where to in the pool.
    pub slot: u32,
    /// The adapter that was there, and that no request uses.
    pub replaces: Option<AdapterId>,
}

impl Scheduler {
    /// Plans the next step. Steps that were planned before may still run: a token that one of them draws is named by its seat.
    ///
    /// `now` is a time in any unit, which deadlines share: a number of steps, or milliseconds. Requests whose deadline has come are added to
    /// `finished`. `plan` is written anew and keeps its memory.
    ///
    /// # Errors
    /// None for any order of calls; an error says that the scheduler's books do not agree.
    pub fn plan(&mut self, now: u64, plan: &mut Plan, finished: &mut Vec<Finished>) -> Result<()> {
        plan.step.clear();
        plan.loads.clear();
        plan.preempted.clear();
        self.plans += 1;
        while let Some(request) = self.queue.expired(now) {
            finished.extend(self.finish(request, Finish::Deadline)?);
        }
        let mut budget = self.options.budget;
        self.advance(&mut budget, plan)?;
        self.admit(&mut budget, plan)?;
        self.settle()?;
        let empty = plan.step.rows.is_empty();
        self.steps += u64::from(!empty);
        plan.number = if empty { 0 } else { self.steps };
        Ok(())
    }

    /// Gives every running request its tokens, earliest first, and always leaves a token for each of those behind it.
    fn advance(&mut self, budget: &mut usize, plan: &mut Plan) -> Result<()> {
        let mut at = 0;
        while let Some(request) = self.queue.running().get(at).copied() {
            let behind = self.queue.running().len() - at - 1;
            let count = self.queue.get(request)?.left().min(*budget - behind);
            if !self.make_room(request, count, plan)? {
                break;
            }
            self.issue(request, count, plan)?;
            *budget -= count;
            at += 1;
        }
        Ok(())
    }

    /// Takes pages for `count` more tokens. Where there are too few, the latest requests lose theirs. False where the request was the latest
    /// itself. The only running request is never the one: its limit is what the pool holds.
    fn make_room(&mut self, request: RequestId, count: usize, plan: &mut Plan) -> Result<bool> {
        loop {
            let state = self.queue.get(request)?;
            let (tokens, promise) = (state.computed + count, state.promise());
            let missing = state.table.missing(tokens);
            if missing <= promise + (self.blocks.free() - self.promised) {
                state.table.grow(&mut self.blocks, tokens);
                self.promised -= promise - state.promise();
                return Ok(true);
            }
            let Some(latest) = self.queue.running().last().copied() else { return Ok(false) };
            self.leave(latest)?;
            let state = self.queue.turn(latest, Phase::Waiting)?;
            state.computed = 0;
            state.waited = 0;
            state.preemptions += 1;
            self.preemptions += 1;
            plan.preempted.push(latest);
            if latest == request {
                return Ok(false);
            }
        }
    }

    /// Adds the next `count` tokens of a running request to the step. Its pages are there.
    fn issue(&mut self, request: RequestId, count: usize, plan: &mut Plan) -> Result<()> {
        let state = self.queue.get(request)?;
        let Phase::Running { seat, slot: adapter } = state.phase else { return Ok(()) };
        let step = &mut plan.step;
        let (first_row, first_page) = (step.rows.len(), step.pages.len());
        for position in state.computed..state.computed + count {
            let token = state.tokens.get(position).map_or(Token::Sampled(seat), |token| Token::Known(*token));
            step.rows.push(Row { token, position: position as u32, slot: state.table.slot(position)?, adapter });
        }
        state.computed += count;
        let pages = state.table.pages_for(state.computed);
        step.pages.extend_from_slice(&state.table.pages()[..pages]);
        let (rows, pages) = (first_row..step.rows.len(), first_page..step.pages.len());
        if state.left() == 0 {
            step.sample.push(SampleRow { row: rows.end - 1, seat, request, position: state.computed as u32 });
            state.pending += 1;
        }
        step.sequences.push(Span { request, rows, pages, kv_len: state.computed as u32 });
        if let Some(slot) = adapter {
            self.adapters.named(slot, self.steps + 1);
        }
        Ok(())
    }

    /// Lets waiting requests in, earliest first, and asks for their adapters. Who lacks pages, a seat or budget holds up all behind it; who lacks
    /// an adapter lets others pass, and no others with an adapter once it has waited too long for a slot.
    fn admit(&mut self, budget: &mut usize, plan: &mut Plan) -> Result<()> {
        let mut waiting = std::mem::take(&mut self.scratch);
        waiting.clear();
        waiting.extend(self.queue.waiting().take(self.options.lookahead));
        // Pages that were taken from a request would go back to it at once.
        let mut held_up = !plan.preempted.is_empty();
        let mut barred = false;
        for request in waiting.iter().copied() {
            let state = self.queue.get(request)?;
            let slot = match state.adapter {
                None => None,
                Some(adapter) => match self.adapters.want(adapter, self.plans, self.completed) {
                    Place::Resident(slot) => Some(slot),
                    Place::Load { slot, replaces } => {
                        plan.loads.push(Load { adapter, slot, replaces });
                        continue;
                    }
                    Place::Loading | Place::Busy => continue,
                    Place::Full => {
                        state.waited = state.waited.saturating_add(1);
                        barred |= state.waited > self.options.patience;
                        continue;
                    }
                },
            };
            if held_up || (barred && slot.is_some()) {
                continue;
            }
            held_up = *budget == 0 || !self.let_in(request, slot, budget, plan)?;
        }
        self.scratch = waiting;
        Ok(())
    }

    /// Turns a waiting request into a running one. False where a seat or pages are missing, or where its last token is not reported.
    fn let_in(&mut self, request: RequestId, slot: Option<u32>, budget: &mut usize, plan: &mut Plan) -> Result<bool> {
        let state = self.queue.get(request)?;
        let Some(seat) = self.seats.last().copied().filter(|_| state.pending == 0) else { return Ok(false) };
        // The last known token is always computed: its logits give the next one. The last token of all is never computed.
        let known = state.known();
        state.table.hash(&state.tokens);
        let hits = state.table.hits(&self.blocks, known - 1);
        let target = state.table.pages_for(known.saturating_add(self.options.reserve).min(state.limit - 1));
        if target - hits.pages + hits.idle > self.blocks.free() - self.promised {
            return Ok(false);
        }
        state.computed = state.table.adopt(&mut self.blocks, hits)?;
        state.cached.get_or_insert(state.computed);
        state.target = target;
        state.waited = 0;
        self.promised += state.promise();
        self.seats.pop();
        let count = self.queue.turn(request, Phase::Running { seat, slot })?.left().min(*budget);
        // Its pages are promised, so nobody loses any.
        self.make_room(request, count, plan)?;
        self.issue(request, count, plan)?;
        *budget -= count;
        Ok(true)
    }

    /// Names the pages that the step fills, so that the next plan finds them, and takes what those hold that have drawn their last token.
    fn settle(&mut self) -> Result<()> {
        let mut running = std::mem::take(&mut self.scratch);
        running.clear();
        running.extend_from_slice(self.queue.running());
        for request in running.iter().copied() {
            let state = self.queue.get(request)?;
            state.name(&mut self.blocks)?;
            if state.known() >= state.limit {
                self.leave(request)?;
                self.queue.turn(request, Phase::Ending)?;
            }
        }
        self.scratch = running;
        Ok(())
    }
}
