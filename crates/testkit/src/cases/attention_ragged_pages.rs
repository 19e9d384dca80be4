//! What a step of a server asks for: queries in numbers of their own over keys in pages. Keys of no sequence, and queries that see nothing, are NaN.

use super::attention::{Scores, pose};
use super::attention_forms::{page_index, starts, unused_elements};
use super::case::{Case, OpKind};
use crate::oracle::attention::HostForm;
use trifuse::dtype::DType;
use trifuse::ops::attention::Attention;
use trifuse::ops::index::{RaggedPages, RaggedShape};

/// The sequences of a step: their queries, their keys with those of the queries, and how many rows of q are spare.
#[derive(Clone, Copy)]
struct Step {
    queries: &'static [i32],
    keys: &'static [i32],
    spare: u64,
}

fn case(name: &str, dtype: DType, page: u64, heads: [u64; 2], head_dim: u64, step: Step, change: fn(&mut Attention)) -> Case {
    let used = |length: &i32| (*length as u64).div_ceil(page);
    let cu_q = starts(step.queries);
    let shape = RaggedShape {
        batch: step.queries.len() as u64,
        total_q: step.queries.iter().sum::<i32>() as u64 + step.spare,
        max_q: step.queries.iter().copied().max().unwrap_or(0) as u64,
        pages: step.keys.iter().map(used).max().unwrap_or(0) + 1,
        page,
        pool_pages: step.keys.iter().map(used).sum::<u64>() + 1,
    };
    let mut op = Attention::ragged_paged(dtype, shape, heads, head_dim).with_causal(true).with_lse(true);
    change(&mut op);
    Case::new(OpKind::Attention, format!("ragged_pages_{name}_{dtype}"), move |draw| {
        let table = page_index(shape.table(), step.keys, draw)?;
        let index = RaggedPages::new(&cu_q, table.kv_len(), table.table(), shape)?;
        let mut posed = pose(op.clone(), HostForm::RaggedPaged(index.clone()), Scores::Normal, draw);
        for (place, _) in unused_elements(&op, &table).iter().enumerate().filter(|&(_, &unused)| unused) {
            (posed.host.k[place], posed.host.v[place]) = (f64::NAN, f64::NAN);
        }
        let row = op.q.token as usize;
        posed.host.q[index.queries() as usize * row..].fill(f64::NAN);
        for (q, _) in cu_q.windows(2).zip(step.keys).filter(|&(_, &keys)| keys == 0) {
            posed.host.q[q[0] as usize * row..q[1] as usize * row].fill(f64::NAN);
        }
        Ok(posed.into())
    })
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let plain = |_: &mut Attention| ();
    // Prompts whole and in chunks among sequences of one new token; one that rests, and one without keys.
    const MIXED: Step = Step { queries: &[1, 20, 0, 7, 1, 33, 2], keys: &[70, 20, 40, 100, 1, 65, 0], spare: 5 };
    const DECODE: Step = Step { queries: &[1, 1, 1, 0], keys: &[17, 129, 64, 0], spare: 1 };
    // More queries than keys: the first see nothing.
    const SHORT: Step = Step { queries: &[6, 3], keys: &[2, 40], spare: 0 };
    for dtype in DType::ALL {
        cases.push(case("d64", dtype, 16, [4, 2], 64, MIXED, plain));
        cases.push(case("decode_d64", dtype, 16, [6, 2], 64, DECODE, plain));
        cases.push(case("short_d32", dtype, 4, [2, 2], 32, SHORT, plain));
    }
    let [f16, bf16] = [DType::F16, DType::BF16];
    cases.push(case("d128", f16, 16, [2, 1], 128, MIXED, plain));
    cases.push(case("d107", bf16, 16, [2, 2], 107, MIXED, plain));
    cases.push(case("d256_full", f16, 32, [1, 1], 256, MIXED, |op| op.causal = false));
    cases.push(case("page1_window", bf16, 1, [2, 1], 40, MIXED, |op| op.window = Some(30)));
    cases.push(case("window_both_ways", f16, 64, [2, 1], 48, MIXED, |op| (op.causal, op.window, op.lse) = (false, Some(9), false)));
    cases.push(case("long_d64", f16, 16, [3, 1], 64, Step { queries: &[70, 1], keys: &[700, 600], spare: 3 }, plain));
    // More rows are spare than the longest sequence has.
    cases.push(case("many_spare", bf16, 16, [2, 2], 32, Step { queries: &[1, 2], keys: &[9, 8], spare: 77 }, plain));
    // Rows of q and of o lie apart, as in rows [q | k | v].
    cases.push(case("apart", f16, 16, [4, 2], 64, MIXED, |op| (op.q.token, op.o.token) = (512, 264)));
    let none = Step { queries: &[0, 0], keys: &[0, 9], spare: 6 };
    cases.push(case("all_spare", f16, 16, [2, 2], 64, none, plain).zero("every row is spare"));
    cases
}
