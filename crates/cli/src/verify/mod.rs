//! The six tests of the method: what the reference system tested, and what each of those really has to assert.
//!
//! They run on any backend with real adapters. A part that needs a GPU, or a tool beside it, says so and is skipped.

mod encoding;
mod experts;
mod findings;
mod forward;
mod latency;
mod prefix;
mod samples;
mod served;
mod writes;

use trifuse::backend::Backend;
use trifuse::error::{Error, Result};
use trifuse::session::Session;

pub use findings::{Check, Figure, Verdict};
pub use prefix::Prefix;
pub use samples::Samples;
pub use writes::{Relaunch, launch};

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
