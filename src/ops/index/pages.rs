use std::borrow::Cow;

use super::HostIndex;
use crate::error::{Error, Result, ensure};

/// The page table: the places of each sequence's pages of K and V in a pool, and how many keys each sequence has.
///
/// Words: `kv_len[batch]`, then `page_table[batch, pages]`. Entries past a sequence's length are not read; on the device they are 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageTable {
    table: Vec<i32>,
    kv_len: Vec<i32>,
    shape: PageShape,
}

/// What the device's copy is sized and read by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageShape {
    /// Sequences.
    pub batch: u64,
    /// The most pages of a sequence.
    pub pages: u64,
    /// Tokens of a page.
    pub page: u64,
    /// Pages of the pool.
    pub pool_pages: u64,
}

impl PageTable {
    /// A page table. `table` holds `shape.batch · shape.pages` page numbers, `kv_len` the keys of each sequence.
    ///
    /// # Errors
    /// Lists of another length, a sequence with more keys than its pages hold, a page that is read and that the pool does not have.
    pub fn new(table: &[i32], kv_len: &[i32], shape: PageShape) -> Result<Self> {
        ensure(shape.page > 0, "page_table: page", "at least 1 token", shape.page)?;
        ensure(kv_len.len() as u64 == shape.batch, "kv_len", format_args!("{} lengths", shape.batch), kv_len.len())?;
        super::word("page_table", Self::capacity(&shape))?;
        let entries = shape.batch.saturating_mul(shape.pages);
        ensure(table.len() as u64 == entries, "page_table", format_args!("{entries} entries"), table.len())?;
        let mut clean = vec![0; table.len()];
        for (b, &len) in kv_len.iter().enumerate() {
            let room = shape.pages.saturating_mul(shape.page);
            if len < 0 || len as u64 > room {
                return Err(Error::invalid(
                    "kv_len",
                    format!("lengths from 0 to {room} ({} pages of {})", shape.pages, shape.page),
                    format!("{len} at sequence {b}"),
                ));
            }
            for p in 0..(len as u64).div_ceil(shape.page) {
                let at = b * shape.pages as usize + p as usize;
                if table[at] < 0 || table[at] as u64 >= shape.pool_pages {
                    return Err(Error::invalid(
                        "page_table",
                        format!("pages from 0 to {}", shape.pool_pages.saturating_sub(1)),
                        format!("{} at sequence {b}, page {p}", table[at]),
                    ));
                }
                clean[at] = table[at];
            }
        }
        Ok(Self { table: clean, kv_len: kv_len.to_vec(), shape })
    }

    /// The page numbers, `[batch, pages]`.
    pub fn table(&self) -> &[i32] {
        &self.table
    }

    /// The keys of each sequence.
    pub fn kv_len(&self) -> &[i32] {
        &self.kv_len
    }
}

impl HostIndex for PageTable {
    const NAME: &'static str = "page_table";
    type Shape = PageShape;

    fn shape(&self) -> PageShape {
        self.shape
    }

    fn words(&self) -> Cow<'_, [i32]> {
        [self.kv_len.as_slice(), &self.table].concat().into()
    }

    fn capacity(shape: &PageShape) -> u64 {
        shape.batch.saturating_mul(shape.pages.saturating_add(1))
    }
}
