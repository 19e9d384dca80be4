//! The keys and values of one text, in pages, and the plans that read them.

use std::collections::HashMap;

use super::config::Config;
use super::plans::Plans;
use super::pools::Pools;
use super::shape::{PoolShape, Queries, Shape};
use crate::backend::Backend;
use crate::dtype::DType;
use crate::error::{Error, Result, ensure};
use crate::session::{Graph, Session};

/// Tokens of a page.
const PAGE: u32 = 64;
/// The most sizes of passes whose plans are kept.
const MAX_PLANS: usize = 32;

/// The memory of one text: keys and values of its tokens so far, and room for more.
pub struct Context<D: Backend> {
    pub(super) pools: Pools<D>,
    /// Tokens whose keys and values are there.
    pub(super) length: usize,
    pub(super) plans: HashMap<usize, Plans<D>>,
    /// The pass over one token, captured.
    pub(super) graph: Option<Graph<D>>,
    /// Whether a pass over one token was run, and so every plan of it made.
    pub(super) warm: bool,
}

impl<D: Backend> Context<D> {
    /// Room for `tokens` tokens.
    ///
    /// # Errors
    /// No room asked for, or more than a page table holds; no device memory.
    pub(super) fn new(session: &mut Session<D>, config: &Config, dtype: DType, tokens: usize) -> Result<Self> {
        ensure(tokens > 0, "context", "room for at least one token", tokens)?;
        let pages = u32::try_from(tokens.div_ceil(PAGE as usize)).map_err(|_| Error::invalid("context", "fewer than 2^31 tokens", tokens))?;
        let pools = Pools::new(session, config, dtype, PoolShape { page: PAGE, pages, filled: false })?;
        Ok(Self { pools, length: 0, plans: HashMap::new(), graph: None, warm: false })
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
        self.pools.shape.page as usize * self.pools.shape.pages as usize
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
            let pages = self.pools.shape.pages as usize;
            let gathered = if config.latent { pages } else { 0 };
            let shape = Shape { rows, sequences: 1, queries: Queries::Even, pages, gathered, batch_invariant: false };
            let plans = Plans::new(session, config, dtype, shape, self.pools.shape, false)?;
            self.plans.insert(rows, plans);
        }
        Ok(())
    }
}

impl<D: Backend> std::fmt::Debug for Context<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "context of {} tokens, room for {}", self.length, self.capacity())
    }
}
