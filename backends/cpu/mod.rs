//! Backend `cpu`: pure Rust on every core, with no system package. It is the embedded default.
//!
//! Work runs when it is put into the queue, spread over the threads of the caller's rayon pool. Shapes and index data alone decide how work
//! is cut into pieces, and partial sums are combined in a fixed order. So results are bitwise equal from run to run, whatever the number of
//! threads.

mod attention;
mod checksum;
mod codebook;
mod element;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod f16c;
mod few_rows;
mod fused_mlp;
mod grouped_linear;
mod host;
mod linear;
mod math;
mod memory;
mod pointwise;
mod prefix_attention;
mod processor;
mod product;
mod queue;
mod sample;
mod view;

pub use memory::Buffer;
pub use processor::Cpu;
pub use queue::{Graph, Queue};

use std::sync::Arc;
use std::time::Instant;

use crate::device::{Caps, Clock, Device, Filler, Hints, Open, Slice};
use crate::error::{Error, Result, ensure};
use memory::Budget;
use view::View;

impl Device for Cpu {
    const NAME: &'static str = "cpu";
    type Buffer = Buffer;
    type Queue = Queue;
    type Graph = Graph;
    type Event = Instant;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    /// The work of a norm is the same in a product as before it, and a launch less is a wait less.
    fn hints(&self) -> Hints {
        Hints { normed_outputs: Some(u64::MAX), ..Hints::default() }
    }

    fn queue(&self) -> Result<Queue> {
        Ok(Queue::default())
    }

    fn alloc(&self, bytes: u64) -> Result<Buffer> {
        Buffer::new(bytes, &self.budget)
    }

    fn buffer_id(buffer: &Buffer) -> usize {
        buffer.id()
    }

    fn write(&self, _queue: &mut Queue, dst: &Slice<Self>, src: &[u8]) -> Result<()> {
        ensure(src.len() as u64 <= dst.len, "write", format_args!("at most {} bytes", dst.len), src.len())?;
        let _held = memory::hold([(&dst.buffer, true, "write")])?;
        // SAFETY: the hold is exclusive, so nothing else refers to these bytes meanwhile.
        unsafe { View::<u8>::new(dst).write(0, src.len()) }.copy_from_slice(src);
        Ok(())
    }

    fn write_with(&self, _queue: &mut Queue, dst: &Slice<Self>, fill: &mut Filler<'_>) -> Result<()> {
        let _held = memory::hold([(&dst.buffer, true, "write_with")])?;
        // SAFETY: the hold is exclusive, so nothing else refers to these bytes meanwhile.
        let all = unsafe { View::<u8>::new(dst).write(0, dst.len as usize) };
        if all.is_empty() { Ok(()) } else { fill(0, all) }
    }

    fn read(&self, _queue: &mut Queue, src: &Slice<Self>, dst: &mut [u8]) -> Result<()> {
        ensure(dst.len() as u64 <= src.len, "read", format_args!("at most {} bytes", src.len), dst.len())?;
        let _held = memory::hold([(&src.buffer, false, "read")])?;
        // SAFETY: the hold keeps writers out.
        dst.copy_from_slice(unsafe { View::<u8>::new(src).read(0, dst.len()) });
        Ok(())
    }

    fn copy(&self, _queue: &mut Queue, src: &Slice<Self>, dst: &Slice<Self>) -> Result<()> {
        ensure(src.len <= dst.len, "copy", format_args!("at most {} bytes", dst.len), src.len)?;
        let _held = memory::hold([(&src.buffer, false, "copy"), (&dst.buffer, true, "copy")])?;
        // SAFETY: the holds keep writers out of one and everyone out of the other.
        unsafe { View::<u8>::new(dst).write(0, src.len as usize).copy_from_slice(View::<u8>::new(src).read(0, src.len as usize)) };
        Ok(())
    }

    fn record_event(&self, _queue: &mut Queue) -> Result<Instant> {
        // Work is done before the call that puts it in returns.
        Ok(Instant::now())
    }

    fn elapsed(&self, _queue: &mut Queue, earlier: &Instant, later: &Instant) -> Result<f64> {
        Ok(later.duration_since(*earlier).as_secs_f64())
    }

    fn clock(&self) -> Clock {
        Clock::Host
    }

    fn synchronize(&self, _queue: &mut Queue) -> Result<()> {
        // Work is done, and its failure reported, before the call that put it in returns.
        Ok(())
    }

    fn begin_capture(&self, queue: &mut Queue) -> Result<()> {
        queue.begin()
    }

    fn end_capture(&self, queue: &mut Queue) -> Result<Graph> {
        queue.end()
    }

    unsafe fn replay(&self, _queue: &mut Queue, graph: &Graph) -> Result<()> {
        graph.run()
    }
}

impl Open for Cpu {
    fn list() -> Result<Vec<Caps>> {
        Ok(vec![host::caps()])
    }

    fn open(index: usize) -> Result<Self> {
        if index != 0 {
            return Err(Error::NoBackend { name: format!("cpu:{index}"), reason: "the processor is device 0, the only one".into() });
        }
        let caps = host::caps();
        let budget = Arc::new(Budget::new(caps.max_buffer_bytes));
        Ok(Self { caps, budget })
    }
}

/// The only variant of `op`, unless `only` names another.
fn sole_variant(op: &str, name: &'static str, only: Option<&str>) -> Result<()> {
    match only {
        Some(other) if other != name => Err(Error::unsupported(format!("{op} variant {other}"), format!("cpu has {name}"))),
        _ => Ok(()),
    }
}
