//! `bench compare`: a report against an earlier one.

use std::path::PathBuf;

use serde::Serialize;
use trifuse::{Error, Result};
use trifuse_cli::bench::compare::{Comparison, Row, Verdict, compare};
use trifuse_cli::bench::markdown::seconds;
use trifuse_cli::bench::stored::Stored;

use super::super::Outcome;
use super::super::output::{Output, Page, Report, Tone};

/// Arguments of `bench compare`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The report to hold the other against: what `bench SUITE --json` wrote
    #[arg(value_name = "BEFORE.json")]
    pub before: PathBuf,
    /// The report to judge
    #[arg(value_name = "AFTER.json")]
    pub after: PathBuf,
    /// The share by which a shape may become slower
    #[arg(long, allow_negative_numbers = true, default_value_t = 0.05, value_name = "SHARE")]
    pub threshold: f64,
    /// Compare the times with warm caches rather than those with cold ones
    #[arg(long)]
    pub warm: bool,
}

#[derive(Serialize)]
struct Told(Comparison);

/// Compares, and names what became slower.
pub fn run(args: &Args, output: &Output) -> Result<Outcome> {
    if !(args.threshold >= 0.0 && args.threshold.is_finite()) {
        return Err(Error::invalid("--threshold", "a share of at least 0", args.threshold));
    }
    let told = Told(compare(&Stored::read(&args.before)?, &Stored::read(&args.after)?, args.threshold, args.warm)?);
    output.report(&told)?;
    Ok(if told.0.regressions.is_empty() { Outcome::Right } else { Outcome::Wrong })
}

impl Report for Told {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        let told = &self.0;
        let [before, after] = &told.revisions.each_ref().map(|revision| revision.get(..7).unwrap_or(revision));
        page.line(format!("{} on {}: revision {before}, then {after}", told.suite, told.device))?;
        let rows: Vec<Vec<String>> = told.shapes.iter().map(|row| cells(page, row)).collect();
        page.table(&["shape", "before", "after", "ratio", "interval", "verdict"], &[1, 2, 3, 4], rows)?;
        let level = told.level * 100.0;
        page.line(format!("ratio: of the medians, above 1 is slower. All intervals together hold the true ratios with {level:.0} %"))?;
        if told.shapes.iter().any(|row| row.host) {
            page.line("*: the times hold the host's part; another host, or one that others use, moves them too")?;
        }
        told.warnings.iter().try_for_each(|warning| page.line(page.tone(Tone::Warning, format!("warning: {warning}"))))?;
        let undecided = told.shapes.iter().filter(|row| row.verdict == Verdict::Undecided).count();
        if undecided > 0 {
            page.line(page.tone(Tone::Warning, format!("{undecided} undecided: too few runs, or too far apart; --iterations measures more")))?;
        }
        match told.regressions.len() {
            0 => page.line(format!("no shape is known to be slower by more than {:.1} %", told.threshold * 100.0)),
            count => page.line(page.tone(Tone::Bad, format!("{count} regressed: {}", told.regressions.join("; ")))),
        }
    }
}

fn cells(page: &Page, row: &Row) -> Vec<String> {
    let none = || "–".to_owned();
    let [before, after] = row.seconds.map(|time| time.map_or_else(none, seconds));
    let interval = row.ratio_interval.map_or_else(none, |[low, high]| format!("{low:.3} to {high:.3}"));
    let (tone, verdict) = match row.verdict {
        Verdict::Regression => (Tone::Bad, "REGRESSION"),
        Verdict::Broken => (Tone::Bad, "BROKEN"),
        Verdict::Slower => (Tone::Warning, "slower"),
        Verdict::Same => (Tone::Good, "same"),
        Verdict::Faster => (Tone::Good, "faster"),
        Verdict::Undecided => (Tone::Warning, "undecided"),
        Verdict::Missing => (Tone::Warning, "missing"),
        Verdict::New => (Tone::Faint, "new"),
    };
    let verdict = if row.host { format!("{verdict} *") } else { verdict.into() };
    vec![row.name.clone(), before, after, row.ratio.map_or_else(none, |ratio| format!("{ratio:.3}")), interval, page.tone(tone, verdict)]
}
