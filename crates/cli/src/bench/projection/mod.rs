//! Projections of one x in one launch, in S2LC's form: added to y as a server adds them to a product, or written over it.

pub(super) mod sizes;

use std::sync::Arc;

use super::operand::{Values, spread};
use super::population::{Population, op};
use super::sample::{Placed, Probe, Sample, places};
use sizes::Sizes;
use trifuse::device::{Device, Slice};
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::ops::codebook_gemm::{CodebookSliceArgs, FactorArgs};
use trifuse::ops::index::TokenAdapters;
use trifuse::ops::{CodebookGemm, CodebookGemmArgs};
use trifuse::session::Session;
use trifuse_testkit::cases::{Draw, Posed};

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
        let slices = vec![one.slices[0].clone(); slices as usize];
        Ok(one.with_accumulate(accumulate).with_slices(slices))
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
            slices.push(CodebookSliceArgs::new(input, FactorArgs::Coded { codes, codebooks }, output.clone()));
            let (x, population, before) = (x.clone(), Arc::clone(&population), y.clone());
            let samples = move |session: &mut Session<D>| self.samples(&population, number, (&x, before.as_ref()), session);
            let before = y.as_ref().map(|values| values.upload(session)).transpose()?;
            placed.probes.push(Probe { output, samples: Box::new(samples), before });
        }
        placed.launches.push(CodebookGemmArgs::new(x, token_adapter, scaling, slices));
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
            let op = posed.op.with_accumulate(accumulate);
            Ok(Sample::new(Posed { op, host: posed.host }, places(&[row], &columns, d_out)))
        };
        spread(&mut Draw::seeded("sample"), 8, tokens).into_iter().map(one).collect()
    }
}

#[cfg(all(test, feature = "cpu"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bench::sample::{check, poison_all};
    use trifuse::device::Open;

    #[test]
    fn every_form_is_what_the_oracle_says() {
        let mut session = Session::new(Arc::new(trifuse::backends::cpu::Cpu::open(0).unwrap())).unwrap();
        for (accumulate, sorted, slices) in [(true, true, 1), (false, false, 3)] {
            let sizes = Sizes { tokens: 9, adapters: 4, bits: 7, d_in: 40, d_out: 96, rank: 4, slices, accumulate, sorted };
            let projection = Projection { dtype: DType::F32, sizes };
            let placed = projection.operands(&mut session, &mut Draw::seeded("projection")).unwrap();
            let plan = session.plan(projection.op().unwrap()).unwrap();
            poison_all(&mut session, &placed.probes).unwrap();
            session.run(&plan, &placed.launches[0]).unwrap();
            let checked = check(&mut session, projection.dtype, &placed.probes).unwrap();
            assert!(checked.as_ref().is_ok_and(|checked| checked.elements == 8 * 96 * slices), "{checked:?}");
        }
        let adapters = |sorted| (0..6).map(|token| Sizes { tokens: 6, adapters: 3, sorted, ..sizes() }.adapter_of(token)).collect::<Vec<_>>();
        assert_eq!((adapters(true), adapters(false)), (vec![0, 0, 1, 1, 2, 2], vec![0, 1, 2, 0, 1, 2]));
    }

    fn sizes() -> Sizes {
        Sizes { tokens: 1, adapters: 1, bits: 7, d_in: 32, d_out: 32, rank: 4, slices: 1, accumulate: false, sorted: false }
    }
}
