//! A population far larger than a batch, registered on the device for as many projections as its memory holds, and a batch
//! served over all of it.

use std::sync::Arc;
use std::time::Instant;

use super::adapters::{bytes, samples};
use super::operand::{Values, spread};
use super::population::{Population, op};
use super::sample::{Memory, Placed, Probe, Registered};
use trifuse::device::Device;
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::codebook_gemm::{CodebookSliceArgs, FactorArgs};
use trifuse::ops::index::{Codes, Index, TokenAdapters};
use trifuse::ops::{CodeWidth, CodebookGemm, CodebookGemmArgs};
use trifuse::session::Session;
use trifuse_testkit::cases::Draw;

/// Share of the device's memory that the population may take: the rest is for the program, its kernels and the batch.
const SHARE: f64 = 0.95;
/// Bytes of the two sizes of device that the report speaks of: 80 and 141 gigabytes, of 10⁹.
const SIZES: [u64; 2] = [80_000_000_000, 141_000_000_000];
/// Distance from one token's adapter to the next's: a prime that divides no round number.
const STRIDE: u64 = 7919;

/// The population that [`super::shape::Shape::Registered`] describes, in an element type.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    pub dtype: DType,
    pub tokens: u64,
    pub adapters: u32,
    pub projections: u64,
    pub d: u64,
    pub rank: u64,
    pub width: CodeWidth,
}

impl Crowd {
    /// The operation of one launch.
    pub fn op(&self) -> CodebookGemm {
        op(self.dtype, self.tokens, [self.d, self.d, self.rank], self.adapters, self.width)
    }

    /// Tokens are spread over the whole population; the first is on the last adapter.
    fn adapter_of(&self, token: u64) -> u32 {
        ((u64::from(self.adapters) - 1 + token * STRIDE) % u64::from(self.adapters)) as u32
    }

    /// Registers the population, and the operands of a chain over its projections.
    pub fn operands<D: Device>(self, session: &mut Session<D>, draw: &mut Draw) -> Result<Placed<CodebookGemm, D>> {
        let population = Arc::new(Population::new(self.dtype, [self.d, self.d, self.rank], self.width, draw)?);
        let ids: Vec<i32> = (0..self.tokens).map(|token| self.adapter_of(token) as i32).collect();
        let token_adapter = session.index(&TokenAdapters::new(&ids, self.adapters)?)?;
        let scaling = session.upload(&vec![1f32; self.adapters as usize])?;
        let mut x = Values::normal(draw, self.dtype, self.tokens * self.d, 1.0).upload(session)?;
        let pattern = population.pattern(session, self.adapters)?;
        let limit = session.caps().memory_bytes.map_or(u64::MAX, |bytes| (bytes as f64 * SHARE) as u64);

        session.synchronize()?;
        let began = Instant::now();
        let (mut slices, mut coded_bytes, mut basis_bytes) = (Vec::<CodebookSliceArgs<D>>::new(), 0, 0);
        for number in 0..self.projections {
            let each = (coded_bytes + basis_bytes) / number.max(1);
            if number > 0 && coded_bytes + basis_bytes + each > limit {
                break;
            }
            let made = self.projection(&population, session, &pattern, number);
            let (slice, coded) = match made {
                // Others use the device too: the last projection makes room for what the batch needs.
                Err(Error::OutOfMemory { .. }) if number > 1 => {
                    slices.pop();
                    coded_bytes -= coded_bytes / number;
                    basis_bytes -= basis_bytes / number;
                    break;
                }
                made => made?,
            };
            if let FactorArgs::Dense { values, .. } = &slice.input {
                basis_bytes += values.len();
            }
            coded_bytes += coded;
            slices.push(slice);
        }
        session.synchronize()?;
        let seconds = began.elapsed().as_secs_f64();

        let held = slices.len() as u64;
        // Every projection takes the same.
        let adapter_bytes = coded_bytes / held / u64::from(self.adapters) * self.projections;
        let [fit_80_gb, fit_141_gb] = SIZES.map(|size| size.saturating_sub(basis_bytes / held * self.projections) / adapter_bytes.max(1));
        let registered = Registered {
            adapters: self.adapters.into(),
            projections: held,
            projections_asked: self.projections,
            seconds,
            adapter_bytes,
            fit_80_gb,
            fit_141_gb,
        };
        let device_bytes = coded_bytes + basis_bytes;
        let lora_f16_bytes = 2 * self.d * self.rank * DType::F16.size() * held * u64::from(self.adapters);
        let lora_f16_ratio = Some(lora_f16_bytes as f64 / device_bytes as f64);
        let memory = Memory { device_bytes, host_bytes: 0, lora_f16_bytes, lora_f16_ratio, registered: Some(registered) };

        let (mut launches, mut probes) = (Vec::new(), Vec::new());
        let checked = spread(draw, 4, held);
        for (number, slice) in (0..).zip(slices) {
            let y = slice.y.clone();
            if checked.contains(&number) {
                let (x, population) = (x.clone(), Arc::clone(&population));
                let of_token = move |token| self.adapter_of(token);
                let samples = move |session: &mut Session<D>| samples(&population, number, &x, self.tokens, &of_token, session);
                probes.push(Probe { output: y.clone(), samples: Box::new(samples), before: None });
            }
            launches.push(CodebookGemmArgs::new(x, token_adapter.clone(), scaling.clone(), vec![slice]));
            x = y;
        }
        Ok(Placed { launches, probes, copies: Vec::new(), before: None, memory: Some(memory) })
    }

    /// The operands of one projection, and the bytes of its codes and codebooks.
    fn projection<D: Device>(
        &self,
        population: &Population,
        session: &mut Session<D>,
        pattern: &Index<Codes, D>,
        number: u64,
    ) -> Result<(CodebookSliceArgs<D>, u64)> {
        let y = session.alloc(self.tokens * self.d * self.dtype.size())?;
        let input = FactorArgs::Dense { values: population.basis(session, number)?, basis_of: None };
        let coded = population.on_device(session, pattern, number, self.adapters)?;
        let size = bytes(&coded);
        Ok((CodebookSliceArgs::new(input, FactorArgs::Coded { codes: coded.0, codebooks: coded.1 }, y), size))
    }
}
