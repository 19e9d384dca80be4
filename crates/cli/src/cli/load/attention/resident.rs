//! Tensors of all sets in regions of the server, and the requests that name them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use trifuse::{Error, Result};

use super::super::caller::{Ask, Caller, Stop};
use super::super::wire::Lost;
use super::sets::{Part, Sets};

/// Bytes of a body, at most: a half of what the server takes at once.
const PIECE: usize = 32 << 20;
/// How long one piece may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a region that is not needed any more may take.
const PARTING: Duration = Duration::from_secs(5);

/// The regions of this run, which go with this.
pub struct Resident<'a> {
    caller: &'a Caller<'a>,
    sets: Sets,
    /// What the names of its regions begin with, which no other run has.
    prefix: String,
    /// The regions that may be there.
    made: Vec<String>,
}

impl<'a> Resident<'a> {
    /// No regions yet.
    pub fn new(caller: &'a Caller<'a>, sets: Sets) -> Self {
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
        Self { caller, sets, prefix: format!("load-{}-{nanos:x}", std::process::id()), made: Vec::new() }
    }

    /// The sets that lie there.
    pub fn sets(&self) -> Sets {
        self.sets
    }

    /// Puts all tensors there, those of one kind in one region; `tick` is called behind each.
    ///
    /// # Errors
    /// A server that has no room for them, or that does not answer.
    pub fn put(&mut self, tick: &dyn Fn()) -> Result<(), Stop> {
        for part in self.sets.parts() {
            let (bytes, stride) = self.sets.size(part);
            let all = self.sets.shape.sets * stride;
            let (mut piece, mut sent) = (Vec::new(), 0);
            for set in 0..self.sets.shape.sets {
                piece.extend(self.sets.draw(set, part));
                piece.resize(piece.len() + (stride - bytes) as usize, 0);
                while piece.len() >= PIECE {
                    self.piece(part.name(), all, sent, &piece[..PIECE])?;
                    piece.drain(..PIECE);
                    sent += PIECE as u64;
                }
                tick();
            }
            if !piece.is_empty() {
                self.piece(part.name(), all, sent, &piece)?;
            }
        }
        Ok(())
    }

    /// Puts bytes into a region of `all` bytes, which the first of them makes.
    fn piece(&mut self, what: &str, all: u64, at: u64, bytes: &[u8]) -> Result<(), Stop> {
        if self.caller.interrupt.asked() {
            return Err(Stop::Interrupted);
        }
        let name = self.region(what);
        let query = if at == 0 { format!("byte_size={all}") } else { format!("offset={at}") };
        if at == 0 {
            // It may be there even where its answer never comes.
            self.made.push(name.clone());
        }
        let answer = self.caller.ask_to_the_end(&format!("/v2/trifuse/regions/{name}?{query}"), Ask::Put(bytes), PATIENCE).map_err(|lost| no_answer(&lost))?;
        match answer.status {
            200..=299 => Ok(()),
            413 | 507 => Err(Error::invalid("--sets", "tensors that the server has room for (see `serve --region-bytes`)", answer.words()).into()),
            _ => Err(Error::invalid(format!("a region for {what}"), "room on the server", answer.words()).into()),
        }
    }

    fn region(&self, what: &str) -> String {
        format!("{}-{what}", self.prefix)
    }

    /// Where bytes lie.
    fn place(&self, what: &str, offset: u64, bytes: u64) -> Value {
        json!({"shared_memory_region": self.region(what), "shared_memory_offset": offset, "shared_memory_byte_size": bytes})
    }

    /// The query of a set for these outputs.
    fn query(&self, set: u64, outputs: Value) -> String {
        let shape = self.sets.shape;
        let input = |part: Part| {
            let (bytes, stride) = self.sets.size(part);
            let (datatype, sizes) = match part {
                Part::Map => ("UINT8", json!([shape.heads, shape.along(), shape.along()])),
                _ => ("FP16", json!([1, shape.tokens, shape.heads, shape.head_dim])),
            };
            json!({"name": part.name(), "datatype": datatype, "shape": sizes, "parameters": self.place(part.name(), set * stride, bytes)})
        };
        let mut query = json!({"inputs": self.sets.parts().map(input).collect::<Vec<_>>(), "outputs": outputs});
        if shape.blocks > 0 {
            query["parameters"] = json!({"block": shape.block});
        }
        query.to_string()
    }

    /// For each set, the query for the checksum of its output alone.
    pub fn queries(&self) -> Vec<String> {
        (0..self.sets.shape.sets).map(|set| self.query(set, json!([{"name": "checksum"}]))).collect()
    }

    /// The answer to a query of a set whose output stays in a region, and that output.
    ///
    /// # Errors
    /// A server that has no room for it, or that refuses or fails.
    pub fn output(&mut self, set: u64, time: Duration) -> Result<(Vec<u8>, Vec<u8>), Stop> {
        let bytes = self.sets.shape.bytes();
        if !self.made.contains(&self.region("o")) {
            self.piece("o", bytes, 0, b"")?;
        }
        let query = self.query(set, json!([{"name": "o", "parameters": self.place("o", 0, bytes)}, {"name": "checksum"}]));
        let told = self.answered(super::PATH, Ask::Post(query.as_bytes()), time)?;
        let (name, mut output) = (self.region("o"), Vec::new());
        while (output.len() as u64) < bytes {
            let (at, next) = (output.len() as u64, (bytes - output.len() as u64).min(PIECE as u64));
            let more = self.answered(&format!("/v2/trifuse/regions/{name}/bytes?offset={at}&byte_size={next}"), Ask::Get, PATIENCE)?;
            if more.len() as u64 != next {
                return Err(Error::invalid("a region for o", format!("{next} bytes from {at}"), format!("{} bytes", more.len())).into());
            }
            output.extend(more);
        }
        Ok((told, output))
    }

    /// The body of a right answer.
    fn answered(&self, path: &str, ask: Ask<'_>, time: Duration) -> Result<Vec<u8>, Stop> {
        let answer = self.caller.ask(path, ask, time).map_err(|lost| no_answer(&lost))?;
        match answer.status {
            200..=299 => Ok(answer.body),
            _ => Err(Error::invalid("a query whose output is read back", "an answer", answer.words()).into()),
        }
    }
}

fn no_answer(lost: &Lost) -> Stop {
    match lost {
        Lost::Interrupted => Stop::Interrupted,
        lost => Error::input("/v2/trifuse/regions", format!("expected an answer of the server, found none: {lost}")).into(),
    }
}

impl Drop for Resident<'_> {
    fn drop(&mut self) {
        for name in &self.made {
            // A server that is gone has no regions either.
            let _ = self.caller.ask_to_the_end(&format!("/v2/trifuse/regions/{name}"), Ask::Delete, PARTING);
        }
    }
}
