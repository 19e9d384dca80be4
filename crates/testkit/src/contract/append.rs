//! Decoding over a cache that the launch just before appended to. A device may read older keys before the last launch has ended, and must find the
//! new ones, and the query, all the same.

use std::sync::Arc;

use trifuse::backend::Backend;
use trifuse::device::Slice;
use trifuse::ops::attention::{AttentionIndex, Strides};
use trifuse::ops::index::{Index, PageShape, PageTable};
use trifuse::ops::pointwise::Kind;
use trifuse::ops::{Attention, AttentionArgs, Pointwise, PointwiseArgs};
use trifuse::session::{Plan, Session};
use trifuse::{DType, Result};

use super::Test;
use super::work::noise;

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![("decoding over keys that were just appended gives the bits of launches that are waited for, at every length", appended)]
}

const HEAD_DIM: u64 = 128;
/// Of one graph; on a device of few units each takes long, and the order of work is nearly the same each time.
const STEPS: [u64; 2] = [100, 10];

/// A cache, and how it is used.
#[derive(Clone, Copy)]
struct Cache {
    page: u64,
    /// Of the first replay, and of the second.
    lengths: [&'static [i32]; 2],
    /// Heads of queries on one of keys, and new tokens of a step, each with a query.
    group: u64,
    tokens: u64,
    /// K and V in one pool, which one launch appends to.
    joined: bool,
    /// Each step asks with what the one before answered.
    dependent: bool,
}

fn appended<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mixed: [&[i32]; 2] = [&[577, 3], &[64, 640]];
    let alone: [&[i32]; 2] = [&[640], &[65]];
    for (page, lengths, group, tokens, joined, dependent) in [
        (64, mixed, 1, 1, true, false),
        (64, mixed, 4, 2, true, true),
        (64, [&[1, 0, 128, 500][..], &[129, 640, 2, 63]], 1, 2, false, false),
        // One page a sequence: tokens end to end.
        (640, alone, 1, 1, true, true),
        (640, mixed, 1, 1, false, false),
    ] {
        follow(device, Cache { page, lengths, group, tokens, joined, dependent })?;
    }
    Ok(())
}

/// The plans, and what they run on.
struct Steps<B: Backend> {
    append: Plan<Pointwise, B>,
    attend: Plan<Attention, B>,
    index: Index<PageTable, B>,
    steps: Vec<(Vec<PointwiseArgs<B>>, AttentionArgs<B>)>,
}

fn table(cache: Cache, shape: PageShape, lengths: &[i32]) -> Result<PageTable> {
    // In no order, and each in one place.
    let pages: Vec<i32> = (0..shape.pool_pages as i32).rev().map(|page| page ^ i32::from(cache.page == 64)).collect();
    PageTable::new(&pages, lengths, shape)
}

impl<B: Backend> Steps<B> {
    fn new(session: &mut Session<B>, cache: Cache) -> Result<Self> {
        let batch = cache.lengths[0].len() as u64;
        // As many as keep a device of any size busy, and none so busy that the next launch cannot begin.
        let units = u64::from(session.caps().multiprocessors);
        let (kv_heads, count) = ((units / (4 * batch)).max(2), STEPS[usize::from(units < 32)]);
        let shape = PageShape { batch, pages: 640 / cache.page, page: cache.page, pool_pages: batch * 640 / cache.page };
        let (row, heads) = (kv_heads * HEAD_DIM, [kv_heads * cache.group, kv_heads]);
        let wide = if cache.joined { 2 * row } else { row };
        let strides = Strides { batch: cache.page * wide, token: wide, head: HEAD_DIM };
        let op = |dtype| Attention::paged(dtype, shape, heads, cache.tokens, HEAD_DIM).with_k(strides).with_v(strides).with_causal(cache.tokens > 1);
        let attend = session.plan(op(DType::F16)).or_else(|_| session.plan(op(DType::F32)))?;
        let (dtype, rows) = (attend.op().dtype, batch * cache.tokens);
        let kind = Kind::Append { cache: shape, stride: 2 * row };
        let append = session.plan(Pointwise::new(dtype, rows, wide, kind))?;
        let index = session.index(&table(cache, shape, cache.lengths[0])?)?;

        let size = dtype.size();
        let drawn = |seed: u32, len: u64| {
            let few = dtype.encode(&(0..4099).map(|i| f64::from(noise(seed, i)) / 64.0 - 2.0).collect::<Vec<_>>());
            few.iter().copied().cycle().take((len * size) as usize).collect::<Vec<u8>>()
        };
        let part = |slice: &Slice<B>, first: u64, len: u64| slice.sub_slice(first * size, len * size).expect("a part");
        let pool = batch * 640 * wide;
        let pools = [session.upload(&drawn(1, pool))?, session.upload(&drawn(2, pool))?];
        let [k, v] = if cache.joined { [0, row].map(|first| part(&pools[0], first, pool - row)) } else { pools.clone() };
        let query = rows * heads[0] * HEAD_DIM;
        let (mut q, others) = (session.upload(&drawn(3, query))?, session.upload(&drawn(4, query + count * 8))?);
        let mut steps = Vec::new();
        for step in 0..count {
            let x = session.upload(&drawn(100 + step as u32, rows * 2 * row))?;
            let o = session.upload(&drawn(5, query))?;
            let columns = if cache.joined { vec![x] } else { [0, row].map(|first| part(&x, first, (2 * rows - 1) * row)).into() };
            let appends = columns.into_iter().zip(pools.clone()).map(|(x, y)| PointwiseArgs::new(x, y).with_pages(Some(index.clone()))).collect();
            let attends = AttentionArgs::new(q, k.clone(), v.clone(), o.clone()).with_index(AttentionIndex::Paged(index.clone()));
            steps.push((appends, attends));
            q = if cache.dependent { o } else { part(&others, step * 8, query) };
        }
        Ok(Self { append, attend, index, steps })
    }

    fn run(&self, session: &mut Session<B>, wait: bool) -> Result<()> {
        for (appends, attends) in &self.steps {
            appends.iter().try_for_each(|args| session.run(&self.append, args))?;
            session.run(&self.attend, attends)?;
            if wait {
                session.synchronize()?;
            }
        }
        Ok(())
    }
}

fn follow<B: Backend>(device: &Arc<B>, cache: Cache) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let work = Steps::new(&mut session, cache)?;
    let graph = session.capture(|session| work.run(session, false))?;
    for lengths in cache.lengths {
        session.update_index(&work.index, &table(cache, *work.index.shape(), lengths)?)?;
        work.run(&mut session, true)?;
        let read = |session: &mut Session<B>| work.steps.iter().map(|(_, args)| session.read(&args.o)).collect::<Result<Vec<_>>>();
        let expected = read(&mut session)?;
        assert!(expected.windows(2).all(|pair| pair[0] != pair[1]), "each step has keys of its own");
        for (_, args) in &work.steps {
            session.write(&args.o, &vec![0xff; args.o.len() as usize])?;
        }
        session.replay(&graph)?;
        for (step, (found, expected)) in read(&mut session)?.iter().zip(&expected).enumerate() {
            assert!(
                found == expected,
                "step {step} of lengths {lengths:?} in pages of {}, joined: {}, dependent: {}",
                cache.page,
                cache.joined,
                cache.dependent
            );
        }
    }
    Ok(())
}
