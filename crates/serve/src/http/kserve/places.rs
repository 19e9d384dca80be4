//! Memory that tensors name: regions of the device, and shared memory of this machine.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::super::app::App;
use super::super::body::room;
use super::super::fault::Fault;
use crate::kserve::message::Delivery;
use crate::kserve::tensor::{Data, Place, Tensor};
use crate::operations::Operations;
use crate::operations::regions::Part;
use crate::operations::task::{Done, Source, Task};
use crate::queueing::queues::Tenant;
use crate::shm::Registered;

/// Finds memory for a request, and holds what it takes of the room for bodies.
pub struct Places {
    app: Arc<App>,
    tenant: u32,
    /// Room that is held.
    pub held: Vec<OwnedSemaphorePermit>,
}

/// Where an output goes.
pub enum Target {
    /// Into the answer.
    Answer,
    /// Into a region of the device.
    Region(Part),
    /// Into shared memory, from this byte of it on.
    Shared(Arc<Registered>, u64),
}

impl Places {
    /// The places of a request of that tenant.
    pub fn new(app: &Arc<App>, tenant: u32) -> Self {
        Self { app: Arc::clone(app), tenant, held: Vec::new() }
    }

    fn region(&self, place: &Place, bytes: u64) -> Result<Option<Part>, Fault> {
        let Some(operations) = &self.app.operations else { return Ok(None) };
        let Some(region) = operations.regions.get(self.tenant, &place.name) else { return Ok(None) };
        let part = Part::of(&region, place.offset, bytes);
        let outside = || {
            let message = format!("region {:?}: expected a part of its {} bytes, found {bytes} bytes from {}", place.name, region.bytes(), place.offset);
            Fault::invalid("invalid_value", message)
        };
        part.map(Some).ok_or_else(outside)
    }

    /// The elements of an input.
    ///
    /// # Errors
    /// There is no memory of that name, or not as much of it.
    pub async fn source(&mut self, tensor: &Tensor) -> Result<Source, Fault> {
        let place = match &tensor.data {
            Data::Bytes(bytes) => return Ok(Source::Bytes(bytes.clone())),
            Data::Region(place) => place,
        };
        if let Some(part) = self.region(place, place.bytes)? {
            return Ok(Source::Region(part));
        }
        let shared = self.app.shm.get(self.tenant, &place.name).ok_or_else(|| Fault::no_region(&place.name))?;
        self.take(place.bytes)?;
        let (offset, bytes) = (place.offset, place.bytes);
        let read = self.app.aside(move || shared.read(offset, bytes)).await?;
        Ok(Source::Bytes(Bytes::from(read?)))
    }

    /// The elements of an input that the host needs.
    ///
    /// # Errors
    /// Those of [`source`](Self::source); memory of the device.
    pub async fn host(&mut self, tensor: &Tensor) -> Result<Bytes, Fault> {
        match self.source(tensor).await? {
            Source::Bytes(bytes) => Ok(bytes),
            Source::Region(_) => {
                let message = format!("input {:?}: expected data, binary data or shared memory, found a region: those are for op.attention", tensor.name);
                Err(Fault::invalid("invalid_value", message))
            }
        }
    }

    /// Where an output of that many bytes goes.
    ///
    /// # Errors
    /// There is no memory of that name, or not as much of it.
    pub fn target(&self, delivery: &mut Delivery, bytes: u64) -> Result<Target, Fault> {
        let Delivery::Region(place) = delivery else { return Ok(Target::Answer) };
        if place.bytes < bytes {
            let message = format!("shared_memory_byte_size: expected at least {bytes}, as the output has, found {}", place.bytes);
            return Err(Fault::invalid("invalid_value", message));
        }
        place.bytes = bytes;
        if let Some(part) = self.region(place, bytes)? {
            return Ok(Target::Region(part));
        }
        let shared = self.app.shm.get(self.tenant, &place.name).ok_or_else(|| Fault::no_region(&place.name))?;
        Ok(Target::Shared(shared, place.offset))
    }

    /// Takes a part of the room for bodies until the request is answered.
    ///
    /// # Errors
    /// There is no such room.
    pub fn take(&mut self, bytes: u64) -> Result<(), Fault> {
        let bytes = usize::try_from(bytes).map_err(|_| Fault::full())?;
        self.held.push(room(&self.app, bytes)?);
        Ok(())
    }
}

/// Writes an output to shared memory.
///
/// # Errors
/// Memory that has shrunk.
pub async fn write(app: &App, shared: Arc<Registered>, offset: u64, bytes: Vec<u8>) -> Result<(), Fault> {
    Ok(app.aside(move || shared.write(offset, &bytes)).await??)
}

/// Lets the device do a task.
///
/// # Errors
/// The task is not let in, or the device refuses it or fails.
pub async fn done(operations: &Operations, tenant: Tenant, deadline: Option<Duration>, task: Task) -> Result<Done, Fault> {
    let (answer, answered) = oneshot::channel();
    let waiter = operations.enter(tenant, task, deadline, Box::new(move |result| drop(answer.send(result))))?;
    let results = answered.await.map_err(|_| Fault::internal())??;
    drop(waiter);
    Ok(results.into_iter().next().ok_or_else(Fault::internal)??)
}
