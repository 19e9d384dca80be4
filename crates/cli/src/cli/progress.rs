//! A bar for whatever takes over a second, on standard error, and none where that is not a terminal.

use std::fmt::Write;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::escape::escaped_line;
use super::output::Output;

/// What ends sooner shows no bar.
const AFTER: Duration = Duration::from_secs(1);

/// A piece of work under way. Dropping it takes the bar off the screen.
pub struct Progress {
    bar: ProgressBar,
    /// Dropped to stop the waiter, which puts the bar on the screen once [`AFTER`] has passed.
    running: Option<Sender<()>>,
    waiter: Option<JoinHandle<()>>,
}

impl Progress {
    /// `steps` steps of the work `what`; with 0 steps the bar only shows that it is alive.
    pub fn new(output: &Output, what: &'static str, steps: u64) -> Self {
        let bar = if steps == 0 { ProgressBar::no_length() } else { ProgressBar::new(steps) };
        let bar = bar.with_prefix(what);
        bar.set_draw_target(ProgressDrawTarget::hidden());
        let template = if steps == 0 { "{prefix} {spinner} {elapsed} {msg}" } else { "{prefix} {wide_bar} {pos}/{len}{left} {msg}" };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.with_key("left", left));
        }
        if !output.shows_progress() {
            return Self { bar, running: None, waiter: None };
        }
        let (running, stopped) = channel::<()>();
        let shown = bar.clone();
        let waiter = std::thread::spawn(move || {
            if stopped.recv_timeout(AFTER) == Err(RecvTimeoutError::Timeout) {
                shown.set_draw_target(ProgressDrawTarget::stderr());
                shown.enable_steady_tick(Duration::from_millis(100));
            }
        });
        Self { bar, running: Some(running), waiter: Some(waiter) }
    }

    /// One step is done.
    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// Names what is being worked on.
    pub fn now(&self, what: impl Into<String>) {
        self.bar.set_message(escaped_line(&what.into(), false).into_owned());
    }
}

/// The time that the rest will take; nothing before a step is done, since nothing tells then.
fn left(state: &ProgressState, out: &mut dyn Write) {
    if state.pos() > 0 {
        // A bar that cannot be written is no fault of the work.
        let _ = write!(out, " {:#} left", HumanDuration(state.eta()));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.running.take());
        if let Some(waiter) = self.waiter.take() {
            // A waiter that panicked has drawn nothing that matters.
            let _ = waiter.join();
        }
        self.bar.finish_and_clear();
    }
}
