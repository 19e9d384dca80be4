//! The pages of one request, in the order of its tokens.

use super::blocks::Blocks;
use super::prefix::{Digest, link};
use crate::error::{Error, Result, ensure};

/// A request's list of pages, and the names of its full pages.
///
/// Names are kept when pages are let go of: a request that comes back hashes nothing again. A table does not let go of its pages when it is
/// dropped, as it does not know their pool: call [`release`](Self::release).
#[derive(Clone, Debug)]
pub struct Table {
    page: usize,
    pages: Vec<u32>,
    seed: Digest,
    chain: Vec<Digest>,
    /// Pages from the first on that need no naming any more.
    named: usize,
}

/// What the pool holds of a request's beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Full pages from the first token on.
    pub pages: usize,
    /// Hit pages that nobody holds: taking them leaves fewer free.
    pub idle: usize,
}

impl Table {
    /// A table without pages. `page` is the number of tokens of a page, and `seed` comes from [`seed`](super::seed).
    ///
    /// # Errors
    /// Pages of no tokens.
    pub fn new(page: u32, seed: Digest) -> Result<Self> {
        ensure(page > 0, "page", "at least 1 token", page)?;
        Ok(Self { page: page as usize, pages: Vec::new(), seed, chain: Vec::new(), named: 0 })
    }

    /// Makes room for the list of that many tokens, so that it does not grow later.
    pub fn reserve(&mut self, tokens: usize) {
        let pages = tokens.div_ceil(self.page);
        self.pages.reserve(pages.saturating_sub(self.pages.len()));
        self.chain.reserve(pages.saturating_sub(self.chain.len()));
    }

    /// The pages in order.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Pages that `tokens` tokens fill, the last one perhaps in part.
    pub fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page)
    }

    /// Where K and V of the token at `position` lie: in tokens from the start of the pool.
    ///
    /// # Errors
    /// A position that no page of the table holds.
    pub fn slot(&self, position: usize) -> Result<u32> {
        let page = self.pages.get(position / self.page);
        let slot = page.and_then(|page| u32::try_from(*page as usize * self.page + position % self.page).ok());
        slot.ok_or_else(|| Error::invalid("position", format!("less than {}, in a pool of 32 bits", self.pages.len() * self.page), position))
    }

    /// Hashes the pages that `tokens`, the request's first ones, fill. Those that were hashed before are not hashed again.
    pub fn hash(&mut self, tokens: &[u32]) {
        for block in tokens.chunks_exact(self.page).skip(self.chain.len()) {
            self.chain.push(link(self.chain.last().unwrap_or(&self.seed), block));
        }
    }

    /// The hashed pages from the first on that the pool holds, of the first `most` tokens.
    pub fn hits(&self, blocks: &Blocks, most: usize) -> Hits {
        let mut hits = Hits::default();
        for page in self.chain.iter().take(most / self.page).map_while(|name| blocks.find(name)) {
            hits.pages += 1;
            hits.idle += usize::from(blocks.references(page).is_ok_and(|references| references == 0));
        }
        hits
    }

    /// Takes the first pages that [`hits`](Self::hits) found, and returns how many tokens they hold.
    ///
    /// # Errors
    /// A table that has pages, or pages that the pool no longer has. The table has none then.
    pub fn adopt(&mut self, blocks: &mut Blocks, hits: Hits) -> Result<usize> {
        ensure(self.pages.is_empty(), "table", "no pages", self.pages.len())?;
        let found = hits.pages.min(self.chain.len());
        for name in &self.chain[..found] {
            self.pages.extend(blocks.share(name));
        }
        if self.pages.len() < hits.pages {
            let found = self.pages.len();
            self.release(blocks)?;
            return Err(Error::invalid("prefix", format!("{} pages in the pool", hits.pages), found));
        }
        self.named = self.pages.len();
        Ok(self.pages.len() * self.page)
    }

    /// Pages that are missing for `tokens` tokens.
    pub fn missing(&self, tokens: usize) -> usize {
        self.pages_for(tokens).saturating_sub(self.pages.len())
    }

    /// Takes the pages that are missing for `tokens` tokens. False, and nothing taken, where the pool has too few.
    pub fn grow(&mut self, blocks: &mut Blocks, tokens: usize) -> bool {
        let missing = self.missing(tokens);
        if missing > blocks.free() {
            return false;
        }
        self.pages.extend((0..missing).map_while(|_| blocks.take()));
        true
    }

    /// Names the full pages of `computed`, the request's first tokens, whose K and V are computed or in the queue.
    ///
    /// # Errors
    /// More full pages than the table has.
    pub fn name(&mut self, blocks: &mut Blocks, computed: &[u32]) -> Result<()> {
        let full = computed.len() / self.page;
        ensure(full <= self.pages.len(), "computed tokens", format_args!("at most {} pages", self.pages.len()), full)?;
        self.hash(computed);
        for index in self.named..full {
            blocks.name(self.pages[index], self.chain[index])?;
        }
        self.named = self.named.max(full);
        Ok(())
    }

    /// A second table with the full pages of the first `tokens` tokens, which both hold then. The page that is full in part stays with the
    /// first: whoever goes on from the second computes its tokens again.
    ///
    /// # Errors
    /// More full pages than the table has.
    pub fn fork(&self, blocks: &mut Blocks, tokens: usize) -> Result<Self> {
        let full = tokens / self.page;
        ensure(full <= self.pages.len(), "tokens of a fork", format_args!("at most {} pages", self.pages.len()), full)?;
        for page in &self.pages[..full] {
            blocks.retain(*page)?;
        }
        let chain = self.chain[..full.min(self.chain.len())].to_vec();
        Ok(Self { page: self.page, pages: self.pages[..full].to_vec(), seed: self.seed, chain, named: self.named.min(full) })
    }

    /// Lets go of all pages, the last one first: what is evicted first is then the end of a prefix, not its beginning.
    ///
    /// # Errors
    /// A page that is free: the pool is another one.
    pub fn release(&mut self, blocks: &mut Blocks) -> Result<()> {
        self.named = 0;
        while let Some(page) = self.pages.pop() {
            blocks.release(page)?;
        }
        Ok(())
    }
}
