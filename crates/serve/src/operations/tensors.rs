//! The tensors of a launch: where they lie if they lie one behind the other, else memory of the launch's own to which they are brought.

use trifuse::backend::Backend;
use trifuse::device::Slice;
use trifuse::ops::index::{Index, TokenAdapters};
use trifuse::ops::pointwise::Kind;
use trifuse::ops::{Pointwise, PointwiseArgs};
use trifuse::session::{Plan, Session};
use trifuse::{Error, Result};

use super::regions::Part;
use super::task::{Attend, Source};

/// Gathers that are kept.
const MOST: usize = 64;

/// Rows that a table is asked for: the plan, and which they are.
struct Gather<D: Backend> {
    plan: Plan<Pointwise, D>,
    rows: Index<TokenAdapters, D>,
    /// What the device has in `rows`.
    known: TokenAdapters,
}

/// Memory for the tensors of launches, which follow one another: q, k, v and o.
pub struct Tensors<D: Backend> {
    own: [Option<Slice<D>>; 4],
    /// The last one used first.
    gathers: Vec<Gather<D>>,
}

impl<D: Backend> Default for Tensors<D> {
    fn default() -> Self {
        Self { own: [const { None }; 4], gathers: Vec::new() }
    }
}

impl<D: Backend> Tensors<D> {
    /// Forgets all; whether there was something.
    pub fn clear(&mut self) -> bool {
        let was = self.own.iter().any(Option::is_some) || !self.gathers.is_empty();
        *self = Self::default();
        was
    }

    /// The tensors of this number of all queries, one behind the other.
    ///
    /// # Errors
    /// Tensors that cannot be brought together; no device memory; a device that fails.
    pub fn bring(&mut self, session: &mut Session<D>, asks: &[&Attend], number: usize) -> Result<Slice<D>> {
        match parts(asks, number) {
            Some(parts) => match joined(&parts) {
                Some(whole) => slice(&whole),
                None => self.gather(session, asks, &parts, number),
            },
            None => {
                let sources: Vec<&Source> = asks.iter().filter_map(|ask| ask.tensors.get(number)).collect();
                let each = sources.first().map_or(0, |source| source.len());
                let own = self.own(session, number, each * sources.len() as u64)?;
                for (at, source) in sources.iter().enumerate() {
                    if let Source::Bytes(bytes) = source {
                        session.write(&nth(&own, at, each)?, bytes)?;
                    }
                }
                Ok(own)
            }
        }
    }

    /// Where the outputs go: to where they are to stay, if that is one place, else to memory of the launch.
    ///
    /// # Errors
    /// No device memory.
    pub fn output(&mut self, session: &Session<D>, asks: &[&Attend]) -> Result<Slice<D>> {
        let parts: Option<Vec<&Part>> = asks.iter().map(|ask| ask.output.as_ref()).collect();
        match parts.and_then(|parts| joined(&parts)) {
            Some(whole) => slice(&whole),
            None => self.own(session, 3, asks.iter().map(|ask| ask.bytes).sum()),
        }
    }

    /// Memory of at least that many bytes, which every launch has for this tensor in its turn.
    fn own(&mut self, session: &Session<D>, number: usize, bytes: u64) -> Result<Slice<D>> {
        let own = self.own.get_mut(number).ok_or_else(|| Error::invalid("tensor", "one of q, k, v and o", number))?;
        let kept = match own {
            Some(kept) if kept.len() >= bytes => kept,
            _ => {
                // What was there goes first, so that there is room.
                *own = None;
                own.insert(session.alloc(bytes)?)
            }
        };
        kept.sub_slice(0, bytes).ok_or_else(|| outside(0, bytes))
    }

    /// Copies parts of a region, which are rows of it as a table, one behind the other: one launch.
    fn gather(&mut self, session: &mut Session<D>, asks: &[&Attend], parts: &[&Part], number: usize) -> Result<Slice<D>> {
        let (Some(&first), Some(dtype)) = (parts.first(), asks.first().map(|ask| ask.op.dtype)) else { return Err(Error::invalid("tensors", "some", 0)) };
        if let Some(other) = parts.iter().find(|part| !part.is_row_beside(first)) {
            return Err(Error::unsupported("queries of one launch", format!("{other:?} and {first:?} are not rows of one table")));
        }
        let vocabulary = i32::try_from(first.region.bytes() / first.bytes).map_err(|_| Error::unsupported("a gather", "more than 2^31 rows"))?.unsigned_abs();
        let ids: Vec<i32> = parts.iter().map(|part| (part.offset / part.bytes) as i32).collect();
        let rows = TokenAdapters::new(&ids, vocabulary)?;
        let op = Pointwise::new(dtype, parts.len() as u64, first.bytes / dtype.size(), Kind::Embedding { vocabulary });
        let table = slice(&Part { offset: 0, bytes: first.bytes * u64::from(vocabulary), ..first.clone() })?;
        let own = self.own(session, number, first.bytes * parts.len() as u64)?;
        // q, k and v of a shape may be of one: each has rows of its own.
        match self.gathers.iter().position(|gather| *gather.plan.op() == op) {
            Some(at) => self.gathers[..=at].rotate_right(1),
            None => {
                self.gathers.truncate(MOST - 1);
                let gather = Gather { plan: session.plan(op)?, rows: session.index(&rows)?, known: rows.clone() };
                self.gathers.insert(0, gather);
            }
        }
        let gather = self.gathers.first_mut().ok_or_else(|| Error::invalid("a gather", "one", "none"))?;
        // k and v are often of the rows that q is of.
        if gather.known != rows {
            session.update_index(&gather.rows, &rows)?;
            gather.known = rows;
        }
        session.run(&gather.plan, &PointwiseArgs::new(table, own.clone()).with_ids(gather.rows.clone()))?;
        Ok(own)
    }
}

/// The tensors of this number of all queries, where all lie in regions.
pub fn parts<'a>(asks: &[&'a Attend], number: usize) -> Option<Vec<&'a Part>> {
    asks.iter().map(|ask| if let Some(Source::Region(part)) = ask.tensors.get(number) { Some(part) } else { None }).collect()
}

/// The parts as one, where each lies behind the one before.
pub fn joined(parts: &[&Part]) -> Option<Part> {
    let first = *parts.first()?;
    parts.windows(2).all(|pair| pair[1].is_behind(pair[0])).then(|| Part { bytes: parts.iter().map(|part| part.bytes).sum(), ..first.clone() })
}

/// The memory of a part of a region.
pub fn slice<D: Backend>(part: &Part) -> Result<Slice<D>> {
    let whole = part.region.memory().and_then(|memory| memory.downcast_ref::<Slice<D>>());
    whole.and_then(|whole| whole.sub_slice(part.offset, part.bytes)).ok_or_else(|| outside(part.offset, part.bytes))
}

/// The bytes of the query of this number, of which each has as many.
pub fn nth<D: Backend>(all: &Slice<D>, number: usize, each: u64) -> Result<Slice<D>> {
    let at = each.saturating_mul(number as u64);
    all.sub_slice(at, each).ok_or_else(|| outside(at, each))
}

/// A part that its region does not have.
pub fn outside(at: u64, bytes: u64) -> Error {
    Error::invalid("region", "a part of it", format_args!("{bytes} bytes from {at}"))
}
