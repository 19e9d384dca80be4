//! Whether a backend computes what the oracle says: one runner for tests, benchmarks and the command line.
//!
//! Operands lie at odd but legal offsets inside buffers whose other bytes are guards; outputs hold NaN before each run.
//! Afterwards every byte that the operation has no business with is as it was, outputs are within tolerance, and a
//! second run gives the same bits; as many more as are asked for.

mod ahead;
mod stage;
mod upload;

pub use ahead::ahead;
pub use stage::Stage;
pub use upload::Upload;

use std::sync::OnceLock;

use crate::casefile::CaseFile;
use crate::cases::{Case, OpKind, Posed, Problem};
use crate::tolerance::{Expected, Metrics, expect};
use trifuse::backend::{Backend, Kernel};
use trifuse::error::{Error, Result};
use trifuse::ops::{Attention, Checksum, CodebookGemm, FusedMlp, GroupedLinear, Linear, Pointwise, PrefixAttention, Sample};
use trifuse::session::Session;

/// Where a case's operands and answers come from.
enum Source {
    Drawn(Case),
    Given(String, Box<Problem>),
}

/// A case ready to be run anywhere: its answers are computed once, its operands drawn for each run. [`From`] makes one of a
/// [`Case`] or of a [`CaseFile`].
pub struct Subject {
    source: Source,
    expected: OnceLock<Vec<Expected>>,
}

/// What came of running a case.
#[derive(Clone, Debug)]
#[must_use]
pub enum Outcome {
    /// Every check held. One entry for each output, by name.
    Passed(Vec<(String, Metrics)>),
    /// A check did not hold.
    Failed {
        /// Which, and by how much.
        why: String,
    },
    /// This backend, or this variant, does not do this.
    Unsupported {
        /// The backend's own words.
        reason: String,
    },
}

/// How the work is put to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Run twice.
    Direct,
    /// Run twice, with every operand on a multiple of 256 bytes.
    Aligned,
    /// Run once, then captured and replayed twice.
    Captured,
    /// Run that often in all: what depends on the order in which blocks or warps come shows seldom.
    Repeated(u32),
}

impl From<Case> for Subject {
    fn from(case: Case) -> Self {
        Self { source: Source::Drawn(case), expected: OnceLock::new() }
    }
}

impl From<CaseFile> for Subject {
    fn from(CaseFile { name, problem, expected }: CaseFile) -> Self {
        Self::given(name, problem, expected)
    }
}

impl Subject {
    /// A problem with answers from elsewhere; see [`crate::tolerance::expect_given`].
    pub fn given(name: impl Into<String>, problem: Problem, expected: Vec<Expected>) -> Self {
        Self { source: Source::Given(name.into(), Box::new(problem)), expected: OnceLock::from(expected) }
    }

    /// The case's name.
    pub fn name(&self) -> &str {
        match &self.source {
            Source::Drawn(case) => case.name(),
            Source::Given(name, _) => name,
        }
    }

    /// Operation of the case.
    pub const fn kind(&self) -> OpKind {
        match &self.source {
            Source::Drawn(case) => case.kind(),
            Source::Given(_, problem) => problem.kind(),
        }
    }

    /// The operation with its operands.
    ///
    /// # Errors
    /// A case that cannot be drawn: a fault of the case.
    pub fn problem(&self) -> Result<Problem> {
        match &self.source {
            Source::Drawn(case) => case.problem(),
            Source::Given(_, problem) => Ok((**problem).clone()),
        }
    }

    fn expected(&self, problem: &Problem) -> Result<&[Expected]> {
        if let Some(expected) = self.expected.get() {
            return Ok(expected);
        }
        let expected = expect(problem)?;
        Ok(self.expected.get_or_init(|| expected))
    }
}

/// The names of the variants of an operation on a device, best first.
pub fn variants<D: Backend>(device: &D, kind: OpKind) -> &'static [&'static str] {
    match kind {
        OpKind::CodebookGemm => Kernel::<CodebookGemm>::variants(device),
        OpKind::Attention => Kernel::<Attention>::variants(device),
        OpKind::PrefixAttention => Kernel::<PrefixAttention>::variants(device),
        OpKind::FusedMlp => Kernel::<FusedMlp>::variants(device),
        OpKind::Linear => Kernel::<Linear>::variants(device),
        OpKind::GroupedLinear => Kernel::<GroupedLinear>::variants(device),
        OpKind::Pointwise => Kernel::<Pointwise>::variants(device),
        OpKind::Sample => Kernel::<Sample>::variants(device),
        OpKind::Checksum => Kernel::<Checksum>::variants(device),
    }
}

/// The configurations of a variant that can compute a case, as [`run_case`] takes them: `variant:config`, none where there are not several.
///
/// # Errors
/// A case that cannot be drawn: a fault of the case.
pub fn configs<D: Backend>(session: &Session<D>, subject: &Subject, variant: &str) -> Result<Vec<String>> {
    let all = match &subject.problem()? {
        Problem::CodebookGemm(posed) => session.configs(&posed.op),
        Problem::Attention(posed) => session.configs(&posed.op),
        Problem::PrefixAttention(posed) => session.configs(&posed.op),
        Problem::FusedMlp(posed) => session.configs(&posed.op),
        Problem::Linear(posed) => session.configs(&posed.op),
        Problem::GroupedLinear(posed) => session.configs(&posed.op),
        Problem::Pointwise(posed) => session.configs(&posed.op),
        Problem::Sample(posed) => session.configs(&posed.op),
        Problem::Checksum(posed) => session.configs(&posed.op),
    };
    Ok(all.into_iter().filter(|name| name.split_once(':').is_some_and(|(of, _)| of == variant)).collect())
}

/// Plans the operation of a case on a device and drops the plan, so that what it compiles is there when the case is run. Whether it can be planned
/// [`run_drawn`] tells.
pub fn plan_ahead<D: Backend>(device: &D, problem: &Problem) {
    match problem {
        Problem::CodebookGemm(posed) => drop(Kernel::plan(device, &posed.op, None)),
        Problem::Attention(posed) => drop(Kernel::plan(device, &posed.op, None)),
        Problem::PrefixAttention(posed) => drop(Kernel::plan(device, &posed.op, None)),
        Problem::FusedMlp(posed) => drop(Kernel::plan(device, &posed.op, None)),
        Problem::Linear(posed) => drop(Kernel::plan(device, &posed.op, None)),
        Problem::GroupedLinear(posed) => drop(Kernel::plan(device, &posed.op, None)),
        Problem::Pointwise(posed) => drop(Kernel::plan(device, &posed.op, None)),
        Problem::Sample(posed) => drop(Kernel::plan(device, &posed.op, None)),
        Problem::Checksum(posed) => drop(Kernel::plan(device, &posed.op, None)),
    }
}

/// Runs a case with the named variant as [`run_case`] does, and then with each of its configurations that can compute it. What fails is named.
///
/// # Errors
/// The errors of [`run_case`].
pub fn run_configs<D: Backend>(session: &mut Session<D>, subject: &Subject, variant: &str, mode: Mode) -> Result<Outcome> {
    let chosen = run_case(session, subject, Some(variant), mode)?;
    if !matches!(chosen, Outcome::Passed(_)) {
        return Ok(chosen);
    }
    for name in configs(session, subject, variant)? {
        match run_case(session, subject, Some(&name), mode).map_err(|error| Error::invalid(&name, "a configuration that runs", error))? {
            Outcome::Passed(_) => {}
            Outcome::Failed { why } => return Ok(Outcome::Failed { why: format!("{name}: {why}") }),
            Outcome::Unsupported { reason } => return Ok(Outcome::Failed { why: format!("{name}: listed, and not supported: {reason}") }),
        }
    }
    Ok(chosen)
}

/// Runs a case with the named variant, or with the one that the backend chooses (or with a variant's configuration, as `variant:config`), and checks
/// everything.
///
/// # Errors
/// What the device or driver reports. A wrong answer is no error but [`Outcome::Failed`].
pub fn run_case<D: Backend>(session: &mut Session<D>, subject: &Subject, variant: Option<&str>, mode: Mode) -> Result<Outcome> {
    run_drawn(session, subject, &subject.problem()?, variant, mode)
}

/// Runs a case as [`run_case`] does on operands that are already drawn: `problem` is what [`Subject::problem`] gave.
///
/// # Errors
/// The errors of [`run_case`].
pub fn run_drawn<D: Backend>(session: &mut Session<D>, subject: &Subject, problem: &Problem, variant: Option<&str>, mode: Mode) -> Result<Outcome> {
    match problem {
        Problem::CodebookGemm(posed) => run_posed(session, subject, problem, posed, variant, mode),
        Problem::Attention(posed) => run_posed(session, subject, problem, posed, variant, mode),
        Problem::PrefixAttention(posed) => run_posed(session, subject, problem, posed, variant, mode),
        Problem::FusedMlp(posed) => run_posed(session, subject, problem, posed, variant, mode),
        Problem::Linear(posed) => run_posed(session, subject, problem, posed, variant, mode),
        Problem::GroupedLinear(posed) => run_posed(session, subject, problem, posed, variant, mode),
        Problem::Pointwise(posed) => run_posed(session, subject, problem, posed, variant, mode),
        Problem::Sample(posed) => run_posed(session, subject, problem, posed, variant, mode),
        Problem::Checksum(posed) => run_posed(session, subject, problem, posed, variant, mode),
    }
}

fn run_posed<O: Upload, D: Backend + Kernel<O>>(
    session: &mut Session<D>,
    subject: &Subject,
    problem: &Problem,
    posed: &Posed<O>,
    variant: Option<&str>,
    mode: Mode,
) -> Result<Outcome> {
    let plan = match session.plan_variant(posed.op.clone(), variant) {
        Ok(plan) => plan,
        Err(Error::Unsupported { reason, .. }) => return Ok(Outcome::Unsupported { reason }),
        Err(error) => return Err(error),
    };
    if variant.is_some() {
        // What one variant can do, the backend's own choice must not refuse.
        if let Err(Error::Unsupported { reason, .. }) = session.plan(posed.op.clone()) {
            return Ok(Outcome::Failed { why: format!("the variant supports it, but the backend's own choice does not: {reason}") });
        }
    }
    let mut stage = if mode == Mode::Aligned { Stage::aligned() } else { Stage::default() };
    let mut args = posed.op.upload(&posed.host, session, &mut stage)?;

    session.run(&plan, &args)?;
    let first = stage.read(session)?;
    let metrics = match stage.compare(&first, subject.expected(problem)?)? {
        Ok(metrics) => metrics,
        Err(why) => return Ok(Outcome::Failed { why }),
    };

    if posed.op.prepare(&mut args, session)? {
        stage.reset(session)?;
        session.run(&plan, &args)?;
        if let Some(place) = stage.first_difference(&first, &stage.read(session)?) {
            return Ok(Outcome::Failed { why: format!("with what was prepared it differs from the first run in {place}") });
        }
    }

    let (graph, again) = match mode {
        Mode::Direct | Mode::Aligned => (None, 1),
        Mode::Captured => (Some(session.capture(|session| session.run(&plan, &args))?), 2),
        Mode::Repeated(runs) => (None, runs.saturating_sub(1)),
    };
    for number in 0..again {
        stage.reset(session)?;
        match &graph {
            None => session.run(&plan, &args)?,
            Some(graph) => session.replay(graph)?,
        }
        if let Some(place) = stage.first_difference(&first, &stage.read(session)?) {
            let what = if graph.is_some() { "replay" } else { "run" };
            let number = if graph.is_some() { number + 1 } else { number + 2 };
            return Ok(Outcome::Failed { why: format!("{what} {number} differs from the first run in {place}") });
        }
    }
    Ok(Outcome::Passed(metrics))
}
