//! What a device of any backend makes: memory, queues, plans, without the types of the device behind.

use std::any::Any;
use std::sync::Arc;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::strange;

/// Memory of the device behind.
#[derive(Clone)]
pub struct AnyBuffer {
    pub(super) buffer: Arc<dyn Any + Send + Sync>,
    pub(super) id: usize,
}

impl AnyBuffer {
    pub(super) fn new<D: Device>(buffer: D::Buffer) -> Self {
        Self { id: D::buffer_id(&buffer), buffer: Arc::new(buffer) }
    }
}

/// A queue, a graph, an event or a plan of the device behind.
pub struct AnyPart(Box<dyn Any + Send>);

impl AnyPart {
    pub(super) fn new<T: Send + 'static>(part: T) -> Self {
        Self(Box::new(part))
    }

    pub(super) fn get<T: 'static>(&self) -> Result<&T> {
        self.0.downcast_ref().ok_or_else(other_device)
    }

    pub(super) fn get_mut<T: 'static>(&mut self) -> Result<&mut T> {
        self.0.downcast_mut().ok_or_else(other_device)
    }
}

/// A plan of the device behind, and what is asked of it without that.
pub struct AnyPlan {
    pub(super) plan: AnyPart,
    pub(super) workspace_bytes: u64,
    pub(super) prepared_bytes: u64,
    pub(super) variant: &'static str,
    pub(super) config: Option<String>,
}

/// The refusal of what another device made.
pub(super) fn other_device() -> Error {
    strange("any device")
}
