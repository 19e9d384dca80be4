//! Many projections with LoRA adapters as they are trained, each on what the one before wrote: both factors dense, and each adapter's own. So an
//! engine launches adapters that it has unpacked.

use std::sync::Arc;

use super::operand::{Values, spread};
use super::sample::{Memory, Placed, Probe, Sample, places};
use trifuse::device::{Device, Slice};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::codebook_gemm::{CodebookSlice, CodebookSliceArgs, Factor, FactorArgs};
use trifuse::ops::index::{BasisOf, TokenAdapters};
use trifuse::ops::{CodeWidth, CodebookGemm, CodebookGemmArgs};
use trifuse::session::Session;
use trifuse_testkit::cases::{Draw, Posed};
use trifuse_testkit::oracle::codebook_gemm::{FactorHost, Host, SliceHost};

/// Factors that are drawn: a prime. Adapters take them in turn, projections from another one on.
const SETS: usize = 13;
/// The scale of an adapter that is added to y: what a replay adds may not grow from one to the next.
const SMALL: f32 = 1.0 / 64.0;

/// The chain that [`super::shape::Shape::Lora`] describes, in an element type.
#[derive(Clone, Copy, Debug)]
pub struct Trained {
    pub dtype: DType,
    pub tokens: u64,
    pub adapters: u32,
    pub projections: u64,
    pub d: u64,
    pub rank: u64,
    pub added: bool,
}

/// The factors that were drawn, as numbers and as the device gets them: on the input side, and on the output side.
struct Drawn {
    sides: [Vec<(Values, Vec<u8>)>; 2],
}

impl Drawn {
    fn new(of: Trained, draw: &mut Draw) -> Self {
        let mut side = |deviation: f64| {
            let sets = (0..SETS).map(|_| Values::normal(draw, of.dtype, of.d * of.rank, deviation));
            sets.map(|values| (values.clone(), of.dtype.encode(&values.all()))).collect()
        };
        // A product of random matrices of that rank shrinks what it is applied to by this factor a step, on average.
        let kept = 1.0 + 0.5 / of.rank as f64;
        Self { sides: [side((of.d as f64).sqrt().recip()), side(kept * (of.rank as f64).sqrt().recip())] }
    }

    /// The number of the set that an adapter has in a projection, on one side. Which sets follow one another repeats after so many projections that no
    /// direction grows with every turn.
    fn set(projection: u64, adapter: u32, side: usize) -> usize {
        let (projection, adapter) = (projection as usize, adapter as usize);
        (projection * 5 + adapter + side * (projection / SETS + adapter)) % SETS
    }

    /// One side of all adapters of a projection.
    fn all(&self, projection: u64, adapters: u32, side: usize) -> Vec<u8> {
        (0..adapters).flat_map(|adapter| self.sides[side][Self::set(projection, adapter, side)].1.iter().copied()).collect()
    }
}

impl Trained {
    /// The operation of one launch.
    pub fn op(&self) -> CodebookGemm {
        let own = Factor::Dense { bases: self.adapters };
        let slices = vec![CodebookSlice::new(self.d, self.rank, own, own)];
        CodebookGemm::s2lc(self.dtype, self.tokens, [self.d, 1, 1], self.adapters, CodeWidth::FourThree).with_slices(slices).with_accumulate(self.added)
    }

    fn adapter_of(&self, token: u64) -> u32 {
        (token % u64::from(self.adapters)) as u32
    }

    const fn scale(&self) -> f32 {
        if self.added { SMALL } else { 1.0 }
    }

    /// The operands of every launch, and what to check.
    pub fn operands<D: Device>(self, session: &mut Session<D>, draw: &mut Draw) -> Result<Placed<CodebookGemm, D>> {
        let drawn = Arc::new(Drawn::new(self, draw));
        let mut x = Values::normal(draw, self.dtype, self.tokens * self.d, 1.0).upload(session)?;
        let before = Values::normal(draw, self.dtype, self.tokens * self.d, 1.0);
        let ids: Vec<i32> = (0..self.tokens).map(|token| self.adapter_of(token) as i32).collect();
        let token_adapter = session.index(&TokenAdapters::new(&ids, self.adapters)?)?;
        let own: Vec<i32> = (0..self.adapters as i32).collect();
        let own = session.index(&BasisOf::new(&own, self.adapters)?)?;
        let scaling = session.upload(&vec![self.scale(); self.adapters as usize])?;
        let (mut launches, mut probes, mut device_bytes) = (Vec::new(), Vec::new(), 0);
        let checked = spread(draw, 4, self.projections);
        for number in 0..self.projections {
            let [input, output] = [0, 1].map(|side| session.upload(&drawn.all(number, self.adapters, side)));
            let y = before.upload(session)?;
            let [input, output] = [input?, output?].map(|values| {
                device_bytes += values.len();
                FactorArgs::Dense { values, basis_of: Some(own.clone()) }
            });
            let slices = vec![CodebookSliceArgs::new(input, output, y.clone())];
            launches.push(CodebookGemmArgs::new(x.clone(), token_adapter.clone(), scaling.clone(), slices));
            if checked.contains(&number) {
                let (x, drawn, values) = (x.clone(), Arc::clone(&drawn), before.clone());
                let samples = move |session: &mut Session<D>| self.samples(&drawn, number, (&x, &values), session);
                let before = if self.added { Some(before.upload(session)?) } else { None };
                probes.push(Probe { output: y.clone(), samples: Box::new(samples), before });
            }
            x = y;
        }
        let lora_f16_bytes = 2 * self.d * self.rank * DType::F16.size() * self.projections * u64::from(self.adapters);
        let memory = Memory { device_bytes, lora_f16_bytes, ..Memory::default() };
        Ok(Placed { launches, probes, copies: Vec::new(), before: None, memory: Some(memory) })
    }

    /// A few tokens of one projection, on the x that the device had.
    fn samples<D: Device>(&self, drawn: &Drawn, projection: u64, (x, before): (&Slice<D>, &Values), session: &mut Session<D>) -> Result<Vec<Sample>> {
        let x = self.dtype.decode(&session.read(x)?);
        let columns: Vec<u64> = (0..self.d).collect();
        let one = |row: u64| -> Result<Sample> {
            let adapter = self.adapter_of(row);
            let [input, output] = [0, 1].map(|side| {
                let values = drawn.sides[side][Drawn::set(projection, adapter, side)].0.all();
                FactorHost::Dense { values, basis_of: None }
            });
            let y = if self.added { before.rows(&[row], self.d) } else { vec![0.0; self.d as usize] };
            let own = x.get((row * self.d) as usize..((row + 1) * self.d) as usize);
            let own = own.ok_or_else(|| Error::invalid("x", format!("row {row}"), x.len()))?.to_vec();
            let slices = vec![SliceHost { input, core: None, output, y }];
            let host = Host { x: own, token_adapter: TokenAdapters::new(&[0], 1)?, scaling: vec![f64::from(self.scale())], slices };
            let op = Self { tokens: 1, adapters: 1, ..*self }.op();
            Ok(Sample::new(Posed { op, host }, places(&[row], &columns, self.d)))
        };
        spread(&mut Draw::seeded("sample"), 8, self.tokens).into_iter().map(one).collect()
    }
}

#[cfg(all(test, feature = "cpu"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bench::chained::checked;

    /// Each link is judged by the x that it was given, whether it is written or added to.
    #[test]
    fn a_chain_of_which_a_link_is_zeroed_is_refused() {
        for (added, zeroed) in [(false, None), (true, None), (false, Some(3)), (true, Some(3))] {
            let chain = Trained { dtype: DType::F32, tokens: 5, adapters: 2, projections: 6, d: 64, rank: 4, added };
            let checked = checked(chain.dtype, chain.op(), zeroed, |session, draw| chain.operands(session, draw)).unwrap();
            assert_eq!(checked.is_ok(), zeroed.is_none(), "{added} {checked:?}");
        }
    }
}
