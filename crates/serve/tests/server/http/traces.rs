//! Traces against a collector: a span a request with what is known of it, and a collector that is down, slow or refuses costs requests nothing.

#[path = "../../../src/otlp/messages.rs"]
#[allow(dead_code, reason = "the server's own, of which tests read a part")]
mod messages;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use messages::{Export, KeyValue, Span, Value};
use prost::Message;
use serde_json::json;
use trifuse_serve::generate::Generate;
use trifuse_serve::{Config, Handle, Server};

use crate::support::client::Client;
use crate::support::parrot::Parrot;

use crate::{Running, config};

/// How long what must come may take.
const LONG: Duration = Duration::from_secs(20);

/// The body of a request to a collector, whose path and type are checked.
fn body(stream: &TcpStream) -> Vec<u8> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length, mut typed) = (String::new(), 0, false);
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "POST /below/v1/traces HTTP/1.1\r\n");
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name {
            "content-length" => length = value.parse().unwrap(),
            "content-type" => typed = value == "application/x-protobuf",
            _ => {}
        }
    }
    assert!(typed);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    body
}

/// A collector that gives each request `answer`, and what it has got.
fn collector(answer: &'static str) -> (SocketAddr, Receiver<Export>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let (got, exports) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let export = Export::decode(&body(&stream)[..]).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            if got.send(export).is_err() {
                return;
            }
        }
    });
    (addr, exports)
}

const TAKEN: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

fn traced(collector: SocketAddr) -> impl FnOnce(&mut Config) {
    move |config| config.traces = Some(format!("http://{collector}/below").parse().unwrap())
}

/// The next spans, as many as that.
fn spans(exports: &Receiver<Export>, count: usize) -> Vec<Span> {
    let mut spans = Vec::new();
    while spans.len() < count {
        let export = exports.recv_timeout(LONG).unwrap();
        for process in export.resource_spans {
            let named = |attributes: &[KeyValue], key: &str| attributes.iter().find(|own| own.key == key).and_then(|own| own.value.clone()?.value);
            assert_eq!(named(&process.resource.unwrap().attributes, "service.name"), Some(Value::Text("trifuse".into())));
            spans.extend(process.scope_spans.into_iter().flat_map(|scope| scope.spans));
        }
    }
    assert_eq!(spans.len(), count, "{spans:?}");
    spans
}

fn told<'a>(span: &'a Span, key: &str) -> Option<&'a Value> {
    span.attributes.iter().find(|own| own.key == key).and_then(|own| own.value.as_ref()?.value.as_ref())
}

fn text(span: &Span, key: &str) -> Option<String> {
    told(span, key).map(|value| if let Value::Text(text) = value { text.clone() } else { panic!("{key}: {value:?}") })
}

fn whole(span: &Span, key: &str) -> Option<i64> {
    told(span, key).map(|value| if let Value::Whole(number) = value { *number } else { panic!("{key}: {value:?}") })
}

fn seconds(span: &Span, key: &str) -> Option<f64> {
    told(span, key).map(|value| if let Value::Real(number) = value { *number } else { panic!("{key}: {value:?}") })
}

const PARENT: &str = "00-0123456789abcdef0123456789abcdef-00f067aa0ba902b7-01";

#[test]
fn a_request_is_one_span_of_its_caller_s_trace() {
    let (addr, exports) = collector(TAKEN);
    let server = Running::with(traced(addr), |_| {});
    let mut client = server.client();
    let asked = json!({"model": "left", "input": ["w1 w2", "w3"]}).to_string();
    let own = [("traceparent", PARENT), ("tracestate", "a=1")];
    assert_eq!(client.send("POST", "/v1/embeddings", &own, asked.as_bytes()).unwrap().status, 200);
    // Not recorded by its caller; no request of a model; and one that fails.
    let unsampled = [("traceparent", "00-0123456789abcdef0123456789abcdef-00f067aa0ba902b7-00")];
    assert_eq!(client.send("POST", "/v1/embeddings", &unsampled, asked.as_bytes()).unwrap().status, 200);
    assert_eq!((client.get("/health").status, client.get("/metrics").status, client.get("/v2/health/live").status), (200, 200, 200));
    assert_eq!(client.post("/v1/embeddings", &json!({"model": "nobody", "input": "w1"})).status, 404);
    let [right, wrong] = spans(&exports, 2).try_into().unwrap();
    assert_eq!(right.trace_id, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef_u128.to_be_bytes());
    assert_eq!((right.parent_span_id.as_slice(), right.trace_state.as_str(), right.flags), (&0x00f0_67aa_0ba9_02b7_u64.to_be_bytes()[..], "a=1", 1));
    assert_eq!((right.name.as_str(), right.kind, &right.status), ("POST /v1/embeddings", 2, &None));
    assert_eq!((text(&right, "http.route"), text(&right, "gen_ai.request.model")), (Some("/v1/embeddings".into()), Some("left".into())));
    // Two sentences with a mark at each end.
    assert_eq!((whole(&right, "gen_ai.usage.input_tokens"), whole(&right, "http.response.status_code")), (Some(7), Some(200)));
    let times = ["trifuse.queue_seconds", "trifuse.device_seconds"].map(|key| seconds(&right, key).unwrap());
    let took = (right.end_time_unix_nano - right.start_time_unix_nano) as f64 * 1e-9;
    assert!(times.iter().all(|time| *time >= 0.0) && times[1] > 0.0 && times.iter().sum::<f64>() <= took, "{times:?} of {took}");
    assert_eq!((wrong.parent_span_id.len(), wrong.status.is_none(), text(&wrong, "error.type")), (0, true, Some("model_not_found".into())));
    assert!(wrong.trace_id != right.trace_id && wrong.span_id != right.span_id);
    assert_eq!((whole(&wrong, "http.response.status_code"), seconds(&wrong, "trifuse.device_seconds")), (Some(404), None));
    let end = Instant::now() + LONG;
    while !client.get("/metrics").text().contains("trifuse_spans_sent_total 2") {
        assert!(Instant::now() < end, "{}", client.get("/metrics").text());
    }
}

/// A server of a stand-in for a language model.
fn writes(collector: SocketAddr) -> Handle {
    Server::start(config(traced(collector)), None, Some(Arc::new(Parrot::default()) as Arc<dyn Generate>)).unwrap()
}

#[test]
fn a_stream_is_a_span_that_ends_with_its_text_and_the_last_spans_are_sent_at_the_end() {
    let (addr, exports) = collector(TAKEN);
    let handle = writes(addr);
    let mut client = Client::to(handle.addr()).unwrap();
    let asked = |stream: bool| json!({"model": "parrot", "prompt": [1, 2, 3], "max_tokens": 2, "stream": stream});
    let whole_text = client.post("/v1/completions", &asked(false)).json();
    let written = whole_text["usage"]["completion_tokens"].as_i64().unwrap();
    assert!(client.post("/v1/completions", &asked(true)).text().ends_with("data: [DONE]\n\n"));
    handle.drain();
    handle.wait();
    for span in spans(&exports, 2) {
        assert_eq!((whole(&span, "gen_ai.usage.input_tokens"), whole(&span, "gen_ai.usage.output_tokens")), (Some(3), Some(written)));
        assert_eq!((text(&span, "gen_ai.request.model"), text(&span, "error.type"), &span.status), (Some("parrot".into()), None, &None));
        let took = (span.end_time_unix_nano - span.start_time_unix_nano) as f64 * 1e-9;
        let first = seconds(&span, "trifuse.first_token_seconds").unwrap();
        assert!((0.0..=took).contains(&first), "{first} of {took}");
    }
}

/// Asks for vectors until `over` says enough; all of them come at once.
fn asks_on(server: &Running, over: impl Fn(&str) -> bool) {
    let (mut client, end) = (server.client(), Instant::now() + LONG);
    loop {
        let began = Instant::now();
        assert_eq!(client.post("/v1/embeddings", &json!({"model": "tiny", "input": "w1"})).status, 200);
        assert!(began.elapsed() < Duration::from_secs(2), "a request waits for the collector");
        let metrics = client.get("/metrics").text();
        if over(&metrics) {
            return;
        }
        assert!(Instant::now() < end, "{metrics}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn dropped(metrics: &str) -> u64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix("trifuse_spans_dropped_total "));
    line.unwrap().parse().unwrap()
}

#[test]
fn a_collector_that_is_not_there_or_refuses_costs_requests_nothing_and_what_is_dropped_is_counted() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (refuses, exports) = collector("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n");
    for addr in [closed, refuses] {
        let server = Running::with(traced(addr), |_| {});
        asks_on(&server, |metrics| dropped(metrics) > 0);
    }
    assert!(exports.try_recv().is_ok());
}

#[test]
fn a_collector_that_says_nothing_is_given_up_and_the_end_does_not_wait_for_it() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let held = Arc::new(Mutex::new(Vec::new()));
    let (addr, own) = (silent.local_addr().unwrap(), Arc::clone(&held));
    std::thread::spawn(move || silent.incoming().for_each(|stream| own.lock().unwrap().push(stream)));
    let mut server = Running::with(traced(addr), |_| {});
    asks_on(&server, |metrics| dropped(metrics) > 0);
    assert!(!held.lock().unwrap().is_empty());
    let handle = server.handle.take().unwrap();
    let began = Instant::now();
    handle.drain();
    handle.wait();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[cfg(feature = "grpc")]
#[test]
fn a_call_of_grpc_is_a_span_too() {
    let (addr, exports) = collector(TAKEN);
    let set = |config: &mut Config| {
        traced(addr)(config);
        config.grpc_listen = Some(([127, 0, 0, 1], 0).into());
    };
    let server = Running::with(set, |_| {});
    let addr = server.handle().grpc_addr().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (calls, connection) = h2::client::handshake(tokio::net::TcpStream::connect(addr).await.unwrap()).await.unwrap();
        tokio::spawn(connection);
        for (method, model) in [("ModelReady", "left"), ("ModelReady", "nobody"), ("ServerLive", "")] {
            let path = format!("http://test/inference.GRPCInferenceService/{method}");
            let request = axum::http::Request::post(path).header("content-type", "application/grpc").header("traceparent", PARENT).body(()).unwrap();
            let message = if model.is_empty() { Vec::new() } else { [&[10, model.len() as u8][..], model.as_bytes()].concat() };
            let (answer, mut stream) = calls.clone().ready().await.unwrap().send_request(request, false).unwrap();
            stream.send_data([&[0, 0, 0, 0, message.len() as u8][..], &message].concat().into(), true).unwrap();
            let mut body = answer.await.unwrap().into_body();
            while body.data().await.is_some() {}
        }
    });
    let [right, wrong] = spans(&exports, 2).try_into().unwrap();
    assert_eq!((right.name.as_str(), text(&right, "rpc.method")), ("inference.GRPCInferenceService/ModelReady", Some("ModelReady".into())));
    assert_eq!((whole(&right, "rpc.grpc.status_code"), whole(&wrong, "rpc.grpc.status_code")), (Some(0), Some(5)));
    assert_eq!((right.parent_span_id.len(), text(&wrong, "error.type")), (8, Some("model_not_found".into())));
}
