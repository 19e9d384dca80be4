//! What the server tells by the names of vLLM, which dashboards and schedulers of clusters ask for.

use std::sync::Arc;
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric};

use super::histogram::Histogram;
use super::written::{Finished, Written};

/// What is true of an engine at one moment.
pub struct Now {
    /// The part of the pages of K and V that requests hold, from 0 to 1.
    pub cache_use: f64,
    /// The prompts that it works on at once, each of which may have another adapter.
    pub seats: usize,
    /// The adapters of the prompts that it works on, and of those that wait for their turn.
    pub adapters: [Vec<String>; 2],
}

/// Tells what is true of an engine now.
pub type Tell = Box<dyn Fn() -> Now + Send + Sync>;

/// The metrics of a language model by the names of vLLM.
pub struct Vllm {
    /// The model's name.
    pub model: String,
    /// What is known of its prompts and answers.
    pub written: Arc<Written>,
    /// What is true of its engine.
    pub now: Tell,
}

impl Vllm {
    fn gauge(&self, encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> std::fmt::Result {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric.encode_family(&[("model_name", self.model.as_str())])?)
    }

    fn counter(&self, encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> std::fmt::Result {
        let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(metric.encode_family(&[("model_name", self.model.as_str())])?)
    }

    fn histogram(&self, encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, histogram: &Histogram) -> std::fmt::Result {
        let mut metric = encoder.encode_descriptor(name, help, None, Histogram::TYPE)?;
        histogram.encode(metric.encode_family(&[("model_name", self.model.as_str())])?)
    }
}

impl Collector for Vllm {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let (encoder, written) = (&mut encoder, &self.written);
        let Now { cache_use, seats, adapters: [running, waiting] } = (self.now)();
        self.gauge(encoder, "vllm:num_requests_running", "Prompts that the engine has", written.running.get() as f64)?;
        self.gauge(encoder, "vllm:num_requests_waiting", "Prompts that wait for their turn", written.waiting.get() as f64)?;
        self.gauge(encoder, "vllm:kv_cache_usage_perc", "The part of the pages of K and V that requests hold, from 0 to 1", cache_use)?;
        // Its value is the time: of several samples the last one holds.
        let mut metric = encoder.encode_descriptor("vllm:lora_requests_info", "Adapters of requests, since 1970 in seconds", None, MetricType::Gauge)?;
        let labels = [("max_lora", seats.to_string()), ("running_lora_adapters", running.join(",")), ("waiting_lora_adapters", waiting.join(","))];
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64();
        ConstGauge::new(since).encode(metric.encode_family(&labels)?)?;
        self.histogram(encoder, "vllm:request_queue_time_seconds", "Time from a prompt to its turn", &written.turn)?;
        self.histogram(encoder, "vllm:time_to_first_token_seconds", "Time from a prompt to its first token", &written.first_token)?;
        self.histogram(encoder, "vllm:inter_token_latency_seconds", "Time between two tokens of an answer", &written.next_token)?;
        self.histogram(encoder, "vllm:e2e_request_latency_seconds", "Time from a prompt to the end of its answer", &written.answer)?;
        self.counter(encoder, "vllm:prompt_tokens", "Tokens of prompts", written.prompt_tokens.get())?;
        self.counter(encoder, "vllm:generation_tokens", "Tokens that were generated", written.tokens.get())?;
        let mut metric = encoder.encode_descriptor("vllm:request_success", "Answers by why they ended", None, MetricType::Counter)?;
        for finished in Finished::ALL {
            let labels = [("model_name", self.model.as_str()), ("finished_reason", finished.name())];
            ConstCounter::new(written.ended(finished)).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Vllm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "metrics of {} by the names of vLLM", self.model)
    }
}
