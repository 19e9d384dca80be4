//! The thread of a device: it takes what is next when it is free, and never waits for a batch to fill. Where more waits than a batch holds, it gives the
//! device the next one while one runs, and answers the one before meanwhile.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use trifuse::model::Row;
use trifuse::{Error, Result};

use crate::embedder::Embedder;
use crate::keeper::Names;
use crate::line::{Copies, Ending, Job, Line, Sentence, Taken};
use crate::queueing::batch::{Grid, Shape};
use crate::queueing::ticket::Failure;

/// Batches that a device has at once: one that runs, and one behind it.
const BATCHES: usize = 2;

/// A batch that the device has.
struct Flight {
    /// Tokens of its sentences.
    tokens: usize,
    /// Rows that the device computes.
    rows: usize,
    /// When each of its sentences was let in.
    queued: Vec<Duration>,
    /// When the device was given it.
    given: Duration,
}

/// A device that takes from a [`Line`].
pub struct Runner {
    /// Its number among the devices of the line.
    number: usize,
    /// What computes.
    embedder: Box<dyn Embedder>,
    /// The shapes of batches.
    grid: Grid,
    /// The most tokens of a batch.
    batch_tokens: usize,
    /// The most tokens of a sentence.
    max_tokens: usize,
    /// Elements of a vector.
    width: usize,
    /// What the device has, the first one first.
    flights: VecDeque<Flight>,
    /// When the device was done with a batch last.
    free: Duration,
}

/// How it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// With another turn.
    Turn,
    /// Not at all: the line is at its end, or the device is lost.
    End,
}

impl Runner {
    /// The device of this number, which has nothing to do yet. A batch has `batch_tokens` tokens at most, a sentence `max_tokens`, and a vector `width` elements.
    pub fn new(number: usize, embedder: Box<dyn Embedder>, [batch_tokens, max_tokens]: [usize; 2], width: usize) -> Self {
        let grid = Grid::new(batch_tokens, max_tokens);
        Self { number, embedder, grid, batch_tokens, max_tokens, width, flights: VecDeque::new(), free: Duration::ZERO }
    }

    /// Runs every shape until it is captured, so that no request waits for a plan, and none takes memory that is not there.
    ///
    /// # Errors
    /// A device that fails.
    pub fn warm(&mut self, line: &Line) -> Result<()> {
        let mut shapes: Vec<Shape> = self.grid.shapes().collect();
        // The one with the most rows and the most sentences of all first: an encoder forgets its shapes where its memory grows.
        shapes.sort_unstable_by_key(|shape| (Reverse(shape.rows), shape.longest));
        for shape in shapes {
            self.submit(&[], Some(shape))?;
            self.embedder.finish()?;
            // As many as the device has at once, each with memory for its result.
            let began = line.now();
            (0..BATCHES).try_for_each(|_| self.submit(&[], Some(shape)))?;
            (0..BATCHES).try_for_each(|_| self.embedder.finish().map(drop))?;
            line.measured(shape.rows, (line.now() - began) / BATCHES as u32);
        }
        Ok(())
    }

    /// Takes from the line until it is closed and empty, or the device is lost. Then the line is told, and what the device had is another's.
    pub fn run(mut self, line: &Line, names: &Names<Copies>) {
        let end = Ending(line, self.number);
        while self.turn(line, names) == Next::Turn {}
        drop(end);
    }

    /// Takes what is next, unless the device has enough, and answers a batch where it has enough.
    fn turn(&mut self, line: &Line, names: &Names<Copies>) -> Next {
        let taken = match self.flights.len() {
            0 => line.next(self.number, &self.grid),
            1..BATCHES => line.next_ahead(self.number, &self.grid),
            _ => None,
        };
        let Some(taken) = taken else { return self.answer_first(line, names) };
        for chore in line.take_chores(self.number) {
            chore(self.embedder.as_mut());
        }
        if taken.works.is_empty() {
            self.sweep(line, names);
            return Next::Turn;
        }
        let Taken { works, queued, tokens, shape } = taken;
        let flight = Flight { tokens, rows: shape.map_or(tokens, |shape| shape.rows), queued, given: line.now() };
        match self.submit(&works, shape) {
            Ok(()) => {
                self.flights.push_back(flight);
                Next::Turn
            }
            Err(error) => self.without(works, flight, error, line, names),
        }
    }

    /// Answers what the device has, and then the batch that it did not take: tried once more in two halves where it had no room.
    fn without(&mut self, works: Vec<Arc<Sentence>>, flight: Flight, error: Error, line: &Line, names: &Names<Copies>) -> Next {
        while !self.flights.is_empty() {
            if self.answer_first(line, names) == Next::End {
                return Next::End;
            }
        }
        let result = match error {
            Error::OutOfMemory { .. } if works.len() > 1 => self.halves(&works),
            error => Err(error),
        };
        // Who is answered finds nothing of the work held here.
        drop(works);
        self.answer_one(flight, result, line, names)
    }

    /// Waits for the first batch of the device, and answers it.
    fn answer_first(&mut self, line: &Line, names: &Names<Copies>) -> Next {
        let Some(flight) = self.flights.pop_front() else { return Next::End };
        let result = self.embedder.finish();
        self.answer_one(flight, result, line, names)
    }

    /// Answers the batch that is the line's first of this device.
    fn answer_one(&mut self, flight: Flight, result: Result<Vec<f32>>, line: &Line, names: &Names<Copies>) -> Next {
        if matches!(result, Err(Error::Device { .. })) {
            return Next::End;
        }
        let Flight { tokens, rows, queued, given } = flight;
        let now = line.now();
        // The device came to it when it was done with the one before.
        let took = now.saturating_sub(given.max(self.free));
        self.free = now;
        line.metrics().ran(tokens, took, queued.into_iter().map(|queued| given.saturating_sub(queued)));
        let Some(jobs) = line.done(self.number, rows, took) else { return Next::End };
        self.answer(jobs, result);
        self.sweep(line, names);
        Next::Turn
    }

    /// Has every device forget adapters that no name leads to and no request has.
    fn sweep(&mut self, line: &Line, names: &Names<Copies>) {
        let unused = names.lock().take_unused();
        for (device, id) in unused.iter().flat_map(|generation| generation.adapter.0.iter().enumerate()) {
            let Some(id) = *id else { continue };
            // One that the device does not have is gone already.
            if device == self.number {
                drop(self.embedder.remove(id));
            } else {
                drop(line.chore(device, Box::new(move |embedder| drop(embedder.remove(id)))));
            }
        }
    }

    /// Runs a batch that the device has no room for in two halves, one after the other. Later batches are half as large.
    fn halves(&mut self, works: &[Arc<Sentence>]) -> Result<Vec<f32>> {
        self.batch_tokens = (self.batch_tokens / 2).max(1);
        self.grid = Grid::new(self.batch_tokens, self.max_tokens);
        let (first, second) = works.split_at(works.len() / 2);
        let mut values = Vec::with_capacity(works.len() * self.width);
        for half in [first, second] {
            self.submit(half, None)?;
            values.extend(self.embedder.finish()?);
        }
        Ok(values)
    }

    /// The sentence as the encoder takes it.
    fn row<'a>(&self, work: &'a Sentence) -> Result<Row<'a>> {
        let adapter = match &work.adapter {
            Some(lease) => Some(lease.adapter.on(self.number).ok_or_else(|| Error::device("an adapter", "the device does not have it"))?),
            None => None,
        };
        Ok(Row { ids: &work.ids, adapter })
    }

    /// Gives the device a batch, which is filled up to `shape`.
    fn submit(&mut self, works: &[Arc<Sentence>], shape: Option<Shape>) -> Result<()> {
        let filling = shape.map_or(Vec::new(), |shape| shape.filling(works.len(), works.iter().map(|work| work.ids.len()).sum()));
        let zeros = vec![0; self.max_tokens];
        let mut rows = works.iter().map(|work| self.row(work)).collect::<Result<Vec<Row<'_>>>>()?;
        rows.extend(filling.iter().map(|length| Row { ids: &zeros[..*length], adapter: None }));
        self.embedder.submit(&rows, works.len())
    }

    fn answer(&self, jobs: Vec<Job>, result: Result<Vec<f32>>) {
        match result {
            Ok(values) if values.len() == jobs.len() * self.width => {
                for (job, vector) in jobs.into_iter().zip(values.chunks_exact(self.width)) {
                    match vector.iter().all(|value| value.is_finite()) {
                        true => job.part.finish(vector.to_vec()),
                        false => job.part.fail(Failure::Internal("the embedding is not finite: serve with --dtype bf16 or f32".into())),
                    }
                }
            }
            Ok(values) => fail(jobs, &Failure::Internal(format!("expected {} values of the device, found {}", self.width, values.len()))),
            Err(error) => fail(jobs, &Failure::Internal(error.to_string())),
        }
    }
}

fn fail(jobs: Vec<Job>, failure: &Failure) {
    jobs.into_iter().for_each(|job| job.part.fail(failure.clone()));
}
