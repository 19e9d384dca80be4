//! Many projections of codebook GEMM: each on what the one before wrote, as the layers of a model are, or all at once.

use super::operand::{Values, spread};
use super::sample::{Placed, Probe, Sample, places};
use crate::cases::{Draw, Posed};
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::codebook_gemm::{CodebookSliceArgs, FactorArgs};
use crate::ops::codes::CODEBOOK_LEN;
use crate::ops::index::{AdapterCodes, Codes, CodesShape, TokenAdapters};
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
        let ids: Vec<i32> = (0..self.tokens).map(|token| (token % u64::from(self.adapters)) as i32).collect();
        let token_adapter = session.index(&TokenAdapters::new(&ids, self.adapters)?)?;
        let scaling = session.upload(&vec![1f32; self.adapters as usize])?;
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
            let mut book = draw.normal(DType::F32, CODEBOOK_LEN as u64, 1.0 / (self.rank as f64).sqrt());
            // The second stage codes what the first left over: it is smaller.
            book[WIDTH.stage2()].iter_mut().for_each(|value| *value = DType::F32.round(*value * 0.1));
            codebooks.extend(book);
        }
        Projection { basis, codes, codebooks }
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
            let adapter = (row % u64::from(self.adapters)) as usize;
            let shape = CodesShape::uniform(1, self.d as u32, self.rank as u32, WIDTH)?;
            let codes = Codes::new(shape, &projection.codes[adapter..=adapter])?;
            let codebooks = projection.codebooks[adapter * CODEBOOK_LEN..][..CODEBOOK_LEN].to_vec();
            let input = FactorHost::Dense { values: projection.basis.all(), basis_of: None };
            let slice = SliceHost { input, core: None, output: FactorHost::Coded { codes, codebooks }, y: vec![0.0; self.d as usize] };
            let x = x[(row * self.d) as usize..][..self.d as usize].to_vec();
            let host = Host { x, token_adapter: TokenAdapters::new(&[0], 1)?, scaling: vec![1.0], slices: vec![slice] };
            Ok(Sample { problem: Posed { op: self.one(1, 1), host }.into(), places: places(&[row], &columns, self.d) })
        };
        spread(&mut Draw::seeded("sample"), 8, self.tokens).into_iter().map(one).collect()
    }
}
