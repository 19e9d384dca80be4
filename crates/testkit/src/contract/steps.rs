//! An answer may not depend on who else is served: a query over keys in pages gets the same bits alone, in a chunk of a prompt of any size, among
//! other sequences, and wherever its pages lie.

use std::sync::Arc;

use trifuse::backend::{Backend, Kernel};
use trifuse::ops::attention::AttentionIndex;
use trifuse::ops::index::{RaggedPages, RaggedShape};
use trifuse::ops::{Attention, AttentionArgs};
use trifuse::session::Session;
use trifuse::{DType, Error, Result};

use super::Test;
use super::work::noise;

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![("a query over pages gets the same bits alone, in any chunk and in any batch", alike)]
}

/// Tokens of the sequence: over the end of a page, and of the steps of every kernel.
const LENGTH: usize = 83;
const PAGE: usize = 16;
const PAGES: usize = LENGTH.div_ceil(PAGE);
const HEADS: [u64; 2] = [6, 2];
const HEAD_DIM: u64 = 64;
/// The sequence in chunks of so many tokens, of which every so manieth is asked for.
const CHUNKS: [[usize; 2]; 3] = [[16, 1], [7, 2], [1, 9]];

/// What is asked of one variant.
struct Asked<'a, B: Backend> {
    session: &'a mut Session<B>,
    op: Attention,
    variant: &'a str,
    /// Queries of the sequence's tokens, and their keys and values.
    drawn: [Vec<u8>; 3],
}

impl<B: Backend> Asked<'_, B> {
    const fn row(&self, heads: u64) -> usize {
        (heads * HEAD_DIM * self.op.dtype.size()) as usize
    }

    /// The outputs of queries `first..first + count`, and their LSE, a row of bytes each: alone, or among two other sequences in a pool whose
    /// pages lie the other way round.
    fn answer(&mut self, first: usize, count: usize, among: bool) -> Result<Vec<Vec<u8>>> {
        let others: [&[usize]; 2] = if among { [&[5, 40], &[9, 40]] } else { [&[], &[]] };
        let (mut cu_q, mut kv_len, mut table) = (vec![0], Vec::new(), Vec::new());
        let apart = if among { 2 } else { 1 };
        // Of the sequence's pages every second is its own; the others' are those between, in their order.
        let own: Vec<i32> = (0..PAGES).map(|page| if among { 2 * (PAGES - 1 - page) + 1 } else { page } as i32).collect();
        let theirs: Vec<i32> = (0..PAGES as i32).map(|page| 2 * page).collect();
        let mut sequence = |queries: usize, keys: usize, pages: &[i32]| {
            cu_q.push(cu_q[cu_q.len() - 1] + queries as i32);
            kv_len.push(keys as i32);
            table.extend_from_slice(pages);
        };
        if let [queries, keys] = *others[0] {
            sequence(queries, keys, &theirs);
        }
        sequence(count, first + count, &own);
        if let [queries, keys] = *others[1] {
            sequence(queries, keys, &theirs);
        }
        let spare = if among { 3 } else { 0 };
        let before = others[0].first().copied().unwrap_or(0);
        let total = cu_q[cu_q.len() - 1] as usize + spare;
        let shape = RaggedShape {
            batch: kv_len.len() as u64,
            total_q: total as u64,
            max_q: if among { LENGTH as u64 } else { count as u64 },
            pages: PAGES as u64,
            page: PAGE as u64,
            pool_pages: (apart * PAGES) as u64,
        };
        let (q_row, kv_row) = (self.row(HEADS[0]), self.row(HEADS[1]));
        let mut q = self.drawn[0].iter().copied().cycle().take(total * q_row).collect::<Vec<u8>>();
        q[before * q_row..][..count * q_row].copy_from_slice(&self.drawn[0][first * q_row..][..count * q_row]);
        let pool = |drawn: &[u8]| {
            let mut pool = drawn.iter().copied().cycle().skip(kv_row).take(apart * PAGES * PAGE * kv_row).collect::<Vec<u8>>();
            for (token, row) in drawn.chunks_exact(kv_row).enumerate() {
                let place = own[token / PAGE] as usize * PAGE + token % PAGE;
                pool[place * kv_row..][..kv_row].copy_from_slice(row);
            }
            pool
        };
        let shaped = Attention::ragged_paged(self.op.dtype, shape, HEADS, HEAD_DIM);
        let op = shaped.with_causal(true).with_window(self.op.window).with_lse(true);
        let [q, k, v] = [q, pool(&self.drawn[1]), pool(&self.drawn[2])].map(|bytes| self.session.upload(&bytes));
        let (o, lse) = (self.session.upload(&vec![0xffu8; total * q_row])?, self.session.upload(&vec![f32::NAN; total * HEADS[0] as usize])?);
        let index = AttentionIndex::RaggedPaged(self.session.index(&RaggedPages::new(&cu_q, &kv_len, &table, shape)?)?);
        let plan = self.session.plan_variant(op, Some(self.variant))?;
        self.session.run(&plan, &AttentionArgs::new(q?, k?, v?, o.clone()).with_index(index).with_lse(Some(lse.clone())))?;
        let (o, lse) = (self.session.read(&o)?, self.session.read(&lse)?);
        assert!(o[(total - spare) * q_row..].iter().all(|&byte| byte == 0), "spare queries give zeros");
        let line = |i: usize| {
            let logs = (0..HEADS[0] as usize).flat_map(|head| &lse[(head * total + before + i) * 4..][..4]);
            o[(before + i) * q_row..][..q_row].iter().chain(logs).copied().collect()
        };
        Ok((0..count).map(line).collect())
    }
}

fn alike<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    for (dtype, window) in [(DType::F32, None), (DType::F16, None), (DType::BF16, Some(20))] {
        for &variant in Kernel::<Attention>::variants(&**device) {
            let draw = |seed: u32, heads: u64| {
                let count = LENGTH * (heads * HEAD_DIM) as usize;
                dtype.encode(&(0..count).map(|i| f64::from(noise(seed, i)) / 64.0 - 2.0).collect::<Vec<_>>())
            };
            let drawn = [draw(1, HEADS[0]), draw(2, HEADS[1]), draw(3, HEADS[1])];
            let op = Attention::dense(dtype, 1, HEADS, [1, 1], HEAD_DIM).with_window(window);
            let mut asked = Asked { session: &mut session, op, variant, drawn };
            let whole = match asked.answer(0, LENGTH, false) {
                // The variant is for other forms, types or devices.
                Err(Error::Unsupported { .. }) => continue,
                whole => whole?,
            };
            assert!(whole.windows(2).all(|pair| pair[0] != pair[1]), "each query has an answer of its own");
            for [size, apart] in CHUNKS {
                for (number, first) in (0..LENGTH).step_by(size).enumerate().step_by(apart) {
                    let count = size.min(LENGTH - first);
                    let found = asked.answer(first, count, number % 2 == 1)?;
                    assert!(found == whole[first..first + count], "{count} queries from {first} on, {dtype}, window {window:?}, {variant}");
                }
            }
            assert!(asked.answer(0, LENGTH, true)? == whole, "among others, {dtype}, window {window:?}, {variant}");
        }
    }
    Ok(())
}
