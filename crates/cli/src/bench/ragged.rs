//! Attention of sequences of their own lengths: end to end, or a chunk of queries each over keys in pages.

use super::operand::{Values, spread};
use super::sample::{Placed, Sample, places};
use super::sequences::{Chunk, Sequences, starts};
use trifuse::backend::Backend;
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::ops::attention::AttentionIndex;
use trifuse::ops::index::{HostIndex, PageTable};
use trifuse::ops::{Attention, AttentionArgs, Cost, Op};
use trifuse::session::Session;
use trifuse_testkit::cases::{Draw, Posed};
use trifuse_testkit::oracle::attention::{Host, HostForm};

/// Queries that are looked at.
const MOST: u64 = 32;

/// Varlen or paged attention over sequences of their own lengths, in an element type.
#[derive(Clone, Debug)]
pub struct Ragged {
    pub dtype: DType,
    pub sequences: Sequences,
}

impl Ragged {
    /// The operation.
    ///
    /// # Errors
    /// More tokens than an index counts.
    pub fn op(&self) -> Result<Attention> {
        let all = &self.sequences;
        let heads = [all.heads, all.kv_heads];
        let op = match all.chunk {
            None => Attention::varlen(self.dtype, all.ends()?.shape(), heads, all.head_dim),
            Some(Chunk { queries, page }) => Attention::paged(self.dtype, all.cache(page), heads, queries, all.head_dim),
        };
        Ok(op.with_causal(all.causal))
    }

    /// Cost of the lengths that there are: the operation knows the longest alone.
    pub fn cost(&self) -> Cost {
        let all = &self.sequences;
        let each = |&length: &u64| {
            let dense = Attention::dense(self.dtype, 1, [all.heads, all.kv_heads], [all.queries(length), length], all.head_dim);
            dense.with_causal(all.causal).cost()
        };
        all.lengths.iter().map(each).fold(Cost { executed_flops: 0.0, useful_flops: 0.0, dense_flops: 0.0, bytes: 0.0 }, |all, one| Cost {
            executed_flops: all.executed_flops + one.executed_flops,
            useful_flops: all.useful_flops + one.useful_flops,
            dense_flops: all.dense_flops + one.dense_flops,
            bytes: all.bytes + one.bytes,
        })
    }

    /// The operands.
    pub fn operands<D: Backend>(self, session: &mut Session<D>, draw: &mut Draw) -> Result<Placed<Attention, D>> {
        let Self { dtype, sequences: all } = &self;
        let tokens: u64 = match all.chunk {
            None => all.lengths.iter().sum(),
            Some(chunk) => all.cache(chunk.page).pool_pages * chunk.page,
        };
        let queries: u64 = all.lengths.iter().map(|&length| all.queries(length)).sum();
        let [q, k, v] = [queries * all.heads, tokens * all.kv_heads, tokens * all.kv_heads].map(|rows| Values::normal(draw, *dtype, rows * all.head_dim, 1.0));
        let index = match all.chunk {
            None => AttentionIndex::Varlen(session.index(&all.ends()?)?),
            Some(chunk) => {
                let (cache, lengths) = (all.cache(chunk.page), all.lengths.iter().map(|&length| length as i32).collect::<Vec<_>>());
                let (mut pages, mut table) = (Sequences::table(cache).into_iter(), Vec::new());
                for length in &all.lengths {
                    let used = length.div_ceil(chunk.page);
                    table.extend((0..cache.pages).map(|n| if n < used { pages.next().map_or(-1, |page| page as i32) } else { -1 }));
                }
                AttentionIndex::Paged(session.index(&PageTable::new(&table, &lengths, cache)?)?)
            }
        };
        let o = session.alloc(queries * all.heads * all.head_dim * dtype.size())?;
        let args = AttentionArgs::new(q.upload(session)?, k.upload(session)?, v.upload(session)?, o.clone()).with_index(index);
        Ok(Placed::one(args, o, Box::new(move |_| Ok(self.samples(&q, [&k, &v])))))
    }

    /// Queries of heads, each with the keys that it sees.
    fn samples(&self, q: &Values, sides: [&Values; 2]) -> Vec<Sample> {
        let all = &self.sequences;
        let (columns, table) = ((0..all.head_dim).collect::<Vec<_>>(), all.chunk.map(|chunk| Sequences::table(all.cache(chunk.page))));
        let ends: Vec<u64> = starts(&all.lengths.iter().map(|&length| all.queries(length)).collect::<Vec<_>>()).into_iter().map(|end| end as u64).collect();
        let sample = |&place: &u64| {
            let (head, row) = (place % all.heads * all.kv_heads / all.heads, place / all.heads);
            let sequence = ends.partition_point(|&end| end <= row) - 1;
            let length = all.lengths[sequence];
            let position = row - ends[sequence] + length - all.queries(length);
            let seen = if all.causal { position + 1 } else { length };
            let token = |token: u64| match (all.chunk, &table) {
                (Some(Chunk { page, .. }), Some(table)) => {
                    let before: u64 = all.lengths[..sequence].iter().map(|length| length.div_ceil(page)).sum();
                    table[(before + token / page) as usize] * page + token % page
                }
                _ => ends[sequence] + token,
            };
            let keys: Vec<u64> = (0..seen).map(|at| token(at) * all.kv_heads + head).collect();
            let [k, v] = sides.map(|side| side.rows(&keys, all.head_dim));
            let op = Attention::dense(self.dtype, 1, [1, 1], [1, seen], all.head_dim);
            let host = Host { q: q.rows(&[place], all.head_dim), k, v, index: HostForm::None, slots: None };
            Sample::new(Posed { op, host }, places(&[place], &columns, all.head_dim))
        };
        let rows = ends.last().copied().unwrap_or(0);
        spread(&mut Draw::seeded("sample"), MOST, rows * all.heads).iter().map(sample).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bench::sequences::lengths;

    fn ragged(chunk: Option<Chunk>) -> Ragged {
        Ragged { dtype: DType::F16, sequences: Sequences { lengths: lengths(5, 100), chunk, heads: 4, kv_heads: 2, head_dim: 32, causal: true } }
    }

    #[test]
    fn lengths_are_the_same_each_time_and_in_range() {
        assert_eq!(lengths(9, 4096), lengths(9, 4096));
        assert!(lengths(9, 4096).iter().all(|length| (512..=4096).contains(length)) && lengths(9, 4096)[0] == 4096);
        assert_eq!(lengths(2, 1), [1, 1]);
    }

    #[test]
    fn every_page_is_used_once() {
        let ragged = ragged(Some(Chunk { queries: 7, page: 16 }));
        let cache = ragged.sequences.cache(16);
        let mut table = Sequences::table(cache);
        assert_ne!(table[1], 1);
        table.sort_unstable();
        assert_eq!(table, (0..cache.pool_pages).collect::<Vec<_>>());
    }

    #[test]
    fn work_is_counted_by_the_lengths_that_there_are() {
        let pairs: u64 = lengths(5, 100).iter().map(|length| length * (length + 1) / 2).sum();
        assert_eq!(ragged(None).cost().useful_flops, 4.0 * 4.0 * 32.0 * pairs as f64);
        let chunked: u64 = lengths(5, 100).iter().map(|length| (length - 6..=*length).sum::<u64>()).sum();
        assert_eq!(ragged(Some(Chunk { queries: 7, page: 16 })).cost().useful_flops, 4.0 * 4.0 * 32.0 * chunked as f64);
        assert_eq!(ragged(None).op().unwrap().batch, 5);
    }
}
