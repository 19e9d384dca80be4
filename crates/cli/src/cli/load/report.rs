//! What a load tells.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use trifuse_cli::bench::stored::Environment;

use super::args::Route;
use super::arrivals::Pace;
use super::attention::{Proven, Shape};
use super::cpu::Cores;
use super::histogram::Histogram;
use super::run::Measured;
use crate::cli::output::{Page, Report, Tone};

/// The share of a percentile, where one is drawn: from none to one in a million and less.
const SHARES: usize = 60;

/// A server under load.
#[derive(Debug, Serialize)]
pub struct Loaded {
    pub url: String,
    pub route: Route,
    pub stream: bool,
    pub models: Vec<String>,
    pub seed: u64,
    pub inputs: u32,
    /// Seconds that a run was to be measured, and those before it.
    pub seconds: f64,
    pub warmup: f64,
    /// Whether answers were compared; how many of adapters with the base's, and how many of those were the base's.
    pub checked: bool,
    pub compared_with_base: u64,
    pub answered_as_base: u64,
    /// The tensors that queries of attention name, and what was seen of their outputs.
    pub tensors: Option<Shape>,
    pub proven: Option<Proven>,
    /// Whether all was measured: a load that is interrupted tells what it has.
    pub complete: bool,
    pub environment: Environment,
    pub machine: Machine,
    pub runs: Vec<Run>,
}

/// The machine that asked.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// The cores that the program may use.
    pub cores: usize,
    /// Runnable threads of the last minute, before it began.
    pub load_average: Option<f64>,
}

impl Loaded {
    /// Whether it shows a fault of the server: in a run, in outputs that were read back, or where adapters say what their base says.
    pub fn is_wrong(&self) -> bool {
        let proven = self.proven.iter().any(|proven| !proven.wrong.is_empty());
        proven || self.answered_as_base > 0 || self.runs.iter().any(Run::is_wrong)
    }
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let load = std::fs::read_to_string("/proc/loadavg").ok().and_then(|text| text.split(' ').next()?.parse().ok());
        Self { cores, load_average: load }
    }
}

/// One pace.
#[derive(Debug, Serialize)]
pub struct Run {
    /// Requests a second that were asked for; null in a closed loop.
    pub rate: Option<f64>,
    /// Requests at once; null in an open loop.
    pub concurrency: Option<u32>,
    /// How long it was measured.
    pub seconds: f64,
    pub connections: u32,
    /// Requests that were due.
    pub requests: u64,
    pub answered: u64,
    /// Right answers a second.
    pub goodput: f64,
    pub refused: u64,
    pub failed: BTreeMap<String, u64>,
    pub without_answer: u64,
    pub unsent: u64,
    pub wrong: u64,
    /// From when a request was due to the end of its answer.
    pub latency: Times,
    pub refusal: Times,
    /// From when a request was due to when it was sent.
    pub sent_late: Times,
    pub first_token: Option<Times>,
    pub between_tokens: Option<Times>,
    pub tokens_per_second: Option<f64>,
    /// Microseconds of a processor for each answer in the time that counts, the server's and the generator's; null where it is not told.
    pub server_cpu_us: Option<f64>,
    pub client_cpu_us: Option<f64>,
    /// The processors that they kept busy in the mean.
    pub server_cores: Option<f64>,
    pub client_cores: Option<f64>,
    /// Shares of the answered requests, and the latency that each does not exceed.
    pub spectrum: Vec<(f64, f64)>,
    pub faults: BTreeMap<String, u64>,
}

/// Percentiles in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct Times {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

impl From<&Histogram> for Times {
    fn from(times: &Histogram) -> Self {
        let at = |share: f64| times.quantile(share).as_secs_f64();
        let [p50, p90, p99, p999] = [0.5, 0.9, 0.99, 0.999].map(at);
        Self { count: times.count(), mean: times.mean().as_secs_f64(), p50, p90, p99, p999, max: times.most().as_secs_f64() }
    }
}

impl Run {
    /// What came of a run at this pace.
    pub fn new(pace: Pace, route: Route, measured: Measured) -> Self {
        let Measured { tally, unsent, seconds, connections, cores: Cores { server, client } } = measured;
        let each = |cores: Option<f64>| cores.filter(|_| tally.ended > 0).map(|cores| cores * seconds * 1e6 / tally.ended as f64);
        let a_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let times = |times: &Histogram| (times.count() > 0).then(|| times.into());
        let (rate, concurrency) = match pace {
            Pace::Rate(rate) => (Some(rate), None),
            Pace::Concurrency(count) => (None, Some(count)),
        };
        Self {
            rate,
            concurrency,
            seconds,
            connections,
            requests: tally.requests + unsent,
            answered: tally.answered,
            goodput: a_second(tally.came),
            refused: tally.refused,
            without_answer: tally.lost,
            unsent,
            wrong: tally.wrong,
            latency: (&tally.latency).into(),
            refusal: (&tally.refusal).into(),
            sent_late: (&tally.lag).into(),
            first_token: times(&tally.first),
            between_tokens: times(&tally.between),
            tokens_per_second: matches!(route, Route::Completions | Route::Chat).then(|| a_second(tally.tokens)),
            server_cpu_us: each(server),
            client_cpu_us: each(client),
            server_cores: server,
            client_cores: client,
            spectrum: spectrum(&tally.latency),
            failed: tally.failed,
            faults: tally.faults,
        }
    }

    /// Whether it shows a fault of the server: a wrong answer, a request without one, or no answer at all.
    pub fn is_wrong(&self) -> bool {
        self.wrong > 0 || self.without_answer > 0 || self.answered == 0
    }

    /// The pace in words.
    pub fn name(&self) -> String {
        match (self.rate, self.concurrency) {
            (Some(rate), _) => format!("{rate}/s"),
            (None, count) => format!("{} at once", count.unwrap_or(0)),
        }
    }
}

/// Shares that come ever closer to 1, as far as there are times for them, with their latencies.
fn spectrum(times: &Histogram) -> Vec<(f64, f64)> {
    let shares = (0..=SHARES).map(|at| 1.0 - 10f64.powf(-(at as f64) / 10.0));
    let enough = shares.take_while(|share| times.count() as f64 * (1.0 - share) >= 1.0);
    let ends = (times.count() > 0).then_some(1.0);
    enough.chain(ends).map(|share| (share, times.quantile(share).as_secs_f64())).collect()
}

/// Milliseconds with three figures that count.
fn ms(seconds: f64) -> String {
    let ms = seconds * 1e3;
    let digits = (2 - ms.max(1e-3).log10().floor() as i32).clamp(0, 3) as usize;
    format!("{ms:.digits$}")
}

impl Report for Loaded {
    fn page(&self, page: &mut Page) -> fmt::Result {
        let models = if let [one] = &self.models[..] { one.clone() } else { format!("{} models", self.models.len()) };
        let loop_of = if self.runs.iter().any(|run| run.rate.is_some()) { "open loop, Poisson arrivals" } else { "closed loop" };
        page.line(format_args!(
            "{}{}, {models}: {loop_of}, seed {}, {} s each behind {} s of warm-up",
            self.url,
            self.route.path(),
            self.seed,
            self.seconds,
            self.warmup
        ))?;
        let zero = |page: &Page, count: u64| if count == 0 { page.tone(Tone::Faint, 0) } else { page.tone(Tone::Bad, count) };
        let row = |page: &Page, run: &Run| {
            let failed: u64 = run.failed.values().sum();
            let refused = if run.refused == 0 { page.tone(Tone::Faint, 0) } else { page.tone(Tone::Warning, run.refused) };
            let l = &run.latency;
            let times = [l.p50, l.p90, l.p99, l.p999, l.max].map(|time| if run.answered == 0 { "-".into() } else { ms(time) });
            let start = [run.name(), run.requests.to_string(), run.answered.to_string(), format!("{:.1}", run.goodput)];
            let ends = [refused, zero(page, failed), zero(page, run.without_answer), zero(page, run.unsent), zero(page, run.wrong)];
            start.into_iter().chain(times).chain(ends).collect::<Vec<_>>()
        };
        let rows: Vec<_> = self.runs.iter().map(|run| row(page, run)).collect();
        let head = ["pace", "due", "answered", "right/s", "p50 ms", "p90", "p99", "p99.9", "max", "refused", "failed", "no answer", "not sent", "wrong"];
        page.table(&head, &(1..head.len()).collect::<Vec<_>>(), rows)?;
        if self.stream {
            let part = |times: &Option<Times>| times.as_ref().map_or_else(|| ["-".into(), "-".into()], |times| [ms(times.p50), ms(times.p99)]);
            let rows = self.runs.iter().map(|run| {
                let tokens = run.tokens_per_second.map_or_else(String::new, |tokens| format!("{tokens:.1}"));
                std::iter::once(run.name()).chain(part(&run.first_token)).chain(part(&run.between_tokens)).chain([tokens]).collect()
            });
            let head = ["pace", "first token p50 ms", "p99", "between tokens p50 ms", "p99", "tokens/s"];
            page.table(&head, &[1, 2, 3, 4, 5], rows.collect::<Vec<_>>())?;
        }
        let costs = |run: &Run| [run.server_cpu_us, run.server_cores, run.client_cpu_us, run.client_cores];
        if self.runs.iter().flat_map(costs).any(|cost| cost.is_some()) {
            let told = |cost: Option<f64>, digits: usize| cost.map_or_else(|| "-".into(), |cost| format!("{cost:.digits$}"));
            let rows = self.runs.iter().map(|run| {
                let [server, server_cores, client, client_cores] = costs(run);
                vec![run.name(), told(server, 1), told(server_cores, 2), told(client, 1), told(client_cores, 2)]
            });
            page.table(&["pace", "server: µs of a core an answer", "cores", "generator: µs", "cores"], &[1, 2, 3, 4], rows.collect::<Vec<_>>())?;
        }
        for run in &self.runs {
            if run.refused > 0 {
                page.line(format_args!("{}: refusals p50 {} ms, p99 {} ms", run.name(), ms(run.refusal.p50), ms(run.refusal.p99)))?;
            }
            if run.rate.is_some() && run.sent_late.p99 > 1e-3 {
                let late = &run.sent_late;
                let words = format!("{}: sent late, p50 {} ms, p99 {} ms, over {} connections", run.name(), ms(late.p50), ms(late.p99), run.connections);
                let words = page.tone(Tone::Warning, words);
                page.line(format_args!("{words}; latencies count it"))?;
            }
            for (words, count) in &run.faults {
                page.line(format_args!("{}: {count} times {words}", run.name()))?;
            }
        }
        if let Some(Shape { sets, tokens, heads, head_dim, blocks, block }) = &self.tensors {
            let present = if *blocks == 0 { "all blocks".into() } else { format!("{blocks} blocks of {block} x {block}") };
            page.line(format_args!("{sets} sets of {tokens} tokens, heads {heads} x {head_dim}, f16, {present}"))?;
        }
        if let Some(Proven { sets, rows, wrong }) = &self.proven {
            page.line(format_args!("{rows} rows of {sets} outputs compared with float64: {} wrong", zero(page, wrong.len() as u64)))?;
            wrong.iter().try_for_each(|words| page.line(words))?;
        }
        if self.checked && self.tensors.is_some() {
            page.line("each checksum compared with the first of its set")?;
        } else if self.checked {
            let Self { compared_with_base: compared, answered_as_base: same, .. } = self;
            page.line(format_args!("each answer compared with the first to its text and model; {compared} of adapters with the base's, {same} were the same"))?;
        }
        if !self.complete {
            page.line("interrupted: what was measured until then")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spectrum_goes_as_far_as_there_are_times() {
        let mut times = Histogram::default();
        assert!(spectrum(&times).is_empty());
        (1..=1000u64).for_each(|ms| times.add(std::time::Duration::from_millis(ms)));
        let shares = spectrum(&times);
        assert_eq!((shares[0].0, shares.len(), shares.last()), (0.0, 32, Some(&(1.0, 1.0))));
        assert!(shares.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1), "{shares:?}");
    }

    #[test]
    fn milliseconds_have_three_figures() {
        assert_eq!([0.0, 0.000_012_3, 0.001_234, 0.0456, 12.3].map(ms), ["0.000", "0.012", "1.23", "45.6", "12300"]);
    }
}
