//! Copies between memory and the host that are exact to the byte. wgpu itself copies whole words.

use std::sync::mpsc;
use std::time::Duration;

use super::source::{Element, Operand, Source, shader};
use super::{Buffer, Queue, Wgpu};
use crate::device::Slice;
use crate::error::{Error, Result};

/// The most bytes that one copy stages, so that a large operand does not double its memory.
const STAGED: u64 = 64 << 20;
/// How long a finished copy may take to be mapped. Microseconds are usual.
const MAPPING: Duration = Duration::from_secs(10);

/// The immediates of `patch.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Patch {
    keep: u32,
    bits: u32,
}

pub(super) fn patch_source() -> Source {
    Source { kernel: "patch".into(), files: &[shader!("patch.wgsl")], operands: vec![Operand::write("words", Element::U32)], constants: Vec::new(), f16: false }
}

impl Wgpu {
    /// Copies `src` to the start of `dst`, after the work that is already in the queue.
    pub(super) fn upload(&self, queue: &mut Queue, dst: &Slice<Self>, src: &[u8]) -> Result<()> {
        if src.is_empty() {
            return Ok(());
        }
        queue.submit(self)?;
        // A whole word, part of which is written, at each end; whole words between.
        let head = (dst.offset.next_multiple_of(Buffer::WORD) - dst.offset).min(src.len() as u64) as usize;
        let (head, rest) = src.split_at(head);
        let (middle, tail) = rest.split_at(rest.len() - rest.len() % Buffer::WORD as usize);
        let mut at = dst.offset + head.len() as u64;
        for part in middle.chunks(STAGED as usize) {
            self.guard(|| self.queue.write_buffer(&dst.buffer.raw, at, part)).map_err(|error| Self::refused(error, part.len() as u64, "staging a write"))?;
            at += part.len() as u64;
            if part.len() as u64 == STAGED {
                // Staging memory is freed before more is asked for.
                let submission = self.queue.submit([]);
                self.poll("writing", Some(submission))?;
            }
        }
        self.patch(queue, dst, dst.offset, head)?;
        self.patch(queue, dst, at, tail)
    }

    /// Writes the few bytes `src` to byte `at` of the buffer, all inside one word.
    fn patch(&self, queue: &mut Queue, dst: &Slice<Self>, at: u64, src: &[u8]) -> Result<()> {
        if src.is_empty() {
            return Ok(());
        }
        let skipped = at % Buffer::WORD;
        let (mut bits, mut keep) = ([0; 4], [u8::MAX; 4]);
        for (i, &byte) in src.iter().enumerate() {
            bits[skipped as usize + i] = byte;
            keep[skipped as usize + i] = 0;
        }
        let params = Patch { keep: u32::from_le_bytes(keep), bits: u32::from_le_bytes(bits) };
        let word = Slice::new(dst.buffer.clone(), at - skipped, Buffer::WORD);
        let pipeline = self.pipeline(&patch_source())?;
        queue.dispatch(self, &pipeline, &[Some(&word)], &params, 1)
    }

    /// Copies the start of `src` to `dst`, after the work that is already in the queue.
    pub(super) fn download(&self, queue: &mut Queue, src: &Slice<Self>, dst: &mut [u8]) -> Result<()> {
        let mut at = src.offset;
        for part in dst.chunks_mut(STAGED as usize) {
            let skipped = at % Buffer::WORD;
            let size = (skipped + part.len() as u64).next_multiple_of(Buffer::WORD);
            let staging =
                self.create(size, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST).map_err(|error| Self::refused(error, size, "staging a read"))?;
            queue.copy(&src.buffer.raw, at - skipped, &staging, size);
            queue.submit(self)?;
            let (done, mapped) = mpsc::channel();
            // The receiver lives until the message is taken, so sending cannot fail.
            staging.map_async(wgpu::MapMode::Read, .., move |result| drop(done.send(result)));
            queue.wait(self)?;
            // Another thread's poll may have met the mapping first, and report it only after this one's is over.
            match mapped.recv_timeout(MAPPING) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(Error::device("reading", error)),
                Err(_) => return Err(Error::device("reading", "the copy was not mapped")),
            }
            let view = staging.get_mapped_range(..).map_err(|error| Error::device("reading", error))?;
            part.copy_from_slice(&view[skipped as usize..skipped as usize + part.len()]);
            at += part.len() as u64;
        }
        Ok(())
    }
}
