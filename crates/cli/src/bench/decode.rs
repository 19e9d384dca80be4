//! A step of decoding, one layer after another: each appends a token to its own cache, and attends to all of it.

use super::operand::{Values, spread};
use super::sample::{Placed, Sample, places};
use trifuse::backend::Backend;
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::attention::{AttentionIndex, Strides};
use trifuse::ops::index::{PageShape, PageTable};
use trifuse::ops::pointwise::Kind;
use trifuse::ops::{Attention, AttentionArgs, Pointwise, PointwiseArgs};
use trifuse::session::Session;
use trifuse_testkit::cases::{Draw, Posed};
use trifuse_testkit::oracle::attention::{Host, HostForm};

/// Tokens of a page.
const PAGE: u64 = 64;
/// Queries that are looked at.
const MOST: u64 = 16;

/// One step of decoding through all layers.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub dtype: DType,
    pub batch: u64,
    pub heads: [u64; 2],
    pub kv_len: u64,
    pub head_dim: u64,
    pub layers: u64,
}

impl Step {
    fn cache(self) -> PageShape {
        let pages = self.kv_len.div_ceil(PAGE);
        PageShape { batch: self.batch, pages, page: PAGE, pool_pages: self.batch * pages }
    }

    /// Elements of a token's keys, and as many of its values behind them.
    fn row(self) -> u64 {
        self.heads[1] * self.head_dim
    }

    /// Attention over keys and values in one pool of pages.
    pub fn attention(self) -> Attention {
        let strides = Strides { batch: PAGE * 2 * self.row(), token: 2 * self.row(), head: self.head_dim };
        Attention::paged(self.dtype, self.cache(), self.heads, 1, self.head_dim).with_k(strides).with_v(strides)
    }

    /// The operands, and what appends to each layer's cache before it attends. The new token lies in no cache before.
    pub fn operands<D: Backend>(self, session: &mut Session<D>, draw: &mut Draw) -> Result<Placed<Attention, D>> {
        let (row, size, cache) = (self.row(), self.dtype.size(), self.cache());
        let [tokens, queries] = [cache.pool_pages * PAGE * 2 * row, self.batch * self.heads[0] * self.head_dim];
        let table: Vec<i32> = (0..cache.pool_pages as i32).collect();
        let index = session.index(&PageTable::new(&table, &vec![self.kv_len as i32; self.batch as usize], cache)?)?;
        let mut placed = Placed::default();
        for _ in 0..self.layers {
            let [q, pool] = [queries, tokens].map(|count| Values::normal(draw, self.dtype, count, 1.0));
            let last: Vec<u64> = (1..=self.batch).map(|sequence| (sequence - 1) * cache.pages * PAGE + self.kv_len - 1).collect();
            let (new, y) = (session.upload(&self.dtype.encode(&pool.rows(&last, 2 * row)))?, pool.upload(session)?);
            let part = |first: u64, len: u64| {
                let part = y.sub_slice(first * size, len * size);
                part.ok_or_else(|| Error::invalid("cache", format!("{tokens} elements"), format!("{len} at {first}")))
            };
            for token in last {
                session.write(&part(token * 2 * row, 2 * row)?, &vec![u8::MAX; (2 * row * size) as usize])?;
            }
            let (k, v) = (part(0, tokens - row)?, part(row, tokens - row)?);
            let kind = Kind::Append { cache, stride: 2 * row };
            let append = session.plan(Pointwise::new(self.dtype, self.batch, 2 * row, kind))?;
            let appends = PointwiseArgs::new(new, y).with_pages(Some(index.clone()));
            placed.copies.push(Box::new(move |session| session.run(&append, &appends)));
            let o = session.alloc(queries * size)?;
            let args = AttentionArgs::new(q.upload(session)?, k, v, o.clone()).with_index(AttentionIndex::Paged(index.clone()));
            placed.push(args, o, Box::new(move |_| Ok(self.samples(&q, &pool))));
        }
        Ok(placed)
    }

    /// Queries of heads, each with all keys of its sequence.
    fn samples(self, q: &Values, pool: &Values) -> Vec<Sample> {
        let [heads, kv_heads] = self.heads;
        let columns: Vec<u64> = (0..self.head_dim).collect();
        let sample = |&place: &u64| {
            let (head, sequence) = (place % heads * kv_heads / heads, place / heads);
            let first = sequence * self.cache().pages * PAGE;
            let side =
                |side: u64| pool.rows(&(first..first + self.kv_len).map(|token| (2 * token + side) * kv_heads + head).collect::<Vec<_>>(), self.head_dim);
            let op = Attention::dense(self.dtype, 1, [1, 1], [1, self.kv_len], self.head_dim);
            let host = Host { q: q.rows(&[place], self.head_dim), k: side(0), v: side(1), index: HostForm::None, slots: None };
            Sample::new(Posed { op, host }, places(&[place], &columns, self.head_dim))
        };
        spread(&mut Draw::seeded("sample"), MOST, self.batch * heads).iter().map(sample).collect()
    }
}
