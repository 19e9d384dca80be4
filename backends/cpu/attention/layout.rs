//! Where the queries, keys and masks of each sequence lie, for every form of attention.

use std::borrow::Cow;
use std::ops::Range;

use crate::backends::cpu::Cpu;
use crate::backends::cpu::view::View;
use crate::error::{Error, Result};
use crate::ops::attention::{AttentionIndex, Form, Strides};
use crate::ops::index::{BlockKind, BlockMap, BlockShape, MapShape, PageShape};
use crate::ops::{Attention, AttentionArgs};

/// The descriptor and its checked index data.
pub struct Layout<'a> {
    op: &'a Attention,
    index: Words<'a>,
    /// The slot of each sequence in q, k and v, where they do not lie in order.
    slots: Option<&'a [i32]>,
}

enum Words<'a> {
    None,
    Varlen { cu_q: &'a [i32], cu_kv: &'a [i32] },
    Blocks { row_ptr: Cow<'a, [i32]>, columns: Cow<'a, [i32]>, kinds: Cow<'a, [i32]>, bits: &'a [i32], shape: BlockShape },
    Paged { kv_len: &'a [i32], table: &'a [i32], page: usize },
    RaggedPaged { cu_q: &'a [i32], kv_len: &'a [i32], table: &'a [i32], page: usize },
}

/// One sequence. Places are in elements.
pub struct Sequence<'a> {
    pub number: usize,
    pub queries: usize,
    pub keys: usize,
    pub q_at: usize,
    pub o_at: usize,
    k_at: usize,
    v_at: usize,
    /// The place of the first query in a head's row of the LSE, and the distance from head to head.
    pub lse_at: usize,
    pub lse_stride: usize,
    /// The pages of the sequence's keys, and the tokens of a page.
    pages: Option<(&'a [i32], usize)>,
}

/// Keys that lie next to each other and are masked alike.
pub struct Piece<'a> {
    pub keys: Range<usize>,
    /// Whether the query's position masks the keys, whatever the operation says.
    pub causal: bool,
    /// The bit mask of the block: the block's first query and key, words of a row, words.
    pub bits: Option<Bits<'a>>,
}

/// A bit mask, and its block's first query and key.
#[derive(Clone, Copy)]
pub struct Bits<'a> {
    first_query: usize,
    first_key: usize,
    row_words: usize,
    words: &'a [i32],
}

impl Bits<'_> {
    pub fn sees(&self, query: usize, key: usize) -> bool {
        let (i, j) = (query - self.first_query, key - self.first_key);
        self.words.get(i * self.row_words + j / 32).is_some_and(|word| word >> (j % 32) & 1 == 1)
    }
}

impl<'a> Layout<'a> {
    /// Reads the index. Every word is checked, since words become addresses.
    ///
    /// # Safety
    /// [`crate::ops::check`] accepted the operands, and they are held.
    pub unsafe fn new(op: &'a Attention, AttentionArgs { index, slots, .. }: &AttentionArgs<Cpu>) -> Result<Self> {
        // SAFETY: as this function's contract.
        let words = |slice| unsafe { View::<i32>::new(slice).all() };
        let index = match (index, op.form) {
            (AttentionIndex::Varlen(index), Form::Varlen(shape)) => {
                let (cu_q, cu_kv) = split(words(index.slice()), shape.batch as usize + 1)?;
                let sound = |cu: &[i32], total: u64, most: u64| {
                    let steps = cu.windows(2).all(|pair| pair[0] <= pair[1] && u64::from(pair[1].abs_diff(pair[0])) <= most);
                    steps && cu.first() == Some(&0) && cu.last().is_some_and(|&last| last as u64 <= total)
                };
                let cu_kv = &cu_kv[..cu_q.len().min(cu_kv.len())];
                intact(sound(cu_q, shape.total_q, shape.max_q) && cu_kv.len() == cu_q.len() && sound(cu_kv, shape.total_kv, shape.max_kv))?;
                Words::Varlen { cu_q, cu_kv }
            }
            (AttentionIndex::Blocks(index), Form::Blocks(shape)) => {
                let capacity = shape.capacity as usize;
                let rows = shape.q_blocks as usize + 1;
                let (row_ptr, rest) = split(words(index.slice()), rows * shape.patterns as usize)?;
                let (columns, rest) = split(rest, capacity)?;
                let (kinds, bits) = split(rest, capacity)?;
                let ordered = |ptr: &[i32]| ptr.windows(2).all(|pair| 0 <= pair[0] && pair[0] <= pair[1] && pair[1] as usize <= capacity);
                // Where there are no blocks, capacity and columns may be zero.
                let placed = columns.iter().all(|&column| column == 0 || (column > 0 && (column as u32) < shape.kv_blocks));
                let kinded = kinds.iter().all(|&kind| kind >= -2 && kind < shape.masks.max(1) as i32);
                intact(row_ptr.chunks_exact(rows).all(ordered) && placed && kinded)?;
                Words::Blocks { row_ptr: row_ptr.into(), columns: columns.into(), kinds: kinds.into(), bits, shape }
            }
            (AttentionIndex::BlockMap(index), Form::BlockMap(shape)) => listed(bytemuck::cast_slice(words(index.slice())), &shape)?,
            (AttentionIndex::Paged(index), Form::Paged(shape)) => {
                let (kv_len, table) = pages(words(index.slice()), &shape)?;
                Words::Paged { kv_len, table, page: shape.page as usize }
            }
            (AttentionIndex::RaggedPaged(index), Form::RaggedPaged(shape)) => {
                let (cu_q, rest) = split(words(index.slice()), shape.batch as usize + 1)?;
                let steps = cu_q.windows(2).all(|pair| pair[0] <= pair[1] && u64::from(pair[1].abs_diff(pair[0])) <= shape.max_q);
                intact(steps && cu_q.first() == Some(&0) && cu_q.last().is_some_and(|&last| last as u64 <= shape.total_q))?;
                let (kv_len, table) = pages(rest, &shape.table())?;
                Words::RaggedPaged { cu_q, kv_len, table, page: shape.page as usize }
            }
            _ => Words::None,
        };
        let slots = slots.as_ref().map(|slots| words(slots.slice()));
        let room = op.slots.unwrap_or(0);
        intact(slots.is_none_or(|slots| slots.len() as u64 >= op.batch && slots.iter().all(|&slot| u32::try_from(slot).is_ok_and(|slot| slot < room))))?;
        Ok(Self { op, index, slots })
    }

    /// Sequence `b` of the batch.
    pub fn sequence(&self, b: usize) -> Sequence<'a> {
        let op = self.op;
        // Forms that do not use a stride may have any.
        let dense = |strides: Strides| b.wrapping_mul(strides.batch as usize);
        let slot = self.slots.map_or(b, |slots| slots[b] as usize);
        let read = |strides: Strides| slot.wrapping_mul(strides.batch as usize);
        let sequence = Sequence {
            number: b,
            queries: op.q_len as usize,
            keys: op.kv_len as usize,
            q_at: read(op.q),
            o_at: dense(op.o),
            k_at: read(op.k),
            v_at: read(op.v),
            lse_at: b * (op.heads * op.q_len) as usize,
            lse_stride: op.q_len as usize,
            pages: None,
        };
        match &self.index {
            Words::None | Words::Blocks { .. } => sequence,
            &Words::Varlen { cu_q, cu_kv } => {
                let (q, k) = (cu_q[b] as usize, cu_kv[b] as usize);
                let at = |strides: Strides, token: usize| token * strides.token as usize;
                Sequence {
                    queries: cu_q[b + 1] as usize - q,
                    keys: cu_kv[b + 1] as usize - k,
                    q_at: at(op.q, q),
                    o_at: at(op.o, q),
                    k_at: at(op.k, k),
                    v_at: at(op.v, k),
                    lse_at: q,
                    lse_stride: (op.lse_len() / op.heads) as usize,
                    ..sequence
                }
            }
            &Words::Paged { kv_len, table, page } => {
                let pages = table.len() / kv_len.len();
                Sequence { keys: kv_len[b] as usize, k_at: 0, v_at: 0, pages: Some((&table[b * pages..(b + 1) * pages], page)), ..sequence }
            }
            &Words::RaggedPaged { cu_q, kv_len, table, page } => {
                let (pages, q) = (table.len() / kv_len.len(), cu_q[b] as usize);
                Sequence {
                    queries: cu_q[b + 1] as usize - q,
                    keys: kv_len[b] as usize,
                    q_at: q * op.q.token as usize,
                    o_at: q * op.o.token as usize,
                    k_at: 0,
                    v_at: 0,
                    lse_at: q,
                    lse_stride: (op.lse_len() / op.heads) as usize,
                    pages: Some((&table[b * pages..(b + 1) * pages], page)),
                    ..sequence
                }
            }
        }
    }

    /// The number of queries that belong to a sequence; those behind them are spare.
    pub fn queries(&self) -> usize {
        match &self.index {
            Words::RaggedPaged { cu_q, .. } => cu_q[cu_q.len() - 1] as usize,
            _ => usize::MAX,
        }
    }

    /// The keys of head `head` that any of `queries` sees, in rising order. In the block-sparse form the queries lie in one row of blocks.
    pub fn pieces(&self, sequence: &Sequence<'_>, head: usize, queries: &Range<usize>) -> Vec<Piece<'a>> {
        // Both ends of the range rise with the query.
        let (first, last) = (self.seen(sequence, queries.start), self.seen(sequence, queries.end - 1));
        let union = first.start.min(last.end)..last.end;
        let Words::Blocks { row_ptr, columns, kinds, bits, shape } = &self.index else {
            return vec![Piece { keys: union, causal: false, bits: None }];
        };
        let pattern = match shape.patterns as u64 {
            1 => 0,
            patterns if patterns == self.op.heads => head,
            _ => sequence.number * self.op.heads as usize + head,
        };
        let block = shape.block as usize;
        let row = queries.start / block;
        let at = pattern * (shape.q_blocks as usize + 1) + row;
        let places = row_ptr[at] as usize..row_ptr[at + 1] as usize;
        let words = block * block / 32;
        let piece = |place: usize| {
            let first_key = columns[place] as usize * block;
            let keys = first_key.max(union.start)..(first_key + block).min(union.end);
            let mask = usize::try_from(kinds[place]).ok();
            let bits = mask.map(|mask| Bits {
                first_query: row * block,
                first_key,
                row_words: block / 32,
                words: bits.get(mask * words..(mask + 1) * words).unwrap_or_default(),
            });
            Piece { keys, causal: kinds[place] == -2, bits }
        };
        places.map(piece).filter(|piece| !piece.keys.is_empty()).collect()
    }

    /// The keys that a query sees by the masks of the whole operation.
    pub fn seen(&self, sequence: &Sequence<'_>, query: usize) -> Range<usize> {
        let keys = sequence.keys as i64;
        let position = self.position(sequence, query);
        let window = self.op.window.map_or(i64::MAX / 4, |window| window.min(i64::MAX as u64 / 4) as i64);
        let reach = if self.op.causal { 0 } else { window };
        let end = (position + reach + 1).clamp(0, keys);
        (position - window).clamp(0, end) as usize..end as usize
    }

    /// The position of a query among the keys.
    pub fn position(&self, sequence: &Sequence<'_>, query: usize) -> i64 {
        query as i64 + sequence.keys as i64 - sequence.queries as i64
    }
}

impl Sequence<'_> {
    /// The place of key `j` in k, for head 0.
    pub fn k_place(&self, strides: Strides, j: usize) -> usize {
        self.place(self.k_at, strides, j)
    }

    /// The place of key `j` in v, for head 0.
    pub fn v_place(&self, strides: Strides, j: usize) -> usize {
        self.place(self.v_at, strides, j)
    }

    fn place(&self, at: usize, strides: Strides, j: usize) -> usize {
        match self.pages {
            None => at + j * strides.token as usize,
            Some((pages, page)) => pages[j / page] as usize * strides.batch as usize + j % page * strides.token as usize,
        }
    }

    /// Whether keys lie a token's stride apart.
    pub fn is_contiguous(&self) -> bool {
        self.pages.is_none()
    }
}

/// The lists of the blocks that a map marks as present.
fn listed<'a>(map: &[u8], shape: &MapShape) -> Result<Words<'a>> {
    let (mut row_ptr, mut columns, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
    let [rows, width] = [shape.q_blocks, shape.kv_blocks].map(|blocks| blocks as usize);
    for pattern in 0..shape.patterns as usize {
        row_ptr.push(columns.len() as i32);
        for row in 0..rows {
            let row = map.get((pattern * rows + row) * width..).and_then(|map| map.get(..width)).ok_or_else(spoiled)?;
            for (column, kind) in row.iter().enumerate().filter_map(|(column, &byte)| Some((column, BlockMap::kind(byte)?))) {
                columns.push(column as i32);
                kinds.push(if kind == BlockKind::Causal { -2 } else { -1 });
            }
            row_ptr.push(columns.len() as i32);
        }
    }
    Ok(Words::Blocks { row_ptr: row_ptr.into(), columns: columns.into(), kinds: kinds.into(), bits: &[], shape: shape.lists() })
}

/// The lengths and the page table of sequences, every page of which the pool has. Entries past a sequence's length are not read, so they may be
/// anything.
fn pages<'a>(words: &'a [i32], shape: &PageShape) -> Result<(&'a [i32], &'a [i32])> {
    let (kv_len, table) = split(words, shape.batch as usize)?;
    intact(kv_len.iter().enumerate().all(|(b, &len)| {
        let used = u64::try_from(len).unwrap_or(u64::MAX).div_ceil(shape.page) as usize;
        let pages = table.get(b * shape.pages as usize..).and_then(|pages| pages.get(..used));
        used as u64 <= shape.pages && pages.is_some_and(|pages| pages.iter().all(|&page| page >= 0 && (page as u64) < shape.pool_pages))
    }))?;
    Ok((kv_len, table))
}

fn split(words: &[i32], at: usize) -> Result<(&[i32], &[i32])> {
    words.split_at_checked(at).ok_or_else(spoiled)
}

fn intact(sound: bool) -> Result<()> {
    if sound { Ok(()) } else { Err(spoiled()) }
}

fn spoiled() -> Error {
    Error::invalid("attention: index", "the words that the index was made with", "other words (was its memory written to?)")
}
