//! Attention over a prefix in factors: ranks, widths of codes, heads, lengths that end inside a tile, and joining.

use super::case::{Case, OpKind, Posed, dtype_in_turn};
use super::codebook_gemm::{coded, factor};
use super::draw::Draw;
use crate::oracle::attention::span;
use crate::oracle::prefix_attention::{FactorsHost, Host};
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::ops::attention::Strides;
use trifuse::ops::codebook_gemm::Factor;
use trifuse::ops::codes::CodeWidth;
use trifuse::ops::prefix_attention::{Factors, PrefixAttention};

const DENSE: Factor = Factor::Dense { bases: 1 };

/// Sizes of a case: `[heads, kv_heads]`, `[batch, q_len, tokens]`, elements of a head.
#[derive(Clone, Copy)]
struct Sizes {
    heads: [u64; 2],
    lengths: [u64; 3],
    head_dim: u64,
}

impl Sizes {
    fn width(self) -> u64 {
        self.heads[1] * self.head_dim
    }

    /// Coefficients in codes, over a dense basis: what a long prefix is.
    fn over_basis(self, rank: u64, width: Option<CodeWidth>) -> Factors {
        Factors::new(rank, coded(width, 1, self.lengths[2], rank), DENSE)
    }

    /// Dense coefficients, the basis in codes: what a short one is.
    fn coded_basis(self, rank: u64, width: Option<CodeWidth>) -> Factors {
        Factors::new(rank, DENSE, coded(width, 1, self.width(), rank))
    }

    fn op(self, dtype: DType, factors: [Factors; 2]) -> PrefixAttention {
        let [batch, q_len, tokens] = self.lengths;
        PrefixAttention::new(dtype, batch, self.heads, [q_len, tokens], self.head_dim, factors)
    }
}

fn case(name: impl std::fmt::Display, op: PrefixAttention) -> Case {
    Case::new(OpKind::PrefixAttention, format!("{name}_{}", op.dtype), move |draw| Ok(pose(op.clone(), draw)?.into()))
}

fn pose(op: PrefixAttention, draw: &mut Draw) -> Result<Posed<PrefixAttention>> {
    let rows = |strides: Strides, draw: &mut Draw| -> Vec<f64> {
        let extent = [op.batch, op.q_len, op.heads];
        let mut values = vec![f64::NAN; span(strides, extent, op.head_dim) as usize];
        for row in 0..op.rows() {
            let (head, query, batch) = (row % op.heads, row / op.heads % op.q_len, row / op.heads / op.q_len);
            let first = (batch * strides.batch + query * strides.token + head * strides.head) as usize;
            values[first..][..op.head_dim as usize].copy_from_slice(&draw.normal(op.dtype, op.head_dim, 1.0));
        }
        values
    };
    let factors = |of: Factors, draw: &mut Draw| -> Result<FactorsHost> {
        let coefficients = factor(of.coefficients, (op.dtype, 1), op.tokens, of.rank, 1.0, draw)?;
        Ok(FactorsHost { coefficients, basis: factor(of.basis, (op.dtype, 1), op.width(), of.rank, 1.0 / (of.rank as f64).sqrt(), draw)? })
    };
    let before = op.join.then(|| {
        let mut o = rows(op.o, draw);
        // Some rows had as many keys as the prefix has, some few, some none: whatever those hold is of no account.
        let near = (op.tokens as f64).ln();
        let none = |row: u64| row % 7 == 3;
        let lse = (0..op.rows()).map(|row| if none(row) { f64::NEG_INFINITY } else { DType::F32.round(near + draw.gaussian() - (row % 3) as f64) });
        let lse = lse.collect();
        for row in (0..op.rows()).filter(|&row| none(row)) {
            let (query, head, batch) = (row % op.q_len, row / op.q_len % op.heads, row / op.q_len / op.heads);
            let first = (batch * op.o.batch + query * op.o.token + head * op.o.head) as usize;
            o[first..][..op.head_dim as usize].fill(f64::NAN);
        }
        (o, lse)
    });
    let host = Host { q: rows(op.q, draw), key: factors(op.key, draw)?, value: factors(op.value, draw)?, before };
    Ok(Posed { op, host })
}

pub(super) fn cases() -> Vec<Case> {
    let four = Some(CodeWidth::Four);
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        let sizes = Sizes { heads: [4, 2], lengths: [3, 5, 77], head_dim: 32 };
        let [long, short] = [sizes.over_basis(24, four), sizes.coded_basis(17, Some(CodeWidth::Three))];
        cases.push(case("codes_over_a_basis", sizes.op(dtype, [long, long])));
        cases.push(case("a_basis_in_codes", sizes.op(dtype, [short, short])));
        cases.push(case("join", sizes.op(dtype, [long, short]).with_join(true)));
        let dense = |rank| Factors::new(rank, DENSE, DENSE);
        cases.push(case("dense_factors", sizes.op(dtype, [dense(16), dense(40)])));
        let both = |rank| sizes.coded_basis(rank, None).with_coefficients(coded(None, 1, 77, rank));
        cases.push(case("codes_on_both_sides", sizes.op(dtype, [both(20), both(33)])));
        // Rows of every sequence of a batch fill tiles together; a head is no multiple of eight.
        let many = Sizes { heads: [6, 2], lengths: [64, 1, 200], head_dim: 107 };
        let factors = [many.over_basis(48, Some(CodeWidth::FourThree)), many.over_basis(9, Some(CodeWidth::Two))];
        cases.push(case("batch64_d107", many.op(dtype, factors).with_join(true)));
        // q is a part of rows [q | k | v], o lies heads first with a gap.
        let strided = Sizes { heads: [4, 4], lengths: [2, 9, 131], head_dim: 20 };
        let op = strided.op(dtype, [strided.over_basis(12, None), strided.coded_basis(8, four)]);
        let (q, o) = (Strides { batch: 9 * 245 + 3, token: 245, head: 20 }, Strides { batch: 4 * 9 * 21, token: 21, head: 9 * 21 });
        cases.push(case("strided", op.with_join(true).with_q(q).with_o(o)));
        let one = Sizes { heads: [16, 2], lengths: [1, 1, 1], head_dim: 24 };
        cases.push(case("one_token_one_query", one.op(dtype, [one.over_basis(6, four), one.coded_basis(6, four)])));
    }
    for (n, width) in CodeWidth::ALL.into_iter().enumerate().filter(|&(_, width)| width != CodeWidth::Zero) {
        let sizes = Sizes { heads: [2, 1], lengths: [1, 7, 70], head_dim: 40 };
        let factors = [sizes.over_basis(12, Some(width)), sizes.coded_basis(12, Some(width))];
        cases.push(case(format!("codes_{width:?}").to_lowercase(), sizes.op(dtype_in_turn(n), factors)));
        let [key, value] = factors;
        cases.push(case(format!("codes_{width:?}_turned").to_lowercase(), sizes.op(dtype_in_turn(n + 1), [value, key])));
    }
    for (n, rank) in [1, 2, 7, 8, 15, 16, 31, 33, 64, 65, 96, 128, 200].into_iter().enumerate() {
        let sizes = Sizes { heads: [2, 2], lengths: [5, 1, 90], head_dim: 64 };
        cases.push(case(format!("rank{rank}"), sizes.op(dtype_in_turn(n), [sizes.over_basis(rank, None), sizes.coded_basis(rank, four)])));
    }
    for (n, head_dim) in [1, 8, 15, 33, 63, 80, 96, 100, 127, 128, 129, 200, 256].into_iter().enumerate() {
        let sizes = Sizes { heads: [2, 1], lengths: [3, 5, 66], head_dim };
        cases.push(case(format!("d{head_dim}"), sizes.op(dtype_in_turn(n + 1), [sizes.over_basis(10, four), sizes.coded_basis(11, None)])));
    }
    for (n, tokens) in [2, 31, 32, 33, 63, 64, 65, 127, 129, 257, 1000].into_iter().enumerate() {
        let sizes = Sizes { heads: [4, 1], lengths: [4, 2, tokens], head_dim: 48 };
        let op = sizes.op(dtype_in_turn(n), [sizes.over_basis(16, Some(CodeWidth::Three)), sizes.over_basis(16, None)]);
        cases.push(case(format!("tokens{tokens}"), op.with_join(n % 2 == 1)));
    }
    for (n, queries) in [1, 15, 17, 63, 65, 129, 300].into_iter().enumerate() {
        let sizes = Sizes { heads: [2, 2], lengths: [1, queries, 140], head_dim: 64 };
        let op = sizes.op(dtype_in_turn(n + 2), [sizes.over_basis(32, four), sizes.over_basis(32, four)]);
        cases.push(case(format!("queries{queries}"), op.with_join(n % 2 == 0)));
    }
    let sizes = Sizes { heads: [2, 1], lengths: [2, 3, 50], head_dim: 32 };
    let key = sizes.over_basis(8, four);
    let op = sizes.op(DType::F16, [key, key]);
    cases.push(case("scale", op.clone().with_scale(0.3)));
    cases.push(case("negative_scale", op.clone().with_scale(-0.2)));
    cases.push(case("no_queries", Sizes { lengths: [1, 0, 50], ..sizes }.op(DType::F16, [key, key])).zero("zero rows: nothing is written"));
    let nothing = sizes.coded_basis(8, Some(CodeWidth::Zero));
    cases.push(case("values_of_no_bits", sizes.op(DType::F16, [key, nothing])).zero("codes of no bits: every value, and so every sum of them, is zero"));
    cases
}
