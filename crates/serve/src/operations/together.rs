//! Which queries are one launch: those with blocks, of one shape, whose tensors lie one behind the other, or are rows of one region as a table.
//!
//! A query with blocks can have the bits that it has alone: the device that computes it tells whether its keys are cut by how many others there are.
//! Without blocks they may be, so such a query is a launch of its own.

use std::sync::Arc;

use super::regions::Part;
use super::task::{Attend, Blocks, Job, Source, Task};

/// The most queries of a launch.
pub const MOST: usize = 32;
/// How many queries launches have, so that few are planned. Those that are copied nowhere are filled up to the next, on devices for
/// which that is faster; others are divided into powers of two.
const SIZES: [usize; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, MOST];
/// Bytes of tensors that queries of a launch may have together, since what does not lie one behind the other is copied. With more of them each is work enough for a launch.
const BYTES: u64 = 128 << 20;

/// The launches of tasks, each by the numbers of its tasks. Tasks that depend on each other keep their order.
pub fn launches(tasks: &[&Task]) -> Vec<Vec<usize>> {
    let (mut all, mut run) = (Vec::new(), Vec::<(usize, &Attend)>::new());
    for (number, task) in tasks.iter().enumerate() {
        match &task.job {
            Job::Attend(ask) if run.iter().all(|(_, other)| alike(other, ask) && apart(other, ask)) => run.push((number, ask)),
            Job::Attend(ask) => {
                cut(&mut run, &mut all);
                run.push((number, ask));
            }
            _ => {
                cut(&mut run, &mut all);
                all.push(vec![number]);
            }
        }
    }
    cut(&mut run, &mut all);
    all
}

/// Makes launches of queries in any order.
fn cut(run: &mut Vec<(usize, &Attend)>, all: &mut Vec<Vec<usize>>) {
    run.sort_by_cached_key(|(number, ask)| (place(ask), *number));
    let queries = std::mem::take(run);
    for behind in queries.chunk_by(|(_, one), (_, next)| follows(one, next)) {
        let mut rest = behind;
        while let Some((_, ask)) = rest.first() {
            let count = rest.len().min(most_together(ask) as usize);
            let count = if rest.iter().take(count).all(|(_, ask)| costs_no_copy(ask)) { count } else { 1 << count.ilog2() };
            let (launch, left) = rest.split_at(count);
            all.push(launch.iter().map(|(number, _)| *number).collect());
            rest = left;
        }
    }
}

/// The tensors in regions.
fn parts(ask: &Attend) -> impl Iterator<Item = &Part> {
    let blocks = match &ask.blocks {
        Blocks::All => [None, None],
        Blocks::Map(map, _) => [Some(map), None],
        Blocks::Rows(rows, columns, _) => [Some(rows), Some(columns)],
    };
    ask.tensors.iter().chain(blocks.into_iter().flatten()).filter_map(part).chain(ask.output.as_ref())
}

fn part(source: &Source) -> Option<&Part> {
    if let Source::Region(part) = source { Some(part) } else { None }
}

/// Whether queries could be one launch wherever their tensors were.
fn alike(one: &Attend, other: &Attend) -> bool {
    let blocks = match (&one.blocks, &other.blocks) {
        (Blocks::Map(_, own), Blocks::Map(_, other)) | (Blocks::Rows(_, _, own), Blocks::Rows(_, _, other)) => own == other,
        _ => false,
    };
    blocks && one.op == other.op
}

/// Whether neither writes what the other reads or writes.
fn apart(one: &Attend, other: &Attend) -> bool {
    let clear = |one: &Attend, other: &Attend| one.output.iter().all(|written| parts(other).all(|part| !written.overlaps(part)));
    clear(one, other) && clear(other, one)
}

/// Where the tensors are: the address of each region, and the bytes from its start.
fn place(ask: &Attend) -> Vec<(usize, u64)> {
    parts(ask).map(|part| (Arc::as_ptr(&part.region) as usize, part.offset)).collect()
}

/// Whether the tensors of `next` can be brought behind those of `one`, and a launch can have the blocks of both.
fn follows(one: &Attend, next: &Attend) -> bool {
    let sources = |pair: (&Source, &Source)| match pair {
        // They are written one behind the other.
        (Source::Bytes(_), Source::Bytes(_)) => true,
        (Source::Region(one), Source::Region(next)) => next.is_behind(one) || next.is_row_beside(one),
        _ => false,
    };
    let outputs = match (&one.output, &next.output) {
        (None, None) => true,
        // Outputs that are copied to their places are whole words.
        (Some(one), Some(next)) => next.is_behind(one) || (one.is_words() && next.is_words()),
        _ => false,
    };
    alike(one, next) && outputs && one.tensors.iter().zip(&next.tensors).all(sources) && blocks(one, next)
}

/// Whether a launch can have the blocks of both: those that each sequence and head has for itself, or heads; else the same.
fn blocks(one: &Attend, next: &Attend) -> bool {
    let each = one.op.heads * one.op.batch;
    let same = |one: &Source, next: &Source| match (one, next) {
        (Source::Bytes(one), Source::Bytes(next)) => one == next,
        (Source::Region(one), Source::Region(next)) => one.is(next),
        _ => false,
    };
    match (&one.blocks, &next.blocks) {
        (Blocks::Map(own, [.., patterns]), Blocks::Map(other, _)) => *patterns > 1 || each == 1 || same(own, other),
        (Blocks::Rows(own, columns, [.., patterns]), Blocks::Rows(other, others, _)) => {
            *patterns > 1 || each == 1 || (same(own, other) && same(columns, others))
        }
        _ => false,
    }
}

/// Whether a query beside others may be there twice at no cost but its own: nothing of it is written into place.
fn costs_no_copy(ask: &Attend) -> bool {
    ask.output.is_none() && ask.tensors.iter().all(|source| matches!(source, Source::Region(_)))
}

/// The queries that a launch has: these, and the last one again until there are as many as some launch has.
pub fn filled<'a>(asks: &[&'a Attend]) -> Vec<&'a Attend> {
    let mut all = asks.to_vec();
    if let (Some(last), true) = (asks.last(), asks.iter().all(|ask| costs_no_copy(ask))) {
        all.resize(SIZES.into_iter().find(|size| *size >= asks.len()).unwrap_or(asks.len()), last);
    }
    all
}

/// How many queries like this one may be one launch: a power of two.
pub fn most_together(ask: &Attend) -> u64 {
    let bytes = ask.tensors.iter().map(Source::len).sum::<u64>() + ask.bytes;
    let most = BYTES.checked_div(bytes).unwrap_or(u64::MAX).clamp(1, MOST as u64);
    1 << most.ilog2()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use trifuse::DType;
    use trifuse::ops::Attention;

    use super::super::regions::{Region, Regions};
    use super::*;

    /// Bytes of a tensor.
    const EACH: u64 = 64 * 32 * 2;

    fn region() -> Arc<Region> {
        Regions::new(1 << 30).reserve(64 * EACH).unwrap()
    }

    /// Queries of which each has its place in four regions, whose outputs stay in the last one where `stays`.
    fn tasks(count: u64, stays: bool) -> Vec<Task> {
        let regions = [region(), region(), region(), region()];
        let query = |number: u64| {
            let at = number * 7 % count;
            let part = |region: &Arc<Region>| Part::of(region, at * EACH, EACH).unwrap();
            let [q, k, v, o] = regions.each_ref().map(part);
            let blocks = Blocks::Map(Source::Bytes(vec![1].into()), [64, 1, 1, 1]);
            let (op, tensors) = (Attention::dense(DType::F16, 1, [1, 1], [64, 64], 32), [q, k, v].map(Source::Region));
            Attend { op, tensors, blocks, output: stays.then_some(o), bytes: EACH, wants_bytes: !stays, wants_checksum: true }
        };
        (0..count).map(|number| Task::new(Job::Attend(Box::new(query(number))))).collect()
    }

    fn sizes(count: u64, stays: bool) -> Vec<usize> {
        let tasks = tasks(count, stays);
        let all = launches(&tasks.iter().collect::<Vec<_>>());
        let mut met: Vec<usize> = all.concat();
        met.sort_unstable();
        assert!(met.into_iter().eq(0..count as usize), "each once");
        all.iter().map(Vec::len).collect()
    }

    #[test]
    fn queries_that_are_copied_nowhere_are_one_launch_whatever_their_number() {
        assert_eq!([sizes(1, false), sizes(5, false), sizes(32, false)], [vec![1], vec![5], vec![32]]);
        assert_eq!(sizes(45, false), [32, 13]);
        assert_eq!(sizes(13, true), [8, 4, 1], "outputs go to places of their own");
    }

    #[test]
    fn a_launch_is_filled_up_with_its_last_query() {
        for (count, expected) in [(1, 1), (2, 2), (5, 6), (9, 12), (13, 16), (17, 24), (25, 32), (32, 32)] {
            let tasks = tasks(count, false);
            let asks: Vec<&Attend> = tasks.iter().filter_map(|task| if let Job::Attend(ask) = &task.job { Some(&**ask) } else { None }).collect();
            let all = filled(&asks);
            assert_eq!(all.len(), expected, "{count}");
            assert!(all.iter().zip(&asks).all(|(one, other)| std::ptr::eq(*one, *other)));
            assert!(all[asks.len()..].iter().all(|ask| std::ptr::eq(*ask, asks[asks.len() - 1])));
        }
        let tasks = tasks(5, true);
        let asks: Vec<&Attend> = tasks.iter().filter_map(|task| if let Job::Attend(ask) = &task.job { Some(&**ask) } else { None }).collect();
        assert_eq!(filled(&asks).len(), 5, "as many as there are");
    }
}
