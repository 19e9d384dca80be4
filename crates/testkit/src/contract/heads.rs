//! Heads of new tokens that are turned and kept at once: the bits of the operations that it stands for, one after another.

use std::sync::Arc;

use trifuse::backend::Backend;
use trifuse::device::Slice;
use trifuse::ops::index::{PageShape, PageTable};
use trifuse::ops::pointwise::{Heads, Kind, Places, Turn};
use trifuse::ops::{Pointwise, PointwiseArgs};
use trifuse::session::Session;
use trifuse::{DType, Result};

use super::Test;
use super::work::noise;

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![("heads that are normed, turned and kept at once have the bits of one operation after another, side by side and apart", at_once)]
}

/// Heads of q and of k, tokens of a page, and new tokens of each of three sequences.
const QUERIES: u64 = 3;
const KEYS: u64 = 2;
const PAGE: u64 = 4;
const EACH: u64 = 2;
const LENGTHS: [i32; 3] = [9, 2, 1];

fn at_once<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    for dtype in DType::ALL {
        for (head_dim, norm) in [(64, false), (128, false), (64, true), (128, true), (256, true)] {
            for paged in [false, true] {
                compare(&mut session, dtype, head_dim, norm.then(|| 1e-5f32.to_bits()), paged)?;
            }
        }
    }
    Ok(())
}

fn compare<B: Backend>(session: &mut Session<B>, dtype: DType, head_dim: u64, norm: Option<u32>, paged: bool) -> Result<()> {
    let (rows, turned, all) = (LENGTHS.len() as u64 * EACH, (QUERIES + KEYS) * head_dim, (QUERIES + 2 * KEYS) * head_dim);
    let (first, kept) = (QUERIES * head_dim, 2 * KEYS * head_dim);
    let cache = PageShape { batch: LENGTHS.len() as u64, pages: 3, page: PAGE, pool_pages: 9 };
    let tokens = cache.pool_pages * PAGE;
    let drawn = |seed: u32, len: u64| dtype.encode(&(0..len as usize).map(|i| f64::from(noise(seed, i)) / 64.0 - 2.0).collect::<Vec<_>>());
    let (x, head, before) = (drawn(1, rows * all), drawn(2, head_dim), drawn(3, tokens * kept));
    let positions = session.upload(&(0..rows as i32).map(|row| row * 777 - 300).collect::<Vec<_>>())?;
    let slots = session.upload(&(0..rows as i32).map(|row| if row == 2 { -1 } else { 7 * row }).collect::<Vec<_>>())?;
    let table: Vec<i32> = (0..9).rev().collect();
    let pages = session.index(&PageTable::new(&table, &LENGTHS, cache)?)?;
    let turn = Turn::base(1e4);
    let op = |columns, kind| Pointwise::new(dtype, rows, columns, kind);

    let to = if paged { Places::Pages(cache) } else { Places::Slots(tokens as u32) };
    let heads = Heads::new(head_dim, turn, all, to).with_norm(norm).with_first(first).with_kept(kept);
    let plan = session.plan(op(turned, Kind::Heads(heads)))?;
    let (y, pool) = (session.upload(&x)?, session.upload(&before)?);
    let weights = session.upload(&head.repeat((QUERIES + KEYS) as usize))?;
    let args = PointwiseArgs::rope_in_place(y.clone(), positions.clone())
        .with_weight(norm.map(|_| weights))
        .with_pages(paged.then(|| pages.clone()))
        .with_slots((!paged).then(|| slots.clone()))
        .with_pool(pool.clone());
    session.run(&plan, &args)?;
    let found = [session.read(&y)?, session.read(&pool)?];
    // The same of q, k and v that lie apart: all rows of one behind all of the other.
    let widths = [first, turned - first, all - turned].map(|columns| (columns * dtype.size()) as usize);
    let plan = session.plan(op(turned, Kind::Heads(heads.with_apart(true))))?;
    let (y, pool) = (session.upload(&apart(&x, widths))?, session.upload(&before)?);
    let args = args.with_x(y.clone()).with_y(y.clone()).with_pool(pool.clone());
    session.run(&plan, &args)?;
    let found_apart = [session.read(&y)?, session.read(&pool)?];
    assert!(found_apart == [apart(&found[0], widths), found[1].clone()], "{dtype}, heads of {head_dim} apart, normed: {}, paged: {paged}", norm.is_some());

    let mut x = x;
    if let Some(eps) = norm {
        let (row, part) = ((all * dtype.size()) as usize, (turned * dtype.size()) as usize);
        let packed: Vec<u8> = x.chunks_exact(row).flat_map(|row| row[..part].to_vec()).collect();
        let (from, to) = (session.upload(&packed)?, session.upload(&packed)?);
        let kind = Kind::RmsNorm { eps, residual: false };
        let plan = session.plan(Pointwise::new(dtype, rows * (QUERIES + KEYS), head_dim, kind))?;
        let weight = session.upload(&head)?;
        session.run(&plan, &PointwiseArgs::new(from, to.clone()).with_weight(weight))?;
        for (row, normed) in x.chunks_exact_mut(row).zip(session.read(&to)?.chunks_exact(part)) {
            row[..part].copy_from_slice(normed);
        }
    }
    let (y, pool) = (session.upload(&x)?, session.upload(&before)?);
    let plan = session.plan(op(turned, Kind::RopeInPlace { head_dim, turn, stride: all }))?;
    session.run(&plan, &PointwiseArgs::rope_in_place(y.clone(), positions))?;
    let new: Slice<B> = y.sub_slice(first * dtype.size(), y.len() - first * dtype.size()).expect("a part");
    let args = PointwiseArgs::new(new, pool.clone());
    let (kind, args) = match paged {
        true => (Kind::Append { cache, stride: all }, args.with_pages(pages)),
        false => (Kind::Store { slots: tokens as u32, stride: all }, args.with_positions(slots)),
    };
    let plan = session.plan(op(kept, kind))?;
    session.run(&plan, &args)?;
    let expected = [session.read(&y)?, session.read(&pool)?];
    assert!(found == expected, "{dtype}, heads of {head_dim}, normed: {}, paged: {paged}", norm.is_some());
    assert!(found[1] != before, "tokens are kept");
    Ok(())
}

/// Rows of parts of those widths, in bytes: all rows of a part behind all of the one before.
fn apart(rows: &[u8], widths: [usize; 3]) -> Vec<u8> {
    let all: usize = widths.iter().sum();
    let starts = [0, widths[0], widths[0] + widths[1]];
    starts.iter().zip(widths).flat_map(|(&start, width)| rows.chunks_exact(all).flat_map(move |row| row[start..start + width].to_vec())).collect()
}
