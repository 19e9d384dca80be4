//! The in-order queue: resolved steps, which are encoded and submitted together.
//!
//! A captured graph keeps such steps instead of submitting them. A replay puts clones of them, which are handles, into the queue.

use super::compiled::{Immediates, Pipeline};
use super::{Buffer, Wgpu};
use crate::device::Slice;
use crate::error::{Error, Result, ensure};

/// The most floating-point operations of one dispatch: a second on a slow GPU. Drivers end what runs much longer.
pub(super) const MAX_WORK: u64 = 1 << 37;
/// Steps after which a queue is submitted without a wait, so that the device starts early.
const BATCH: usize = 64;

/// An in-order queue.
#[derive(Default)]
pub struct Queue {
    /// Steps in the queue that are not yet submitted.
    steps: Vec<Step>,
    /// The launches since the capture began; `None` outside one.
    recording: Option<Vec<Step>>,
    last: Option<wgpu::SubmissionIndex>,
}

/// Captured work.
pub struct Graph(Vec<Step>);

#[derive(Clone)]
enum Step {
    Dispatch { pipeline: wgpu::ComputePipeline, operands: wgpu::BindGroup, immediates: Immediates, counts: [u32; 3] },
    Copy { src: wgpu::Buffer, src_at: u64, dst: wgpu::Buffer, dst_at: u64, bytes: u64 },
    Event { queries: wgpu::QuerySet },
}

impl Queue {
    /// Enqueues `groups` workgroups of `pipeline` on the operands of its [`Source`](super::Source), in their order. An operand is `None`
    /// where it is not present. With no groups there is no work.
    ///
    /// # Errors
    /// `Unsupported` where an operand is larger than the device binds: see [`Wgpu::window_bytes`].
    pub(super) fn dispatch<P: bytemuck::NoUninit>(
        &mut self,
        device: &Wgpu,
        pipeline: &Pipeline,
        operands: &[Option<&Slice<Wgpu>>],
        params: &P,
        groups: u64,
    ) -> Result<()> {
        if groups == 0 {
            return Ok(());
        }
        let counts = device.split(groups, &pipeline.kernel)?;
        let (operands, immediates) = pipeline.bind(device, operands, groups as u32, bytemuck::bytes_of(params))?;
        self.push(device, Step::Dispatch { pipeline: pipeline.raw.clone(), operands, immediates, counts })
    }

    /// Copies whole words to the start of `dst`.
    pub(super) fn copy(&mut self, src: &wgpu::Buffer, src_at: u64, dst: &wgpu::Buffer, bytes: u64) {
        self.steps.push(Step::Copy { src: src.clone(), src_at, dst: dst.clone(), dst_at: 0, bytes });
    }

    /// Copies `src` to the start of `dst`. Both are whole words of different buffers.
    pub(super) fn copy_slice(&mut self, device: &Wgpu, src: &Slice<Wgpu>, dst: &Slice<Wgpu>) -> Result<()> {
        let (from, to) = (src.buffer.raw.clone(), dst.buffer.raw.clone());
        self.push(device, Step::Copy { src: from, src_at: src.offset, dst: to, dst_at: dst.offset, bytes: src.len })
    }

    /// Writes the device's time into the one query of `queries`.
    pub(super) fn record_event(&mut self, device: &Wgpu, queries: &wgpu::QuerySet) -> Result<()> {
        self.push(device, Step::Event { queries: queries.clone() })
    }

    fn push(&mut self, device: &Wgpu, step: Step) -> Result<()> {
        if let Some(recorded) = &mut self.recording {
            recorded.push(step);
            return Ok(());
        }
        self.steps.push(step);
        if self.steps.len() >= BATCH { self.submit(device) } else { Ok(()) }
    }

    /// Submits everything in the queue to the device.
    pub(super) fn submit(&mut self, device: &Wgpu) -> Result<()> {
        if self.steps.is_empty() {
            return Ok(());
        }
        let steps = std::mem::take(&mut self.steps);
        let submitted = device.guard(|| {
            let mut encoder = device.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: None });
            let mut rest = steps.as_slice();
            while let Some(step) = rest.first() {
                let run = rest.iter().take_while(|step| matches!(step, Step::Dispatch { .. })).count();
                match step {
                    Step::Copy { src, src_at, dst, dst_at, bytes } => encoder.copy_buffer_to_buffer(src, *src_at, dst, *dst_at, *bytes),
                    Step::Event { queries } => encoder.write_timestamp(queries, 0),
                    Step::Dispatch { .. } => encode(&mut encoder, &rest[..run]),
                }
                rest = &rest[run.max(1)..];
            }
            device.queue.submit([encoder.finish()])
        });
        self.last = Some(submitted.map_err(|error| Error::device("submitting work", error))?);
        Ok(())
    }

    /// Blocks until everything is done, and reports what failed.
    pub(super) fn wait(&mut self, device: &Wgpu) -> Result<()> {
        self.submit(device)?;
        match self.last.take() {
            Some(last) => device.poll("waiting for the queue", Some(last)),
            None => device.faults.check("waiting for the queue"),
        }
    }

    pub(super) fn begin_capture(&mut self) -> Result<()> {
        self.outside_capture("capture")?;
        self.recording = Some(Vec::new());
        Ok(())
    }

    pub(super) fn end_capture(&mut self) -> Result<Graph> {
        let recorded = self.recording.take();
        recorded.map(Graph).ok_or_else(|| Error::invalid("capture", "an end after a beginning", "an end alone"))
    }

    pub(super) fn replay(&mut self, device: &Wgpu, graph: &Graph) -> Result<()> {
        self.outside_capture("replay")?;
        graph.0.iter().try_for_each(|step| self.push(device, step.clone()))
    }

    /// Refuses, inside a capture, a call that cannot be recorded.
    pub(super) fn outside_capture(&self, what: &str) -> Result<()> {
        ensure(self.recording.is_none(), what, "a call outside capture", "a call inside")
    }
}

/// Encodes one pass. wgpu orders its dispatches where they share a buffer.
fn encode(encoder: &mut wgpu::CommandEncoder, dispatches: &[Step]) {
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
    for step in dispatches {
        if let Step::Dispatch { pipeline, operands, immediates, counts: [x, y, z] } = step {
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, operands, &[]);
            pass.set_immediates(0, immediates.bytes());
            pass.dispatch_workgroups(*x, *y, *z);
        }
    }
}

impl Wgpu {
    /// Spreads `groups` workgroups over three axes, nearly evenly, none longer than the device allows. There may be a few more than
    /// `groups`; shaders compare their number with `launch.groups`.
    fn split(&self, groups: u64, kernel: &str) -> Result<[u32; 3]> {
        let most = u64::from(self.limits.max_compute_workgroups_per_dimension);
        let y = groups.div_ceil(most).min(most);
        let x = groups.div_ceil(y).min(most);
        let z = groups.div_ceil(x * y);
        // Shaders number workgroups in 32 bits, with room for the excess.
        if z > most || groups > 1 << 31 {
            return Err(Error::unsupported(kernel, format!("{groups} workgroups in one dispatch, the device takes fewer")));
        }
        Ok([x as u32, y as u32, z as u32])
    }

    /// Bytes of one operand that a single dispatch can reach, whatever its alignment. Larger operands are computed in parts. It is at most
    /// 2 GiB, so that an element's number has 32 bits.
    pub(super) fn window_bytes(&self) -> u64 {
        let slack = u64::from(self.limits.min_storage_buffer_offset_alignment) + Buffer::WORD;
        self.limits.max_storage_buffer_binding_size.min(1 << 31) - slack
    }
}

/// The `len` bytes of `slice` from `offset`. They lie inside, since sizes were checked before the launch.
pub(super) fn part(slice: &Slice<Wgpu>, offset: u64, len: u64) -> Slice<Wgpu> {
    Slice::new(slice.buffer.clone(), slice.offset + offset, len)
}
