//! `bench SUITE --regret N`: what the choice of a variant and its configuration loses over shapes of one's own and random ones.

use std::ops::ControlFlow;
use std::sync::Arc;

use serde::Serialize;
use trifuse::Result;
use trifuse::backend::Backend;
use trifuse::backends::{Choice, Visit};
use trifuse::session::Session;
use trifuse_cli::bench::markdown::seconds;
use trifuse_cli::bench::regret::{LOSS, Options, RegretReport, Worst, run as race};

use super::super::Outcome;
use super::super::interrupt::Interrupt;
use super::super::output::{Output, Page, Report, Tone};
use super::super::progress::Progress;
use super::measured::measured;

/// Names of shapes and configurations that a page has at most, of those that have no time.
const MOST_FAULTS: usize = 20;

#[derive(Serialize)]
struct Told(RegretReport);

/// Races, and prints what was lost.
pub fn run(options: Options, choice: &Choice, output: &Output) -> Result<Outcome> {
    let interrupt = Interrupt::listen()?;
    let told = Told(measured(choice, Work { options, output, interrupt: &interrupt })?);
    output.report(&told)?;
    // What is slower than could be is no fault: that is what it is there to tell.
    Ok(if told.0.complete { Outcome::Right } else { Outcome::Interrupted })
}

/// The work on one backend.
struct Work<'a> {
    options: Options,
    output: &'a Output,
    interrupt: &'a Interrupt,
}

impl Visit for Work<'_> {
    type Out = RegretReport;

    fn visit<B: Backend>(self, backend: B) -> Result<RegretReport> {
        let mut session = Session::new(Arc::new(backend))?;
        let progress = Progress::new(self.output, "regret", self.options.count + self.options.own.sizes.len() as u64);
        let mut begun = false;
        race(&mut session, &self.options, &mut |name, _| {
            if std::mem::replace(&mut begun, true) {
                progress.step();
            }
            progress.now(name);
            if self.interrupt.asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    }
}

impl Report for Told {
    fn page(&self, page: &mut Page) -> std::fmt::Result {
        let RegretReport { suite, backend, device, environment, seed, complete, summary, worst, shapes, .. } = &self.0;
        let revision = environment.revision.get(..7).unwrap_or(&environment.revision);
        page.line(page.tone(Tone::Strong, format!("regret of {} on {backend}", suite.name())))?;
        page.line(format!("{}, {}; revision {revision}; {} shapes, random ones of seed {seed}", device.name, device.driver, shapes.len()))?;
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        page.line(format!(
            "{} raced: the choice takes {:.2} % more than the fastest in the mean, {:.1} % at most; {:.0} % of the shapes lose more than {:.0} %",
            summary.raced,
            percent(summary.mean_regret),
            percent(summary.max_regret),
            summary.losses * 100.0,
            percent(LOSS),
        ))?;
        page.line(format!("all shapes one after the other: {:.2} % more", percent(summary.total_regret)))?;
        let rows: Vec<Vec<String>> = worst.iter().map(|row| cells(page, row)).collect();
        if !rows.is_empty() {
            page.table(&["shape", "chosen", "time", "fastest", "time", "regret"], &[2, 4, 5], rows)?;
        }
        let without = shapes.iter().filter_map(|entry| Some(format!("{}: {}", entry.name, entry.why.as_ref()?)));
        let tried = shapes.iter().flat_map(|entry| entry.raced.iter().flat_map(move |raced| raced.configs.iter().map(move |tried| (&entry.name, tried))));
        let failed = tried.filter_map(|(name, tried)| Some(format!("{name}: {}: {}", tried.name, tried.why.as_ref()?)));
        let notes: Vec<String> = without.chain(failed).collect();
        notes.iter().take(MOST_FAULTS).try_for_each(|note| page.line(page.tone(Tone::Warning, format!("note: {note}"))))?;
        if notes.len() > MOST_FAULTS {
            page.line(format!("note: and {} more, which --json has", notes.len() - MOST_FAULTS))?;
        }
        if *complete { Ok(()) } else { page.line("note: interrupted: not every shape was raced") }
    }
}

fn cells(page: &Page, row: &Worst) -> Vec<String> {
    let tone = if row.regret > LOSS { Tone::Warning } else { Tone::Good };
    let regret = page.tone(tone, format!("{:.3}", row.regret));
    vec![row.name.clone(), row.chosen.clone(), seconds(row.chosen_seconds), row.best.clone(), seconds(row.best_seconds), regret]
}
