//! Writes in flight at the end of a queue. A launch starts early (PDL) where it reads none of them before its wait.

use std::ops::Range;

use crate::ops::index::PageShape;

/// The most launches in a row that start early. Each asks what all before it write.
const MOST: usize = 256;

/// Writes of launches that may not have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InFlightWrites {
    /// Address ranges that may be written, each once. A model writes the same few places again and again, and every launch searches all of
    /// them.
    whole: Vec<Range<u64>>,
    appended: Vec<Appended>,
    /// How many writes were added, with those that were there already.
    told: usize,
}

/// A write to the last positions of each sequence of a pool, and to nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The address range of the pool.
    pub range: Range<u64>,
    /// The pool whose rows are written.
    pub pool: Pool,
    /// How many positions are written of each sequence.
    pub tokens: u64,
}

/// Rows of tokens in pages, one row behind another, and the table that maps positions to rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The address of the first row.
    pub start: u64,
    /// The address of lengths and page numbers.
    pub table: u64,
    /// The shape by which the pool is read.
    pub cache: PageShape,
    /// Bytes from a row to the next.
    pub row: u64,
}

/// What a launch reads of a cache before its PDL wait.
#[derive(Clone, Debug)]
pub struct Early {
    /// All addresses that the launch reads.
    pub range: Range<u64>,
    /// The pool whose rows are read, and how many bytes of each, where the addresses are columns of a pool.
    pub columns: Option<(Pool, u64)>,
}

impl Appended {
    /// Whether `early` reads rows of the pool by the same positions.
    fn holds(&self, early: &Early) -> bool {
        let Some((pool, width)) = &early.columns else { return false };
        let first = pool.start.checked_sub(self.pool.start);
        Pool { start: self.pool.start, ..*pool } == self.pool && first.is_some_and(|first| first.saturating_add(*width) <= pool.row)
    }
}

impl InFlightWrites {
    /// Whether the writes in flight are known, and there is room for more.
    pub fn is_known(&self) -> bool {
        (1..MOST).contains(&self.told)
    }

    /// Whether exactly this write is listed already.
    pub fn names(&self, write: &Range<u64>) -> bool {
        self.whole.contains(write)
    }

    /// Forgets all writes: nothing is in flight any more, or it is not known what.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// These writes, and `more` that may be in flight.
    #[must_use]
    pub fn and(mut self, more: Self) -> Self {
        self.told += more.told;
        more.whole.into_iter().for_each(|write| add(&mut self.whole, write));
        more.appended.into_iter().for_each(|write| add(&mut self.appended, write));
        self
    }

    /// How many of the last positions of each sequence a launch must leave until after its PDL wait, so that it reads nothing before that
    /// may still be written. None where it must wait before it reads any of the caches.
    pub fn late(&self, caches: &[Early]) -> Option<u64> {
        let free = caches.iter().all(|cache| self.whole.iter().all(|write| apart(write, &cache.range)));
        let mut late = 0;
        for appended in &self.appended {
            let met: Vec<&Early> = caches.iter().filter(|cache| !apart(&appended.range, &cache.range)).collect();
            if !met.iter().all(|cache| appended.holds(cache)) {
                return None;
            }
            late = if met.is_empty() { late } else { late.max(appended.tokens) };
        }
        (self.is_known() && free).then_some(late)
    }
}

impl From<Range<u64>> for InFlightWrites {
    fn from(write: Range<u64>) -> Self {
        Self::from_iter([write])
    }
}

impl FromIterator<Range<u64>> for InFlightWrites {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(writes: I) -> Self {
        let mut open = Self::default();
        open.extend(writes);
        open
    }
}

impl From<Appended> for InFlightWrites {
    fn from(appended: Appended) -> Self {
        Self { appended: vec![appended], told: 1, ..Self::default() }
    }
}

impl Extend<Range<u64>> for InFlightWrites {
    fn extend<I: IntoIterator<Item = Range<u64>>>(&mut self, writes: I) {
        for write in writes {
            self.told += 1;
            add(&mut self.whole, write);
        }
    }
}

/// Appends `write` to `all`, if it is not there.
fn add<T: PartialEq>(all: &mut Vec<T>, write: T) {
    if !all.contains(&write) {
        all.push(write);
    }
}

fn apart(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.end <= b.start || b.end <= a.start
}

/// Whether a launch that reads `reads` before its PDL wait may start while launches that write `open` are still in flight.
pub fn starts_early(open: &InFlightWrites, reads: &[Range<u64>]) -> bool {
    let written = open.whole.iter().chain(open.appended.iter().map(|appended| &appended.range));
    open.is_known() && written.flat_map(|write| reads.iter().map(move |read| (write, read))).all(|(write, read)| apart(write, read))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses of a pool and of its table, and bytes of a token in it: keys, then values.
    const POOL: u64 = 1 << 20;
    const TABLE: u64 = 1 << 10;
    const ROW: u64 = 512;

    fn pool() -> Pool {
        Pool { start: POOL, table: TABLE, cache: PageShape { batch: 2, pages: 4, page: 16, pool_pages: 8 }, row: ROW }
    }

    fn whole() -> Range<u64> {
        POOL..POOL + 8 * 16 * ROW
    }

    fn appended(tokens: u64) -> Appended {
        Appended { range: whole(), pool: pool(), tokens }
    }

    /// Keys or values of the pool, from byte `first` of each token on.
    fn half(first: u64) -> Early {
        Early { range: POOL + first..whole().end, columns: Some((Pool { start: POOL + first, ..pool() }, ROW / 2)) }
    }

    #[test]
    fn early_launches_read_what_none_under_way_writes() {
        let open: InFlightWrites = [0..10, 20..30].into_iter().collect();
        assert!(starts_early(&open, &[]) && starts_early(&open, &[10..20, 30..40]));
        assert!(!starts_early(&open, &[10..20, 9..10]) && !starts_early(&open, &[10..20, 29..40]));
        // A place is listed once, and counts each time.
        assert_eq!([0..10, 20..30, 0..10].into_iter().collect::<InFlightWrites>(), InFlightWrites { told: 3, ..open.clone() });
        // It is unknown what is in flight, or there is too much.
        assert!(!starts_early(&InFlightWrites::default(), &[]) && !starts_early(&(0..MOST as u64).map(|at| at..at + 1).collect(), &[]));
        assert!(!starts_early(&open.clone().and(appended(1).into()), &[whole()]) && starts_early(&open.and(appended(1).into()), &[10..20, 12..14]));
    }

    #[test]
    fn what_was_appended_is_read_late() {
        let caches = [half(0), half(ROW / 2)];
        let late = |open: &InFlightWrites| open.late(&caches);
        assert_eq!(late(&appended(3).into()), Some(3));
        // The longer of two, in whatever order, and beside writes elsewhere.
        assert_eq!(late(&InFlightWrites::from(appended(1)).and(appended(2).into())), Some(2));
        assert_eq!(late(&InFlightWrites::from(appended(2)).and(appended(1).into()).and((0..POOL).into())), Some(2));
        // A cache other than this one.
        let other = Appended { range: 0..POOL, pool: Pool { start: 0, ..pool() }, tokens: 1 };
        assert_eq!(late(&other.into()), Some(0));
    }

    #[test]
    fn what_may_be_written_anywhere_is_waited_for() {
        let caches = [half(0), half(ROW / 2)];
        let late = |open: InFlightWrites| open.late(&caches);
        assert_eq!(late(InFlightWrites::default()), None);
        assert_eq!(late(InFlightWrites::from(appended(1)).and((POOL + 8..POOL + 9).into())), None, "all of an operand");
        let appended_to = |pool| InFlightWrites::from(Appended { pool, ..appended(1) });
        assert_eq!(late(appended_to(Pool { table: TABLE + 4, ..pool() })), None, "by another table");
        assert_eq!(late(appended_to(Pool { row: ROW / 2, ..pool() })), None, "as rows of another length");
        assert_eq!(late(appended_to(Pool { start: POOL + 2, ..pool() })), None, "from behind the first of what is read");
        let shorter = PageShape { page: 8, pool_pages: 16, ..pool().cache };
        assert_eq!(late(appended_to(Pool { cache: shorter, ..pool() })), None, "in other pages");
        // Keys that are not columns of the pool's rows: in no pages, or over the end of a row.
        let open = InFlightWrites::from(appended(1));
        assert_eq!(open.late(&[Early { columns: None, ..half(0) }]), None);
        assert_eq!(open.late(&[half(ROW / 2 + 2)]), None);
    }
}
