//! Attention of many queries over sequences of their own lengths. What lies beside a sequence's rows, of no sequence, or of one that nobody reads, is NaN.

use super::attention::{Scores, pose};
use super::attention_forms::{page_index, starts, unused_elements};
use super::case::{Case, OpKind};
use crate::oracle::attention::HostForm;
use trifuse::dtype::DType;
use trifuse::ops::attention::Attention;
use trifuse::ops::index::{HostIndex, PageShape, Varlen};

/// Sequences end to end. Keys of those that have no queries, and queries of those that have no keys, are NaN: they are neighbours of others.
fn end_to_end(name: &str, dtype: DType, heads: [u64; 2], head_dim: u64, lengths: [&[i32]; 2], change: fn(&mut Attention)) -> Option<Case> {
    let most = |lengths: &[i32]| lengths.iter().copied().max().unwrap_or(0) as u64;
    let cu = lengths.map(starts);
    let index = Varlen::new(&cu[0], &cu[1], most(lengths[0]), most(lengths[1])).ok()?;
    let mut op = Attention::varlen(dtype, index.shape(), heads, head_dim).with_lse(true);
    change(&mut op);
    Some(Case::new(OpKind::Attention, format!("ragged_{name}_{dtype}"), move |draw| {
        let mut posed = pose(op.clone(), HostForm::Varlen(index.clone()), Scores::Normal, draw);
        for (q, kv) in index.cu_q().windows(2).zip(index.cu_kv().windows(2)) {
            let rows = |cu: &[i32], token: u64| cu[0] as usize * token as usize..cu[1] as usize * token as usize;
            if q[0] == q[1] {
                posed.host.k[rows(kv, op.k.token)].fill(f64::NAN);
                posed.host.v[rows(kv, op.v.token)].fill(f64::NAN);
            }
            if kv[0] == kv[1] {
                posed.host.q[rows(q, op.q.token)].fill(f64::NAN);
            }
        }
        Ok(posed.into())
    }))
}

/// Keys in pages; those that belong to no sequence are NaN.
fn in_pages(name: &str, dtype: DType, page: u64, heads: [u64; 2], [q_len, head_dim]: [u64; 2], lengths: &'static [i32], change: fn(&mut Attention)) -> Case {
    let used = |length: &i32| (*length as u64).div_ceil(page);
    let pages = lengths.iter().map(used).max().unwrap_or(0) + 1;
    let shape = PageShape { batch: lengths.len() as u64, pages, page, pool_pages: lengths.iter().map(used).sum::<u64>() + 1 };
    let mut op = Attention::paged(dtype, shape, heads, q_len, head_dim).with_lse(true);
    change(&mut op);
    Case::new(OpKind::Attention, format!("ragged_{name}_{dtype}"), move |draw| {
        let table = page_index(shape, lengths, draw)?;
        let mut posed = pose(op.clone(), HostForm::Paged(table.clone()), Scores::Normal, draw);
        for (place, _) in unused_elements(&op, &table).iter().enumerate().filter(|&(_, &unused)| unused) {
            (posed.host.k[place], posed.host.v[place]) = (f64::NAN, f64::NAN);
        }
        Ok(posed.into())
    })
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let plain = |_: &mut Attention| ();
    let causal = |op: &mut Attention| op.causal = true;
    let windowed = |op: &mut Attention| op.window = Some(50);
    let narrow_causal = |op: &mut Attention| (op.causal, op.window) = (true, Some(90));
    // One with more queries than keys, one without queries, one without keys, one of a single token, and a tile's length.
    const QUERIES: &[i32] = &[150, 0, 64, 1, 130, 20, 128];
    const KEYS: &[i32] = &[150, 33, 200, 129, 77, 0, 128];
    const FEW: [&[i32]; 2] = [&[0, 70, 0, 3], &[5, 150, 40, 131]];
    for dtype in [DType::F16, DType::BF16] {
        cases.extend(end_to_end("d128", dtype, [2, 1], 128, [QUERIES, KEYS], plain));
        cases.extend(end_to_end("d128_causal", dtype, [2, 2], 128, [QUERIES, KEYS], causal));
        cases.extend(end_to_end("d64_causal_gqa", dtype, [4, 2], 64, [QUERIES, KEYS], causal));
        cases.extend(end_to_end("d48_window", dtype, [3, 1], 48, [QUERIES, KEYS], windowed));
        cases.extend(end_to_end("d80_window_causal", dtype, [2, 1], 80, [QUERIES, KEYS], narrow_causal));
        cases.push(in_pages("page16_d64", dtype, 16, [4, 2], [70, 64], &[300, 0, 50, 128, 17], causal));
        cases.push(in_pages("page64_d128", dtype, 64, [2, 1], [130, 128], &[65, 400, 130], causal));
        cases.push(in_pages("page48_d96_window", dtype, 48, [2, 2], [64, 96], &[290, 1, 100], windowed));
        cases.push(in_pages("page256_d128", dtype, 256, [2, 2], [129, 128], &[257, 511, 0], plain));
    }
    for (n, head_dim) in [16, 48, 72, 96, 107, 112, 136, 160, 176, 192, 208, 224, 240, 256].into_iter().enumerate() {
        let dtype = [DType::F16, DType::BF16][n % 2];
        cases.extend(end_to_end(&format!("d{head_dim}"), dtype, [2, 1], head_dim, FEW, if n % 3 == 0 { causal } else { plain }));
    }
    for (n, head_dim) in [40, 112, 144, 176, 200, 256].into_iter().enumerate() {
        let dtype = [DType::F16, DType::BF16][n % 2];
        cases.push(in_pages(&format!("page32_d{head_dim}"), dtype, 32, [2, 1], [66, head_dim], &[150, 7], if n % 2 == 0 { causal } else { plain }));
    }
    // So few tiles of so many steps that blocks share them; one sequence has none for the last ones.
    cases.extend(end_to_end("shared_d64", DType::F16, [1, 1], 64, [&[64, 1], &[900, 1300]], plain));
    cases.extend(end_to_end("shared_d128_causal", DType::BF16, [2, 1], 128, [&[130, 0, 20], &[2100, 50, 300]], causal));
    cases.push(in_pages("shared_page64_d80", DType::F16, 64, [2, 2], [70, 80], &[2060, 0, 129], causal));
    cases.push(in_pages("shared_page16_d128_window", DType::BF16, 16, [1, 1], [64, 128], &[4100, 100], windowed));
    // So many sequences that a thread looks at several: none of them takes its turn by its length then.
    const MANY: &[i32] = &[3, 0, 1, 64, 2, 0, 5, 1, 1, 0, 2, 4];
    let many = MANY.repeat(50);
    cases.extend(end_to_end("many_sequences", DType::BF16, [2, 1], 64, [&many, &many], causal));
    cases
}
