//! Many projections of codebook GEMM: each on what the one before wrote, as the layers of a model are, or all at once.

use super::operand::{Values, spread};
use super::sample::{Placed, Probe, Sample, places};
use crate::cases::{Draw, Posed};
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::codebook_gemm::{CodebookSliceArgs, FactorArgs};
use crate::ops::codes::CODEBOOK_LEN;
use crate::ops::index::{AdapterCodes, Codes, CodesShape, Index, TokenAdapters};
use crate::ops::{CodeWidth, CodebookGemm, CodebookGemmArgs};
use crate::oracle::codebook_gemm::{FactorHost, Host, SliceHost};
use crate::session::Session;

/// Sets of codes that are drawn; projections and adapters take them in turn. Codebooks are everyone's own.
const SETS: usize = 13;
/// S2LC's codes: two stages, 4 and 3 bits.
const WIDTH: CodeWidth = CodeWidth::FourThree;

/// As [`super::shape::Shape::CodebookGemm`].
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    pub dtype: DType,
    pub tokens: u64,
    pub adapters: u32,
    pub projections: u64,
    pub d: u64,
    pub rank: u64,
    pub grouped: bool,
}

/// The factors of one projection on the host.
#[derive(Clone)]
struct Projection {
    basis: Values,
    codes: Vec<AdapterCodes>,
    codebooks: Vec<f64>,
}

/// The delta of one token, for the oracle.
type OfRow = dyn Fn(u64) -> Result<Posed<CodebookGemm>>;

impl Chain {
    /// The operation of one launch.
    pub fn op(&self) -> CodebookGemm {
        let one = CodebookGemm { accumulate: false, ..self.one(self.tokens, self.adapters) };
        let slices = if self.grouped { self.projections as usize } else { 1 };
        CodebookGemm { slices: vec![one.slices[0].clone(); slices], ..one }
    }

    fn one(&self, tokens: u64, adapters: u32) -> CodebookGemm {
        CodebookGemm { accumulate: false, ..CodebookGemm::s2lc(self.dtype, tokens, [self.d, self.d, self.rank], adapters, WIDTH) }
    }

    /// The operands of every launch, and what to check.
    pub fn operands<D: Device>(self, session: &mut Session<D>, draw: &mut Draw) -> Result<Placed<CodebookGemm, D>> {
        let sets = (0..SETS).map(|_| self.codes(draw)).collect::<Result<Vec<_>>>()?;
        let (token_adapter, scaling) = (self.assign(session)?, self.upload_scaling(session)?);
        let mut x = Values::normal(draw, self.dtype, self.tokens * self.d, 1.0).upload(session)?;
        let (mut launches, mut probes, mut slices) = (Vec::new(), Vec::new(), Vec::new());
        let checked = spread(draw, 4, self.projections);
        for number in 0..self.projections {
            let projection = self.projection(&sets, number, draw);
            let y = session.alloc(self.tokens * self.d * self.dtype.size())?;
            let slice = self.upload(&projection, y.clone(), session)?;
            if checked.contains(&number) {
                let x = x.clone();
                let samples = move |session: &mut Session<D>| self.samples(&projection, &x, session);
                probes.push(Probe { output: y.clone(), samples: Box::new(samples) });
            }
            if self.grouped {
                slices.push(slice);
            } else {
                launches.push(CodebookGemmArgs { x: x.clone(), token_adapter: token_adapter.clone(), scaling: scaling.clone(), slices: vec![slice] });
                x = y;
            }
        }
        if self.grouped {
            launches.push(CodebookGemmArgs { x, token_adapter, scaling, slices });
        }
        Ok(Placed { launches, probes })
    }

    fn codes(&self, draw: &mut Draw) -> Result<AdapterCodes> {
        let [first, second] = [WIDTH.stage1(), WIDTH.stage2()].map(|stage| draw.codes(self.d * self.rank, stage.len() as u32));
        AdapterCodes::from_indices(self.d as u32, self.rank as u32, WIDTH, &first, &second)
    }

    /// Scaled so that what goes through the chain keeps its size.
    fn projection(&self, sets: &[AdapterCodes], number: u64, draw: &mut Draw) -> Projection {
        let basis = Values::normal(draw, self.dtype, self.d * self.rank, 1.0 / (self.d as f64).sqrt());
        let codes = (0..self.adapters as usize).map(|adapter| sets[(number as usize * 5 + adapter) % SETS].clone()).collect();
        let mut codebooks = Vec::new();
        for _ in 0..self.adapters {
            codebooks.extend(self.codebook(draw));
        }
        Projection { basis, codes, codebooks }
    }

    /// The first stage of mean 0 and mean square 1/R exactly, the second of a tenth of that: what 128 books leave to
    /// chance multiplies.
    fn codebook(&self, draw: &mut Draw) -> Vec<f64> {
        let mut book = vec![0.0; CODEBOOK_LEN];
        for (stage, deviation) in [(WIDTH.stage1(), 1.0), (WIDTH.stage2(), 0.1)] {
            let drawn: Vec<f64> = stage.clone().map(|_| draw.gaussian()).collect();
            let count = drawn.len() as f64;
            let mean = drawn.iter().sum::<f64>() / count;
            let square = drawn.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
            let scale = deviation / (square * self.rank as f64).sqrt();
            for (place, value) in stage.zip(drawn) {
                book[place] = DType::F32.round((value - mean) * scale);
            }
        }
        book
    }

    /// A random `R × R` product shrinks a vector by e^(−1/(2R)) in the mean of the logarithm; this undoes it.
    fn scaling(&self) -> f64 {
        DType::F32.round((0.5 / self.rank as f64).exp())
    }

    fn upload<D: Device>(&self, projection: &Projection, y: Slice<D>, session: &mut Session<D>) -> Result<CodebookSliceArgs<D>> {
        let shape = CodesShape::uniform(self.adapters, self.d as u32, self.rank as u32, WIDTH)?;
        let codes = session.index(&Codes::new(shape, &projection.codes)?)?;
        let codebooks = session.upload(&DType::F32.encode(&projection.codebooks))?;
        let input = FactorArgs::Dense { values: projection.basis.upload(session)?, basis_of: None };
        Ok(CodebookSliceArgs { input, core: None, output: FactorArgs::Coded { codes, codebooks }, y })
    }

    /// A few tokens of one projection, on the x that the device had.
    fn samples<D: Device>(&self, projection: &Projection, x: &Slice<D>, session: &mut Session<D>) -> Result<Vec<Sample>> {
        let x = self.dtype.decode(&session.read(x)?);
        let columns: Vec<u64> = (0..self.d).collect();
        let one = |row: u64| -> Result<Sample> {
            let host = self.host(projection, row, x[(row * self.d) as usize..][..self.d as usize].to_vec(), vec![0.0; self.d as usize])?;
            Ok(Sample { problem: Posed { op: self.one(1, 1), host }.into(), places: places(&[row], &columns, self.d) })
        };
        spread(&mut Draw::seeded("sample"), 8, self.tokens).into_iter().map(one).collect()
    }

    /// The operands of one token, with its adapter alone.
    fn host(&self, projection: &Projection, row: u64, x: Vec<f64>, y: Vec<f64>) -> Result<Host> {
        let adapter = (row % u64::from(self.adapters)) as usize;
        let shape = CodesShape::uniform(1, self.d as u32, self.rank as u32, WIDTH)?;
        let codes = Codes::new(shape, &projection.codes[adapter..=adapter])?;
        let codebooks = projection.codebooks[adapter * CODEBOOK_LEN..][..CODEBOOK_LEN].to_vec();
        let input = FactorHost::Dense { values: projection.basis.all(), basis_of: None };
        let slice = SliceHost { input, core: None, output: FactorHost::Coded { codes, codebooks }, y };
        Ok(Host { x, token_adapter: TokenAdapters::new(&[0], 1)?, scaling: vec![self.scaling()], slices: vec![slice] })
    }

    /// The delta of a linear operation of this size.
    pub fn delta_op(&self) -> CodebookGemm {
        CodebookGemm { accumulate: true, ..self.one(self.tokens, self.adapters) }
    }

    /// One projection on top of a linear operation's own x and y, and what gives the delta of a token to the oracle.
    pub fn delta<D: Device>(self, session: &mut Session<D>, draw: &mut Draw, x: Slice<D>, y: Slice<D>) -> Result<(CodebookGemmArgs<D>, Box<OfRow>)> {
        let sets = (0..SETS).map(|_| self.codes(draw)).collect::<Result<Vec<_>>>()?;
        let projection = self.projection(&sets, 0, draw);
        let slices = vec![self.upload(&projection, y, session)?];
        let args = CodebookGemmArgs { x, token_adapter: self.assign(session)?, scaling: self.upload_scaling(session)?, slices };
        let of_row = move |row| {
            let op = CodebookGemm { accumulate: true, ..self.one(1, 1) };
            Ok(Posed { op, host: self.host(&projection, row, Vec::new(), Vec::new())? })
        };
        Ok((args, Box::new(of_row)))
    }

    fn assign<D: Device>(&self, session: &mut Session<D>) -> Result<Index<TokenAdapters, D>> {
        let ids: Vec<i32> = (0..self.tokens).map(|token| (token % u64::from(self.adapters)) as i32).collect();
        session.index(&TokenAdapters::new(&ids, self.adapters)?)
    }

    fn upload_scaling<D: Device>(&self, session: &mut Session<D>) -> Result<Slice<D>> {
        session.upload(&vec![self.scaling() as f32; self.adapters as usize])
    }
}
