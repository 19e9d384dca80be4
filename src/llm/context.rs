//! The keys and values of one text, in pages, and the plans that read them.

use std::collections::HashMap;

use super::config::Config;
use super::plans::Plans;
use crate::backend::Backend;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Result, ensure};
use crate::ops::index::{Index, PageShape, PageTable};
use crate::session::{Graph, Session};

/// Tokens of a page.
const PAGE: u64 = 64;
/// The most sizes of passes whose plans are kept.
const MAX_PLANS: usize = 32;

/// The memory of one text: keys and values of its tokens so far, and room for more.
pub struct Context<D: Backend> {
    pub(super) shape: PageShape,
    pub(super) table: Index<PageTable, D>,
    pub(super) pools: Vec<Pool<D>>,
    /// Tokens whose keys and values are there.
    pub(super) length: usize,
    pub(super) plans: HashMap<usize, Plans<D>>,
    /// The pass over one token, captured.
    pub(super) graph: Option<Graph<D>>,
    /// Whether a pass over one token was run, and so every plan of it made.
    pub(super) warm: bool,
}

/// Keys and values of a layer.
pub struct Pool<D: Device> {
    /// What appends write: both side by side, a token after the other, or each on its own.
    pub written: Vec<Slice<D>>,
    pub k: Slice<D>,
    pub v: Slice<D>,
}

impl<D: Backend> Context<D> {
    /// Room for `tokens` tokens.
    ///
    /// # Errors
    /// No room asked for, or more than a page table holds; no device memory.
    pub(super) fn new(session: &mut Session<D>, config: &Config, dtype: DType, tokens: usize) -> Result<Self> {
        ensure(tokens > 0, "context", "room for at least one token", tokens)?;
        let pages = (tokens as u64).div_ceil(PAGE);
        let shape = PageShape { batch: 1, pages, page: PAGE, pool_pages: pages };
        let each = pages * PAGE * config.key() * dtype.size();
        let pool = |session: &mut Session<D>| {
            if config.head_norm {
                let (k, v) = (session.alloc(each)?, session.alloc(each)?);
                return Ok(Pool { written: vec![k.clone(), v.clone()], k, v });
            }
            let both = session.alloc(2 * each)?;
            let offset = config.key() * dtype.size();
            let v = super::plans::part(&both, offset, both.len - offset)?;
            Ok(Pool { written: vec![both.clone()], k: both, v })
        };
        let pools = (0..config.layers).map(|_| pool(session)).collect::<Result<Vec<_>>>()?;
        let table = session.index(&table(shape, 0)?)?;
        Ok(Self { shape, table, pools, length: 0, plans: HashMap::new(), graph: None, warm: false })
    }

    /// Tokens whose keys and values are there.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no token is there.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Tokens that there is room for, those there among them.
    pub fn capacity(&self) -> usize {
        (self.shape.pages * self.shape.page) as usize
    }

    /// Forgets all tokens from `length` on, as where another answer begins.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// The plans of passes over `rows` tokens.
    pub(super) fn plan(&mut self, session: &mut Session<D>, config: &Config, dtype: DType, rows: usize) -> Result<()> {
        if !self.plans.contains_key(&rows) {
            if self.plans.len() >= MAX_PLANS {
                // The graph names the memory of the plans of one row.
                self.plans.retain(|&rows, _| rows == 1);
            }
            let plans = Plans::new(session, config, dtype, rows, self.shape)?;
            self.plans.insert(rows, plans);
        }
        Ok(())
    }
}

/// The page table of a text of `length` tokens: its pages in their order.
pub fn table(shape: PageShape, length: usize) -> Result<PageTable> {
    let pages: Vec<i32> = (0..shape.pages as i32).collect();
    PageTable::new(&pages, &[i32::try_from(length).unwrap_or(i32::MAX)], shape)
}

impl<D: Backend> std::fmt::Debug for Context<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "context of {} tokens, room for {}", self.length, self.capacity())
    }
}
