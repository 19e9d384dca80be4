//! The six tests of the method: what the reference system tested, and what each of those really has to assert.
//!
//! They run on any backend with real adapters. A part that needs a GPU, or a tool beside it, says so and is skipped.

mod encoding;
mod experts;
mod forward;
mod latency;
mod prefix;
mod served;
mod writes;

use crate::adapters::peft::LoraAdapter;
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::session::Session;

pub use prefix::Prefix;
pub use writes::{Relaunch, launch};

/// What the tests run on.
pub struct Samples {
    /// A few real adapters of one base model.
    pub adapters: Vec<LoraAdapter>,
    /// Real activations of a shared prefix.
    pub prefix: Prefix,
}

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case", tag = "status", content = "why")]
pub enum Verdict {
    /// Everything it asserts holds.
    Passed,
    /// Something does not.
    Failed(String),
    /// It cannot run here.
    Skipped(String),
}

/// One measured value, and the bound it had to keep.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// The value.
    pub value: f64,
    /// The bound in words; nothing where the value is only told.
    pub bound: Option<String>,
}

/// One test.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Check {
    /// 1 to 6.
    pub number: u8,
    /// What it is about.
    pub name: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// What was measured.
    pub figures: Vec<Figure>,
}

/// Collects what a test measures, and the first bound that does not hold.
#[derive(Default)]
struct Findings {
    figures: Vec<Figure>,
    failed: Option<String>,
}

impl Findings {
    /// A value that is only told.
    fn tell(&mut self, name: impl Into<String>, value: f64) {
        self.figures.push(Figure { name: name.into(), value, bound: None });
    }

    /// A value that must be at least so much. NaN is not.
    fn at_least(&mut self, name: impl Into<String>, value: f64, least: f64) {
        self.judge(name.into(), value, value >= least, format!("at least {least}"));
    }

    /// A value that must be at most so much. NaN is not.
    fn at_most(&mut self, name: impl Into<String>, value: f64, most: f64) {
        self.judge(name.into(), value, value <= most, format!("at most {most:.4e}"));
    }

    /// A value that must be just that.
    fn exactly(&mut self, name: impl Into<String>, value: f64, wanted: f64) {
        self.judge(name.into(), value, value == wanted, format!("exactly {wanted}"));
    }

    fn judge(&mut self, name: String, value: f64, holds: bool, bound: String) {
        if !holds && self.failed.is_none() {
            self.failed = Some(format!("{name}: {value:.6e}, has to be {bound}"));
        }
        self.figures.push(Figure { name, value, bound: Some(bound) });
    }

    fn check(self, number: u8, name: &'static str) -> Check {
        let verdict = self.failed.map_or(Verdict::Passed, Verdict::Failed);
        Check { number, name, verdict, figures: self.figures }
    }
}

/// The names of the tests, by number from 1.
pub const NAMES: [&str; 6] = ["encoding round trip", "forward numerics", "no intermediate writes", "latency", "expert placement", "cache reconstruction"];

/// Runs one of the six tests. `relaunch` is how test 3 gets this program under a profiler; without it that is skipped.
///
/// # Errors
/// A number that is none of them; what the device reports. A wrong answer is no error but [`Verdict::Failed`].
pub fn run<D: Backend>(number: u8, session: &mut Session<D>, samples: &Samples, relaunch: Option<&Relaunch>) -> Result<Check> {
    let name = |number: u8| NAMES[usize::from(number) - 1];
    match number {
        1 => Ok(encoding::findings(samples)?.check(1, name(1))),
        2 => Ok(forward::findings(session, samples)?.check(2, name(2))),
        3 => writes::check(session, name(3), relaunch),
        4 => latency::check(session, name(4)),
        5 => Ok(experts::findings(session, samples)?.check(5, name(5))),
        6 => Ok(prefix::findings(session, &samples.prefix)?.check(6, name(6))),
        _ => Err(Error::invalid("test", "1 to 6", number)),
    }
}
