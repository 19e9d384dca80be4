//! Launches of every operation on places drawn from one memory: what one reads, be it rows, a weight, or keys, another has just written, or writes
//! next, or its neighbour does. A device may begin one before the last has ended, and must leave what launches leave that are waited for.

use std::rc::Rc;
use std::sync::Arc;

use trifuse::backend::{Backend, Kernel};
use trifuse::device::Slice;
use trifuse::ops::attention::{AttentionIndex, Strides};
use trifuse::ops::codebook_gemm::{CodebookSliceArgs, FactorArgs};
use trifuse::ops::index::{AdapterCodes, Codes, CodesShape, Index, PageShape, PageTable, TokenAdapters};
use trifuse::ops::pointwise::Kind;
use trifuse::ops::{
    Activation, Attention, AttentionArgs, CodeWidth, CodebookGemm, CodebookGemmArgs, FusedMlp, FusedMlpArgs, GroupedLinear, GroupedLinearArgs, Linear,
    LinearArgs, Op, Pointwise, PointwiseArgs,
};
use trifuse::session::{Plan, Session};
use trifuse::{DType, Error, Result};

use super::Test;
use super::work::noise;

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![("launches on places of one memory leave what launches leave that are waited for", mixed)]
}

/// Launches in a row, and such rows, on a large device and on a small one.
const LAUNCHES: usize = 12;
const ROUNDS: [u32; 2] = [60, 16];
/// Tokens of a product, few and many; of their adapters, few and many.
const TOKENS: [u64; 2] = [16, 144];
const ADAPTERS: [u32; 2] = [3, 40];
const RANK: u64 = 16;
const WIDTH: CodeWidth = CodeWidth::FourThree;
/// Sequences of a cache, and heads of queries on one of its heads.
const SEQUENCES: u64 = 4;
const GROUP: u64 = 4;
const HEAD_DIM: u64 = 128;

type Launch<B> = Box<dyn Fn(&mut Session<B>) -> Result<()>>;
/// Draws places for the operands of a launch.
type Draw<B> = Box<dyn Fn(&mut Places<B>) -> Launch<B>>;

/// Places of one memory.
struct Places<B: Backend> {
    memory: Slice<B>,
    dtype: DType,
    /// Elements that most of them start on a multiple of, and those in front that few of them but caches and weights lie in.
    cell: u64,
    front: u64,
    seed: u32,
    drawn: usize,
}

impl<B: Backend> Places<B> {
    fn below(&mut self, end: u64) -> u64 {
        self.drawn += 2;
        let [low, high] = [0, 1].map(|byte| u64::from(noise(self.seed, self.drawn + byte)));
        ((high << 8 | low) * end) >> 16
    }

    /// Of so many elements: next to others, or over them.
    fn any(&mut self, len: u64) -> Slice<B> {
        let (size, nudge) = (self.dtype.size(), if self.below(4) == 0 { 8 } else { 0 });
        let start = if self.below(8) == 0 { 0 } else { self.front } + nudge;
        let cells = (self.memory.len() / size - start - len) / self.cell + 1;
        let first = start + self.below(cells) * self.cell;
        self.memory.sub_slice(first * size, len * size).expect("inside")
    }

    /// One of two, a page of a cache apart: launches often name the same.
    fn usual(&mut self, len: u64) -> Slice<B> {
        let first = self.below(8) / 6 * 8 * self.cell;
        self.memory.sub_slice(first * self.dtype.size(), len * self.dtype.size()).expect("inside")
    }
}

fn draw<O: Op, B: Kernel<O> + Backend>(plan: Plan<O, B>, args: impl Fn(&mut Places<B>) -> O::Args<B> + 'static) -> Draw<B>
where
    O::Args<B>: 'static,
{
    let plan = Rc::new(plan);
    Box::new(move |places| {
        let (plan, args) = (plan.clone(), args(places));
        Box::new(move |session| session.run(&plan, &args))
    })
}

/// What adapters have in no launch's reach.
#[derive(Clone)]
struct Adapters<B: Backend> {
    tokens: Index<TokenAdapters, B>,
    codes: Index<Codes, B>,
    scaling: Slice<B>,
    codebooks: Slice<B>,
    op: CodebookGemm,
}

impl<B: Backend> Adapters<B> {
    fn new(session: &mut Session<B>, op: CodebookGemm) -> Result<Self> {
        let (adapters, d) = (op.adapters, op.slices[0].d_out);
        let indices = |seed: u32, below: u8| (0..(d * RANK) as usize).map(|i| noise(seed, i) % below).collect::<Vec<u8>>();
        let adapter = |seed: u32| AdapterCodes::from_indices(d as u32, RANK as u32, WIDTH, &indices(seed, 16), &indices(seed + 100, 8));
        let ids: Vec<i32> = (0..op.tokens as i32).map(|token| (token * 7 + 1) % (adapters as i32 + 1) - 1).collect();
        let codes = Codes::new(CodesShape::uniform(adapters, d as u32, RANK as u32, WIDTH)?, &(0..adapters).map(adapter).collect::<Result<Vec<_>>>()?)?;
        let codebooks: Vec<f32> = (0..adapters as usize * 52).map(|i| f32::from(noise(5, i)) / 512.0 - 0.25).collect();
        Ok(Self {
            tokens: session.index(&TokenAdapters::new(&ids, adapters)?)?,
            codes: session.index(&codes)?,
            scaling: session.upload(&vec![1.0f32; adapters as usize])?,
            codebooks: session.upload(&codebooks)?,
            op,
        })
    }

    fn args(&self, places: &mut Places<B>, x: Slice<B>, y: Slice<B>) -> CodebookGemmArgs<B> {
        let input = FactorArgs::Dense { values: places.any(self.op.d_in * RANK), basis_of: None };
        let output = FactorArgs::Coded { codes: self.codes.clone(), codebooks: self.codebooks.clone() };
        let slices = vec![CodebookSliceArgs::new(input, output, y)];
        CodebookGemmArgs::new(x, self.tokens.clone(), self.scaling.clone(), slices)
    }
}

/// Launches of every operation, the last two those of caches; and the memory that places are drawn from.
fn operations<B: Backend>(session: &mut Session<B>, dtype: DType) -> Result<(Vec<Draw<B>>, Places<B>)> {
    // So many heads and keys that a step of decoding keeps a device of any size busy, and not so many that the next launch cannot begin.
    let units = u64::from(session.caps().multiprocessors.min(256));
    let kv_heads = (units / (4 * SEQUENCES)).max(2);
    let keys = (2 * units).div_ceil(SEQUENCES * kv_heads).max(3) * 64;
    let (wide, row) = (kv_heads * HEAD_DIM, 2 * kv_heads * HEAD_DIM);
    let mut all = Vec::new();
    for tokens in TOKENS {
        let rows = tokens * wide;
        let op = Pointwise::new(dtype, tokens, wide, Kind::Add);
        all.push(draw(session.plan(op)?, move |at| PointwiseArgs::new(at.any(rows), at.any(rows)).with_residual(Some(at.any(rows)))));
        let op = Linear::new(dtype, [tokens, wide, wide]).with_bias(true).with_residual(true);
        all.push(draw(session.plan(op)?, move |at| {
            LinearArgs::new(at.any(rows), at.usual(wide * wide), at.any(rows)).with_bias(Some(at.any(wide))).with_residual(Some(at.any(rows)))
        }));
        let op = GroupedLinear::new(vec![Linear::new(dtype, [tokens, wide, wide]); 2]);
        all.push(draw(session.plan(op)?, move |at| {
            let x = at.any(rows);
            let own = |at: &mut Places<B>| LinearArgs::new(x.clone(), at.usual(wide * wide), at.any(rows));
            GroupedLinearArgs::new(vec![own(at), own(at)])
        }));
        let op = GroupedLinear::new(vec![Linear::new(dtype, [tokens, wide, wide]); 2]).with_gate(Activation::Silu);
        match session.plan(op) {
            Ok(plan) => all.push(draw(plan, move |at| {
                let y = at.any(rows);
                let own = |at: &mut Places<B>| LinearArgs::new(at.any(rows), at.usual(wide * wide), y.clone());
                GroupedLinearArgs::new(vec![own(at), own(at)])
            })),
            // Not every backend has gates with rows of their own.
            Err(Error::Unsupported { .. }) => {}
            Err(error) => return Err(error),
        }
        let op = FusedMlp::new(dtype, [tokens, wide, wide, wide], Activation::Silu).with_residual(true);
        all.push(draw(session.plan(op)?, move |at| {
            FusedMlpArgs::new(at.any(rows), at.any(wide * wide), at.usual(wide * wide), at.any(rows)).with_residual(Some(at.any(rows)))
        }));
        for adapters in ADAPTERS {
            let delta = CodebookGemm::s2lc(dtype, tokens, [wide, wide, RANK], adapters, WIDTH).with_accumulate(adapters == ADAPTERS[0]);
            let own = Adapters::new(session, delta)?;
            let plan = session.plan(own.op.clone())?;
            all.push(draw(plan, move |at| {
                let (x, y) = (at.any(rows), at.any(rows));
                own.args(at, x, y)
            }));
        }
        let delta = CodebookGemm::s2lc(dtype, tokens, [wide, wide, RANK], ADAPTERS[0], WIDTH);
        let own = Adapters::new(session, delta.clone())?;
        let op = Linear::new(dtype, [tokens, wide, wide]).with_delta(Some(delta));
        // Where it is there, the one that adds them in a launch of its own.
        let alone = session.configs(&op).into_iter().find(|name| name.starts_with("sm90_skinny:") && !name.contains("-lora"));
        let plan = session.plan_variant(op, alone.as_deref())?;
        all.push(draw(plan, move |at| {
            let (x, y) = (at.any(rows), at.any(rows));
            LinearArgs::new(x.clone(), at.usual(wide * wide), y.clone()).with_delta(own.args(at, x, y))
        }));
    }
    let shape = PageShape { batch: SEQUENCES, pages: keys / 64, page: 64, pool_pages: SEQUENCES * keys / 64 };
    let lengths: Vec<i32> = (0..SEQUENCES as i32).map(|sequence| keys as i32 - sequence * 21).collect();
    let pages: Vec<i32> = (0..shape.pool_pages as i32).rev().collect();
    let (pages, pool, query) = (session.index(&PageTable::new(&pages, &lengths, shape)?)?, SEQUENCES * keys * row, SEQUENCES * GROUP * wide);
    let kind = Kind::Append { cache: shape, stride: row };
    let (op, index) = (Pointwise::new(dtype, SEQUENCES, row, kind), pages.clone());
    let append = session.plan(op)?;
    all.push(draw(append, move |at| PointwiseArgs::new(at.any(SEQUENCES * row), at.usual(pool)).with_pages(Some(index.clone()))));
    let strides = Strides { batch: 64 * row, token: row, head: HEAD_DIM };
    let op = Attention::paged(dtype, shape, [GROUP * kv_heads, kv_heads], 1, HEAD_DIM).with_k(strides).with_v(strides);
    all.push(draw(session.plan(op)?, move |at| {
        let (cache, size) = (at.usual(pool), at.dtype.size());
        let [k, v] = [0, wide].map(|first| cache.sub_slice(first * size, (pool - wide) * size).expect("half of each row"));
        AttentionArgs::new(at.any(query), k, v, at.any(query)).with_index(AttentionIndex::Paged(pages.clone()))
    }));
    let cell = TOKENS[0] * wide;
    let front = pool + 8 * cell;
    let memory = session.alloc((front + 4 * TOKENS[1] * wide + wide * wide) * dtype.size())?;
    Ok((all, Places { memory, dtype, cell, front, seed: 0, drawn: 0 }))
}

fn mixed<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let (all, mut places) = operations(&mut session, DType::F16).or_else(|_| operations(&mut session, DType::F32))?;
    let (memory, dtype) = (places.memory.clone(), places.dtype);
    let few = dtype.encode(&(0..4099).map(|i| f64::from(noise(9, i)) / 2048.0 - 0.0625).collect::<Vec<_>>());
    let fresh: Vec<u8> = few.iter().copied().cycle().take(memory.len() as usize).collect();
    for round in 0..ROUNDS[usize::from(session.caps().multiprocessors < 32)] {
        (places.seed, places.drawn) = (3000 + round, 0);
        let mut launches = Vec::new();
        session.write(&memory, &fresh)?;
        while launches.len() < LAUNCHES {
            // Of three launches one appends to a cache, or reads one.
            let last = if places.below(3) == 0 { 2 } else { all.len() as u64 };
            let which = all.len() - 1 - places.below(last) as usize;
            let launch = all[which](&mut places);
            match launch(&mut session) {
                Ok(()) => launches.push((which, launch)),
                // It would write what it reads.
                Err(Error::Invalid { .. }) => continue,
                Err(error) => return Err(error),
            }
            session.synchronize()?;
        }
        let expected = session.read(&memory)?;
        let graph = session.capture(|session| launches.iter().try_for_each(|(_, launch)| launch(session)))?;
        for replayed in [true, false] {
            session.write(&memory, &fresh)?;
            if replayed {
                session.replay(&graph)?;
            } else {
                launches.iter().try_for_each(|(_, launch)| launch(&mut session))?;
            }
            let kinds: Vec<usize> = launches.iter().map(|(which, _)| *which).collect();
            assert!(session.read(&memory)? == expected, "round {round}, launches {kinds:?}, replayed: {replayed}");
        }
    }
    Ok(())
}
