//! Synthetic adapters in S2LC's form, as many as a device holds: a few sets of codes that adapters and projections take in
//! turn, more codebooks than that, so that no two adapters of a projection are alike, and bases that
//! projections take in turn.

use super::operand::Values;
use trifuse::device::{Device, Slice};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::codes::CODEBOOK_LEN;
use trifuse::ops::index::{AdapterCodes, Codes, CodesShape, Index, TokenAdapters};
use trifuse::ops::{CodeWidth, CodebookGemm};
use trifuse::session::Session;
use trifuse_testkit::cases::{Draw, Posed, steady_codebook};
use trifuse_testkit::oracle::codebook_gemm::{FactorHost, Host, SliceHost};

/// Sets of codes that are drawn.
const SETS: usize = 13;
/// Codebooks that are drawn: a prime, so that 26,039 adapters of a projection differ.
const BOOKS: usize = 2003;
/// Bases that are drawn; projections take them in turn, each a copy of its own.
const BASES: usize = 11;
/// Bytes of codes that are copied at once to where a population lies.
const CHUNK: u64 = 64 << 20;

/// One projection on packed rows, y written over.
pub fn op(dtype: DType, tokens: u64, dims: [u64; 3], adapters: u32, width: CodeWidth) -> CodebookGemm {
    CodebookGemm::s2lc(dtype, tokens, dims, adapters, width).with_accumulate(false)
}

/// What the adapters have in common, and what they are made of.
pub struct Population {
    pub dtype: DType,
    /// Columns of x.
    pub d_in: u64,
    /// Columns of y.
    pub d_out: u64,
    /// Columns of both factors.
    pub rank: u64,
    pub width: CodeWidth,
    sets: Vec<AdapterCodes>,
    books: Vec<[f32; CODEBOOK_LEN]>,
    /// Bases as drawn, and as the device gets them.
    bases: Vec<(Values, Vec<u8>)>,
}

impl Population {
    /// A population of projections with `d_in` columns of x, `d_out` of y, and factors of `rank` columns.
    pub fn new(dtype: DType, [d_in, d_out, rank]: [u64; 3], width: CodeWidth, draw: &mut Draw) -> Result<Self> {
        let set = |draw: &mut Draw| {
            let [first, second] =
                [width.stage1(), width.stage2()].map(|stage| if stage.is_empty() { Vec::new() } else { draw.codes(d_out * rank, stage.len() as u32) });
            AdapterCodes::from_indices(d_out as u32, rank as u32, width, &first, &second)
        };
        let sets = (0..SETS).map(|_| set(draw)).collect::<Result<Vec<_>>>()?;
        let books = (0..BOOKS).map(|_| steady_codebook(width, rank, draw)).collect();
        // Scaled so that what goes through a chain keeps its size.
        let bases = (0..BASES).map(|_| Values::normal(draw, dtype, d_in * rank, 1.0 / (d_in as f64).sqrt()));
        let bases = bases.map(|basis| (basis.clone(), dtype.encode(&basis.all()))).collect();
        Ok(Self { dtype, d_in, d_out, rank, width, sets, books, bases })
    }

    fn shape(&self, adapters: u32) -> Result<CodesShape> {
        CodesShape::uniform(adapters, self.d_out as u32, self.rank as u32, self.width)
    }

    /// The set of codes that adapter 0 of a projection has; the others follow.
    fn first(projection: u64) -> usize {
        projection as usize * 5 % SETS
    }

    /// A copy of a projection's basis on the device.
    ///
    /// # Errors
    /// No device memory.
    pub fn basis<D: Device>(&self, session: &mut Session<D>, projection: u64) -> Result<Slice<D>> {
        session.upload(&self.bases[projection as usize % BASES].1)
    }

    /// Codes of adapters `ids` of a projection.
    pub fn codes(&self, projection: u64, ids: std::ops::Range<u32>) -> Result<Codes> {
        let sets: Vec<_> = ids.clone().map(|adapter| self.sets[(Self::first(projection) + adapter as usize) % SETS].clone()).collect();
        Codes::new(self.shape(ids.end - ids.start)?, &sets)
    }

    /// Codebooks of adapters `ids` of a projection.
    pub fn codebooks(&self, projection: u64, ids: std::ops::Range<u32>) -> Vec<f32> {
        let mut all = Vec::with_capacity(ids.len() * CODEBOOK_LEN);
        ids.for_each(|adapter| all.extend_from_slice(&self.books[(projection as usize * 7 + adapter as usize) % BOOKS]));
        all
    }

    /// What [`on_device`](Self::on_device) copies from: the sets of codes, often enough that few copies do.
    ///
    /// # Errors
    /// No device memory.
    pub fn pattern<D: Device>(&self, session: &mut Session<D>, adapters: u32) -> Result<Index<Codes, D>> {
        let one = session.index(&Codes::new(self.shape(SETS as u32)?, &self.sets)?)?;
        let turns = (CHUNK / one.device_bytes().max(1)).clamp(1, u64::from(adapters).div_ceil(SETS as u64));
        session.repeat_codes(&one, turns as u32 * SETS as u32, 0)
    }

    /// The codes and codebooks of all adapters of a projection.
    ///
    /// # Errors
    /// No device memory.
    pub fn on_device<D: Device>(
        &self,
        session: &mut Session<D>,
        pattern: &Index<Codes, D>,
        projection: u64,
        adapters: u32,
    ) -> Result<(Index<Codes, D>, Slice<D>)> {
        let codes = session.repeat_codes(pattern, adapters, Self::first(projection) as u32)?;
        Ok((codes, session.upload(&self.codebooks(projection, 0..adapters))?))
    }

    /// A token by itself on that adapter of a projection, for the oracle.
    pub fn posed(&self, projection: u64, adapter: u32, x: Vec<f64>, y: Vec<f64>) -> Result<Posed<CodebookGemm>> {
        let ids = adapter..adapter.checked_add(1).ok_or_else(|| Error::invalid("adapter", "a number below 2^32 - 1", adapter))?;
        let codebooks = self.codebooks(projection, ids.clone()).into_iter().map(f64::from).collect();
        let input = FactorHost::Dense { values: self.bases[projection as usize % BASES].0.all(), basis_of: None };
        let slice = SliceHost { input, core: None, output: FactorHost::Coded { codes: self.codes(projection, ids)?, codebooks }, y };
        let host = Host { x, token_adapter: TokenAdapters::new(&[0], 1)?, scaling: vec![1.0], slices: vec![slice] };
        Ok(Posed { op: op(self.dtype, 1, [self.d_in, self.d_out, self.rank], 1, self.width), host })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_adapters_of_a_projection_are_alike() {
        let pairs: BTreeSet<(usize, usize)> = (0..20_000).map(|adapter| (adapter % SETS, adapter % BOOKS)).collect();
        assert_eq!(pairs.len(), 20_000);
    }

    #[cfg(feature = "cpu")]
    #[test]
    fn the_device_holds_what_the_oracle_is_told() {
        use trifuse::device::Open;
        use trifuse::ops::index::HostIndex;
        let device = trifuse::backends::cpu::Cpu::open(0).unwrap();
        let mut session = Session::new(std::sync::Arc::new(device)).unwrap();
        for width in [CodeWidth::Three, CodeWidth::FourThree] {
            let population = Population::new(DType::F16, [40, 40, 4], width, &mut Draw::seeded("population")).unwrap();
            let pattern = population.pattern(&mut session, 20).unwrap();
            let (codes, codebooks) = population.on_device(&mut session, &pattern, 2, 31).unwrap();
            let expected = population.codes(2, 0..31).unwrap();
            assert_eq!(*codes.shape(), expected.shape());
            assert_eq!(session.read_index(&codes).unwrap(), *expected.words());
            assert_eq!(session.download::<f32>(&codebooks).unwrap(), population.codebooks(2, 0..31));
            assert_eq!(population.codes(2, 30..31).unwrap().words()[..], expected.words()[expected.words().len() / 31 * 30..]);
        }
    }
}
