//! Measured times of projections, as matrices and as factors of each rank, and the ranks that a budget of time buys.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::plan::{Curve, Plan, Rule, within};
use crate::backend::Backend;
use crate::dtype::DType;
use crate::error::{Error, Result, ensure};
use crate::ops::{Linear, LinearArgs};
use crate::read::read_file;
use crate::session::Session;

/// The format of a file of times.
const FORMAT: &str = "trifuse.profile/1";
/// The longest file, in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Units of a budget of time: shares of what the matrices take.
const UNITS: f64 = 1e9;
/// Samples of a time, of which the median counts, and what each takes at least, in seconds.
const SAMPLES: usize = 7;
const LEAST: f64 = 2e-3;

/// Times of projections on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The file's format.
    pub format: String,
    /// The backend and the device.
    pub device: String,
    /// What was computed in.
    pub dtype: String,
    /// Rows of the products, for each of which there are times.
    pub rows: Vec<u64>,
    /// The shapes of projections.
    pub shapes: Vec<Times>,
}

/// Times of a shape in seconds, one for each number of rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// `[d_out, d_in]`.
    pub shape: [u64; 2],
    /// As a matrix.
    pub whole: Vec<f64>,
    /// As factors of each rank.
    pub ranks: BTreeMap<u64, Vec<f64>>,
}

/// How much of its time a model spends on products of how many rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix(Vec<(u64, f64)>);

impl FromStr for Mix {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || Error::invalid("mix", "rows and their shares of the time, such as decode1:.5,decode16:.3,prefill512:.2", text);
        let part = |part: &str| {
            let (name, share) = part.split_once(':').ok_or_else(wrong)?;
            let rows = name.trim_start_matches(|letter: char| letter.is_ascii_alphabetic()).parse::<u64>().ok().filter(|&rows| rows > 0);
            let share = share.parse::<f64>().ok().filter(|share| share.is_finite() && *share > 0.0);
            rows.zip(share).ok_or_else(wrong)
        };
        text.split(',').map(part).collect::<Result<Vec<_>>>().map(Self)
    }
}

impl Profile {
    /// Reads a file of times.
    ///
    /// # Errors
    /// A file that cannot be read, or of another format; times that are not above 0, or not one for each number of rows.
    pub fn open(path: &Path) -> Result<Self> {
        let profile: Self = serde_json::from_slice(&read_file(path, MAX_BYTES)?).map_err(|error| Error::input(path, format!("expected times: {error}")))?;
        let whole = |times: &Vec<f64>| times.len() == profile.rows.len() && times.iter().all(|time| time.is_finite() && *time > 0.0);
        let sound = profile.shapes.iter().all(|times| whole(&times.whole) && times.ranks.values().all(whole));
        if profile.format != FORMAT || !sound {
            return Err(Error::input(path, format!("expected {FORMAT} with a time above 0 for each number of rows, found {}", profile.format)));
        }
        Ok(profile)
    }

    /// Measures shapes at ranks and rows. `step` is called after each shape and rank, and an error of it ends the work.
    ///
    /// # Errors
    /// An operation that the backend does not do; a device that fails; what `step` returns.
    pub fn measure<D: Backend>(
        session: &mut Session<D>,
        (device, dtype): (String, DType),
        shapes: &[[u64; 2]],
        (ranks, rows): (&[u64], &[u64]),
        step: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Self> {
        let mut all = Vec::new();
        for &shape in shapes {
            let mut of = |rank: Option<u64>| -> Result<Vec<f64>> {
                let times = rows.iter().map(|&rows| time(session, dtype, shape, rank, rows)).collect::<Result<Vec<_>>>()?;
                step()?;
                Ok(times)
            };
            let whole = of(None)?;
            let ranks = ranks.iter().filter(|&&rank| rank <= shape[0].min(shape[1]));
            let ranks = ranks.map(|&rank| Ok((rank, of(Some(rank))?))).collect::<Result<_>>()?;
            all.push(Times { shape, whole, ranks });
        }
        Ok(Self { format: FORMAT.into(), device, dtype: dtype.name().into(), rows: rows.to_vec(), shapes: all })
    }

    /// The ranks that lose least in the share `keep` of the time that the matrices take in a mix, and the time that was predicted so.
    ///
    /// # Errors
    /// Shapes or rows that were not measured; a rule that is no allocation; a budget below the fastest ranks.
    pub fn plan(&self, curves: &[Curve], rule: Rule, keep: f64, mix: &Mix) -> Result<Plan> {
        ensure(keep > 0.0 && keep <= 1.0, "keep", "a share above 0 and at most 1", keep)?;
        let step = match rule {
            Rule::Free => 1,
            Rule::Multiples(number) => number,
            Rule::Uniform | Rule::Nearest(_) => return Err(Error::invalid("ranks within a budget of time", "free, align:N or knapsack", rule)),
        };
        let sum: f64 = mix.0.iter().map(|part| part.1).sum();
        let mut weights = vec![0.0; self.rows.len()];
        for &(rows, share) in &mix.0 {
            let at = self.rows.iter().position(|&own| own == rows).ok_or_else(|| Error::invalid("mix", format!("rows of {:?}", self.rows), rows))?;
            let whole = curves.iter().map(|curve| self.times(curve, None).map(|times| times[at])).sum::<Option<f64>>();
            let whole = whole.ok_or_else(|| Error::invalid("profile", "times of every shape of the model", "others"))?;
            weights[at] += share / sum / whole;
        }
        let price = |curve: &Curve, rank: Option<u64>| {
            let time: f64 = self.times(curve, rank)?.iter().zip(&weights).map(|(time, weight)| time * weight).sum();
            Some((UNITS * time).ceil() as u64)
        };
        // Every price was rounded up.
        within(curves, step, (keep * UNITS).floor() as u64 + if keep < 1.0 { 0 } else { curves.len() as u64 }, &price)
    }

    fn times(&self, curve: &Curve, rank: Option<u64>) -> Option<&[f64]> {
        let times = self.shapes.iter().find(|times| times.shape == curve.shape)?;
        rank.map_or(Some(&times.whole), |rank| times.ranks.get(&rank)).map(Vec::as_slice)
    }
}

/// The seconds that a projection takes, of which the median of some samples counts.
fn time<D: Backend>(session: &mut Session<D>, dtype: DType, [d_out, d_in]: [u64; 2], rank: Option<u64>, rows: u64) -> Result<f64> {
    let product = |d_in: u64, d_out: u64| Linear::new(dtype, [rows, d_in, d_out]).with_padded_weights();
    let ops = match rank.map(|rank| dtype.row_stride(rank)) {
        None => vec![product(d_in, d_out)],
        Some(rank) => vec![product(d_in, rank), product(rank, d_out)],
    };
    let mut x = zeros(session, rows * d_in * dtype.size())?;
    let mut launches = Vec::new();
    for op in ops {
        let y = session.alloc(rows * op.d_out * dtype.size())?;
        let w = zeros(session, op.d_out * op.w_stride * dtype.size())?;
        launches.push((session.plan(op)?, LinearArgs::new(x, w, y.clone())));
        x = y;
    }
    let mut run = |count: usize| -> Result<f64> {
        let start = session.record_event()?;
        for _ in 0..count {
            for (plan, args) in &launches {
                session.run(plan, args)?;
            }
        }
        let end = session.record_event()?;
        session.elapsed(&start, &end)
    };
    run(1)?;
    let mut count = 1;
    while run(count)? < LEAST && count < 1 << 12 {
        count *= 2;
    }
    let mut samples = (0..SAMPLES).map(|_| run(count)).collect::<Result<Vec<_>>>()?;
    samples.sort_by(f64::total_cmp);
    Ok((samples[SAMPLES / 2] / count as f64).max(1e-12))
}

fn zeros<D: Backend>(session: &mut Session<D>, bytes: u64) -> Result<crate::device::Slice<D>> {
    session.upload(&vec![0u8; bytes as usize])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        // Ranks below a step of 16 gain no time.
        let time = |rank: u64| vec![1e-6 * (1 + rank.div_ceil(16)) as f64, 1e-5 * (2 + rank.div_ceil(16)) as f64];
        let times = Times { shape: [64, 64], whole: vec![4e-6, 5e-5], ranks: (1..=40).map(|rank| (rank, time(rank))).collect() };
        Profile { format: FORMAT.into(), device: "made up".into(), dtype: "f16".into(), rows: vec![1, 512], shapes: vec![times] }
    }

    #[test]
    fn a_budget_of_time_is_kept_and_steps_are_used_up() {
        let curve = |number: usize| Curve {
            path: format!("p{number}"),
            shape: [64, 64],
            loss: (0..=64).map(|rank| (1 + number % 3) as f64 * (-0.1 * f64::from(rank)).exp()).collect(),
        };
        let curves: Vec<Curve> = (0..9).map(curve).collect();
        let mix: Mix = "decode1:.5,prefill512:.5".parse().unwrap();
        for keep in [0.6, 0.75, 0.9] {
            let plan = profile().plan(&curves, Rule::Free, keep, &mix).unwrap();
            assert!(plan.cost <= plan.budget && plan.budget == (keep * UNITS) as u64);
            assert!(plan.ranks.values().all(|rank| rank % 16 == 0 || *rank == 40), "{:?}", plan.ranks);
        }
        assert_eq!(profile().plan(&curves, Rule::Free, 1.0, &mix).unwrap().nats, 0.0);
        assert!(profile().plan(&curves, Rule::Free, 0.9, &"decode2:1".parse().unwrap()).is_err());
        assert!(profile().plan(&curves, Rule::Uniform, 0.9, &mix).is_err() && profile().plan(&curves, Rule::Free, 0.1, &mix).is_err());
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), serde_json::to_vec(&profile()).unwrap()).unwrap();
        assert_eq!(Profile::open(file.path()).unwrap(), profile());
        let short = Profile { rows: vec![1], ..profile() };
        std::fs::write(file.path(), serde_json::to_vec(&short).unwrap()).unwrap();
        assert!(Profile::open(file.path()).is_err());
        for other in ["", "decode1", "decode:1", "decode0:1", "decode1:-1", "decode1:x"] {
            assert!(other.parse::<Mix>().is_err(), "{other}");
        }
    }
}
