//! Batches that the device has and nobody waits for yet. Each leaves its embeddings in memory of its own, since the next one writes where they came from.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::device::{Device, Slice};
use crate::error::{Error, Result};
use crate::session::{Event, Session};

/// Bytes of which a device copies whole multiples.
const WORD: u64 = 4;

/// A batch that was put on the device.
struct Running<D: Device> {
    /// Its embeddings, and whatever fills up the last word.
    kept: Slice<D>,
    bytes: u64,
    /// When they are there.
    there: Event<D>,
}

/// The batches, the first one first.
pub struct Pipeline<D: Device> {
    running: VecDeque<Running<D>>,
    /// Memory of batches that are finished.
    spare: Vec<Slice<D>>,
    /// A queue in which nothing runs, so that what is read there waits for no batch.
    reader: Option<Session<D>>,
}

impl<D: Device> Default for Pipeline<D> {
    fn default() -> Self {
        Self { running: VecDeque::new(), spare: Vec::new(), reader: None }
    }
}

impl<D: Device> Pipeline<D> {
    /// Whether the device has no batch that is not finished.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Memory for as many bytes of embeddings or more, of a batch that is about to run.
    ///
    /// # Errors
    /// No device memory.
    pub fn room(&mut self, session: &Session<D>, bytes: u64) -> Result<Slice<D>> {
        let bytes = bytes.next_multiple_of(WORD).max(WORD);
        // Memory that is too small for this batch is so for others of its size: it goes.
        let kept = std::iter::from_fn(|| self.spare.pop()).find(|kept| kept.len() >= bytes);
        kept.map_or_else(|| session.alloc(bytes), Ok)
    }

    /// Has the device keep the first `bytes` of `out` in `room`, behind all that is in the queue.
    ///
    /// # Errors
    /// A device that fails.
    pub fn push(&mut self, session: &mut Session<D>, out: &Slice<D>, bytes: u64, room: Slice<D>) -> Result<()> {
        let words = bytes.next_multiple_of(WORD);
        let written = out.sub_slice(0, words).ok_or_else(|| Error::invalid("batch", "embeddings of every row", "fewer"))?;
        session.copy(&written, &room)?;
        let there = session.record_event()?;
        self.running.push_back(Running { kept: room, bytes, there });
        Ok(())
    }

    /// The embeddings of the first batch. Blocks until they are there.
    ///
    /// # Errors
    /// No batch; a device that fails, and then the batch is gone.
    pub fn pop(&mut self, session: &mut Session<D>) -> Result<Vec<u8>> {
        let Some(Running { kept, bytes, there }) = self.running.pop_front() else {
            return Err(Error::invalid("finish", "a batch that was submitted before", "none"));
        };
        session.wait(&there)?;
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => none.insert(Session::new(Arc::clone(session.device()))?),
        };
        let part = kept.sub_slice(0, bytes).ok_or_else(|| Error::invalid("finish", format!("at most {} bytes", kept.len()), bytes))?;
        let embeddings = reader.read(&part)?;
        self.spare.push(kept);
        Ok(embeddings)
    }
}
