//! Many projections of codebook GEMM: each on what the one before wrote, as the layers of a model are, several on one x, or
//! all at once; with the adapters on the device, or on the host.

use std::sync::Arc;

use super::operand::{Values, spread};
use super::population::{Population, op};
use super::sample::{Copies, Memory, Placed, Probe, Sample, places};
use super::shape::Held;
use trifuse::device::{Device, Slice};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::codebook_gemm::{CodebookSliceArgs, FactorArgs};
use trifuse::ops::index::{Codes, Index, TokenAdapters};
use trifuse::ops::{CodeWidth, CodebookGemm, CodebookGemmArgs};
use trifuse::session::Session;
use trifuse_testkit::cases::{Draw, Posed};

/// The chain of projections that [`super::shape::Shape::CodebookGemm`] describes, in an element type.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    pub dtype: DType,
    pub tokens: u64,
    pub adapters: u32,
    pub projections: u64,
    pub d: u64,
    pub rank: u64,
    pub width: CodeWidth,
    pub grouped: bool,
    pub share: u64,
    pub held: Held,
}

/// The delta of one token, for the oracle.
type OfRow = dyn Fn(u64) -> Result<Posed<CodebookGemm>>;

/// Codes and codebooks of a projection.
type Coded<D> = (Index<Codes, D>, Slice<D>);

/// Where launches find codes, and what brings them there.
struct Places<D: Device> {
    /// Codes and codebooks of each projection.
    coded: Vec<Coded<D>>,
    /// Copies before each launch.
    copies: Vec<Box<Copies<D>>>,
    /// Copies before all launches.
    before: Option<Box<Copies<D>>>,
    device_bytes: u64,
    host_bytes: u64,
}

impl Chain {
    /// The operation of one launch.
    pub fn op(&self) -> CodebookGemm {
        let one = op(self.dtype, self.tokens, [self.d, self.d, self.rank], self.slots(), self.width);
        let slices = vec![one.slices[0].clone(); self.slices() as usize];
        one.with_slices(slices)
    }

    /// Projections that are slices of one launch: all where they are grouped, else those that share an input, as query, key and value do.
    /// Where all share one, each has a launch of its own, as layers that come to it one by one have.
    fn slices(&self) -> u64 {
        match (self.grouped, self.held) {
            (true, _) => self.projections,
            (false, Held::Device) if self.share < self.projections => self.share,
            _ => 1,
        }
    }

    /// Adapters that a launch finds on the device: where the host holds them, those that the batch uses, which are the
    /// first ones.
    fn slots(&self) -> u32 {
        match self.held {
            Held::Device => self.adapters,
            Held::Host | Held::HostPass => self.adapters.min(u32::try_from(self.tokens).unwrap_or(u32::MAX)),
        }
    }

    fn population(&self, draw: &mut Draw) -> Result<Population> {
        Population::new(self.dtype, [self.d, self.d, self.rank], self.width, draw)
    }

    /// The operands of every launch, and what to check.
    pub fn operands<D: Device>(self, session: &mut Session<D>, draw: &mut Draw) -> Result<Placed<CodebookGemm, D>> {
        let population = Arc::new(self.population(draw)?);
        let (token_adapter, scaling) = (self.assign(session)?, self.scaling(session)?);
        let mut x = Values::normal(draw, self.dtype, self.tokens * self.d, 1.0).upload(session)?;
        let places = match self.held {
            Held::Device => self.resident(&population, session)?,
            Held::Host => self.one_by_one(&population, session)?,
            Held::HostPass => self.at_once(&population, session)?,
        };
        let lora_f16_bytes = 2 * self.d * self.rank * DType::F16.size() * self.projections * u64::from(self.adapters);
        let mut memory = Memory { device_bytes: places.device_bytes, host_bytes: places.host_bytes, lora_f16_bytes, ..Memory::default() };
        let (mut launches, mut probes, mut slices) = (Vec::new(), Vec::new(), Vec::new());
        let checked = spread(draw, 4, self.projections);
        for (number, (codes, codebooks)) in (0..).zip(places.coded) {
            let y = session.alloc(self.tokens * self.d * self.dtype.size())?;
            let values = population.basis(session, number)?;
            memory.device_bytes += values.len();
            let input = FactorArgs::Dense { values, basis_of: None };
            let slice = CodebookSliceArgs::new(input, FactorArgs::Coded { codes, codebooks }, y.clone());
            if checked.contains(&number) {
                let (x, population) = (x.clone(), Arc::clone(&population));
                let of_token = move |token| self.adapter_of(token);
                let samples = move |session: &mut Session<D>| samples(&population, number, &x, self.tokens, &of_token, session);
                probes.push(Probe { output: y.clone(), samples: Box::new(samples), before: None });
            }
            slices.push(slice);
            if slices.len() as u64 == self.slices() {
                let slices = std::mem::take(&mut slices);
                launches.push(CodebookGemmArgs::new(x.clone(), token_adapter.clone(), scaling.clone(), slices));
            }
            if (number + 1) % self.share == 0 && !self.grouped {
                x = y;
            }
        }
        if self.held == Held::Device {
            memory.lora_f16_ratio = Some(memory.lora_f16_bytes as f64 / memory.device_bytes as f64);
        }
        Ok(Placed { launches, probes, copies: places.copies, before: places.before, memory: Some(memory) })
    }

    /// All adapters of all projections on the device.
    fn resident<D: Device>(&self, population: &Population, session: &mut Session<D>) -> Result<Places<D>> {
        let pattern = population.pattern(session, self.adapters)?;
        let coded = (0..self.projections).map(|number| population.on_device(session, &pattern, number, self.adapters)).collect::<Result<Vec<_>>>()?;
        let device_bytes = coded.iter().map(bytes).sum();
        Ok(Places { coded, copies: Vec::new(), before: None, device_bytes, host_bytes: 0 })
    }

    /// One place for all projections: what the batch uses of one is copied there before its launch.
    fn one_by_one<D: Device>(&self, population: &Population, session: &mut Session<D>) -> Result<Places<D>> {
        let host = |number| population.codes(number, 0..self.slots());
        let place = session.indices(&[host(0)?])?;
        let codebooks = session.upload(&population.codebooks(0, 0..self.slots()))?;
        let (mut coded, mut copies, mut host_bytes) = (Vec::new(), Vec::<Box<Copies<D>>>::new(), 0);
        for number in 0..self.projections {
            let pinned = session.pin_indices(&[host(number)?])?;
            let books = pinned_values(session, &population.codebooks(number, 0..self.slots()))?;
            host_bytes += pinned.bytes() + books.len();
            coded.push((place[0].clone(), codebooks.clone()));
            let (place, codebooks) = (place.clone(), codebooks.clone());
            copies.push(Box::new(move |session| {
                session.update_indices_pinned(&place, &pinned)?;
                session.copy(&books, &codebooks)
            }));
        }
        let device_bytes = bytes(&coded[0]);
        Ok(Places { coded, copies, before: None, device_bytes, host_bytes })
    }

    /// A place for each projection: what the batch uses of all is copied there in one transfer before the first launch, and one
    /// of the codebooks.
    fn at_once<D: Device>(&self, population: &Population, session: &mut Session<D>) -> Result<Places<D>> {
        let hosts = (0..self.projections).map(|number| population.codes(number, 0..self.slots())).collect::<Result<Vec<_>>>()?;
        let (indices, pinned) = (session.indices(&hosts)?, session.pin_indices(&hosts)?);
        let mut books: Vec<f32> = Vec::new();
        let mut starts = Vec::new();
        for number in 0..self.projections {
            starts.push(books.len() as u64 * 4);
            books.extend(population.codebooks(number, 0..self.slots()));
            // Operands start on 256 bytes.
            books.resize(books.len().next_multiple_of(64), 0.0);
        }
        let (from, to) = (pinned_values(session, &books)?, session.upload(&books)?);
        let len = population.codebooks(0, 0..self.slots()).len() as u64 * 4;
        let part = |start: u64| to.sub_slice(start, len).ok_or_else(|| Error::invalid("codebooks", "a part inside them", start));
        let coded = indices.iter().cloned().zip(starts).map(|(codes, start)| Ok((codes, part(start)?))).collect::<Result<Vec<_>>>()?;
        let (device_bytes, host_bytes) = (pinned.bytes() + to.len(), pinned.bytes() + from.len());
        let before: Box<Copies<D>> = Box::new(move |session| {
            session.update_indices_pinned(&indices, &pinned)?;
            session.copy(&from, &to)
        });
        Ok(Places { coded, copies: Vec::new(), before: Some(before), device_bytes, host_bytes })
    }

    /// The delta of a linear operation of this size.
    pub fn delta_op(&self) -> CodebookGemm {
        self.op().with_accumulate(true)
    }

    /// One projection on top of a linear operation's own x and y, and what gives the delta of a token to the oracle.
    pub fn delta<D: Device>(self, session: &mut Session<D>, draw: &mut Draw, x: Slice<D>, y: Slice<D>) -> Result<(CodebookGemmArgs<D>, Box<OfRow>)> {
        let population = self.population(draw)?;
        let pattern = population.pattern(session, self.adapters)?;
        let (codes, codebooks) = population.on_device(session, &pattern, 0, self.adapters)?;
        let input = FactorArgs::Dense { values: population.basis(session, 0)?, basis_of: None };
        let slices = vec![CodebookSliceArgs::new(input, FactorArgs::Coded { codes, codebooks }, y)];
        let args = CodebookGemmArgs::new(x, self.assign(session)?, self.scaling(session)?, slices);
        let of_row = move |row| {
            let Posed { op, host } = population.posed(0, self.adapter_of(row), Vec::new(), Vec::new())?;
            Ok(Posed { op: op.with_accumulate(true), host })
        };
        Ok((args, Box::new(of_row)))
    }

    fn adapter_of(&self, token: u64) -> u32 {
        (token % u64::from(self.adapters)) as u32
    }

    fn assign<D: Device>(&self, session: &mut Session<D>) -> Result<Index<TokenAdapters, D>> {
        let ids: Vec<i32> = (0..self.tokens).map(|token| self.adapter_of(token) as i32).collect();
        session.index(&TokenAdapters::new(&ids, self.slots())?)
    }

    fn scaling<D: Device>(&self, session: &mut Session<D>) -> Result<Slice<D>> {
        session.upload(&vec![1f32; self.slots() as usize])
    }
}

/// Numbers in memory that the device copies from on its own.
fn pinned_values<D: Device>(session: &mut Session<D>, values: &[f32]) -> Result<Slice<D>> {
    let bytes: &[u8] = bytemuck::cast_slice(values);
    let slice = session.alloc_host(bytes.len() as u64)?;
    session.write(&slice, bytes)?;
    Ok(slice)
}

/// What codes and codebooks take.
pub fn bytes<D: Device>((codes, codebooks): &Coded<D>) -> u64 {
    codes.device_bytes() + codebooks.len()
}

/// A few tokens of one projection, on the x that the device had.
pub fn samples<D: Device>(
    population: &Population,
    projection: u64,
    x: &Slice<D>,
    tokens: u64,
    adapter_of: &dyn Fn(u64) -> u32,
    session: &mut Session<D>,
) -> Result<Vec<Sample>> {
    let x = population.dtype.decode(&session.read(x)?);
    let (d_in, d_out) = (population.d_in, population.d_out);
    let columns: Vec<u64> = (0..d_out).collect();
    let one = |row: u64| -> Result<Sample> {
        let own = x[(row * d_in) as usize..][..d_in as usize].to_vec();
        let posed = population.posed(projection, adapter_of(row), own, vec![0.0; d_out as usize])?;
        Ok(Sample::new(posed, places(&[row], &columns, d_out)))
    };
    spread(&mut Draw::seeded("sample"), 8, tokens).into_iter().map(one).collect()
}

#[cfg(all(test, feature = "cpu"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bench::chained::checked;

    /// Each link is judged by the x that it was given: of zeros it makes zeros, and so do all behind it.
    #[test]
    fn a_chain_of_which_a_link_is_zeroed_is_refused() {
        let chain = Chain {
            dtype: DType::F32,
            tokens: 2,
            adapters: 2,
            projections: 6,
            d: 64,
            rank: 4,
            width: CodeWidth::FourThree,
            grouped: false,
            share: 1,
            held: Held::Device,
        };
        for zeroed in [None, Some(3)] {
            let checked = checked(chain.dtype, chain.op(), zeroed, |session, draw| chain.operands(session, draw)).unwrap();
            assert_eq!(checked.is_ok(), zeroed.is_none(), "{checked:?}");
        }
    }
}
