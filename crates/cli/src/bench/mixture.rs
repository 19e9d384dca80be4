//! A mixture of experts that are adapters, as [`Engine::apply_mixture`](trifuse::adapters::engine::Engine::apply_mixture) launches it:
//! for each choice of every token one codebook GEMM, scaled by the token's gate and added to y.

use std::sync::Arc;

use super::adapters::bytes;
use super::operand::{Values, spread};
use super::population::{Population, op};
use super::sample::{Memory, Placed, Probe, Sample, places};
use trifuse::device::{Device, Slice};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::codebook_gemm::{CodebookSliceArgs, FactorArgs, ScaledBy};
use trifuse::ops::index::TokenAdapters;
use trifuse::ops::{CodeWidth, CodebookGemm, CodebookGemmArgs};
use trifuse::session::Session;
use trifuse_testkit::cases::{Draw, Posed, Problem};
use trifuse_testkit::oracle::codebook_gemm::Host;
use trifuse_testkit::tolerance::expect;

/// The mixture of experts that [`super::shape::Shape::Mixture`] describes, in an element type.
#[derive(Clone, Copy, Debug)]
pub struct Mixture {
    pub dtype: DType,
    pub tokens: u64,
    pub experts: u32,
    pub top: u32,
    pub projections: u64,
    pub d: u64,
    pub rank: u64,
}

impl Mixture {
    /// The operation of one launch.
    pub fn op(&self) -> CodebookGemm {
        let one = op(self.dtype, self.tokens, [self.d, self.d, self.rank], self.experts, CodeWidth::FourThree);
        one.with_accumulate(true).with_scaled_by(ScaledBy::Token)
    }

    /// Whom a token goes to: experts that lie apart, so that a batch meets all of them.
    fn expert(&self, token: u64, choice: u32) -> u32 {
        let far = u64::from(self.experts / self.top.max(1)).max(1);
        ((token * 7 + u64::from(choice) * far) % u64::from(self.experts)) as u32
    }

    /// The weight of a choice: later ones count less, all of a token's add up to 1.
    fn gate(&self, choice: u32) -> f32 {
        let all: f64 = (0..self.top).map(|choice| (-f64::from(choice)).exp()).sum();
        ((-f64::from(choice)).exp() / all) as f32
    }

    /// The operands of every launch, and what to check. A replay adds to what the one before left.
    pub fn operands<D: Device>(self, session: &mut Session<D>, draw: &mut Draw) -> Result<Placed<CodebookGemm, D>> {
        let population = Arc::new(Population::new(self.dtype, [self.d, self.d, self.rank], CodeWidth::FourThree, draw)?);
        let x = Values::normal(draw, self.dtype, self.tokens * self.d, 1.0).upload(session)?;
        let before = Values::normal(draw, self.dtype, self.tokens * self.d, 1.0);
        let routed = (0..self.top).map(|choice| {
            let ids: Vec<i32> = (0..self.tokens).map(|token| self.expert(token, choice) as i32).collect();
            Ok((session.index(&TokenAdapters::new(&ids, self.experts)?)?, session.upload(&vec![self.gate(choice); self.tokens as usize])?))
        });
        let routed = routed.collect::<Result<Vec<_>>>()?;
        let pattern = population.pattern(session, self.experts)?;
        let (mut launches, mut probes, mut device_bytes) = (Vec::new(), Vec::new(), 0);
        let checked = spread(draw, 4, self.projections);
        for number in 0..self.projections {
            let (codes, codebooks) = population.on_device(session, &pattern, number, self.experts)?;
            let values = population.basis(session, number)?;
            let y = before.upload(session)?;
            device_bytes += values.len() + bytes(&(codes.clone(), codebooks.clone()));
            for (token_adapter, scaling) in &routed {
                let input = FactorArgs::Dense { values: values.clone(), basis_of: None };
                let output = FactorArgs::Coded { codes: codes.clone(), codebooks: codebooks.clone() };
                let slices = vec![CodebookSliceArgs::new(input, output, y.clone())];
                launches.push(CodebookGemmArgs::new(x.clone(), token_adapter.clone(), scaling.clone(), slices));
            }
            if checked.contains(&number) {
                let (x, own, values) = (x.clone(), Arc::clone(&population), before.clone());
                let samples = move |session: &mut Session<D>| self.samples(&own, number, (&x, &values), session);
                probes.push(Probe { output: y, samples: Box::new(samples), before: Some(before.upload(session)?) });
            }
        }
        let lora_f16_bytes = 2 * self.d * self.rank * DType::F16.size() * self.projections * u64::from(self.experts);
        let lora_f16_ratio = Some(lora_f16_bytes as f64 / device_bytes as f64);
        let memory = Memory { device_bytes, lora_f16_bytes, lora_f16_ratio, ..Memory::default() };
        Ok(Placed { launches, probes, copies: Vec::new(), before: None, memory: Some(memory) })
    }

    /// A few tokens of one projection. The last choice is added to what the earlier ones leave, which the oracle tells too, rounded
    /// after each as the device does; what each of those may be off, the sum may be off too.
    fn samples<D: Device>(&self, population: &Population, projection: u64, (x, before): (&Slice<D>, &Values), session: &mut Session<D>) -> Result<Vec<Sample>> {
        let x = self.dtype.decode(&session.read(x)?);
        let columns: Vec<u64> = (0..self.d).collect();
        let one = |row: u64| -> Result<Sample> {
            let own = &x[(row * self.d) as usize..][..self.d as usize];
            let mut y = before.rows(&[row], self.d);
            let (mut last, mut allowed) = (None, Vec::new());
            for choice in 0..self.top {
                let posed = population.posed(projection, self.expert(row, choice), own.to_vec(), y)?;
                let op = posed.op.with_accumulate(true).with_scaled_by(ScaledBy::Token);
                let host = Host { scaling: vec![f64::from(self.gate(choice))], ..posed.host };
                let problem: Problem = Posed { op, host }.into();
                let found = expect(&problem)?.pop().ok_or_else(|| Error::invalid("sample", "one output", "none"))?;
                allowed.push(found.tolerance.max_abs);
                y = found.elements.iter().map(|element| self.dtype.round(element.unwrap_or_default())).collect();
                last = Some(problem);
            }
            let problem = last.ok_or_else(|| Error::invalid("top", "at least 1", 0))?;
            let carried = allowed.iter().rev().skip(1).sum();
            Ok(Sample { carried, ..Sample::new(problem, places(&[row], &columns, self.d)) })
        };
        spread(&mut Draw::seeded("sample"), 8, self.tokens).into_iter().map(one).collect()
    }
}
