use std::borrow::Cow;

use super::{HostIndex, PageShape, PageTable};
use crate::error::{Error, Result, ensure};

/// Sequences with queries in numbers of their own, end to end, whose keys and values lie in pages of a pool.
///
/// Words: `cu_q[batch + 1]`, then `kv_len[batch]`, then `page_table[batch, pages]`, as in [`PageTable`]. Queries behind the last sequence's are
/// spare: they see nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaggedPages {
    cu_q: Vec<i32>,
    table: PageTable,
    shape: RaggedShape,
}

/// What the device's copy is sized and read by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RaggedShape {
    /// Sequences.
    pub batch: u64,
    /// Queries of all sequences, and spare ones.
    pub total_q: u64,
    /// The most queries of a sequence.
    pub max_q: u64,
    /// The most pages of a sequence.
    pub pages: u64,
    /// Tokens of a page.
    pub page: u64,
    /// Pages of the pool.
    pub pool_pages: u64,
}

impl RaggedShape {
    /// The shape of the page table.
    pub const fn table(&self) -> PageShape {
        PageShape { batch: self.batch, pages: self.pages, page: self.page, pool_pages: self.pool_pages }
    }
}

impl RaggedPages {
    /// Sequences from the running totals of their queries, `batch + 1` of them, the keys of each, and `batch · pages` page numbers.
    ///
    /// # Errors
    /// Totals that do not start at 0, that fall, or that exceed `total_q`; a sequence of more than `max_q` queries; the errors of [`PageTable::new`].
    pub fn new(cu_q: &[i32], kv_len: &[i32], table: &[i32], shape: RaggedShape) -> Result<Self> {
        ensure(
            cu_q.len() as u64 == shape.batch.saturating_add(1),
            "cu_seqlens_q",
            format_args!("{} running totals", shape.batch.saturating_add(1)),
            cu_q.len(),
        )?;
        ensure(cu_q[0] == 0, "cu_seqlens_q", "running totals that start at 0", cu_q[0])?;
        for (sequence, pair) in cu_q.windows(2).enumerate() {
            let length = i64::from(pair[1]) - i64::from(pair[0]);
            if length < 0 || length as u64 > shape.max_q {
                return Err(Error::invalid("cu_seqlens_q", format!("lengths from 0 to {}", shape.max_q), format!("{length} at sequence {sequence}")));
            }
        }
        let last = cu_q[cu_q.len() - 1];
        ensure(last as u64 <= shape.total_q, "cu_seqlens_q", format_args!("at most {} queries", shape.total_q), last)?;
        super::word("ragged_pages", Self::capacity(&shape))?;
        Ok(Self { cu_q: cu_q.to_vec(), table: PageTable::new(table, kv_len, shape.table())?, shape })
    }

    /// The running totals of the queries.
    pub fn cu_q(&self) -> &[i32] {
        &self.cu_q
    }

    /// Queries of all sequences. Those behind them are spare.
    pub fn queries(&self) -> u64 {
        self.cu_q[self.cu_q.len() - 1] as u64
    }

    /// The pages and the keys of each sequence.
    pub fn table(&self) -> &PageTable {
        &self.table
    }
}

impl HostIndex for RaggedPages {
    const NAME: &'static str = "ragged_pages";
    type Shape = RaggedShape;

    fn shape(&self) -> RaggedShape {
        self.shape
    }

    fn words(&self) -> Cow<'_, [i32]> {
        [self.cu_q.as_slice(), &self.table.words()].concat().into()
    }

    fn capacity(shape: &RaggedShape) -> u64 {
        PageTable::capacity(&shape.table()).saturating_add(shape.batch).saturating_add(1)
    }
}
