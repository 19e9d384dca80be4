//! A backend that cases and tests are run on, whatever its type.

use std::sync::Arc;

use trifuse::backends::Visit;
use trifuse::session::Session;
use trifuse::{Error, Result, backend};
use trifuse_cli::verify::{Check, NAMES, Relaunch, Samples, Verdict, launch, run};
use trifuse_testkit::cases::Problem;
use trifuse_testkit::conformance::{Mode, Outcome, Subject, plan_ahead, run_drawn};

use super::report::Cell;

/// Plans a case, so that its kernels are there when it is run.
pub type Planner = Box<dyn Fn(&Problem) + Send + Sync>;

/// A device with its session.
pub trait Ground {
    /// The backend's name.
    fn backend(&self) -> &'static str;
    /// The device's name.
    fn device(&self) -> String;
    /// What compiles the kernels of a case, on whatever thread; nothing where no compiler takes long.
    fn planner(&self) -> Option<Planner>;
    /// Runs a case whose operands are drawn; a case that could not be drawn fails.
    fn case(&mut self, subject: &Subject, problem: Result<&Problem, &Error>) -> Cell;
    /// Runs one of the six tests.
    fn test(&mut self, number: u8, samples: &Samples, relaunch: Option<&Relaunch>) -> Check;
}

impl<B: backend::Backend> Ground for Session<B> {
    fn backend(&self) -> &'static str {
        B::NAME
    }

    fn device(&self) -> String {
        self.caps().name.clone()
    }

    fn planner(&self) -> Option<Planner> {
        let device = Arc::clone(Session::device(self));
        // NVRTC takes seconds for a kernel, and keeps what it made.
        self.caps().cuda_arch.is_some().then(|| -> Planner { Box::new(move |problem| plan_ahead(&*device, problem)) })
    }

    fn case(&mut self, subject: &Subject, problem: Result<&Problem, &Error>) -> Cell {
        let ran = problem.map(|problem| run_drawn(self, subject, problem, None, Mode::Direct));
        match ran {
            Ok(Ok(Outcome::Passed(outputs))) => Cell::passed(outputs.iter().map(|(_, metrics)| metrics)),
            Ok(Ok(Outcome::Failed { why })) => Cell::Failed { why },
            Ok(Ok(Outcome::Unsupported { reason })) => Cell::Unsupported { reason },
            Ok(Err(error)) => Cell::Failed { why: error.to_string() },
            Err(error) => Cell::Failed { why: error.to_string() },
        }
    }

    fn test(&mut self, number: u8, samples: &Samples, relaunch: Option<&Relaunch>) -> Check {
        let name = NAMES[usize::from(number) - 1];
        let failed = |error: Error| Check { number, name, verdict: Verdict::Failed(error.to_string()), figures: Vec::new() };
        run(number, self, samples, relaunch).unwrap_or_else(failed)
    }
}

/// Opens a device.
pub struct Open;

impl Visit for Open {
    type Out = Box<dyn Ground>;

    fn visit<B: backend::Backend>(self, backend: B) -> Result<Self::Out> {
        Ok(Box::new(Session::new(Arc::new(backend))?))
    }
}

/// One case of test 3.
pub struct Launch<'a>(pub &'a str);

impl Visit for Launch<'_> {
    type Out = ();

    fn visit<B: backend::Backend>(self, backend: B) -> Result<()> {
        launch(&mut Session::new(Arc::new(backend))?, self.0)
    }
}
