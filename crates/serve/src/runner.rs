//! The thread of a device: it takes what is next when it is free, and never waits for a batch to fill.

use std::sync::Arc;

use trifuse::model::Row;
use trifuse::{Error, Result};

use crate::embedder::Embedder;
use crate::keeper::Names;
use crate::line::{Copies, Ending, Job, Line, Sentence, Taken};
use crate::queueing::batch::{Grid, Shape};
use crate::queueing::ticket::Failure;

/// A device that takes from a [`Line`].
pub struct Runner {
    /// Its number among the devices of the line.
    pub number: usize,
    /// What computes.
    pub embedder: Box<dyn Embedder>,
    /// The shapes of batches.
    pub grid: Grid,
    /// The most tokens of a batch.
    pub batch_tokens: usize,
    /// The most tokens of a sentence.
    pub max_tokens: usize,
    /// Elements of a vector.
    pub width: usize,
}

impl Runner {
    /// Runs every shape once, so that no request waits for a plan.
    ///
    /// # Errors
    /// A device that fails.
    pub fn warm(&mut self, line: &Line) -> Result<()> {
        for shape in self.grid.shapes().collect::<Vec<_>>() {
            let began = line.now();
            self.embed(&[], Some(shape))?;
            line.measured(shape.rows, line.now() - began);
        }
        Ok(())
    }

    /// Takes from the line until it is closed and empty, or the device is lost. Then the line is told, and what the device had is another's.
    pub fn run(mut self, line: &Line, names: &Names<Copies>) {
        let end = Ending(line, self.number);
        while let Some(Taken { works, queued, tokens, shape }) = line.next(self.number, &self.grid) {
            for chore in line.take_chores(self.number) {
                chore(self.embedder.as_mut());
            }
            if works.is_empty() {
                self.sweep(line, names);
                continue;
            }
            let began = line.now();
            let result = self.attempt(&works, shape);
            let took = line.now() - began;
            // Who is answered finds nothing of the work held here.
            drop(works);
            if matches!(result, Err(Error::Device { .. })) {
                break;
            }
            line.metrics().ran(tokens, took, queued.into_iter().map(|queued| began.saturating_sub(queued)));
            let Some(jobs) = line.done(self.number, shape.map_or(tokens, |shape| shape.rows), took) else { break };
            self.answer(jobs, result);
            self.sweep(line, names);
        }
        drop(end);
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

    /// Runs a batch. One that the device has no room for is tried once more in two halves, and later batches are half as large.
    fn attempt(&mut self, works: &[Arc<Sentence>], shape: Option<Shape>) -> Result<Vec<f32>> {
        match self.embed(works, shape) {
            Err(Error::OutOfMemory { .. }) if works.len() > 1 => {
                self.batch_tokens = (self.batch_tokens / 2).max(1);
                self.grid = Grid::new(self.batch_tokens, self.max_tokens);
                let (first, second) = works.split_at(works.len() / 2);
                let mut values = self.embed(first, None)?;
                values.extend(self.embed(second, None)?);
                Ok(values)
            }
            other => other,
        }
    }

    /// The sentence as the encoder takes it.
    fn row<'a>(&self, work: &'a Sentence) -> Result<Row<'a>> {
        let adapter = match &work.adapter {
            Some(lease) => Some(lease.adapter.on(self.number).ok_or_else(|| Error::device("an adapter", "the device does not have it"))?),
            None => None,
        };
        Ok(Row { ids: &work.ids, adapter })
    }

    /// The vectors of the sentences, in a batch that is filled up to `shape`.
    fn embed(&mut self, works: &[Arc<Sentence>], shape: Option<Shape>) -> Result<Vec<f32>> {
        let filling = shape.map_or(Vec::new(), |shape| shape.filling(works.len(), works.iter().map(|work| work.ids.len()).sum()));
        let zeros = vec![0; self.max_tokens];
        let mut rows = works.iter().map(|work| self.row(work)).collect::<Result<Vec<Row<'_>>>>()?;
        rows.extend(filling.iter().map(|length| Row { ids: &zeros[..*length], adapter: None }));
        let mut values = self.embedder.embed(&rows)?;
        values.truncate(works.len() * self.width);
        Ok(values)
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
