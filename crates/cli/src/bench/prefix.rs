//! One prefix that many sequences share: attention over its keys and values in factors, and over the same as plain tensors. Both
//! have the queries of all sequences as rows, so that keys are read once for all.

use super::operand::{Values, spread};
use super::sample::{self, Placed, Sample, places};
use trifuse::device::{Device, Slice};
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::ops::attention::AttentionIndex;
use trifuse::ops::codebook_gemm::{Factor, FactorArgs};
use trifuse::ops::codes::{CODEBOOK_LEN, CodeWidth, pack};
use trifuse::ops::index::{AdapterCodes, Codes, CodesShape};
use trifuse::ops::prefix_attention::{Factors, FactorsArgs};
use trifuse::ops::{Attention, AttentionArgs, PrefixAttention, PrefixAttentionArgs};
use trifuse::session::Session;
use trifuse_testkit::cases::{Draw, Posed};
use trifuse_testkit::oracle::codebook_gemm::FactorHost;
use trifuse_testkit::oracle::prefix_attention::{FactorsHost, Host};

/// Width of the coefficients' codes.
const WIDTH: CodeWidth = CodeWidth::Four;

/// Attention over a prefix that all sequences share.
#[derive(Clone, Copy, Debug)]
pub struct Prefix {
    pub dtype: DType,
    pub batch: u64,
    pub heads: [u64; 2],
    pub tokens: u64,
    pub head_dim: u64,
}

/// One of K and V on the host.
struct Coded {
    codes: Codes,
    codebook: Vec<f64>,
    basis: Values,
}

impl Prefix {
    /// Attention over tensors `[tokens, kv_heads, head_dim]`: one sequence that has the queries of all.
    pub fn plain(self) -> Attention {
        Attention::dense(self.dtype, 1, self.heads, [self.batch, self.tokens], self.head_dim).with_lse(true)
    }

    /// Attention over coefficients in codes of four bits and a dense basis, `rank` columns of each.
    pub fn coded(self, rank: u64) -> PrefixAttention {
        let words_per_adapter = WIDTH.column_words(self.tokens).saturating_mul(rank).min(u64::from(u32::MAX)) as u32;
        let factors = Factors::new(rank, Factor::Coded { width: Some(WIDTH), words_per_adapter }, Factor::Dense { bases: 1 });
        PrefixAttention::new(self.dtype, 1, self.heads, [self.batch, self.tokens], self.head_dim, [factors; 2])
    }

    fn query_elements(self) -> u64 {
        self.batch * self.heads[0] * self.head_dim
    }

    /// The operands over tensors.
    pub fn plain_operands<D: Device>(self, session: &mut Session<D>, draw: &mut Draw) -> Result<Placed<Attention, D>> {
        let op = self.plain();
        let keys = self.tokens * self.heads[1] * self.head_dim;
        let [q, k, v] = [self.query_elements(), keys, keys].map(|count| Values::normal(draw, self.dtype, count, 1.0));
        let (o, lse) = self.outputs(session)?;
        let index = AttentionIndex::None;
        let args = AttentionArgs::new(q.upload(session)?, k.upload(session)?, v.upload(session)?, o.clone()).with_index(index).with_lse(Some(lse));
        let samples = move |_: &mut Session<D>| Ok(sample::attention(&op, [&q, &k, &v], None, 16, &mut Draw::seeded("sample")));
        Ok(Placed::one(args, o, Box::new(samples)))
    }

    /// The operands over factors.
    pub fn coded_operands<D: Device>(self, session: &mut Session<D>, draw: &mut Draw, rank: u64) -> Result<Placed<PrefixAttention, D>> {
        let op = self.coded(rank);
        let q = Values::normal(draw, self.dtype, self.query_elements(), 1.0);
        let sides = [self.side(draw, rank)?, self.side(draw, rank)?];
        let [key, value] = sides.each_ref().map(|side| -> Result<FactorsArgs<D>> {
            let book: Vec<f32> = side.codebook.iter().map(|&value| value as f32).collect();
            let coefficients = FactorArgs::Coded { codes: session.index(&side.codes)?, codebooks: session.upload(&book)? };
            Ok(FactorsArgs::new(coefficients, FactorArgs::Dense { values: side.basis.upload(session)?, basis_of: None }))
        });
        let (o, lse) = self.outputs(session)?;
        let args = PrefixAttentionArgs::new(q.upload(session)?, key?, value?, o.clone(), lse);
        let samples = move |_: &mut Session<D>| Ok(self.samples(&op, &q, &sides));
        Ok(Placed::one(args, o, Box::new(samples)))
    }

    fn outputs<D: Device>(self, session: &Session<D>) -> Result<(Slice<D>, Slice<D>)> {
        Ok((session.alloc(self.query_elements() * self.dtype.size())?, session.alloc(self.batch * self.heads[0] * 4)?))
    }

    fn side(self, draw: &mut Draw, rank: u64) -> Result<Coded> {
        let columns = (0..rank).map(|_| Ok((WIDTH, pack(WIDTH, &draw.codes(self.tokens, WIDTH.stage1().len() as u32), &[])?))).collect::<Result<Vec<_>>>()?;
        let codes = AdapterCodes::new(self.tokens as u32, Some(WIDTH), &columns)?;
        let shape = CodesShape::uniform(1, self.tokens as u32, rank as u32, WIDTH)?;
        let basis = Values::normal(draw, self.dtype, self.heads[1] * self.head_dim * rank, 1.0 / (rank as f64).sqrt());
        Ok(Coded { codes: Codes::new(shape, &[codes])?, codebook: draw.normal(DType::F32, CODEBOOK_LEN as u64, 1.0), basis })
    }

    /// Queries of a head, each over the whole prefix with its head's part of the bases.
    fn samples(self, op: &PrefixAttention, q: &Values, sides: &[Coded; 2]) -> Vec<Sample> {
        let [heads, kv_heads] = self.heads;
        let columns: Vec<u64> = (0..self.head_dim).collect();
        let sample = |&place: &u64| {
            // `[queries, heads]`: heads vary fastest.
            let head = place % heads * kv_heads / heads;
            let rows: Vec<u64> = (head * self.head_dim..(head + 1) * self.head_dim).collect();
            let small = Self { batch: 1, heads: [1, 1], ..self }.coded(op.key.rank);
            let [key, value] = sides.each_ref().map(|side| FactorsHost {
                coefficients: FactorHost::Coded { codes: side.codes.clone(), codebooks: side.codebook.clone() },
                basis: FactorHost::Dense { values: side.basis.rows(&rows, op.key.rank), basis_of: None },
            });
            let host = Host { q: q.rows(&[place], self.head_dim), key, value, before: None };
            Sample::new(Posed { op: small, host }, places(&[place], &columns, self.head_dim))
        };
        spread(&mut Draw::seeded("sample"), 4, self.batch * heads).iter().map(sample).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_thousand_tokens_take_the_bytes_that_are_documented() {
        let prefix = Prefix { dtype: DType::F16, batch: 1, heads: [32, 8], tokens: 4096, head_dim: 128 };
        let bytes = |rank| {
            let op = prefix.coded(rank);
            op.key.bytes(DType::F16, op.tokens, op.width()) + op.value.bytes(DType::F16, op.tokens, op.width())
        };
        // Codes of half a byte, a record of centroids, and a basis of two bytes an element, of K and of V.
        let counted = |rank: u64| 2 * (4096 * rank / 2 + 208 + 1024 * rank * 2);
        assert_eq!([bytes(64), bytes(128)], [counted(64), counted(128)]);
        assert_eq!([bytes(64), bytes(128)], [524_704, 1_048_992]);
    }
}
