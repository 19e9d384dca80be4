//! Decoding from a pool of pages: a new token of each sequence is appended to its cache and attends to all before it, without a copy of the cache.
//!
//! `cargo run --example paged_decode`

use std::sync::Arc;

use trifuse::ops::attention::AttentionIndex;
use trifuse::ops::index::{PageShape, PageTable};
use trifuse::ops::pointwise::Kind;
use trifuse::ops::{Attention, AttentionArgs, Pointwise, PointwiseArgs};
use trifuse::{DType, Result, backends::Choice, session::Session};

const HEADS: u64 = 2;
const HEAD_DIM: u64 = 32;
/// Two sequences of at most three pages of 16 tokens, in a pool of eight.
const CACHE: PageShape = PageShape { batch: 2, pages: 3, page: 16, pool_pages: 8 };
const STEPS: i32 = 40;

pub fn run(choice: &Choice) -> Result<()> {
    let mut session = Session::new(Arc::new(choice.open_any()?))?;
    let row = HEADS * HEAD_DIM;
    let pool = CACHE.pool_pages * CACHE.page * row;
    let [k, v] = [session.upload(&vec![0f32; pool as usize])?, session.upload(&vec![0f32; pool as usize])?];
    // Which pages are whose is up to you; here sequence 0 has pages 5, 1 and 7.
    let pages = [5, 1, 7, 0, 6, 2];
    let table = |tokens: i32| PageTable::new(&pages, &[tokens; 2], CACHE);
    let index = session.index(&table(1)?)?;

    let append = session.plan(Pointwise::new(DType::F32, CACHE.batch, row, Kind::Append { cache: CACHE, stride: row }))?;
    let attend = session.plan(Attention::paged(DType::F32, CACHE, [HEADS, HEADS], 1, HEAD_DIM))?;
    let [new_k, new_v, q, o] = [(); 4].map(|()| session.alloc_elements(DType::F32, CACHE.batch * row));
    let (new_k, new_v, q, o) = (new_k?, new_v?, q?, o?);
    session.write(&q, bytemuck::cast_slice(&vec![0f32; (CACHE.batch * row) as usize]))?;
    for step in 1..=STEPS {
        // Only lengths change from token to token: the plans, and graphs captured with this index, stay.
        session.update_index(&index, &table(step)?)?;
        let new = vec![step as f32; (CACHE.batch * row) as usize];
        for (values, pool) in [(&new_k, &k), (&new_v, &v)] {
            session.write(values, bytemuck::cast_slice(&new))?;
            session.run(&append, &PointwiseArgs::new(values.clone(), pool.clone()).with_pages(index.clone()))?;
        }
        let args = AttentionArgs::new(q.clone(), k.clone(), v.clone(), o.clone()).with_index(AttentionIndex::Paged(index.clone()));
        session.run(&attend, &args)?;
        // A query of zeros weighs all tokens alike: the answer is the mean of 1 to `step`.
        let found: Vec<f32> = session.download(&o)?;
        let mean = (step + 1) as f32 / 2.0;
        assert!(found.iter().all(|found| (found - mean).abs() < 1e-4 * mean), "step {step}: {} for {mean}", found[0]);
    }
    println!("{STEPS} tokens of {} sequences decoded on {} by {}", CACHE.batch, session.caps().name, attend.variant());
    Ok(())
}

#[allow(dead_code, reason = "a test runs `run` alone")]
fn main() -> Result<()> {
    run(&std::env::var("TRIFUSE_BACKEND").unwrap_or_else(|_| "auto".into()).parse()?)
}
