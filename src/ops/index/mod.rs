//! Index data. It is checked once on the host, then carried only as a typed device value, so that kernels may trust every index that they
//! read.
//!
//! Each kind has a host type whose constructor checks everything, and a documented list of 32-bit words. On the device it is an [`Index`],
//! which has a fixed shape and contents that may be replaced between replays of a captured graph.

mod bases;
mod block_map;
mod blocks;
mod codes;
mod pages;
mod ragged;
mod slots;
mod tokens;
mod varlen;

pub use bases::{BasisOf, BasisShape};
pub use block_map::{BlockMap, MapShape};
pub use blocks::{BlockKind, BlockMask, BlockShape};
pub use codes::{AdapterCodes, Codes, CodesShape};
pub use pages::{PageShape, PageTable};
pub use ragged::{RaggedPages, RaggedShape};
pub use slots::{SlotShape, Slots};
pub use tokens::{TokenAdapters, TokenShape};
pub use varlen::{Varlen, VarlenShape};

use std::borrow::Cow;

use derive_where::derive_where;

use crate::device::{Device, Slice};
use crate::error::{Error, Result};

/// Checked index data on the host.
pub trait HostIndex {
    /// The name in errors.
    const NAME: &'static str;
    /// What the device's copy is sized by. An update must keep it.
    type Shape: Clone + Eq + std::fmt::Debug + Send + Sync;

    /// The shape of this data.
    fn shape(&self) -> Self::Shape;
    /// The words as they lie on the device. Their number depends on the shape alone.
    fn words(&self) -> Cow<'_, [i32]>;
    /// The number of words of data of this shape.
    fn capacity(shape: &Self::Shape) -> u64;
}

/// The alignment of an index in a shared allocation, in bytes, which every device's binding rules allow.
const PACKED_ALIGN: u64 = 256;

/// Checked index data on a device. It belongs to the session that made it, and others refuse it: kernels trust its words, which that session's
/// queue alone orders against the work that reads them.
#[derive_where(Clone)]
pub struct Index<H: HostIndex, D: Device> {
    shape: H::Shape,
    slice: Slice<D>,
}

impl<H: HostIndex, D: Device> Index<H, D> {
    /// Allocates room for `host` and copies it there.
    pub(crate) fn new(device: &D, queue: &mut D::Queue, host: &H) -> Result<Self> {
        let bytes = H::capacity(&host.shape()) * 4;
        let index = Self { shape: host.shape(), slice: Slice::new(device.alloc(bytes)?, 0, bytes) };
        index.update(device, queue, host)?;
        Ok(index)
    }

    /// This index, for one session alone.
    pub(crate) fn bound(self, session: u64) -> Self {
        Self { slice: self.slice.bound(session), ..self }
    }

    /// Words that lie in `slice` already, as [`HostIndex::words`] lays them out.
    pub(crate) const fn over(shape: H::Shape, slice: Slice<D>) -> Self {
        Self { shape, slice }
    }

    /// Replaces the contents. Graphs captured with this index see them at their next replay.
    ///
    /// # Errors
    /// `host` has another shape.
    pub(crate) fn update(&self, device: &D, queue: &mut D::Queue, host: &H) -> Result<()> {
        if host.shape() != self.shape {
            return Err(Error::invalid(H::NAME, format!("the shape it was made with, {:?}", self.shape), format!("{:?}", host.shape())));
        }
        self.put(device, queue, 0, &host.words())
    }

    /// Several indices in one allocation, so that [`update_packed`](Self::update_packed) is one copy.
    pub(crate) fn packed(device: &D, queue: &mut D::Queue, hosts: &[H]) -> Result<Vec<Self>> {
        let (places, bytes) = places(hosts);
        let buffer = device.alloc(bytes)?;
        let slice = |(offset, len)| Slice::new(buffer.clone(), offset, len);
        let indices: Vec<Self> = hosts.iter().zip(places).map(|(host, place)| Self { shape: host.shape(), slice: slice(place) }).collect();
        Self::update_packed(device, queue, &indices, hosts)?;
        Ok(indices)
    }

    /// Replaces, in one copy, the contents of all indices that [`packed`](Self::packed) made together.
    ///
    /// # Errors
    /// Another number of indices, or one of another shape, than was packed.
    pub(crate) fn update_packed(device: &D, queue: &mut D::Queue, indices: &[Self], hosts: &[H]) -> Result<()> {
        let shapes: Vec<H::Shape> = hosts.iter().map(HostIndex::shape).collect();
        match Self::together(indices, &shapes)? {
            Some(all) => device.write(queue, &all, &packed_bytes(hosts)),
            None => Ok(()),
        }
    }

    /// Replaces the contents of indices as [`update_packed`](Self::update_packed) does, from memory that the device copies from on its own.
    ///
    /// # Errors
    /// The errors of [`update_packed`](Self::update_packed).
    pub(crate) fn update_pinned(device: &D, queue: &mut D::Queue, indices: &[Self], pinned: &Pinned<H, D>) -> Result<()> {
        match Self::together(indices, &pinned.shapes)? {
            Some(all) => device.copy(queue, &pinned.slice, &all),
            None => Ok(()),
        }
    }

    /// The memory of indices that were packed together; none where there are no indices.
    fn together(indices: &[Self], shapes: &[H::Shape]) -> Result<Option<Slice<D>>> {
        let Some(first) = indices.first() else { return Ok(None) };
        // The end of the last index. An index that was made alone has no room behind it.
        let (mut start, mut end) = (0, 0);
        for (n, index) in indices.iter().enumerate() {
            let together = D::buffer_id(&index.slice.buffer) == D::buffer_id(&first.slice.buffer) && index.slice.offset == start;
            let same = indices.len() == shapes.len() && shapes.get(n) == Some(&index.shape);
            if !(together && same) {
                return Err(Error::invalid(H::NAME, "the indices packed together, each of its own shape", format!("index {n} of {}", shapes.len())));
            }
            end = start + index.slice.len;
            start = end.next_multiple_of(PACKED_ALIGN);
        }
        Ok(Some(Slice::new(first.slice.buffer.clone(), 0, end)))
    }

    /// The shape that the index was made with.
    pub fn shape(&self) -> &H::Shape {
        &self.shape
    }

    /// Bytes of the index in device memory.
    pub fn device_bytes(&self) -> u64 {
        self.slice.len
    }

    /// The memory of the words, laid out as by [`HostIndex::words`], for the launches of a backend. Only a session makes slices, so that
    /// nobody writes over checked words.
    pub fn buffer(&self) -> &D::Buffer {
        &self.slice.buffer
    }

    /// Bytes from the buffer's start to the first word.
    pub fn offset(&self) -> u64 {
        self.slice.offset
    }

    /// The words, laid out as by [`HostIndex::words`]. They are hidden from the caller of an operation, since kernels trust them.
    pub(crate) fn slice(&self) -> &Slice<D> {
        &self.slice
    }

    /// Copies words that the caller has checked to the place of word `at`.
    fn put(&self, device: &D, queue: &mut D::Queue, at: u64, words: &[i32]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(words);
        let part = self.slice.sub_slice(at * 4, bytes.len() as u64);
        let part = part.ok_or_else(|| Error::invalid(H::NAME, format!("at most {} bytes", self.slice.len), format!("{} at {}", bytes.len(), at * 4)))?;
        device.write(queue, &part, bytes)
    }
}

/// The offset and length of each index in a shared allocation, and the bytes of all.
fn places<H: HostIndex>(hosts: &[H]) -> (Vec<(u64, u64)>, u64) {
    let mut at = 0;
    let place = |host: &H| {
        let (offset, len) = (at, H::capacity(&host.shape()) * 4);
        at = (at + len).next_multiple_of(PACKED_ALIGN);
        (offset, len)
    };
    (hosts.iter().map(place).collect(), at)
}

/// The bytes of a shared allocation, to the end of the last index.
fn packed_bytes<H: HostIndex>(hosts: &[H]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for host in hosts {
        bytes.resize(bytes.len().next_multiple_of(PACKED_ALIGN as usize), 0);
        bytes.extend_from_slice(bytemuck::cast_slice(&host.words()));
    }
    bytes
}

/// Checked index data in host memory, from which the device copies it into indices on its own.
pub struct Pinned<H: HostIndex, D: Device> {
    shapes: Vec<H::Shape>,
    slice: Slice<D>,
}

impl<H: HostIndex, D: Device> Pinned<H, D> {
    /// Pinned data of indices that are packed together.
    pub(crate) fn new(device: &D, queue: &mut D::Queue, hosts: &[H]) -> Result<Self> {
        let bytes = packed_bytes(hosts);
        let slice = Slice::new(device.alloc_host(bytes.len() as u64)?, 0, bytes.len() as u64);
        device.write(queue, &slice, &bytes)?;
        Ok(Self { shapes: hosts.iter().map(HostIndex::shape).collect(), slice })
    }

    /// This data, for one session alone.
    pub(crate) fn bound(self, session: u64) -> Self {
        Self { slice: self.slice.bound(session), ..self }
    }

    pub(crate) fn slice(&self) -> &Slice<D> {
        &self.slice
    }

    /// Bytes of host memory.
    pub fn bytes(&self) -> u64 {
        self.slice.len
    }
}

impl<H: HostIndex, D: Device> std::fmt::Debug for Index<H, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} in {:?}", H::NAME, self.shape, self.slice)
    }
}

/// `value` as a word, or an error naming `subject`.
fn word(subject: &str, value: u64) -> Result<i32> {
    i32::try_from(value).map_err(|_| Error::invalid(subject, "a number below 2^31", value))
}

/// Checks that `numbers`, one for each of what `each` names, lie in `0..bound`, and that words hold how many there are.
fn below(subject: &str, each: &str, numbers: &[i32], bound: u32) -> Result<()> {
    if let Some((at, found)) = numbers.iter().enumerate().find(|&(_, &number)| number < 0 || i64::from(number) >= i64::from(bound)) {
        return Err(Error::invalid(subject, format!("numbers below {bound}"), format!("{found} at {each} {at}")));
    }
    word(&format!("{subject}: {each}s"), numbers.len() as u64).map(drop)
}
