//! What a device of operations is asked to do.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use trifuse::ops::{Attention, Op};
use trifuse::{Error, Result};

use super::regions::{Part, Region};
use crate::line::Work;
use crate::spent::Spent;

/// Where the elements of a tensor are.
#[derive(Clone, Debug)]
pub enum Source {
    /// On the host.
    Bytes(Bytes),
    /// On the device.
    Region(Part),
}

impl Source {
    /// How many bytes they have.
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Region(part) => part.bytes,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The blocks of the score matrix that are present, with the sizes that say how their tensors are read.
#[derive(Clone, Debug)]
pub enum Blocks {
    /// All.
    All,
    /// A byte a block.
    Map(Source, [u32; 4]),
    /// `row_ptr` and `col_idx`.
    Rows(Source, Source, [u32; 4]),
}

/// A query of attention.
#[derive(Debug)]
pub struct Attend {
    /// The operation, dense.
    pub op: Attention,
    /// Queries, keys and values.
    pub tensors: [Source; 3],
    /// The present blocks. The sizes are the block, blocks along the queries, blocks along the keys, and patterns.
    pub blocks: Blocks,
    /// Where the output goes, if it is to stay on the device.
    pub output: Option<Part>,
    /// The bytes of the output.
    pub bytes: u64,
    /// Whether the answer has the output's bytes.
    pub wants_bytes: bool,
    /// Whether the answer has the output's checksum.
    pub wants_checksum: bool,
}

/// One task.
#[derive(Debug)]
pub enum Job {
    /// A query of attention.
    Attend(Box<Attend>),
    /// Memory for a region, with bytes at its start and zeros behind them.
    Fill(Arc<Region>, Bytes),
    /// Bytes for a part of a region.
    Write(Part, Bytes),
    /// The bytes of a part of a region.
    Read(Part),
}

/// A task, and what its bytes need to stay.
pub struct Task {
    /// What is to be done.
    pub job: Job,
    /// What is held until it is done.
    pub held: Option<Arc<dyn Any + Send + Sync>>,
    /// The times of its request.
    pub(crate) spent: Arc<Spent>,
}

impl Task {
    /// A task that needs nothing but its own bytes.
    pub fn new(job: Job) -> Self {
        Self { job, held: None, spent: Arc::default() }
    }
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.job.fmt(f)
    }
}

/// What came of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Bytes that were asked for.
    pub bytes: Vec<u8>,
    /// The checksum of the output, as [`Checksum`](trifuse::ops::Checksum) defines it.
    pub checksum: Option<u64>,
}

/// Floating-point operations that cost one.
const FLOPS: f64 = (1u64 << 26) as f64;
/// Bytes that cost one.
const BYTES: u64 = 1 << 20;

impl Work for Task {
    type Answer = Result<Done, Error>;
    /// Nothing is asked of it but tasks.
    type Host = ();

    fn cost(&self) -> u64 {
        let bytes = |bytes: u64| 1 + bytes / BYTES;
        match &self.job {
            Job::Attend(ask) => {
                let sent = ask.tensors.iter().map(|tensor| if let Source::Bytes(bytes) = tensor { bytes.len() as u64 } else { 0 }).sum::<u64>();
                bytes(sent + if ask.wants_bytes { ask.bytes } else { 0 }) + (ask.op.cost().dense_flops / FLOPS) as u64
            }
            Job::Fill(region, _) => bytes(region.bytes()),
            Job::Write(part, _) | Job::Read(part) => bytes(part.bytes),
        }
    }

    fn lane(&self) -> u64 {
        0
    }

    fn spent(&self) -> &Spent {
        &self.spent
    }
}
