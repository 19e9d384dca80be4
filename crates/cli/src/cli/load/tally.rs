//! What became of requests: counts and times.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::histogram::Histogram;

/// Different faults that are told by their words.
const FAULTS: usize = 16;
/// What further ones are told as.
const OTHERS: &str = "others";

/// What became of one request.
#[derive(Debug)]
pub enum End {
    /// It was answered: by so many tokens, the first of which came then.
    Answered { right: bool, tokens: u64, first: Option<Instant>, between: Vec<Duration> },
    /// The server has too much to do.
    Refused,
    /// The server could not, or would not; the kind, and its words.
    Failed(String, String),
    /// There is no answer, or no whole one.
    Lost(String),
    /// The program ended before it.
    Interrupted,
}

/// When things happened to one request.
#[derive(Clone, Copy, Debug)]
pub struct Moments {
    pub due: Instant,
    pub sent: Instant,
    pub ended: Instant,
}

/// Counts and times of requests.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Requests that were due in the time that counts.
    pub requests: u64,
    pub answered: u64,
    pub refused: u64,
    /// By status, or `stream` where one failed behind its status.
    pub failed: BTreeMap<String, u64>,
    pub lost: u64,
    pub wrong: u64,
    /// Whole answers of any kind that came in the time that counts, whenever they were due: those that the server had work with.
    pub ended: u64,
    /// The right ones of them, and their tokens.
    pub came: u64,
    pub tokens: u64,
    /// From when an answered request was due to the end of its answer.
    pub latency: Histogram,
    /// The same of one that was refused.
    pub refusal: Histogram,
    /// From when it was due to when it was sent.
    pub lag: Histogram,
    /// To the first text of a stream, and from one piece of text to the next.
    pub first: Histogram,
    pub between: Histogram,
    /// What went wrong, in words.
    pub faults: BTreeMap<String, u64>,
}

impl Tally {
    /// Counts a request, in a time that counts from the first moment to the second.
    pub fn add(&mut self, end: End, moments: Moments, counts: [Instant; 2]) {
        let within = |moment: Instant| counts[0] <= moment && moment < counts[1];
        self.ended += u64::from(within(moments.ended) && matches!(end, End::Answered { .. } | End::Refused | End::Failed(..)));
        if let End::Answered { right: true, tokens, .. } = &end
            && within(moments.ended)
        {
            self.came += 1;
            self.tokens += tokens;
        }
        if !within(moments.due) || matches!(end, End::Interrupted) {
            return;
        }
        self.requests += 1;
        self.lag.add(moments.sent.saturating_duration_since(moments.due));
        let took = moments.ended.saturating_duration_since(moments.due);
        match end {
            End::Answered { right, first, between, .. } => {
                self.answered += 1;
                self.wrong += u64::from(!right);
                self.latency.add(took);
                first.into_iter().for_each(|first| self.first.add(first.saturating_duration_since(moments.due)));
                between.into_iter().for_each(|time| self.between.add(time));
            }
            End::Refused => {
                self.refused += 1;
                self.refusal.add(took);
            }
            End::Failed(kind, words) => {
                *self.failed.entry(kind).or_default() += 1;
                self.fault(words, 1);
            }
            End::Lost(words) => {
                self.lost += 1;
                self.fault(words, 1);
            }
            End::Interrupted => {}
        }
    }

    fn fault(&mut self, words: String, count: u64) {
        let words = if self.faults.len() < FAULTS || self.faults.contains_key(&words) { words } else { OTHERS.into() };
        *self.faults.entry(words).or_default() += count;
    }

    /// Counts what another has counted.
    pub fn merge(&mut self, other: Self) {
        let Self { requests, answered, refused, failed, lost, wrong, ended, came, tokens, latency, refusal, lag, first, between, faults } = other;
        let counts = [
            (&mut self.requests, requests),
            (&mut self.answered, answered),
            (&mut self.refused, refused),
            (&mut self.lost, lost),
            (&mut self.wrong, wrong),
            (&mut self.ended, ended),
            (&mut self.came, came),
            (&mut self.tokens, tokens),
        ];
        counts.into_iter().for_each(|(own, other)| *own += other);
        failed.into_iter().for_each(|(kind, count)| *self.failed.entry(kind).or_default() += count);
        faults.into_iter().for_each(|(words, count)| self.fault(words, count));
        let times = [(&mut self.latency, latency), (&mut self.refusal, refusal), (&mut self.lag, lag), (&mut self.first, first), (&mut self.between, between)];
        times.into_iter().for_each(|(own, other)| own.merge(&other));
    }
}
