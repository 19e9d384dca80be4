//! Products of one number of rows, each as [`linear`] defines it.

use super::{Define, Output, Rounding, activate, linear};
use trifuse::dtype::DType;
use trifuse::error::{Result, ensure};
use trifuse::ops::{GroupedLinear, Linear, Op};

/// The operands of each product on the host.
#[derive(Clone, Debug)]
pub struct Host {
    /// One for each product.
    pub problems: Vec<linear::Host>,
}

/// A rounding in which nothing is kept in the operand's type.
#[derive(Clone, Copy)]
struct Unkept<R>(R);

impl<R: Rounding> Rounding for Unkept<R> {
    fn step(self, value: f64) -> f64 {
        self.0.step(value)
    }

    fn keep(self, value: f64) -> f64 {
        self.0.step(value)
    }
}

impl Define for GroupedLinear {
    type Host = Host;

    fn dtype(&self) -> DType {
        GroupedLinear::dtype(self)
    }

    fn evaluate<R: Rounding>(&self, host: &Host, rounding: R) -> Result<Vec<Output>> {
        self.validate()?;
        ensure(host.problems.len() == self.problems.len(), "grouped_linear: operands", self.problems.len(), host.problems.len())?;
        if let (Some(activation), [gate, through], [gate_host, own]) = (self.gate, &self.problems[..], &host.problems[..]) {
            let sums = |problem: &Linear, own| Ok(problem.evaluate(own, Unkept(rounding))?.into_iter().flat_map(|output| output.elements).flatten());
            let gates = sums(gate, gate_host)?.map(|sum| activate(activation, sum, rounding));
            let y = gates.zip(sums(through, own)?).map(|(gate, sum)| rounding.keep(gate * sum)).collect();
            return Ok(vec![Output::packed("y0", self.dtype(), y)]);
        }
        let mut all = Vec::new();
        for (number, (problem, own)) in self.problems.iter().zip(&host.problems).enumerate() {
            all.extend(problem.evaluate(own, rounding)?.into_iter().map(|output| Output { name: format!("{}{number}", output.name), ..output }));
        }
        Ok(all)
    }

    fn disordered(&self, host: &Host) -> Vec<(&'static str, Host)> {
        let of = |(number, (problem, own)): (usize, (&Linear, &linear::Host))| {
            let changed = problem.disordered(own).into_iter();
            changed
                .map(|(name, own)| {
                    let mut problems = host.problems.clone();
                    problems[number] = own;
                    (name, Host { problems })
                })
                .collect::<Vec<_>>()
        };
        self.problems.iter().zip(&host.problems).enumerate().flat_map(of).collect()
    }
}
