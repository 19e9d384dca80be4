//! The queue. Work runs when it is put in, or is recorded while a capture is open.

use std::collections::BTreeMap;

use super::{Buffer, Cpu, memory};
use crate::device::Slice;
use crate::error::{Result, ensure};
use crate::ops::{Access, Op};

/// An in-order queue. It is always empty: work is done when the call that enqueues it returns.
#[derive(Default)]
pub struct Queue {
    recording: Option<Vec<Launch>>,
}

/// Captured work: the launches in order, each with its operands.
pub struct Graph(Vec<Launch>);

struct Launch {
    /// The buffers that the launch touches, each once: whether it writes, and the name of an operand in it.
    buffers: Vec<(Buffer, bool, &'static str)>,
    work: Box<dyn Fn() -> Result<()> + Send + Sync>,
}

impl Launch {
    fn run(&self) -> Result<()> {
        let _held = memory::hold(self.buffers.iter().map(|(buffer, exclusive, name)| (buffer, *exclusive, *name)))?;
        (self.work)()
    }
}

impl Graph {
    /// Runs every launch again, all on a thread of the pool. A launch from outside hands its work over and sleeps until it is done: some
    /// hundred small launches then wait longer than they work.
    pub(super) fn run(&self) -> Result<()> {
        rayon::scope(|_| self.0.iter().try_for_each(Launch::run))
    }
}

impl Queue {
    /// Begins a capture: launches are recorded from here on.
    pub(super) fn begin(&mut self) -> Result<()> {
        ensure(self.recording.is_none(), "capture", "one capture at a time", "a capture inside a capture")?;
        self.recording = Some(Vec::new());
        Ok(())
    }

    /// Ends the capture, and returns what was recorded.
    pub(super) fn end(&mut self) -> Result<Graph> {
        ensure(self.recording.is_some(), "capture", "a capture that was begun", "none")?;
        Ok(Graph(self.recording.take().unwrap_or_default()))
    }

    /// Runs or records `work`, which touches the operands of `args` and `workspace` and nothing else.
    pub(super) fn put<O: Op>(
        &mut self,
        op: &O,
        workspace: Option<&Slice<Cpu>>,
        args: &O::Args<Cpu>,
        work: impl Fn(&O::Args<Cpu>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()>
    where
        O::Args<Cpu>: Clone + Sync + 'static,
    {
        let mut buffers: BTreeMap<usize, (Buffer, bool, &'static str)> = BTreeMap::new();
        let mut add = |slice: &Slice<Cpu>, writes: bool, name: &'static str| {
            let entry = buffers.entry(slice.buffer.id()).or_insert_with(|| (slice.buffer.clone(), false, name));
            if writes && !entry.1 {
                (entry.1, entry.2) = (true, name);
            }
        };
        op.operands(args, &mut |operand| add(operand.slice, operand.access != Access::Read, operand.name))?;
        if let Some(workspace) = workspace {
            add(workspace, true, "workspace");
        }
        let args = args.clone();
        let launch = Launch { buffers: buffers.into_values().collect(), work: Box::new(move || work(&args)) };
        match &mut self.recording {
            Some(launches) => {
                launches.push(launch);
                Ok(())
            }
            None => rayon::scope(|_| launch.run()),
        }
    }
}
