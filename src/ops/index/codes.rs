use std::borrow::Cow;

use super::{HostIndex, Index};
use crate::device::{Device, Slice};
use crate::error::{Error, Result, ensure};
use crate::ops::codes::{CodeWidth, pack, validate_column};

/// The codes of adapters: all columns of one width, or each column with its own.
///
/// Words: `words_per_adapter` for each adapter. With one width for all, column `j` of an adapter starts at word `j ·
/// width.column_words(d)`. With a width a column, an adapter's region starts with `rank` header words, `offset << 5 | bits`, where the
/// offset is in words from the start of the region. The columns follow. [`crate::ops::codes`] describes the packing inside a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codes {
    shape: CodesShape,
    words: Vec<u32>,
}

/// What the device's copy is sized and read by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodesShape {
    /// Adapters, which are slots of a pool.
    pub adapters: u32,
    /// Elements of a column.
    pub d: u32,
    /// Columns of an adapter.
    pub rank: u32,
    /// The width of every column, or `None` where each column names its own.
    pub width: Option<CodeWidth>,
    /// Words reserved for an adapter.
    pub words_per_adapter: u32,
}

/// The checked codes of one adapter: its region of [`Codes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterCodes {
    d: u32,
    rank: u32,
    width: Option<CodeWidth>,
    words: Vec<u32>,
}

impl AdapterCodes {
    /// Codes from packed columns `(width, words)`, all of `d` elements. A `width` for all must be that of every column.
    ///
    /// # Errors
    /// A column of another width or length, a code that its codebook does not have, padding that is not zero, 2^27 words.
    pub fn new(d: u32, width: Option<CodeWidth>, columns: &[(CodeWidth, Vec<u32>)]) -> Result<Self> {
        let header = if width.is_none() { columns.len() } else { 0 };
        let mut words = vec![0u32; header];
        for (j, (own, column)) in columns.iter().enumerate() {
            ensure(width.is_none_or(|all| all == *own), "codes", "columns of the one width", format_args!("{own:?} at column {j}"))?;
            validate_column(*own, column, d as usize)?;
            if width.is_none() {
                ensure(words.len() < 1 << 27, "codes", "fewer than 2^27 words an adapter", words.len())?;
                words[j] = (words.len() as u32) << 5 | own.bits();
            }
            words.extend_from_slice(column);
        }
        super::word("codes", words.len() as u64)?;
        Ok(Self { d, rank: columns.len() as u32, width, words })
    }

    /// Codes from unpacked indices in row order, `codes1[o·rank + j]`, all of one width. `codes2` is empty for one stage.
    ///
    /// # Errors
    /// A number of indices other than `d · rank`, or an index that the width's codebook does not have.
    pub fn from_indices(d: u32, rank: u32, width: CodeWidth, codes1: &[u8], codes2: &[u8]) -> Result<Self> {
        let count = d as usize * rank as usize;
        ensure(
            codes1.len() == count && (codes2.is_empty() || codes2.len() == count),
            "codes",
            format_args!("{count} indices a stage"),
            format_args!("{} and {}", codes1.len(), codes2.len()),
        )?;
        let column = |codes: &[u8], j: usize| codes.iter().skip(j).step_by(rank as usize).copied().collect::<Vec<u8>>();
        let columns = (0..rank as usize).map(|j| Ok((width, pack(width, &column(codes1, j), &column(codes2, j))?))).collect::<Result<Vec<_>>>()?;
        Self::new(d, Some(width), &columns)
    }

    /// The words of this adapter's region.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// The width and the words of column `j`; `None` past the last column.
    pub fn column(&self, j: usize) -> Option<(CodeWidth, &[u32])> {
        column_of(&self.words, self.d, self.rank, self.width, j)
    }
}

/// The width and the words of column `j` in an adapter's region.
fn column_of(region: &[u32], d: u32, rank: u32, width: Option<CodeWidth>, j: usize) -> Option<(CodeWidth, &[u32])> {
    if j >= rank as usize {
        return None;
    }
    let (width, start) = match width {
        Some(width) => (width, j * width.column_words(u64::from(d)) as usize),
        None => {
            let header = *region.get(j)?;
            (CodeWidth::from_bits(header & 31)?, (header >> 5) as usize)
        }
    };
    Some((width, region.get(start..start + width.column_words(u64::from(d)) as usize)?))
}

impl CodesShape {
    /// The shape of codes of `adapters` adapters whose columns all have one width.
    pub fn uniform(adapters: u32, d: u32, rank: u32, width: CodeWidth) -> Result<Self> {
        let words = width.column_words(u64::from(d)) * u64::from(rank);
        Ok(Self { adapters, d, rank, width: Some(width), words_per_adapter: super::word("codes", words)? as u32 })
    }

    /// The width and the words of column `j` of an adapter's region, which is `words_per_adapter` long. It is for backends on the host.
    pub fn column<'a>(&self, region: &'a [u32], j: usize) -> Option<(CodeWidth, &'a [u32])> {
        column_of(region, self.d, self.rank, self.width, j)
    }

    fn accept(&self, adapter: &AdapterCodes) -> Result<()> {
        let fits = adapter.words.len() <= self.words_per_adapter as usize;
        let same = (adapter.d, adapter.rank, adapter.width) == (self.d, self.rank, self.width);
        if fits && same {
            return Ok(());
        }
        let found = format!("d {}, rank {}, width {:?}, {} words", adapter.d, adapter.rank, adapter.width, adapter.words.len());
        Err(Error::invalid("codes", format!("an adapter that fits {self:?}"), found))
    }
}

impl Codes {
    /// Empty codes of this shape. Every adapter's region is zero words except for legal headers. Every column decodes to zero width (with
    /// one width for all, to index 0).
    pub fn empty(shape: CodesShape) -> Result<Self> {
        super::word("codes", Self::capacity(&shape))?;
        Ok(Self { shape, words: vec![0; Self::capacity(&shape) as usize] })
    }

    /// The codes of as many adapters as the shape has, in the order of their slots.
    ///
    /// # Errors
    /// Another number of adapters, an adapter that does not fit the shape, 2^31 words.
    pub fn new(shape: CodesShape, adapters: &[AdapterCodes]) -> Result<Self> {
        ensure(adapters.len() == shape.adapters as usize, "codes", format_args!("{} adapters", shape.adapters), adapters.len())?;
        let mut codes = Self::empty(shape)?;
        for (region, adapter) in codes.words.chunks_mut((shape.words_per_adapter as usize).max(1)).zip(adapters) {
            shape.accept(adapter)?;
            region[..adapter.words.len()].copy_from_slice(&adapter.words);
        }
        Ok(codes)
    }
}

impl HostIndex for Codes {
    const NAME: &'static str = "codes";
    type Shape = CodesShape;

    fn shape(&self) -> CodesShape {
        self.shape
    }

    fn words(&self) -> Cow<'_, [i32]> {
        bytemuck::cast_slice(&self.words).into()
    }

    fn capacity(shape: &CodesShape) -> u64 {
        u64::from(shape.adapters) * u64::from(shape.words_per_adapter)
    }
}

impl<D: Device> Index<Codes, D> {
    /// Codes of `adapters` adapters, made on the device. Adapter `a` gets the codes of adapter `(first + a) mod n` of these `n`: a
    /// population larger than a host would want to write.
    ///
    /// # Errors
    /// No adapter to repeat.
    pub(crate) fn repeated(&self, device: &D, queue: &mut D::Queue, adapters: u32, first: u32) -> Result<Self> {
        let (all, one) = (self.shape.adapters, u64::from(self.shape.words_per_adapter) * 4);
        ensure(all > 0, "codes", "an adapter to repeat", 0)?;
        let shape = CodesShape { adapters, ..self.shape };
        let bytes = Codes::capacity(&shape) * 4;
        let slice = Slice::new(device.alloc(bytes)?, 0, bytes);
        let (mut at, mut from) = (0, first % all);
        while at < adapters && one > 0 {
            let count = (adapters - at).min(all - from);
            let range = |slice: &Slice<D>, start: u32| slice.sub_slice(u64::from(start) * one, u64::from(count) * one);
            let ranges = range(&self.slice, from).zip(range(&slice, at));
            let (source, target) = ranges.ok_or_else(|| Error::invalid("codes", "adapters that lie in the index", at))?;
            device.copy(queue, &source, &target)?;
            (at, from) = (at + count, 0);
        }
        Ok(Self { shape, slice })
    }

    /// Replaces the codes of the adapter in `slot`.
    ///
    /// # Errors
    /// A slot that there is not, or codes that do not fit it.
    pub(crate) fn update_adapter(&self, device: &D, queue: &mut D::Queue, slot: u32, adapter: &AdapterCodes) -> Result<()> {
        let shape = *self.shape();
        ensure(slot < shape.adapters, "codes: slot", format_args!("below {}", shape.adapters), slot)?;
        shape.accept(adapter)?;
        let words: Vec<i32> = adapter.words.iter().map(|&word| word as i32).collect();
        self.put(device, queue, u64::from(slot) * u64::from(shape.words_per_adapter), &words)
    }
}
