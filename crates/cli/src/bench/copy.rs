//! Measuring a copy, which is no operation.

use super::judge::Judge;
use super::micro::{filled, pattern};
use super::operand::spread;
use super::report::Outcome;
use super::sample::Checked;
use trifuse::backend::Backend;
use trifuse::device::{Device, Slice};
use trifuse::error::Result;
use trifuse::ops::Cost;
use trifuse::session::Session;
use trifuse_testkit::cases::Draw;

/// Measures a copy of `bytes` from one buffer to another, after a look at what it leaves.
///
/// # Errors
/// What the device reports.
pub fn copy_point<D: Backend>(session: &mut Session<D>, bytes: u64, judge: &Judge<'_, D>) -> Result<Outcome> {
    if bytes > session.caps().max_buffer_bytes {
        return Ok(Outcome::Unsupported { why: format!("a buffer holds {} bytes at the most", session.caps().max_buffer_bytes) });
    }
    let (from, to) = (filled(session, bytes)?, session.alloc(bytes)?);
    session.copy(&from, &to)?;
    let checked = match copied(session, &to)? {
        Ok(checked) => checked,
        Err(why) => return Ok(Outcome::Wrong { why }),
    };
    let cost = Cost { executed_flops: 0.0, useful_flops: 0.0, dense_flops: 0.0, bytes: 2.0 * bytes as f64 };
    judge.times(session, ("copy", None, 1), (checked, cost, None), |session| session.copy(&from, &to))
}

/// Compares parts of a copy from its first to its last bytes; the inner error says what is wrong.
fn copied<D: Device>(session: &mut Session<D>, to: &Slice<D>) -> Result<Result<Checked, String>> {
    let pattern = pattern(to.len());
    let part_bytes = pattern.len() as u64;
    let mut checked = Checked { of: to.len() / 4, ..Checked::default() };
    for number in spread(&mut Draw::seeded("copy"), 8, to.len().div_ceil(part_bytes)) {
        let at = number * part_bytes;
        let Some(part) = to.sub_slice(at, part_bytes.min(to.len() - at)) else { continue };
        let found = session.read(&part)?;
        if let Some(place) = found.iter().zip(&pattern).position(|(found, expected)| found != expected) {
            return Ok(Err(format!("byte {} is not what was copied", at + place as u64)));
        }
        checked.elements += part.len() / 4;
    }
    Ok(Ok(checked))
}
