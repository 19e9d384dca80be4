//! A moment in a queue: a timestamp query where the driver has them, else the host's clock once the queue is empty.

use std::time::Instant;

use super::{Queue, Wgpu};
use crate::device::Slice;
use crate::error::{Error, Result};

/// The features that a timestamp between two passes takes.
pub(super) const FEATURES: wgpu::Features = wgpu::Features::TIMESTAMP_QUERY.union(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);

/// A moment in a queue.
pub struct Event(Moment);

enum Moment {
    /// A set with one query, which holds the device's time.
    Device(wgpu::QuerySet),
    Host(Instant),
}

impl Wgpu {
    /// Whether the device tells its own time.
    pub(super) fn has_clock(&self) -> bool {
        self.raw.features().contains(FEATURES) && self.queue.get_timestamp_period() > 0.0
    }
}

impl Event {
    pub(super) fn new(device: &Wgpu, queue: &mut Queue) -> Result<Self> {
        if !device.has_clock() {
            queue.wait(device)?;
            return Ok(Self(Moment::Host(Instant::now())));
        }
        let descriptor = wgpu::QuerySetDescriptor { label: None, ty: wgpu::QueryType::Timestamp, count: 1 };
        let queries = device.guard(|| device.raw.create_query_set(&descriptor)).map_err(|error| Error::device("making a query", error))?;
        queue.record_event(device, &queries)?;
        Ok(Self(Moment::Device(queries)))
    }

    pub(super) fn seconds_since(&self, earlier: &Self, device: &Wgpu, queue: &mut Queue) -> Result<f64> {
        let (Moment::Device(first), Moment::Device(last)) = (&earlier.0, &self.0) else {
            let (Moment::Host(first), Moment::Host(last)) = (&earlier.0, &self.0) else {
                return Err(Error::invalid("events", "two by one clock", "one by the device and one by the host"));
            };
            return Ok(last.saturating_duration_since(*first).as_secs_f64());
        };
        queue.submit(device)?;
        let second = wgpu::QUERY_RESOLVE_BUFFER_ALIGNMENT;
        let usage = wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC;
        let failed = |error| Error::device("reading an event", error);
        let ticks = device.buffer(device.create(second + 8, usage).map_err(failed)?);
        let resolve = || {
            let mut encoder = device.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: None });
            encoder.resolve_query_set(first, 0..1, &ticks.raw, 0);
            encoder.resolve_query_set(last, 0..1, &ticks.raw, second);
            device.queue.submit([encoder.finish()])
        };
        device.guard(resolve).map_err(failed)?;
        let mut bytes = vec![0; second as usize + 8];
        device.download(queue, &Slice::new(ticks, 0, second + 8), &mut bytes)?;
        let at = |offset: usize| bytemuck::pod_read_unaligned::<u64>(&bytes[offset..offset + 8]);
        let nanoseconds = at(second as usize).saturating_sub(at(0)) as f64 * f64::from(device.queue.get_timestamp_period());
        Ok(nanoseconds * 1e-9)
    }
}
