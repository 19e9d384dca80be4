//! What the server tells of itself in OpenMetrics.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabel, EncodeLabelSet, EncodeMetric, LabelSetEncoder};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;
use trifuse::{Error, Result};

use crate::queueing::ledger::{Ledger, Outcome};
use crate::replica::Replica;

mod devices;
mod histogram;
mod models;
mod process;
mod vllm;
mod written;

pub use devices::Device;
use devices::Devices;
pub use histogram::{Histogram, SECONDS};
use models::Models;
use process::Process;
pub use process::cpu_seconds;
use vllm::Vllm;
pub use vllm::{Now, Tell};
pub use written::{Finished, Written};

/// Labels with a value each, which are the program's own: what counts by them allocates nothing.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// The labels of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Answered {
    route: &'static str,
    status: u16,
}

impl EncodeLabelSet for Answered {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> std::fmt::Result {
        ("route", self.route).encode(encoder.encode_label())?;
        ("status", self.status).encode(encoder.encode_label())
    }
}

/// Bounds of the tokens of a batch.
const TOKENS: [f64; 11] = [64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 65536.0, 131_072.0];

/// The metrics of one server.
pub struct Metrics {
    registry: Registry,
    answers: Family<Answered, Counter>,
    refusals: Family<Labels<1>, Counter>,
    #[cfg(feature = "grpc")]
    calls: Family<Labels<2>, Counter>,
    took: Family<Labels<1>, Histogram, fn() -> Histogram>,
    /// Requests by the model or adapter that they name.
    pub models: Models,
    devices: Devices,
    /// The time that a sentence waits for the device.
    pub waited: Histogram,
    /// The time of a batch on the device.
    pub computed: Histogram,
    batch: Histogram,
    /// What a language model's prompts and answers are measured by.
    pub written: Arc<Written>,
    /// Tokens of texts and prompts.
    pub prompt_tokens: Counter,
    /// Tokens that were generated.
    pub generated_tokens: Counter,
    operated: Histogram,
    queries: Counter,
    together: Counter,
    /// Connections that are open.
    pub connections: Gauge,
    /// Tokens that wait for the device or run on it.
    pub queued_tokens: Gauge,
    /// Operations that wait for the device or run on it, in units of 2^26 floating-point operations or 2^20 bytes.
    pub queued_operations: Gauge,
}

#[derive(Debug)]
struct Requests(Arc<Ledger>);

impl Collector for Requests {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let accepted = ConstCounter::new(self.0.accepted());
        let metric = encoder.encode_descriptor("trifuse_requests_accepted", "Requests let in", None, accepted.metric_type())?;
        accepted.encode(metric)?;
        let mut metric = encoder.encode_descriptor("trifuse_requests", "Requests by what came of them", None, accepted.metric_type())?;
        for outcome in Outcome::ALL {
            ConstCounter::new(self.0.ended(outcome)).encode(metric.encode_family(&[("outcome", outcome.name())])?)?;
        }
        let open = ConstGauge::new(i64::try_from(self.0.open()).unwrap_or(i64::MAX));
        let metric = encoder.encode_descriptor("trifuse_requests_open", "Requests under way", None, open.metric_type())?;
        open.encode(metric)
    }
}

impl Metrics {
    /// Metrics that also tell what `ledger` counts.
    pub fn new(ledger: Arc<Ledger>) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Requests(ledger)));
        registry.register_collector(Box::new(Process));
        let (answers, refusals) = (Family::<Answered, Counter>::default(), Family::<Labels<1>, Counter>::default());
        registry.register("trifuse_http_answers", "Answers by route and status", answers.clone());
        registry.register("trifuse_refusals", "Requests that were not let in, by their error", refusals.clone());
        #[cfg(feature = "grpc")]
        let calls = Family::<Labels<2>, Counter>::default();
        #[cfg(feature = "grpc")]
        registry.register("trifuse_grpc_answers", "Answers over gRPC by method and code", calls.clone());
        let took = Family::<Labels<1>, Histogram, fn() -> Histogram>::new_with_constructor(|| Histogram::new(&SECONDS));
        registry.register("trifuse_request_seconds", "Time from the header of a request to the start of its answer, by route", took.clone());
        let models = Models::default();
        registry.register_collector(Box::new(models.clone()));
        let devices = Devices::default();
        registry.register_collector(Box::new(devices.clone()));
        let mut histogram = |name: &str, help: &str, bounds: &'static [f64]| {
            let histogram = Histogram::new(bounds);
            registry.register(name, help, histogram.clone());
            histogram
        };
        let waited = histogram("trifuse_queue_seconds", "Time that a sentence or an operation waits for the device", &SECONDS);
        let computed = histogram("trifuse_batch_seconds", "Time of a batch on the device", &SECONDS);
        let batch = histogram("trifuse_batch_tokens", "Tokens of a batch, without what fills it up", &TOKENS);
        let operated = histogram("trifuse_operations_seconds", "Time of the operations that were put behind each other on the device", &SECONDS);
        let written = Written::registered(&mut registry);
        let queries = Counter::default();
        registry.register("trifuse_operations", "Operations that ran", queries.clone());
        let together = Counter::default();
        registry.register("trifuse_operations_together", "Operations of which several were one launch", together.clone());
        let (prompt_tokens, generated_tokens) = (Counter::default(), Counter::default());
        registry.register("trifuse_prompt_tokens", "Tokens of texts and prompts", prompt_tokens.clone());
        registry.register("trifuse_generation_tokens", "Tokens that were generated", generated_tokens.clone());
        let (connections, queued_tokens) = (Gauge::default(), Gauge::default());
        registry.register("trifuse_connections", "Open connections", connections.clone());
        registry.register("trifuse_queued_tokens", "Tokens that wait for the device or run on it", queued_tokens.clone());
        let queued_operations = Gauge::default();
        registry.register("trifuse_queued_operations", "Operations that wait for the device or run on it, by what they cost", queued_operations.clone());
        Self {
            registry,
            answers,
            refusals,
            #[cfg(feature = "grpc")]
            calls,
            took,
            models,
            devices,
            waited,
            computed,
            batch,
            written,
            operated,
            queries,
            together,
            prompt_tokens,
            generated_tokens,
            connections,
            queued_tokens,
            queued_operations,
        }
    }

    /// Counts an answer.
    pub fn answered(&self, route: &'static str, status: u16, took: Duration) {
        self.answers.get_or_create(&Answered { route, status }).inc();
        self.took.get_or_create(&[("route", route)]).observe(took.as_secs_f64());
    }

    /// Counts an answer over gRPC.
    #[cfg(feature = "grpc")]
    pub fn called(&self, method: &'static str, code: &'static str, took: Duration) {
        self.calls.get_or_create(&[("method", method), ("code", code)]).inc();
        self.took.get_or_create(&[("route", method)]).observe(took.as_secs_f64());
    }

    /// The times of a route's answers, where it has given any.
    pub fn route_seconds(&self, route: &'static str) -> Option<Vec<u64>> {
        self.took.get(&[("route", route)]).map(|histogram| histogram.counts())
    }

    /// Counts a request that was not let in.
    pub fn refused(&self, code: &'static str) {
        self.refusals.get_or_create(&[("code", code)]).inc();
    }

    /// Counts a batch, and how long each of its sentences waited.
    pub fn ran(&self, tokens: usize, took: Duration, waited: impl Iterator<Item = Duration>) {
        self.batch.observe(tokens as f64);
        self.computed.observe(took.as_secs_f64());
        waited.for_each(|waited| self.waited.observe(waited.as_secs_f64()));
    }

    /// Counts operations, those of which several were one launch, and how long each of them waited.
    pub fn operated(&self, [count, together]: [usize; 2], took: Duration, waited: impl Iterator<Item = Duration>) {
        self.queries.inc_by(count as u64);
        self.together.inc_by(together as u64);
        self.operated.observe(took.as_secs_f64());
        waited.for_each(|waited| self.waited.observe(waited.as_secs_f64()));
    }

    /// Tells of traces: the spans that the collector has taken, and those that were dropped.
    #[cfg(feature = "otlp")]
    pub fn tell_of_traces(&mut self) -> [Counter; 2] {
        let (sent, dropped) = (Counter::default(), Counter::default());
        self.registry.register("trifuse_spans_sent", "Spans of traces that the collector has taken", sent.clone());
        self.registry.register("trifuse_spans_dropped", "Spans that found no room, or that the collector did not take", dropped.clone());
        [sent, dropped]
    }

    /// Tells of a language model by the names of vLLM too.
    pub fn tell_as_vllm(&mut self, model: &str, now: Tell) {
        let vllm = Vllm { model: model.to_owned(), written: Arc::clone(&self.written), now };
        self.registry.register_collector(Box::new(vllm));
    }

    /// Counts the tokens of prompts, and of what was written behind them.
    pub fn wrote(&self, prompt: usize, generated: usize) {
        self.written.prompt_tokens.inc_by(prompt as u64);
        self.written.tokens.inc_by(generated as u64);
        self.tokens(prompt, generated);
    }

    /// Counts tokens that came in and tokens that went out.
    pub fn tokens(&self, prompt: usize, generated: usize) {
        self.prompt_tokens.inc_by(prompt as u64);
        self.generated_tokens.inc_by(generated as u64);
    }

    /// Tells of the devices of a model from here on.
    pub fn tell_of(&self, model: &str, replicas: &[Arc<Replica>]) {
        self.devices.add(model, replicas);
    }

    /// The devices of all models.
    pub fn devices(&self) -> Vec<Device> {
        self.devices.list()
    }

    /// Everything as text.
    ///
    /// # Errors
    /// None in practice: text is written to memory.
    pub fn text(&self) -> Result<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry).map_err(|_| Error::invalid("metrics", "text", "none"))?;
        Ok(text)
    }
}
