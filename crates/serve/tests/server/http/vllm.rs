//! Metrics of a language model by the names of vLLM: the exposition is parsed, and counts what was asked.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use trifuse_serve::generate::Generate;
use trifuse_serve::{Handle, Server};

use super::faults::until;
use crate::config;
use crate::support::client::Client;
use crate::support::parrot::Parrot;

/// The labels and the value of each sample, by its name.
type Samples = BTreeMap<String, Vec<(BTreeMap<String, String>, f64)>>;

/// Reads an exposition, and checks that each sample follows the description of its metric.
fn parse(text: &str) -> Samples {
    assert!(text.ends_with("# EOF\n"), "{text}");
    let (mut samples, mut kinds) = (Samples::new(), BTreeMap::new());
    for line in text.lines() {
        if let Some(told) = line.strip_prefix("# ") {
            if let Some((name, kind)) = told.strip_prefix("TYPE ").and_then(|told| told.split_once(' ')) {
                assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} twice");
            }
            continue;
        }
        let (head, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
        let (name, labels) = head.split_once('{').unwrap_or((head, "}"));
        let labels = labels.strip_suffix('}').unwrap_or_else(|| panic!("{line}"));
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or_else(|| panic!("{line}"));
            (name.to_owned(), value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or_else(|| panic!("{line}")).to_owned())
        };
        let labels = labels.split(',').filter(|labels| !labels.is_empty()).map(pair).collect();
        let of = |suffix: &str, kind: &str| name.strip_suffix(suffix).and_then(|name| kinds.get(name)).is_some_and(|own| own == kind);
        let known = of("", "gauge") || of("_total", "counter") || ["_bucket", "_sum", "_count"].iter().any(|suffix| of(suffix, "histogram"));
        assert!(known, "{line}");
        samples.entry(name.to_owned()).or_default().push((labels, value.parse().unwrap_or_else(|_| panic!("{line}"))));
    }
    samples
}

fn server(vllm_metrics: bool) -> Handle {
    let parrot = Arc::new(Parrot { seats: 1, ..Parrot::default() });
    Server::start(config(|config| config.vllm_metrics = vllm_metrics), None, Some(parrot as Arc<dyn Generate>)).unwrap()
}

fn end(handle: Handle) {
    handle.drain();
    handle.wait();
}

#[test]
fn the_metrics_that_dashboards_of_vllm_ask_for_are_there_and_count() {
    let handle = server(true);
    let client = || Client::to(handle.addr()).unwrap();
    let ask = |body: serde_json::Value| client().post("/v1/completions", &body).status;
    assert_eq!(ask(json!({"model": "parrot", "prompt": "abcd"})), 200);
    assert_eq!(ask(json!({"model": "loud", "prompt": "abcd", "max_tokens": 2})), 200);
    assert_eq!(ask(json!({"model": "parrot", "prompt": "fault!"})), 500);
    let samples = || parse(&client().get("/metrics").text());
    let value = |samples: &Samples, name: &str| {
        let [(labels, value)] = samples[name].as_slice() else { panic!("{name}: {:?}", samples[name]) };
        assert_eq!(labels, &BTreeMap::from([("model_name".to_owned(), "parrot".to_owned())]), "{name}");
        *value
    };
    let finished = |samples: &Samples| -> BTreeMap<String, f64> {
        samples["vllm:request_success_total"].iter().map(|(labels, value)| (labels["finished_reason"].clone(), *value)).collect()
    };
    let reasons = |counts: [f64; 4]| ["abort", "error", "length", "stop"].map(str::to_owned).into_iter().zip(counts).collect::<BTreeMap<String, f64>>();
    let told = samples();
    for (name, count) in [("request_queue_time", 3.0), ("time_to_first_token", 3.0), ("inter_token_latency", 3.0 + 1.0 + 5.0), ("e2e_request_latency", 2.0)] {
        let name = format!("vllm:{name}_seconds");
        assert_eq!(value(&told, &format!("{name}_count")), count, "{name}");
        assert!(value(&told, &format!("{name}_sum")) >= 0.0);
        let buckets: Vec<(f64, f64)> = told[&format!("{name}_bucket")].iter().map(|(labels, value)| (labels["le"].parse().unwrap(), *value)).collect();
        assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1), "{buckets:?}");
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, count)), "{name}");
    }
    // A byte of the prompt each, and the mark before it.
    assert_eq!([value(&told, "vllm:prompt_tokens_total"), value(&told, "vllm:generation_tokens_total")], [10.0, 6.0]);
    assert_eq!(finished(&told), reasons([0.0, 1.0, 1.0, 1.0]));
    let now = |samples: &Samples| ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"].map(|name| value(samples, name));
    assert_eq!(now(&told), [0.0; 3]);
    // What schedulers choose a server by: its adapters at work and in line, and the time at which that was so.
    let adapters = |samples: &Samples| {
        let [(labels, time)] = samples["vllm:lora_requests_info"].as_slice() else { panic!("{:?}", samples["vllm:lora_requests_info"]) };
        assert!(*time > 1.7e9 && labels["max_lora"] == "1" && labels.len() == 3, "{labels:?} {time}");
        ["running", "waiting"].map(|what| labels[&format!("{what}_lora_adapters")].clone())
    };
    assert_eq!(adapters(&told), ["", ""]);
    // One that never ends has the only seat, and another waits.
    let begin = |model: &str| {
        let body = json!({"model": model, "messages": [{"role": "user", "content": "?"}], "stream": true}).to_string();
        let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}", body.len());
        let mut client = client();
        client.write(format!("{head}\r\n\r\n{body}").as_bytes()).unwrap();
        client
    };
    let first = begin("loud");
    until(|| adapters(&samples()) == ["loud", ""]);
    let held = [first, begin("loud"), begin("parrot")];
    until(|| now(&samples()) == [1.0, 2.0, 0.0]);
    assert_eq!(adapters(&samples()), ["loud", "loud"]);
    drop(held);
    until(|| finished(&samples()) == reasons([3.0, 1.0, 1.0, 1.0]));
    until(|| now(&samples()) == [0.0; 3]);
    assert_eq!(adapters(&samples()), ["", ""]);
    assert!(samples().contains_key("trifuse_first_token_seconds_count"), "beside the server's own");
    end(handle);
}

#[test]
fn without_being_asked_for_they_are_not_there() {
    let handle = server(false);
    assert!(!Client::to(handle.addr()).unwrap().get("/metrics").text().contains("vllm:"));
    end(handle);
}
