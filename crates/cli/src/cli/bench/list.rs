//! `bench SUITE --list`: the names of a suite's shapes, none of them measured.

use serde::Serialize;
use trifuse::Result;
use trifuse::backend::Backend;
use trifuse::backends::{Choice, Visit};
use trifuse::device::Kind;
use trifuse_cli::bench::{Options, names};

use super::super::Outcome;
use super::super::output::{Output, Page, Report};

/// The result.
#[derive(Serialize)]
struct Shapes {
    suite: &'static str,
    backend: &'static str,
    shapes: Vec<String>,
}

/// Prints what the options would measure.
pub fn run(options: &Options, choice: &Choice, output: &Output) -> Result<Outcome> {
    let (backend, kind) = choice.open(Look)?;
    output.report(&Shapes { suite: options.suite.name(), backend, shapes: names(options, kind)? })?;
    Ok(Outcome::Right)
}

/// The backend and its device's kind: a processor has smaller shapes.
struct Look;

impl Visit for Look {
    type Out = (&'static str, Kind);

    fn visit<B: Backend>(self, backend: B) -> Result<Self::Out> {
        Ok((B::NAME, backend.caps().kind))
    }
}

impl Report for Shapes {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        self.shapes.iter().try_for_each(|name| page.line(name))
    }
}
