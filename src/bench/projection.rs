//! Projections of one x in one launch, in S2LC's form: added to y as a server adds them to a product, or written over it.

use std::sync::Arc;

use serde::Serialize;

use super::operand::{Values, spread};
use super::population::{Population, op};
use super::sample::{Placed, Probe, Sample, places};
use crate::cases::{Draw, Posed};
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::codebook_gemm::{CodebookSliceArgs, FactorArgs};
use crate::ops::index::TokenAdapters;
use crate::ops::{CodeWidth, CodebookGemm, CodebookGemmArgs};
use crate::session::Session;

/// The sizes of a launch. Token `t` is on adapter `t mod adapters`, or the tokens of an adapter are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// Rows of x.
    pub tokens: u64,
    /// Adapters.
    pub adapters: u32,
    /// Bits of a code.
    pub bits: u32,
    /// Columns of x.
    pub d_in: u64,
    /// Columns of each y.
    pub d_out: u64,
    /// Columns of both factors.
    pub rank: u64,
    /// Projections, each a slice of the launch.
    pub slices: u64,
    /// Whether y is added to.
    pub accumulate: bool,
    /// Whether the tokens of an adapter are neighbours, as those of a sentence are.
    pub sorted: bool,
}

impl Sizes {
    /// What `--shape` searches.
    pub(super) fn name(&self) -> String {
        let Self { tokens, adapters, bits, d_in, d_out, rank, slices, accumulate, sorted } = self;
        let form = if *accumulate { "added" } else { "written" };
        let order = if *sorted { " sorted" } else { "" };
        format!("{form} {slices} x {d_in}-{d_out} r{rank} of {bits} bits tokens{tokens} adapters{adapters}{order}")
    }

    fn width(&self) -> Result<CodeWidth> {
        let width = CodeWidth::from_bits(self.bits).filter(|width| width.bits() > 0);
        width.ok_or_else(|| Error::invalid("bits", "a width of codes: 2, 3, 4, 7 or 16", self.bits))
    }

    /// The adapter of a token.
    fn adapter_of(&self, token: u64) -> u32 {
        let adapters = u64::from(self.adapters.max(1));
        (if self.sorted { token * adapters / self.tokens.max(1) } else { token % adapters }) as u32
    }
}

/// The launch of those sizes, in an element type.
#[derive(Clone, Copy, Debug)]
pub struct Projection {
    pub dtype: DType,
    pub sizes: Sizes,
}

impl Projection {
    const fn dims(&self) -> [u64; 3] {
        [self.sizes.d_in, self.sizes.d_out, self.sizes.rank]
    }

    /// The operation.
    ///
    /// # Errors
    /// Bits that no code has.
    pub fn op(&self) -> Result<CodebookGemm> {
        let Sizes { tokens, adapters, slices, accumulate, .. } = self.sizes;
        let one = op(self.dtype, tokens, self.dims(), adapters, self.sizes.width()?);
        Ok(CodebookGemm { accumulate, slices: vec![one.slices[0].clone(); slices as usize], ..one })
    }

    /// The operands, and what to check.
    ///
    /// # Errors
    /// No device memory.
    pub fn operands<D: Device>(self, session: &mut Session<D>, draw: &mut Draw) -> Result<Placed<CodebookGemm, D>> {
        let Self { dtype, sizes } = self;
        let population = Arc::new(Population::new(dtype, self.dims(), sizes.width()?, draw)?);
        let ids: Vec<i32> = (0..sizes.tokens).map(|token| sizes.adapter_of(token) as i32).collect();
        let token_adapter = session.index(&TokenAdapters::new(&ids, sizes.adapters)?)?;
        let scaling = session.upload(&vec![1f32; sizes.adapters as usize])?;
        let x = Values::normal(draw, dtype, sizes.tokens * sizes.d_in, 1.0).upload(session)?;
        let pattern = population.pattern(session, sizes.adapters)?;
        let y = sizes.accumulate.then(|| Values::normal(draw, dtype, sizes.tokens * sizes.d_out, 1.0));
        let (mut slices, mut placed) = (Vec::new(), Placed::default());
        for number in 0..sizes.slices {
            let (codes, codebooks) = population.on_device(session, &pattern, number, sizes.adapters)?;
            let input = FactorArgs::Dense { values: population.basis(session, number)?, basis_of: None };
            let output = session.alloc(sizes.tokens * sizes.d_out * dtype.size())?;
            slices.push(CodebookSliceArgs { input, core: None, output: FactorArgs::Coded { codes, codebooks }, y: output.clone() });
            let (x, population, before) = (x.clone(), Arc::clone(&population), y.clone());
            let samples = move |session: &mut Session<D>| self.samples(&population, number, (&x, before.as_ref()), session);
            placed.probes.push(Probe { output, samples: Box::new(samples), before: y.as_ref().map(|values| dtype.encode(&values.all())) });
        }
        placed.launches.push(CodebookGemmArgs { x, token_adapter, scaling, slices, prepared: None });
        Ok(placed)
    }

    /// A few tokens of one slice.
    fn samples<D: Device>(
        &self,
        population: &Population,
        number: u64,
        (x, before): (&Slice<D>, Option<&Values>),
        session: &mut Session<D>,
    ) -> Result<Vec<Sample>> {
        let Sizes { tokens, d_in, d_out, accumulate, .. } = self.sizes;
        let x = self.dtype.decode(&session.read(x)?);
        let columns: Vec<u64> = (0..d_out).collect();
        let one = |row: u64| -> Result<Sample> {
            let y = before.map_or_else(|| vec![0.0; d_out as usize], |values| values.rows(&[row], d_out));
            let posed = population.posed(number, self.sizes.adapter_of(row), x[(row * d_in) as usize..][..d_in as usize].to_vec(), y)?;
            let op = CodebookGemm { accumulate, ..posed.op };
            Ok(Sample::new(Posed { op, host: posed.host }, places(&[row], &columns, d_out)))
        };
        spread(&mut Draw::seeded("sample"), 8, tokens).into_iter().map(one).collect()
    }
}
