//! What the time from the start of a command to the first token of a model went into.

use std::time::{Duration, Instant};

use serde::Serialize;
use trifuse::Result;
use trifuse::backends::{AnyDevice, Choice};
use trifuse::llm::Loading;
use trifuse::session::Counters;

/// A start that is under way. Of what happens again, the first time counts.
#[derive(Clone, Copy, Debug)]
pub struct Starting {
    began: Instant,
    device: Duration,
    loading: Option<Loading>,
    /// When the first tokens were asked for, and what had been made by then.
    asked: Option<(Instant, Counters)>,
    start: Option<Start>,
}

/// The parts of a start, in seconds. No two have the same time in them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Start {
    /// All of it.
    pub seconds: f64,
    /// The opening of the device.
    pub device_seconds: f64,
    /// Weights read or drawn, and rounded, while nothing else was waited for.
    pub weights_read_seconds: f64,
    /// Waits for weights on their way to the device.
    pub weights_copied_seconds: f64,
    /// Allocations.
    pub memory_seconds: f64,
    /// Planning, with kernels compiled and loaded.
    pub plans_seconds: f64,
    /// Captures.
    pub graphs_seconds: f64,
    /// The steps until the first token, without what they planned, captured and allocated.
    pub steps_seconds: f64,
    /// Everything else.
    pub rest_seconds: f64,
}

impl Starting {
    /// A start that begins now.
    pub fn now() -> Self {
        Self { began: Instant::now(), device: Duration::ZERO, loading: None, asked: None, start: None }
    }

    /// Opens the device.
    ///
    /// # Errors
    /// The errors of [`Choice::open_any`].
    pub fn open(&mut self, backend: &Choice) -> Result<AnyDevice> {
        let began = Instant::now();
        let device = backend.open_any();
        self.device = began.elapsed();
        device
    }

    /// Notes that a model's weights are there.
    pub fn loaded(&mut self, loading: Loading) {
        self.loading.get_or_insert(loading);
    }

    /// Notes that tokens are asked for, where `made` is what the model's session has made so far.
    pub fn asked(&mut self, made: Counters) {
        self.asked.get_or_insert_with(|| (Instant::now(), made));
    }

    /// Notes that the first token is there, or that the model waits for its first request.
    pub fn ended(&mut self, made: Counters) {
        let now = Instant::now();
        let Self { began, device, loading, asked, start } = self;
        start.get_or_insert_with(|| {
            let Loading { read, copied, .. } = loading.unwrap_or_default();
            let steps = asked.map_or(Duration::ZERO, |(at, before)| {
                let since = made - before;
                (now - at).saturating_sub(since.plan_time + since.graph_time + since.alloc_time)
            });
            let all = now - *began;
            let known = [*device, read, copied, made.alloc_time, made.plan_time, made.graph_time, steps];
            let rest = all.saturating_sub(known.iter().sum());
            let [device_seconds, weights_read_seconds, weights_copied_seconds, memory_seconds, plans_seconds, graphs_seconds, steps_seconds] =
                known.map(|part| part.as_secs_f64());
            Start {
                seconds: all.as_secs_f64(),
                device_seconds,
                weights_read_seconds,
                weights_copied_seconds,
                memory_seconds,
                plans_seconds,
                graphs_seconds,
                steps_seconds,
                rest_seconds: rest.as_secs_f64(),
            }
        });
    }

    /// The parts of the start, once it has ended.
    pub fn told(&self) -> Option<Start> {
        self.start
    }
}

impl Start {
    /// All of it and its parts, in a line, where it goes up to `end`.
    pub fn sentence(&self, end: &str) -> String {
        let parts = [
            ("device", self.device_seconds),
            ("weights read", self.weights_read_seconds),
            ("copied", self.weights_copied_seconds),
            ("memory", self.memory_seconds),
            ("plans", self.plans_seconds),
            ("graphs", self.graphs_seconds),
            ("steps", self.steps_seconds),
            ("the rest", self.rest_seconds),
        ];
        format!("{:.2} s from the start to {end}: {}", self.seconds, parts.map(|(name, seconds)| format!("{name} {seconds:.2}")).join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_the_first_time_counts() {
        let mut starting = Starting::now();
        starting.loaded(Loading::default());
        starting.asked(Counters::default());
        std::thread::sleep(Duration::from_millis(2));
        starting.ended(Counters::default());
        let first = starting.told().map(|start| (start.seconds, start.steps_seconds, start.rest_seconds));
        starting.ended(Counters::default());
        let told = starting.told().map(|start| (start.seconds, start.steps_seconds, start.rest_seconds));
        assert_eq!(first, told);
        assert!(told.is_some_and(|(all, steps, rest)| steps >= 0.002 && (all - steps - rest).abs() < 1e-6), "{told:?}");
        assert!(starting.told().is_some_and(|start| start.sentence("here").contains(" s from the start to here: device 0.00, weights read 0.00, copied 0.00")));
    }
}
