//! The thread of a device: it takes what is next when it is free, and never waits for a batch to fill.

use trifuse::adapters::engine::AdapterId;
use trifuse::model::Row;
use trifuse::{Error, Result};

use crate::embedder::Embedder;
use crate::keeper::Names;
use crate::line::{Ending, Job, Line};
use crate::queueing::batch::{Grid, Shape};
use crate::queueing::ticket::Failure;

/// A device that takes from a [`Line`].
pub struct Runner {
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
    /// The names that lead to its adapters.
    pub names: Names<AdapterId>,
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
            line.done(0, shape.rows, line.now() - began);
        }
        Ok(())
    }

    /// Takes from the line until it is closed and empty, or the device is lost. Then whatever waits is told.
    pub fn run(mut self, line: &Line) {
        let end = Ending(line);
        while let Some((jobs, tokens, shape)) = line.next(&self.grid) {
            for chore in line.take_chores() {
                chore(self.embedder.as_mut());
            }
            if jobs.is_empty() {
                self.sweep();
                continue;
            }
            let began = line.now();
            let result = self.attempt(&jobs, shape);
            let took = line.now() - began;
            line.metrics().ran(tokens, took, jobs.iter().map(|job| began.saturating_sub(job.queued)));
            line.done(tokens, shape.map_or(tokens, |shape| shape.rows), took);
            let lost = matches!(result, Err(Error::Device { .. }));
            self.answer(jobs, result);
            if lost {
                break;
            }
            self.sweep();
        }
        drop(end);
    }

    /// Forgets adapters that no name leads to and no request has.
    fn sweep(&mut self) {
        let unused = self.names.lock().take_unused();
        for generation in unused {
            // One that the device does not have is gone already.
            let _ = self.embedder.remove(generation.adapter);
        }
    }

    /// Runs a batch. One that the device has no room for is tried once more in two halves, and later batches are half as large.
    fn attempt(&mut self, jobs: &[Job], shape: Option<Shape>) -> Result<Vec<f32>> {
        match self.embed(jobs, shape) {
            Err(Error::OutOfMemory { .. }) if jobs.len() > 1 => {
                self.batch_tokens = (self.batch_tokens / 2).max(1);
                self.grid = Grid::new(self.batch_tokens, self.max_tokens);
                let (first, second) = jobs.split_at(jobs.len() / 2);
                let mut values = self.embed(first, None)?;
                values.extend(self.embed(second, None)?);
                Ok(values)
            }
            other => other,
        }
    }

    /// The vectors of the jobs, in a batch that is filled up to `shape`.
    fn embed(&mut self, jobs: &[Job], shape: Option<Shape>) -> Result<Vec<f32>> {
        let filling = shape.map_or(Vec::new(), |shape| shape.filling(jobs.len(), jobs.iter().map(Job::tokens).sum()));
        let zeros = vec![0; self.max_tokens];
        let fills = filling.iter().map(|length| Row { ids: &zeros[..*length], adapter: None });
        let rows: Vec<Row<'_>> = jobs.iter().map(Job::row).chain(fills).collect();
        let mut values = self.embedder.embed(&rows)?;
        values.truncate(jobs.len() * self.width);
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
            Err(Error::Device { .. }) => fail(jobs, &Failure::DeviceLost),
            Err(error) => fail(jobs, &Failure::Internal(error.to_string())),
        }
    }
}

fn fail(jobs: Vec<Job>, failure: &Failure) {
    jobs.into_iter().for_each(|job| job.part.fail(failure.clone()));
}
