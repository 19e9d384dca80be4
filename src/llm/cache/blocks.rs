//! The pool of pages: who holds how many, which are free, and which are known by a name.

use std::collections::HashMap;

use super::prefix::Digest;
use crate::error::{Error, Result, ensure};

/// The end of the list of free pages.
const END: u32 = u32::MAX;

/// A pool of pages with reference counts.
///
/// A page that nobody holds goes to the list of free pages and keeps its name. [`take`](Self::take) gives the page that was free the longest;
/// pages without a name go first.
#[derive(Clone, Debug)]
pub struct Blocks {
    pages: Vec<Page>,
    named: HashMap<Digest, u32>,
    first: u32,
    last: u32,
    free: usize,
}

#[derive(Clone, Debug)]
struct Page {
    references: u32,
    name: Option<Digest>,
    before: u32,
    after: u32,
}

impl Blocks {
    /// A pool of `pages` free pages, which are taken in the order of their numbers.
    ///
    /// # Errors
    /// No pages, or more than `i32::MAX`: devices count them in 32 bits with a sign.
    pub fn new(pages: u32) -> Result<Self> {
        ensure((1..=i32::MAX as u32).contains(&pages), "pool of pages", "1 to 2147483647 pages", pages)?;
        let page = |number| Page {
            references: 0,
            name: None,
            before: if number == 0 { END } else { number - 1 },
            after: if number + 1 == pages { END } else { number + 1 },
        };
        Ok(Self { pages: (0..pages).map(page).collect(), named: HashMap::with_capacity(pages as usize), first: 0, last: pages - 1, free: pages as usize })
    }

    /// All pages of the pool.
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Always false: a pool has pages.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Pages that nobody holds, with a name or without.
    pub fn free(&self) -> usize {
        self.free
    }

    /// Pages that somebody holds.
    pub fn used(&self) -> usize {
        self.pages.len() - self.free
    }

    /// How many hold the page.
    ///
    /// # Errors
    /// No such page.
    pub fn references(&self, page: u32) -> Result<u32> {
        Ok(self.page(page)?.references)
    }

    /// The page of that name, free or not.
    pub fn find(&self, name: &Digest) -> Option<u32> {
        self.named.get(name).copied()
    }

    /// Takes the page that was free the longest, which loses its name. `None` where all are held.
    pub fn take(&mut self) -> Option<u32> {
        let page = self.first;
        let entry = self.pages.get_mut(page as usize)?;
        entry.references = 1;
        if let Some(name) = entry.name.take() {
            self.named.remove(&name);
        }
        self.unlink(page);
        Some(page)
    }

    /// Holds the page of that name once more. `None` where no page has the name.
    pub fn share(&mut self, name: &Digest) -> Option<u32> {
        let page = self.find(name)?;
        let entry = self.pages.get_mut(page as usize)?;
        entry.references += 1;
        if entry.references == 1 {
            self.unlink(page);
        }
        Some(page)
    }

    /// Holds a page once more that somebody holds.
    ///
    /// # Errors
    /// No such page, or one that is free.
    pub fn retain(&mut self, page: u32) -> Result<()> {
        self.held(page)?.references += 1;
        Ok(())
    }

    /// Lets go of a page. Where nobody else holds it, it becomes the last of the free ones, or the first where it has no name.
    ///
    /// # Errors
    /// No such page, or one that is free.
    pub fn release(&mut self, page: u32) -> Result<()> {
        let entry = self.held(page)?;
        entry.references -= 1;
        if entry.references > 0 {
            return Ok(());
        }
        let named = entry.name.is_some();
        let (before, after) = if named { (self.last, END) } else { (END, self.first) };
        self.connect(before, page);
        self.connect(page, after);
        self.free += 1;
        Ok(())
    }

    /// Names a page by what it holds. False where it has a name, or another page has this one: the first page of a name keeps it.
    ///
    /// # Errors
    /// No such page, or one that is free.
    pub fn name(&mut self, page: u32, name: Digest) -> Result<bool> {
        let known = self.named.contains_key(&name);
        let entry = self.held(page)?;
        if known || entry.name.is_some() {
            return Ok(false);
        }
        entry.name = Some(name);
        self.named.insert(name, page);
        Ok(true)
    }

    /// Takes all names: no page is found by what it held before.
    pub fn forget(&mut self) {
        self.named.clear();
        self.pages.iter_mut().for_each(|page| page.name = None);
    }

    fn page(&self, page: u32) -> Result<&Page> {
        self.pages.get(page as usize).ok_or_else(|| Error::invalid("page", format!("less than {}", self.pages.len()), page))
    }

    fn held(&mut self, page: u32) -> Result<&mut Page> {
        ensure(self.page(page)?.references > 0, "page", "one that somebody holds", format_args!("{page}, which is free"))?;
        Ok(&mut self.pages[page as usize])
    }

    /// Takes a page out of the list of free ones.
    fn unlink(&mut self, page: u32) {
        let Page { before, after, .. } = self.pages[page as usize];
        self.connect(before, after);
        self.free -= 1;
    }

    /// Makes two pages neighbours in the list of free ones; `END` on a side stands for that end of the list.
    fn connect(&mut self, before: u32, after: u32) {
        match self.pages.get_mut(before as usize) {
            Some(page) => page.after = after,
            None => self.first = after,
        }
        match self.pages.get_mut(after as usize) {
            Some(page) => page.before = before,
            None => self.last = before,
        }
    }
}
