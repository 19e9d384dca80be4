//! The `Device` of this backend. The other files of this folder say how it works.

use std::sync::PoisonError;

use super::{Buffer, Event, Graph, Queue, Wgpu};
use crate::device::{Caps, Clock, Device, Slice};
use crate::error::Result;

impl Device for Wgpu {
    const NAME: &'static str = "wgpu";
    type Buffer = Buffer;
    type Queue = Queue;
    type Graph = Graph;
    type Event = Event;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn queue(&self) -> Result<Queue> {
        self.faults.check("making a queue")?;
        Ok(Queue::default())
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer> {
        self.allocate(bytes)
    }

    fn buffer_id(buffer: &Buffer) -> usize {
        buffer.id
    }

    fn owns(&self, buffer: &Buffer) -> bool {
        buffer.owner == self.number
    }

    fn write(&self, queue: &mut Queue, dst: &Slice<Self>, src: &[u8]) -> Result<()> {
        queue.outside_capture("write")?;
        self.upload(queue, dst, src)
    }

    fn read(&self, queue: &mut Queue, src: &Slice<Self>, dst: &mut [u8]) -> Result<()> {
        queue.outside_capture("read")?;
        self.download(queue, src, dst)
    }

    fn copy(&self, queue: &mut Queue, src: &Slice<Self>, dst: &Slice<Self>) -> Result<()> {
        queue.outside_capture("copy")?;
        queue.copy_slice(self, src, dst)
    }

    fn record_event(&self, queue: &mut Queue) -> Result<Event> {
        queue.outside_capture("record_event")?;
        Event::new(self, queue)
    }

    fn elapsed(&self, queue: &mut Queue, earlier: &Event, later: &Event) -> Result<f64> {
        queue.outside_capture("elapsed")?;
        later.seconds_since(earlier, self, queue)
    }

    fn clock(&self) -> Clock {
        if self.has_clock() { Clock::Device } else { Clock::Host }
    }

    fn compiled(&self) -> u64 {
        self.pipelines.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }

    fn synchronize(&self, queue: &mut Queue) -> Result<()> {
        queue.outside_capture("synchronize")?;
        queue.wait(self)
    }

    fn begin_capture(&self, queue: &mut Queue) -> Result<()> {
        queue.begin_capture()
    }

    fn end_capture(&self, queue: &mut Queue) -> Result<Graph> {
        queue.end_capture()
    }

    unsafe fn replay(&self, queue: &mut Queue, graph: &Graph) -> Result<()> {
        queue.replay(self, graph)
    }
}
