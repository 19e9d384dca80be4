//! Two reports of one suite: which shapes became slower, by how much at the least, and whether that can be chance.
//!
//! Times are not normal: they have a floor, a long tail and steps of the clock. So the medians are compared, each within
//! an interval by order statistics, which holds it with a known probability whatever the distribution (exact by the
//! binomial distribution, as David and Nagaraja, *Order Statistics*, 7.1). The ratio of the medians lies between the
//! quotients of the intervals' ends. The level of 95 % is for the whole report: every interval is so wide that all of
//! them hold together (Bonferroni), so a report of a hundred shapes names no more by chance than one of a single shape.
//! What runs of one process have in common, such as its clock and where its memory lies, no statistics of these runs can
//! see: the threshold is for that.

use serde::Serialize;

use super::stored::{Entry, Stored, Times};
use trifuse::error::{Error, Result};

/// Probability that all intervals hold.
pub const LEVEL: f64 = 0.95;

/// How two reports compare.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The suite.
    pub suite: String,
    /// The device.
    pub device: String,
    /// The revisions that were built: of the first report, of the second.
    pub revisions: [String; 2],
    /// Differences beside the program that move times.
    pub warnings: Vec<String>,
    /// The share by which a shape may become slower.
    pub threshold: f64,
    /// Probability that all intervals hold.
    pub level: f64,
    /// One a shape: those of the first report in its order, then new ones.
    pub shapes: Vec<Row>,
    /// Names of the shapes that became slower than allowed, or are not right any more.
    pub regressions: Vec<String>,
}

/// One shape.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name and type of the shape.
    pub name: String,
    /// The median, in seconds, in the first report and in the second.
    pub seconds: [Option<f64>; 2],
    /// The second over the first.
    pub ratio: Option<f64>,
    /// Holds the ratio of the true medians; nothing where the runs are too few.
    pub ratio_interval: Option<[f64; 2]>,
    /// Whether the times hold the host's part, so that another host moves them too.
    pub host: bool,
    /// What that says.
    pub verdict: Verdict,
}

/// What became of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Slower by more than the threshold, and that is no chance.
    Regression,
    /// It was measured, and now is wrong, refused, failed or unsupported.
    Broken,
    /// Slower by no chance, but it may be by less than the threshold.
    Slower,
    /// It may be the same, and is slower by no more than the threshold.
    Same,
    /// Faster by no chance.
    Faster,
    /// Too few runs, or too far apart, to tell a time that stayed from one that rose by more than the threshold.
    Undecided,
    /// It was measured before, and is not in the second report.
    Missing,
    /// There is no time of it in the first report.
    New,
}

impl Verdict {
    /// Whether it is a fault.
    pub fn regressed(self) -> bool {
        matches!(self, Self::Regression | Self::Broken)
    }
}

/// Compares `after` with `before`, each shape's times with cold caches, or with warm ones. A shape may become slower by
/// the share `threshold`.
///
/// # Errors
/// Reports of two suites, backends or devices, or without a shape and type in common; programs of which only one is optimised.
pub fn compare(before: &Stored, after: &Stored, threshold: f64, warm: bool) -> Result<Comparison> {
    let same = |what: &str, before: &str, after: &str| {
        if before == after { Ok(()) } else { Err(Error::invalid(what, format!("{before:?}, as in the first report"), format!("{after:?}"))) }
    };
    same("suite", &before.suite, &after.suite)?;
    same("backend", &before.backend, &after.backend)?;
    same("device", &before.device.name, &after.device.name)?;
    same("build", built(before), built(after))?;
    let times = |entry: &Entry| entry.measured.as_ref().map(|measured| if warm { measured.warm.clone() } else { measured.cold.clone() });
    let key = |entry: &Entry| format!("{} {}", entry.name, entry.dtype);
    let shared = |entry: &Entry| after.results.iter().any(|other| key(other) == key(entry));
    if !before.results.iter().any(shared) {
        let named = |report: &Stored| report.results.first().map_or_else(|| "no shape".into(), |entry| format!("{:?} and others", key(entry)));
        return Err(Error::invalid("reports", format!("a shape that both hold, as {}", named(before)), named(after)));
    }
    let pairs = before.results.iter().filter(|entry| entry.measured.is_some()).count();
    let mut shapes = Vec::new();
    for entry in &before.results {
        let Some(first) = times(entry) else { continue };
        let second = after.results.iter().find(|other| key(other) == key(entry));
        let told = match second.map(times) {
            None => Row::of_one(key(entry), [Some(first.median), None], Verdict::Missing),
            Some(None) => Row::of_one(key(entry), [Some(first.median), None], Verdict::Broken),
            Some(Some(second)) => row(key(entry), &first, &second, threshold, pairs),
        };
        shapes.push(Row { host: holds_host(entry) || second.is_some_and(holds_host), ..told });
    }
    for entry in &after.results {
        let known = before.results.iter().any(|other| key(other) == key(entry) && other.measured.is_some());
        if let (false, Some(second)) = (known, times(entry)) {
            shapes.push(Row { host: holds_host(entry), ..Row::of_one(key(entry), [None, Some(second.median)], Verdict::New) });
        }
    }
    let regressions = shapes.iter().filter(|row| row.verdict.regressed()).map(|row| row.name.clone()).collect();
    let revisions = [&before.environment.revision, &after.environment.revision].map(String::clone);
    let (suite, device) = (before.suite.clone(), before.device.name.clone());
    Ok(Comparison { suite, device, revisions, warnings: warnings(before, after), threshold, level: LEVEL, shapes, regressions })
}

impl Row {
    /// A shape with a time on one side only.
    fn of_one(name: String, seconds: [Option<f64>; 2], verdict: Verdict) -> Self {
        Self { name, seconds, ratio: None, ratio_interval: None, host: false, verdict }
    }
}

/// By its flags: the host's clock, or a device that may have waited for the host.
fn holds_host(entry: &Entry) -> bool {
    entry.measured.iter().flat_map(|measured| &measured.flags).any(|flag| flag == "host_clock" || flag == "launch_bound")
}

fn built(report: &Stored) -> &'static str {
    if report.environment.optimised { "with optimisation" } else { "without optimisation" }
}

fn row(name: String, before: &Times, after: &Times, threshold: f64, pairs: usize) -> Row {
    // Two medians a shape.
    let wrong = (1.0 - LEVEL) / (2 * pairs.max(1)) as f64;
    let intervals = (median_interval(&before.samples, wrong), median_interval(&after.samples, wrong));
    let ratio_interval = match intervals {
        (Some([low, high]), Some([low_after, high_after])) => Some([low_after / high, high_after / low]),
        _ => None,
    };
    let verdict = match ratio_interval {
        None => Verdict::Undecided,
        Some([low, _]) if low > 1.0 + threshold => Verdict::Regression,
        Some([low, _]) if low > 1.0 => Verdict::Slower,
        Some([_, high]) if high < 1.0 => Verdict::Faster,
        Some([_, high]) if high > 1.0 + threshold => Verdict::Undecided,
        Some(_) => Verdict::Same,
    };
    Row { name, seconds: [Some(before.median), Some(after.median)], ratio: Some(after.median / before.median), ratio_interval, host: false, verdict }
}

/// Two of the samples between which the true median lies but for a probability of `wrong`; nothing where even the least
/// and the greatest hold it with less.
fn median_interval(samples: &[f64], wrong: f64) -> Option<[f64; 2]> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    // How many of n samples are below the true median is binomial with one half. The chances of 0, 1, 2 … of them are
    // summed while twice the sum, for both ends, stays within what is allowed.
    let n = sorted.len();
    let mut chance = -(n as f64) * std::f64::consts::LN_2;
    let (mut sum, mut left_out) = (0.0, 0);
    while left_out < n / 2 {
        sum += chance.exp();
        if 2.0 * sum > wrong {
            break;
        }
        left_out += 1;
        chance += ((n - left_out + 1) as f64 / left_out as f64).ln();
    }
    let low = left_out.checked_sub(1)?;
    Some([*sorted.get(low)?, *sorted.get(n - 1 - low)?])
}

/// What differs beside the program and moves times.
fn warnings(before: &Stored, after: &Stored) -> Vec<String> {
    let told = |report: &Stored| -> Vec<(&str, String)> {
        let (device, here, timing) = (&report.device, &report.environment, &report.timing);
        vec![
            ("driver", device.driver.clone()),
            ("highest clock in Hz", device.clock_hz.map_or_else(|| "unknown".into(), |clock| clock.to_string())),
            ("multiprocessors", device.multiprocessors.to_string()),
            ("platform", here.platform.clone()),
            ("profile", here.profile.clone().unwrap_or_else(|| "unknown".into())),
            ("NVRTC", here.nvrtc.clone().unwrap_or_else(|| "none".into())),
            ("clock", timing.clock.clone()),
            ("warm-ups", timing.warmup.to_string()),
            ("bytes that empty the caches", timing.flush_bytes.to_string()),
        ]
    };
    let differ = told(before).into_iter().zip(told(after)).filter(|(first, second)| first != second);
    let mut warnings: Vec<String> = differ.map(|((what, first), (_, second))| format!("{what}: {first}, then {second}")).collect();
    // Another machine of the same name, or one that others use, shows in what a plain copy takes.
    let copy = after.ceilings.copy_bytes_per_second / before.ceilings.copy_bytes_per_second;
    if !(0.95..=1.05).contains(&copy) {
        warnings.push(format!("a plain copy runs at {copy:.2} of its speed in the first report: the machine is not as it was"));
    }
    if let (Some(first), Some(second)) = (before.clocks, after.clocks) {
        let ratio = second.multiprocessors_hz as f64 / first.multiprocessors_hz as f64;
        if !(0.98..=1.02).contains(&ratio) {
            warnings.push(format!("the multiprocessors ran at {ratio:.2} of their clock in the first report"));
        }
    }
    let cut = [before, after].map(|report| !report.complete);
    warnings.extend(["first", "second"].iter().zip(cut).filter(|(_, cut)| *cut).map(|(which, _)| format!("the {which} report was interrupted")));
    warnings
}

#[cfg(test)]
mod tests;
