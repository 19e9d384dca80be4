//! What is measured of a language model's prompts and answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::histogram::{Histogram, SECONDS};

/// Bounds of the times of whole answers, in seconds.
const ANSWER_SECONDS: [f64; 16] = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0];

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finished {
    /// By itself, or at a string that ends it.
    Stop,
    /// At the most tokens.
    Length,
    /// Its caller went away.
    Abort,
    /// It failed.
    Error,
}

impl Finished {
    /// Every way.
    pub const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Abort, Self::Error];

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}

/// What is measured.
#[derive(Debug)]
pub struct Written {
    /// Prompts that the engine has.
    pub running: Gauge,
    /// Prompts that wait for their turn.
    pub waiting: Gauge,
    /// The time that a prompt waits for its turn.
    pub turn: Histogram,
    /// The time from a prompt to its first token.
    pub first_token: Histogram,
    /// The time between two tokens of an answer.
    pub next_token: Histogram,
    /// The time from a prompt to the end of its answer.
    pub answer: Histogram,
    /// Tokens of prompts.
    pub prompt_tokens: Counter,
    /// Tokens that were generated.
    pub tokens: Counter,
    ended: [AtomicU64; 4],
}

impl Written {
    /// Nothing yet; told of by `registry` under the server's own names.
    pub fn registered(registry: &mut Registry) -> Arc<Self> {
        let written = Arc::new(Self {
            running: Gauge::default(),
            waiting: Gauge::default(),
            turn: Histogram::new(&SECONDS),
            first_token: Histogram::new(&SECONDS),
            next_token: Histogram::new(&SECONDS),
            answer: Histogram::new(&ANSWER_SECONDS),
            prompt_tokens: Counter::default(),
            tokens: Counter::default(),
            ended: Default::default(),
        });
        registry.register("trifuse_prompts_running", "Prompts that the engine of a language model has", written.running.clone());
        registry.register("trifuse_prompts_waiting", "Prompts that wait for their turn at a language model", written.waiting.clone());
        registry.register("trifuse_turn_seconds", "Time from a prompt to its turn at a language model", written.turn.clone());
        registry.register("trifuse_first_token_seconds", "Time from a prompt to its first token", written.first_token.clone());
        registry.register("trifuse_next_token_seconds", "Time between two tokens of an answer", written.next_token.clone());
        registry.register("trifuse_answer_seconds", "Time from a prompt to the end of its answer", written.answer.clone());
        registry.register_collector(Box::new(Ends(Arc::clone(&written))));
        written
    }

    /// Counts an answer that has ended.
    pub fn end(&self, how: Finished, took: Duration) {
        self.ended[how as usize].fetch_add(1, Ordering::Relaxed);
        if matches!(how, Finished::Stop | Finished::Length) {
            self.answer.observe(took.as_secs_f64());
        }
    }

    /// How many answers ended so.
    pub fn ended(&self, how: Finished) -> u64 {
        self.ended[how as usize].load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Ends(Arc<Written>);

impl Collector for Ends {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let mut metric = encoder.encode_descriptor("trifuse_answers", "Answers of a language model by why they ended", None, MetricType::Counter)?;
        for how in Finished::ALL {
            ConstCounter::new(self.0.ended(how)).encode(metric.encode_family(&[("finish", how.name())])?)?;
        }
        Ok(())
    }
}
