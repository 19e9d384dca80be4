//! What stands in a line.

use std::sync::Arc;
use std::time::Duration;

use trifuse::adapters::engine::AdapterId;

use crate::embedder::Embedder;
use crate::queueing::gather::Part;
use crate::queueing::queues::Tenant;
use crate::queueing::registry::Lease;
use crate::spent::Spent;

/// An adapter on each device of a model. A device that was lost before the adapter came has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copies(pub Vec<Option<AdapterId>>);

impl Copies {
    /// What the device of this number knows the adapter by.
    pub fn on(&self, device: usize) -> Option<AdapterId> {
        self.0.get(device).copied().flatten()
    }
}

/// One sentence that waits for a device.
#[derive(Debug)]
pub struct Sentence {
    /// Rows of the token table.
    pub ids: Vec<i32>,
    /// The adapter, held until the sentence is done; `None` for the base.
    pub adapter: Option<Lease<Copies>>,
    /// The times of its request.
    pub spent: Arc<Spent>,
}

/// What a line is made of.
pub trait Work: Send + Sync {
    /// What comes of it.
    type Answer: Send;

    /// What does it, on the thread of a device.
    type Host: ?Sized + 'static;

    /// What it costs, in the unit of its line: tokens, where sentences wait.
    fn cost(&self) -> u64;

    /// A number that tells its turns from those of others of the same tenant.
    fn lane(&self) -> u64;

    /// The times of its request.
    fn spent(&self) -> &Spent;
}

impl Work for Sentence {
    type Answer = Vec<f32>;
    type Host = dyn Embedder;

    fn cost(&self) -> u64 {
        self.ids.len() as u64
    }

    fn lane(&self) -> u64 {
        // A lease's address tells generations apart as long as somebody holds it.
        self.adapter.as_ref().map_or(0, |lease| Arc::as_ptr(lease) as u64)
    }

    fn spent(&self) -> &Spent {
        &self.spent
    }
}

/// Work with what its answer needs.
#[derive(Debug)]
pub struct Job<W: Work = Sentence> {
    /// What is to be done. The device's thread holds it as well while it is under way.
    pub work: Arc<W>,
    /// Its place in the answer.
    pub part: Part<W::Answer>,
    /// Who asked for it.
    pub(super) tenant: Tenant,
    /// When it must have reached the device.
    pub(super) deadline: Option<Duration>,
    /// When it was let in.
    pub(super) queued: Duration,
    /// Whether a device has failed with it.
    pub(super) tried: bool,
}
