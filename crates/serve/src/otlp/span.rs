//! What is recorded of a request, and the span that it becomes.

use std::time::{Duration, SystemTime};

use super::context::{Context, span_id};
use super::messages::{AnyValue, KeyValue, Span, Status, Value};
use crate::account::{Answer, Facts};

/// The kind of spans that a server makes.
const SERVER: i32 = 2;
/// The status of what failed.
const ERROR: i32 = 2;

/// A request that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The span's name.
    pub name: String,
    /// Its place in a trace.
    pub context: Context,
    /// What is the same for all requests of its kind.
    pub labels: Vec<(&'static str, String)>,
    /// When it came, and when it ended.
    pub times: [SystemTime; 2],
    /// What else is known.
    pub facts: Facts,
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
}

fn whole(number: usize) -> Value {
    Value::Whole(i64::try_from(number).unwrap_or(i64::MAX))
}

fn nanoseconds(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

impl From<Record> for Span {
    fn from(record: Record) -> Self {
        let Record { name, context, labels, times: [start, end], facts } = record;
        let Facts { model, tokens, first_token, spent, answer, fault } = facts;
        let mut attributes: Vec<KeyValue> = labels.into_iter().map(|(key, value)| attribute(key, Value::Text(value))).collect();
        let mut add = |key: &str, value: Option<Value>| attributes.extend(value.map(|value| attribute(key, value)));
        let seconds = |time: Duration| Value::Real(time.as_secs_f64());
        add("gen_ai.request.model", model.map(Value::Text));
        add("gen_ai.usage.input_tokens", tokens.map(|[prompt, _]| whole(prompt)));
        add("gen_ai.usage.output_tokens", tokens.filter(|[_, written]| *written > 0).map(|[_, written]| whole(written)));
        add("trifuse.first_token_seconds", first_token.map(seconds));
        add("trifuse.queue_seconds", spent.map(|[waited, _]| seconds(waited)));
        add("trifuse.device_seconds", spent.map(|[_, took]| seconds(took)));
        let (key, code) = match answer {
            Some(Answer::Http(status)) => ("http.response.status_code", Some(status.into())),
            #[cfg(feature = "grpc")]
            Some(Answer::Grpc(code)) => ("rpc.grpc.status_code", Some(code.into())),
            None => ("", None),
        };
        add(key, code.map(Value::Whole));
        let fault = if answer.is_none() { Some("cancelled") } else { fault };
        add("error.type", fault.map(|fault| Value::Text(fault.into())));
        // A request that its caller is to blame for is no error of the server.
        let failed = match answer {
            Some(Answer::Http(status)) => status >= 500 || (status < 400 && fault.is_some()),
            #[cfg(feature = "grpc")]
            Some(Answer::Grpc(code)) => matches!(code, 4 | 12 | 13 | 14),
            None => true,
        };
        Self {
            trace_id: context.trace.to_vec(),
            span_id: span_id().to_vec(),
            trace_state: context.state,
            parent_span_id: context.parent.map(Vec::from).unwrap_or_default(),
            name,
            kind: SERVER,
            start_time_unix_nano: nanoseconds(start),
            end_time_unix_nano: nanoseconds(end.max(start)),
            attributes,
            status: failed.then_some(Status { code: ERROR }),
            flags: context.flags.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;

    use super::*;

    fn span(facts: Facts) -> Span {
        let start = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789);
        let times = [start, start + Duration::from_millis(2)];
        Record {
            name: "POST /v1/embeddings".into(),
            context: Context::of(&HeaderMap::new()),
            labels: vec![("http.route", "/v1/embeddings".into())],
            times,
            facts,
        }
        .into()
    }

    fn value<'a>(span: &'a Span, key: &str) -> Option<&'a Value> {
        span.attributes.iter().find(|attribute| attribute.key == key).and_then(|attribute| attribute.value.as_ref()?.value.as_ref())
    }

    #[test]
    fn what_is_known_is_told_and_what_is_not_is_left_out() {
        let spent = Some([Duration::from_millis(1), Duration::from_micros(250)]);
        let facts = Facts { model: Some("left".into()), tokens: Some([7, 0]), spent, answer: Some(Answer::Http(200)), ..Facts::default() };
        let told = span(facts);
        assert_eq!((told.start_time_unix_nano, told.end_time_unix_nano - told.start_time_unix_nano), (1_700_000_000_123_456_789, 2_000_000));
        assert_eq!((told.trace_id.len(), told.span_id.len(), told.parent_span_id.len(), told.flags, &told.status), (16, 8, 0, 1, &None));
        for (key, expected) in [
            ("http.route", Some(Value::Text("/v1/embeddings".into()))),
            ("gen_ai.request.model", Some(Value::Text("left".into()))),
            ("gen_ai.usage.input_tokens", Some(Value::Whole(7))),
            ("gen_ai.usage.output_tokens", None),
            ("trifuse.queue_seconds", Some(Value::Real(0.001))),
            ("trifuse.device_seconds", Some(Value::Real(0.00025))),
            ("trifuse.first_token_seconds", None),
            ("http.response.status_code", Some(Value::Whole(200))),
            ("error.type", None),
        ] {
            assert_eq!(value(&told, key), expected.as_ref(), "{key}");
        }
    }

    #[test]
    fn what_the_server_fails_at_is_an_error_and_what_the_caller_does_is_none() {
        for (answer, fault, failed) in [
            (Some(Answer::Http(200)), None, false),
            (Some(Answer::Http(200)), Some("abort"), true),
            (Some(Answer::Http(404)), Some("model_not_found"), false),
            (Some(Answer::Http(503)), Some("device_lost"), true),
            #[cfg(feature = "grpc")]
            (Some(Answer::Grpc(0)), None, false),
            #[cfg(feature = "grpc")]
            (Some(Answer::Grpc(5)), Some("model_not_found"), false),
            #[cfg(feature = "grpc")]
            (Some(Answer::Grpc(14)), Some("draining"), true),
            (None, None, true),
        ] {
            let told = span(Facts { answer, fault, ..Facts::default() });
            assert_eq!(told.status.is_some(), failed, "{answer:?}, {fault:?}");
            let kind = if answer.is_none() { Some("cancelled") } else { fault };
            assert_eq!(value(&told, "error.type"), kind.map(|kind| Value::Text(kind.into())).as_ref());
        }
    }
}
