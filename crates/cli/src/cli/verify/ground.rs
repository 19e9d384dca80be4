//! A backend that cases and tests are run on.

use std::sync::Arc;

use trifuse::backends::{AnyDevice, Choice};
use trifuse::session::Session;
use trifuse::{Error, Result};
use trifuse_cli::verify::{Check, NAMES, Relaunch, Samples, Verdict, launch, run};
use trifuse_testkit::cases::Problem;
use trifuse_testkit::conformance::{Mode, Outcome, Subject, plan_ahead, run_drawn};

use super::report::Cell;

/// Plans a case, so that its kernels are there when it is run.
pub type Planner = Box<dyn Fn(&Problem) + Send + Sync>;

/// A device with its session.
pub struct Ground(Session<AnyDevice>);

impl Ground {
    /// Opens a device.
    ///
    /// # Errors
    /// A backend that is not there; a device that does not work.
    pub fn open(choice: &Choice) -> Result<Self> {
        Ok(Self(Session::new(Arc::new(choice.open_any()?))?))
    }

    /// The backend's name.
    pub fn backend(&self) -> &'static str {
        self.0.device().backend()
    }

    /// The device's name.
    pub fn device(&self) -> String {
        self.0.caps().name.clone()
    }

    /// What compiles the kernels of a case, on whatever thread; nothing where no compiler takes long.
    pub fn planner(&self) -> Option<Planner> {
        let device = Arc::clone(self.0.device());
        // NVRTC takes seconds for a kernel, and keeps what it made.
        self.0.caps().cuda_arch.is_some().then(|| -> Planner { Box::new(move |problem| plan_ahead(&*device, problem)) })
    }

    /// Runs a case whose operands are drawn; a case that could not be drawn fails.
    pub fn case(&mut self, subject: &Subject, problem: Result<&Problem, &Error>) -> Cell {
        let ran = problem.map(|problem| run_drawn(&mut self.0, subject, problem, None, Mode::Direct));
        match ran {
            Ok(Ok(Outcome::Passed(outputs))) => Cell::passed(outputs.iter().map(|(_, metrics)| metrics)),
            Ok(Ok(Outcome::Failed { why })) => Cell::Failed { why },
            Ok(Ok(Outcome::Unsupported { reason })) => Cell::Unsupported { reason },
            Ok(Err(error)) => Cell::Failed { why: error.to_string() },
            Err(error) => Cell::Failed { why: error.to_string() },
        }
    }

    /// Runs one of the six tests.
    pub fn test(&mut self, number: u8, samples: &Samples, relaunch: Option<&Relaunch>) -> Check {
        let name = NAMES[usize::from(number) - 1];
        let failed = |error: Error| Check { number, name, verdict: Verdict::Failed(error.to_string()), figures: Vec::new() };
        run(number, &mut self.0, samples, relaunch).unwrap_or_else(failed)
    }

    /// Runs one case of test 3.
    ///
    /// # Errors
    /// A case that there is not; a wrong answer; what the device reports.
    pub fn launch(&mut self, what: &str) -> Result<()> {
        launch(&mut self.0, what)
    }
}
