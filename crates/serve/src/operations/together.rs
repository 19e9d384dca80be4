//! Which queries are one launch: those with blocks, of one shape, whose tensors lie one behind the other, or are rows of one region as a table.
//!
//! A query with blocks can have the bits that it has alone: the device that computes it tells whether its keys are cut by how many others there are.
//! Without blocks they may be, so such a query is a launch of its own.

use std::sync::Arc;

use super::regions::Part;
use super::task::{Attend, Blocks, Job, Source, Task};

/// The most queries of a launch. Launches have powers of two of them, so that few are planned.
pub const MOST: usize = 32;
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
            let (launch, left) = rest.split_at(1 << count.ilog2());
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

/// How many queries like this one may be one launch: a power of two.
pub fn most_together(ask: &Attend) -> u64 {
    let bytes = ask.tensors.iter().map(Source::len).sum::<u64>() + ask.bytes;
    let most = BYTES.checked_div(bytes).unwrap_or(u64::MAX).clamp(1, MOST as u64);
    1 << most.ilog2()
}
