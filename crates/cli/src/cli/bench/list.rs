//! `bench SUITE --list`: the names of a suite's shapes, none of them measured.

use serde::Serialize;
use trifuse::Result;
use trifuse::backends::Choice;
use trifuse::device::Device;
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
    let device = choice.open_any()?;
    // A processor has smaller shapes.
    let shapes = names(options, device.caps().kind)?;
    output.report(&Shapes { suite: options.suite.name(), backend: device.backend(), shapes })?;
    Ok(Outcome::Right)
}

impl Report for Shapes {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        self.shapes.iter().try_for_each(|name| page.line(name))
    }
}
