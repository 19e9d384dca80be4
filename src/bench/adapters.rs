//! Many projections of codebook GEMM: each on what the one before wrote, as the layers of a model are, several on one x, or
//! all at once; with the adapters on the device, or on the host.

use super::operand::{Values, spread};
use super::sample::{Copies, Memory, Placed, Probe, Sample, places};
use super::shape::Held;
use crate::cases::{Draw, Posed, steady_codebook};
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
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
    pub share: u64,
    pub held: Held,
}

/// The factors of one projection on the host.
#[derive(Clone)]
struct Projection {
    basis: Values,
    codes: Vec<AdapterCodes>,
    codebooks: Vec<f32>,
}

/// The delta of one token, for the oracle.
type OfRow = dyn Fn(u64) -> Result<Posed<CodebookGemm>>;

impl Chain {
    /// The operation of one launch.
    pub fn op(&self) -> CodebookGemm {
        let one = self.one(self.tokens, self.slots());
        let slices = if self.grouped { self.projections as usize } else { 1 };
        CodebookGemm { slices: vec![one.slices[0].clone(); slices], ..one }
    }

    fn one(&self, tokens: u64, adapters: u32) -> CodebookGemm {
        CodebookGemm { accumulate: false, ..CodebookGemm::s2lc(self.dtype, tokens, [self.d, self.d, self.rank], adapters, WIDTH) }
    }

    /// Adapters that a launch finds on the device: where the host holds them, those that the batch uses, which are the
    /// first ones.
    fn slots(&self) -> u32 {
        match self.held {
            Held::Device => self.adapters,
            Held::Host => self.adapters.min(u32::try_from(self.tokens).unwrap_or(u32::MAX)),
        }
    }

    /// The operands of every launch, and what to check.
    pub fn operands<D: Device>(self, session: &mut Session<D>, draw: &mut Draw) -> Result<Placed<CodebookGemm, D>> {
        let sets = (0..SETS).map(|_| self.codes(draw)).collect::<Result<Vec<_>>>()?;
        let (token_adapter, scaling) = (self.assign(session)?, self.scaling(session)?);
        let mut x = Values::normal(draw, self.dtype, self.tokens * self.d, 1.0).upload(session)?;
        let (mut launches, mut probes, mut slices, mut copies) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut place: Option<CodebookSliceArgs<D>> = None;
        let factor = self.d * self.rank * DType::F16.size();
        let mut memory = Memory { lora_f16_bytes: 2 * factor * self.projections * u64::from(self.adapters), ..Memory::default() };
        let checked = spread(draw, 4, self.projections);
        for number in 0..self.projections {
            let projection = self.projection(&sets, number, draw);
            let y = session.alloc(self.tokens * self.d * self.dtype.size())?;
            let slice = match &place {
                Some(first) => CodebookSliceArgs { y: y.clone(), ..first.clone() },
                None => {
                    let slice = self.upload(&projection, y.clone(), session)?;
                    memory.device_bytes += bytes(&slice);
                    slice
                }
            };
            if self.held == Held::Host {
                memory.host_bytes += bytes(&slice);
                copies.push(self.copies(&projection, &slice)?);
                place = Some(slice.clone());
            }
            if checked.contains(&number) {
                let x = x.clone();
                let samples = move |session: &mut Session<D>| self.samples(&projection, &x, session);
                probes.push(Probe { output: y.clone(), samples: Box::new(samples) });
            }
            if self.grouped {
                slices.push(slice);
            } else {
                launches.push(CodebookGemmArgs { x: x.clone(), token_adapter: token_adapter.clone(), scaling: scaling.clone(), slices: vec![slice] });
                if (number + 1) % self.share == 0 {
                    x = y;
                }
            }
        }
        if self.grouped {
            launches.push(CodebookGemmArgs { x, token_adapter, scaling, slices });
        }
        if self.held == Held::Device {
            memory.lora_f16_ratio = Some(memory.lora_f16_bytes as f64 / memory.device_bytes as f64);
        }
        Ok(Placed { launches, probes, copies, memory: Some(memory) })
    }

    /// Copies a projection that the host holds to where `slice` has it.
    fn copies<D: Device>(&self, projection: &Projection, slice: &CodebookSliceArgs<D>) -> Result<Box<Copies<D>>> {
        let (FactorArgs::Dense { values, .. }, FactorArgs::Coded { codes, codebooks }) = (&slice.input, &slice.output) else {
            return Err(Error::invalid("projection", "a dense input factor and a coded output factor", "others"));
        };
        let (values, codes, codebooks) = (values.clone(), codes.clone(), codebooks.clone());
        let (basis, host, books) = (self.dtype.encode(&projection.basis.all()), self.host_codes(projection)?, projection.codebooks.clone());
        Ok(Box::new(move |session| {
            session.write(&values, &basis)?;
            session.update_index(&codes, &host)?;
            session.write(&codebooks, bytemuck::cast_slice(&books))
        }))
    }

    /// The codes of the adapters that are on the device.
    fn host_codes(&self, projection: &Projection) -> Result<Codes> {
        Codes::new(CodesShape::uniform(self.slots(), self.d as u32, self.rank as u32, WIDTH)?, &projection.codes)
    }

    fn codes(&self, draw: &mut Draw) -> Result<AdapterCodes> {
        let [first, second] = [WIDTH.stage1(), WIDTH.stage2()].map(|stage| draw.codes(self.d * self.rank, stage.len() as u32));
        AdapterCodes::from_indices(self.d as u32, self.rank as u32, WIDTH, &first, &second)
    }

    /// Scaled so that what goes through the chain keeps its size.
    fn projection(&self, sets: &[AdapterCodes], number: u64, draw: &mut Draw) -> Projection {
        let basis = Values::normal(draw, self.dtype, self.d * self.rank, 1.0 / (self.d as f64).sqrt());
        let codes = (0..self.slots() as usize).map(|adapter| sets[(number as usize * 5 + adapter) % SETS].clone()).collect();
        let codebooks = (0..self.slots()).flat_map(|_| steady_codebook(WIDTH, self.rank, draw)).collect();
        Projection { basis, codes, codebooks }
    }

    fn upload<D: Device>(&self, projection: &Projection, y: Slice<D>, session: &mut Session<D>) -> Result<CodebookSliceArgs<D>> {
        let codes = session.index(&self.host_codes(projection)?)?;
        let codebooks = session.upload(&projection.codebooks)?;
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
        let codebooks = projection.codebooks[adapter * CODEBOOK_LEN..][..CODEBOOK_LEN].iter().map(|&value| value.into()).collect();
        let input = FactorHost::Dense { values: projection.basis.all(), basis_of: None };
        let slice = SliceHost { input, core: None, output: FactorHost::Coded { codes, codebooks }, y };
        Ok(Host { x, token_adapter: TokenAdapters::new(&[0], 1)?, scaling: vec![1.0], slices: vec![slice] })
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
        let args = CodebookGemmArgs { x, token_adapter: self.assign(session)?, scaling: self.scaling(session)?, slices };
        let of_row = move |row| {
            let op = CodebookGemm { accumulate: true, ..self.one(1, 1) };
            Ok(Posed { op, host: self.host(&projection, row, Vec::new(), Vec::new())? })
        };
        Ok((args, Box::new(of_row)))
    }

    fn assign<D: Device>(&self, session: &mut Session<D>) -> Result<Index<TokenAdapters, D>> {
        let ids: Vec<i32> = (0..self.tokens).map(|token| (token % u64::from(self.adapters)) as i32).collect();
        session.index(&TokenAdapters::new(&ids, self.slots())?)
    }

    fn scaling<D: Device>(&self, session: &mut Session<D>) -> Result<Slice<D>> {
        session.upload(&vec![1f32; self.slots() as usize])
    }
}

/// What the adapters of a slice take on the device.
fn bytes<D: Device>(slice: &CodebookSliceArgs<D>) -> u64 {
    let of = |factor: &FactorArgs<D>| match factor {
        FactorArgs::Dense { values, basis_of } => values.len + basis_of.as_ref().map_or(0, |index| index.slice().len),
        FactorArgs::Coded { codes, codebooks } => codes.slice().len + codebooks.len,
    };
    of(&slice.input) + of(&slice.output)
}
