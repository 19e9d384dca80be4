//! Products of one number of rows, each as [`linear`] defines it.

use super::{Define, Output, Rounding, linear};
use trifuse::dtype::DType;
use trifuse::error::{Result, ensure};
use trifuse::ops::{GroupedLinear, Op};

/// The operands of each product on the host.
#[derive(Clone, Debug)]
pub struct Host {
    /// One for each product.
    pub problems: Vec<linear::Host>,
}

impl Define for GroupedLinear {
    type Host = Host;

    fn dtype(&self) -> DType {
        GroupedLinear::dtype(self)
    }

    fn evaluate<R: Rounding>(&self, host: &Host, rounding: R) -> Result<Vec<Output>> {
        self.validate()?;
        ensure(host.problems.len() == self.problems.len(), "grouped_linear: operands", self.problems.len(), host.problems.len())?;
        let mut all = Vec::new();
        for (number, (problem, own)) in self.problems.iter().zip(&host.problems).enumerate() {
            all.extend(problem.evaluate(own, rounding)?.into_iter().map(|output| Output { name: format!("{}{number}", output.name), ..output }));
        }
        Ok(all)
    }

    fn disordered(&self, host: &Host) -> Vec<(&'static str, Host)> {
        let of = |(number, (problem, own)): (usize, (&trifuse::ops::Linear, &linear::Host))| {
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
