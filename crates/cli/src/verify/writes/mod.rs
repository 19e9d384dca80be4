//! Test 3: nothing between x and y is written to device memory, by every variant that needs no workspace.
//!
//! The reference counts bytes written to DRAM; on a GPU with a large L2 even the output never gets there. What has to be
//! asserted is that the sectors written to the L2 are those of the output, that nothing is added up there by atomics, and
//! that there is no local-memory traffic. Hardware counters tell, and a profiler reads them from outside the process: so
//! this program starts itself again under Nsight Compute, for one case of one variant at a time.

mod ncu;

pub use self::ncu::Relaunch;
use self::ncu::{Counted, METRICS, Profiled};
use super::findings::{Check, Findings, Verdict};
use trifuse::backend::{Backend, Kernel};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::{CodeWidth, CodebookGemm};
use trifuse::session::Session;
use trifuse_testkit::cases::{Case, OpKind, Population, Problem};
use trifuse_testkit::conformance::{Mode, Outcome, Subject, run_case};

/// Bytes of a sector of the L2, the least that is written at once.
const SECTOR: u64 = 32;
/// How often [`run_case`] runs what it checks.
const RUNS: u64 = 2;

/// A launch that is profiled. All are S2LC's form in f16 with seven-bit codes.
struct Shape {
    name: &'static str,
    tokens: u64,
    /// d_in, d_out, rank.
    dims: [u64; 3],
    adapters: u32,
    accumulate: bool,
}

const SHAPES: [Shape; 3] = [
    // As the reference counted it: 131,072 bytes of output.
    Shape { name: "overwrite", tokens: 16, dims: [4096, 4096, 16], adapters: 1, accumulate: false },
    Shape { name: "mixed", tokens: 100, dims: [4096, 4096, 16], adapters: 16, accumulate: true },
    Shape { name: "odd", tokens: 37, dims: [1003, 1001, 13], adapters: 5, accumulate: false },
];

impl Shape {
    fn op(&self) -> CodebookGemm {
        CodebookGemm::s2lc(DType::F16, self.tokens, self.dims, self.adapters, CodeWidth::FourThree).with_accumulate(self.accumulate)
    }

    fn subject(&self) -> Subject {
        let population = Population::new(self.op());
        Subject::from(Case::new(OpKind::CodebookGemm, self.name, move |draw| population.pose(draw).map(Into::into)))
    }

    /// The sectors that one run may write: those of the rows that have an adapter, or of all where it overwrites.
    fn sectors(&self) -> Result<Written> {
        let problem = self.subject().problem()?;
        let Problem::CodebookGemm(posed) = &problem else { return Err(Error::invalid("case", "a codebook GEMM", self.name)) };
        let served = posed.host.token_adapter.ids().iter().filter(|id| **id >= 0 || !self.accumulate).count() as u64;
        let elements = served * self.dims[1];
        let bytes = elements * DType::F16.size();
        // Rows that start and end inside a sector are written element by element, each of which may be a write of its own.
        Ok(if self.dims[1].is_multiple_of(SECTOR) { Written::Exactly(bytes / SECTOR) } else { Written::AtMost(elements) })
    }
}

/// What a run may write, in sectors.
enum Written {
    Exactly(u64),
    AtMost(u64),
}

/// Runs case `what`, written as `variant/case`, which must be right. Everything that it launches is that case's.
///
/// # Errors
/// A case that there is not; a wrong answer; what the device reports.
pub fn launch<B: Backend>(session: &mut Session<B>, what: &str) -> Result<()> {
    let found = what.split_once('/').and_then(|(variant, case)| Some((variant, SHAPES.iter().find(|shape| shape.name == case)?)));
    let Some((variant, shape)) = found else {
        return Err(Error::invalid("launch", format!("a variant, / and one of {:?}", SHAPES.map(|shape| shape.name)), format!("{what:?}")));
    };
    match run_case(session, &shape.subject(), Some(variant), Mode::Aligned)? {
        Outcome::Passed(_) => Ok(()),
        Outcome::Failed { why } => Err(Error::Missed { subject: what.into(), asked: "the oracle's answer".into(), reached: why }),
        Outcome::Unsupported { reason } => Err(Error::unsupported(what, reason)),
    }
}

pub fn check<B: Backend>(session: &mut Session<B>, name: &'static str, relaunch: Option<&Relaunch>) -> Result<Check> {
    let skipped = |why: String| Check { number: 3, name, verdict: Verdict::Skipped(why), figures: Vec::new() };
    if session.caps().cuda_arch.is_none() {
        return Ok(skipped("hardware counters need a CUDA device and Nsight Compute".into()));
    }
    let Some(relaunch) = relaunch else {
        return Ok(skipped("hardware counters are read from outside the process: run trifuse verify --only 3".into()));
    };
    let Some(profiler) = ncu::find() else {
        return Ok(skipped("Nsight Compute is missing: no ncu on the PATH".into()));
    };
    let mut found = Findings::default();
    for variant in Kernel::<CodebookGemm>::variants(&**session.device()) {
        for shape in &SHAPES {
            let what = format!("{variant}/{}", shape.name);
            match session.plan_variant(shape.op(), Some(variant)) {
                // A variant of two kernels keeps h between them, in memory that its plan asks for: the claim is not about those.
                Ok(plan) if plan.workspace_bytes() > 0 => continue,
                Ok(_) => {}
                // A variant for other devices is none of this one's.
                Err(Error::Unsupported { .. }) => continue,
                Err(error) => return Err(error),
            }
            match ncu::profile(&profiler, relaunch, &what)? {
                Profiled::Counted(counted) => judge(&mut found, &what, shape.sectors()?, &counted),
                Profiled::Refused(why) => return Ok(skipped(format!("Nsight Compute does not read the counters here: {why}"))),
            }
        }
    }
    Ok(found.check(3, name))
}

fn judge(found: &mut Findings, what: &str, written: Written, counted: &Counted) {
    let [l2, atomics, reductions, local_stores, local_loads, dram] = METRICS.map(|metric| counted.sum(metric) / RUNS as f64);
    found.at_least(format!("{what}: kernels seen"), counted.kernels() as f64, RUNS as f64);
    match written {
        Written::Exactly(sectors) => found.exactly(format!("{what}: sectors written to the L2"), l2, sectors as f64),
        Written::AtMost(elements) => found.at_most(format!("{what}: sectors written to the L2, over elements of the output"), l2 / elements as f64, 1.0),
    }
    found.exactly(format!("{what}: atomics and reductions in the L2"), atomics + reductions, 0.0);
    found.exactly(format!("{what}: sectors of local memory stored and loaded"), local_stores + local_loads, 0.0);
    found.tell(format!("{what}: bytes written to DRAM"), dram);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn judged(l2: f64, local: f64, atomics: f64) -> Option<String> {
        let mut found = Findings::default();
        let row = |scale: f64| [l2, atomics, 0.0, local, 0.0, 7.0].map(|value| value * scale).to_vec();
        judge(&mut found, "sm90/overwrite", SHAPES[0].sectors().unwrap(), &Counted::of(vec![row(1.0), row(1.0)]));
        found.failed
    }

    #[test]
    fn only_the_output_may_be_written() {
        // 16 tokens of 4,096 columns of 2 bytes.
        assert_eq!(judged(4096.0, 0.0, 0.0), None);
        // h of 16 tokens and 16 columns of 4 bytes besides.
        assert!(judged(4096.0 + 32.0, 0.0, 0.0).unwrap().contains("sectors written"));
        assert!(judged(4095.0, 0.0, 0.0).unwrap().contains("exactly 4096"), "a part that was not counted is no proof");
        assert!(judged(4096.0, 1.0, 0.0).unwrap().contains("local memory"));
        assert!(judged(4096.0, 0.0, 1.0).unwrap().contains("atomics"));
        assert!(judged(f64::NAN, 0.0, 0.0).is_some());
    }

    #[test]
    fn rows_without_an_adapter_are_not_written() {
        let Written::Exactly(sectors) = SHAPES[1].sectors().unwrap() else { unreachable!() };
        let rows = sectors * SECTOR / (4096 * 2);
        assert!(rows < 100 && rows > 60, "{rows}");
    }
}
