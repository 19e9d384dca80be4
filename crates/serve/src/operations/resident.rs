//! Tensors that are whole sequences of regions: a launch of several queries reads them where they lie, in whatever order.

use std::sync::Arc;

use trifuse::Result;
use trifuse::backend::Backend;
use trifuse::device::Slice;
use trifuse::ops::index::Slots;

use super::regions::Part;
use super::task::Attend;
use super::tensors::{joined, parts, slice};

/// Where a launch reads its tensors.
pub struct Resident<D: Backend> {
    /// The slot of each sequence, the same in all tensors.
    pub slots: Slots,
    /// The number of slots.
    pub room: u32,
    /// Q, k and v of all slots.
    pub tables: [Slice<D>; 3],
}

/// A region as sequences of equal size.
struct Table<'a> {
    first: &'a Part,
    /// Bytes of a sequence.
    each: u64,
    /// The slots of the sequences that are asked for.
    slots: Vec<i32>,
}

impl<'a> Table<'a> {
    /// The table that a tensor of queries of one shape lies in, where they are whole sequences of one region that nothing is written to.
    fn of(asks: &[&Attend], parts: &[&'a Part]) -> Option<Self> {
        let (first, batch) = (*parts.first()?, asks.first()?.op.batch);
        let each = first.bytes.checked_div(batch).filter(|each| *each > 0)?;
        let is_here = |part: &Part| Arc::ptr_eq(&part.region, &first.region);
        let whole = |part: &&Part| is_here(part) && part.bytes == each * batch && part.offset.is_multiple_of(each);
        if !parts.iter().all(whole) || asks.iter().filter_map(|ask| ask.output.as_ref()).any(is_here) {
            return None;
        }
        let mut slots = Vec::with_capacity(parts.len());
        for part in parts {
            let from = i32::try_from(part.offset / each).ok()?;
            slots.extend(from..from.checked_add(i32::try_from(batch).ok()?)?);
        }
        Some(Self { first, each, slots })
    }

    fn room(&self) -> u64 {
        self.first.region.bytes() / self.each
    }

    fn slice<D: Backend>(&self, room: u32) -> Result<Slice<D>> {
        slice(&Part { offset: 0, bytes: self.each * u64::from(room), ..self.first.clone() })
    }
}

/// The slots of the regions that a query has its tensors in, if they are whole sequences there: those of it and of others like it.
pub fn room(ask: &Attend) -> Option<u32> {
    let tables = [0, 1, 2].map(|number| parts(&[ask], number).and_then(|parts| Table::of(&[ask], &parts).map(|table| table.room())));
    let [q, k, v] = tables;
    u32::try_from(q?.min(k?).min(v?)).ok()
}

/// Where queries of one shape have their tensors, if each has q, k and v at the same slots. None where these lie one behind the other, which needs no
/// slots.
///
/// # Errors
/// Regions without memory.
pub fn resident<D: Backend>(asks: &[&Attend]) -> Result<Option<Resident<D>>> {
    let (Some(q), Some(k), Some(v)) = (parts(asks, 0), parts(asks, 1), parts(asks, 2)) else { return Ok(None) };
    if [&q, &k, &v].into_iter().all(|parts| joined(parts).is_some()) {
        return Ok(None);
    }
    let (Some(q), Some(k), Some(v)) = (Table::of(asks, &q), Table::of(asks, &k), Table::of(asks, &v)) else { return Ok(None) };
    let room = u32::try_from(q.room().min(k.room()).min(v.room())).unwrap_or(u32::MAX);
    if q.slots != k.slots || q.slots != v.slots {
        return Ok(None);
    }
    Ok(Some(Resident { slots: Slots::new(&q.slots, room)?, room, tables: [q.slice(room)?, k.slice(room)?, v.slice(room)?] }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use trifuse::DType;
    use trifuse::backends::cpu::Cpu;
    use trifuse::device::Open as _;
    use trifuse::ops::Attention;
    use trifuse::session::Session;

    use super::super::regions::{Region, Regions};
    use super::super::task::{Blocks, Source};
    use super::*;

    /// Bytes of a sequence of q, and of k and v.
    const SIZES: [u64; 3] = [2 * 16 * 2, 3 * 16 * 2, 3 * 16 * 2];

    /// Regions of eight sequences each, and some bytes.
    fn regions() -> Vec<Arc<Region>> {
        let (all, session) = (Regions::new(1 << 20), Session::new(Arc::new(Cpu::open(0).unwrap())).unwrap());
        let region = |bytes: u64| {
            let region = all.reserve(8 * bytes + 4).unwrap();
            region.give(Box::new(session.alloc(8 * bytes + 4).unwrap()));
            region
        };
        SIZES.map(region).into()
    }

    /// A query of `batch` sequences from those numbers on.
    fn ask(regions: &[Arc<Region>], batch: u64, at: [u64; 3]) -> Attend {
        let tensors = [0, 1, 2].map(|n| Source::Region(Part::of(&regions[n], at[n] * SIZES[n], batch * SIZES[n]).unwrap()));
        let op = Attention::dense(DType::F16, batch, [1, 1], [2, 3], 16);
        Attend { op, tensors, blocks: Blocks::All, output: None, bytes: batch * SIZES[0], wants_bytes: true, wants_checksum: false }
    }

    fn slots(asks: &[Attend]) -> Option<Vec<i32>> {
        let found = resident::<Cpu>(&asks.iter().collect::<Vec<_>>()).unwrap()?;
        assert_eq!((found.room, found.tables.map(|table| table.len())), (8, SIZES.map(|bytes| 8 * bytes)));
        Some(found.slots.slots().to_vec())
    }

    #[test]
    fn whole_sequences_are_at_slots_in_any_order_and_twice() {
        let regions = regions();
        let at = |batch, number| ask(&regions, batch, [number; 3]);
        assert_eq!(slots(&[at(1, 7), at(1, 0), at(1, 7)]), Some(vec![7, 0, 7]));
        assert_eq!(room(&at(1, 7)), Some(8));
        assert_eq!(slots(&[at(2, 3), at(2, 0)]), Some(vec![3, 4, 0, 1]), "from any sequence on");
        assert_eq!(slots(&[at(2, 3), at(2, 5)]), None, "one behind the other");
        assert_eq!(slots(&[ask(&regions, 1, [1, 2, 2]), ask(&regions, 1, [0, 0, 0])]), None, "keys at other slots than queries");
    }

    #[test]
    fn what_is_no_sequence_or_is_written_is_not_read_in_place() {
        let regions = regions();
        let at = |number| ask(&regions, 1, [number; 3]);
        let mut off = at(3);
        off.tensors[1] = Source::Region(Part::of(&regions[1], 4, SIZES[1]).unwrap());
        assert_eq!(slots(&[at(5), off]), None, "between sequences");
        let mut other = at(3);
        other.tensors[2] = Source::Region(Part::of(&regions[1], 0, SIZES[2]).unwrap());
        assert_eq!(slots(&[at(5), other]), None, "in two regions");
        let mut sent = at(3);
        sent.tensors[0] = Source::Bytes(vec![0; SIZES[0] as usize].into());
        assert_eq!(slots(&[at(5), sent]), None, "on the host");
        let mut written = at(3);
        written.output = Part::of(&regions[0], 0, SIZES[0]);
        assert_eq!(slots(&[at(5), written]), None, "an output beside queries");
    }
}
