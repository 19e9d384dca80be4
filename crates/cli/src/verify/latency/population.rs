//! What the projections of test 4 hold: a basis each, and codes for as many adapters as a row of the table asks for.

use trifuse::backend::Backend;
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::codebook_gemm::{Factor, FactorArgs};
use trifuse::ops::codes::CODEBOOK_LEN;
use trifuse::ops::index::{AdapterCodes, BasisOf, Codes, CodesShape, TokenAdapters};
use trifuse::ops::{CodeWidth, CodebookGemm};
use trifuse::session::Session;
use trifuse_testkit::cases::{Draw, Posed, steady_codebook};
use trifuse_testkit::oracle::codebook_gemm::{FactorHost, Host, SliceHost};
use trifuse_testkit::tolerance::{Metrics, expect};

pub const DTYPE: DType = DType::F16;
pub const WIDTH: CodeWidth = CodeWidth::FourThree;

/// Every projection is a square matrix.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub projections: usize,
    /// Columns of x and of y.
    pub d: u64,
    pub rank: u64,
}

/// One adapter's part in one projection.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub projection: usize,
    pub adapter: usize,
}

/// Some rows of x and of y as they lie on the device, and whose they are.
pub struct Rows {
    /// One for each row.
    pub places: Vec<Place>,
    pub x: Vec<u8>,
    pub y: Vec<u8>,
}

/// The bases and codes of every projection, drawn once. Projection `p` gives adapter `a` number `p + a` of a ring of codes:
/// drawing codes for each would take longer than all that is measured. Codebooks are each their own.
pub struct Population {
    pub sizes: Sizes,
    bases: Vec<Vec<f64>>,
    ring: Vec<AdapterCodes>,
    codebooks: Vec<[f32; CODEBOOK_LEN]>,
}

impl Population {
    pub fn draw(sizes: Sizes, adapters: usize) -> Result<Self> {
        let mut draw = Draw::seeded("latency");
        let Sizes { projections, d, rank } = sizes;
        let words = WIDTH.column_words(d) as usize;
        let mut ring = Vec::with_capacity(adapters);
        for _ in 0..adapters {
            // All fields of this width index something, so any words are codes.
            let columns: Vec<_> = (0..rank).map(|_| (WIDTH, (0..words).map(|_| draw.word()).collect())).collect();
            ring.push(AdapterCodes::new(d as u32, Some(WIDTH), &columns)?);
        }
        let bases = (0..projections).map(|_| draw.normal(DTYPE, d * rank, 1.0 / (d as f64).sqrt())).collect();
        let codebooks = (0..projections + adapters).map(|_| steady_codebook(WIDTH, rank, &mut draw)).collect();
        Ok(Self { sizes, bases, ring, codebooks })
    }

    fn codes_of(&self, at: Place) -> &AdapterCodes {
        &self.ring[(at.projection + at.adapter) % self.ring.len()]
    }

    fn codebook_of(&self, at: Place) -> &[f32; CODEBOOK_LEN] {
        &self.codebooks[(at.projection + at.adapter) % self.codebooks.len()]
    }

    pub fn codes(&self, places: &[Place]) -> Result<Codes> {
        let Sizes { d, rank, .. } = self.sizes;
        let shape = CodesShape::uniform(places.len() as u32, d as u32, rank as u32, WIDTH)?;
        let adapters: Vec<AdapterCodes> = places.iter().map(|&at| self.codes_of(at).clone()).collect();
        Codes::new(shape, &adapters)
    }

    pub fn codebooks(&self, places: &[Place]) -> Vec<f32> {
        places.iter().flat_map(|&at| *self.codebook_of(at)).collect()
    }

    /// The bytes of the bases of some projections, one after another.
    pub fn bases(&self, projections: impl IntoIterator<Item = usize>) -> Vec<u8> {
        projections.into_iter().flat_map(|projection| DTYPE.encode(&self.bases[projection])).collect()
    }

    /// The codes and codebooks of `places` on the device.
    pub fn coded<B: Backend>(&self, session: &mut Session<B>, places: &[Place]) -> Result<FactorArgs<B>> {
        Ok(FactorArgs::Coded { codes: session.index(&self.codes(places)?)?, codebooks: session.upload(&self.codebooks(places))? })
    }

    /// Compares rows of y with the oracle's answer for the rows of x that the device had: the error, and the root mean square of the answer.
    /// `None` where x is not all numbers: a launch before left it so, and no answer to it is right.
    pub fn judge(&self, Rows { places: rows, x, y }: &Rows) -> Result<Option<(Metrics, f64)>> {
        let Sizes { d, rank, .. } = self.sizes;
        let x = DTYPE.decode(x);
        if !x.iter().all(|value| value.is_finite()) {
            return Ok(None);
        }
        let count = rows.len() as u32;
        // A row by itself is an adapter by itself.
        let numbers: Vec<i32> = (0..count as i32).collect();
        let mut op = CodebookGemm::s2lc(DTYPE, u64::from(count), [d, d, rank], count, WIDTH).with_accumulate(false);
        op.slices[0].input = Factor::Dense { bases: count };
        let values = rows.iter().flat_map(|at| self.bases[at.projection].iter().copied()).collect();
        let input = FactorHost::Dense { values, basis_of: Some(BasisOf::new(&numbers, count)?) };
        let codebooks = self.codebooks(rows).into_iter().map(f64::from).collect();
        let output = FactorHost::Coded { codes: self.codes(rows)?, codebooks };
        let host = Host {
            x,
            token_adapter: TokenAdapters::new(&numbers, count)?,
            scaling: vec![1.0; rows.len()],
            slices: vec![SliceHost { input, core: None, output, y: vec![f64::NAN; rows.len() * d as usize] }],
        };
        let expected = expect(&Posed { op, host }.into())?;
        let [expected] = &expected[..] else { return Err(Error::invalid("outputs", "one", expected.len())) };
        let metrics = expected.tolerance.compare(&expected.elements, &DTYPE.decode(y))?;
        let squares: f64 = expected.elements.iter().flatten().map(|value| value * value).sum();
        Ok(Some((metrics, (squares / expected.elements.len() as f64).sqrt())))
    }
}
