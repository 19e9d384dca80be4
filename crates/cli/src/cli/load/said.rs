//! What an answer says: read from its body, or from the events of a stream as they come.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;

use super::args::Route;

/// The end of a stream that is whole.
const DONE: &str = "[DONE]";

/// The events of a stream.
#[derive(Default)]
pub struct Stream {
    line: Vec<u8>,
    /// Its text so far.
    pub text: String,
    /// When the first text came, and the last.
    pub first: Option<Instant>,
    last: Option<Instant>,
    /// The times from one piece of text to the next.
    pub between: Vec<Duration>,
    pieces: u64,
    tokens: Option<u64>,
    /// Whether it ended as a whole one does.
    pub is_done: bool,
    /// What went wrong, where the stream says so.
    pub error: Option<String>,
}

impl Stream {
    /// Takes what came at `now`.
    pub fn take(&mut self, bytes: &[u8], now: Instant) {
        for byte in bytes {
            if *byte != b'\n' {
                self.line.push(*byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let line = String::from_utf8_lossy(&line);
            if let Some(data) = line.strip_prefix("data:") {
                self.event(data.trim(), now);
            }
        }
    }

    fn event(&mut self, data: &str, now: Instant) {
        if data == DONE {
            self.is_done = true;
            return;
        }
        let event: Value = serde_json::from_str(data).unwrap_or_default();
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            self.error.get_or_insert_with(|| error_of(error));
        }
        self.tokens = event["usage"]["completion_tokens"].as_u64().or(self.tokens);
        let choice = &event["choices"][0];
        let text = choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
        if text.is_empty() {
            return;
        }
        self.text.push_str(text);
        self.pieces += 1;
        self.first.get_or_insert(now);
        self.between.extend(self.last.replace(now).map(|last| now.saturating_duration_since(last)));
    }

    /// The tokens that the server counted; where it counts none, the pieces of text.
    pub fn tokens(&self) -> u64 {
        self.tokens.unwrap_or(self.pieces)
    }
}

/// What a whole answer says, and the tokens that were generated; nothing where it is no answer of this route.
pub fn said(route: Route, body: &[u8]) -> Option<(String, u64)> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let list = body[if route == Route::Embeddings { "data" } else { "choices" }].as_array().filter(|list| !list.is_empty())?;
    let parts: Option<Vec<String>> = list
        .iter()
        .map(|one| {
            let part = match route {
                Route::Embeddings => &one["embedding"],
                Route::Completions => &one["text"],
                Route::Chat => &one["message"]["content"],
                Route::Attention => &Value::Null,
            };
            // Vectors are base64, or numbers of a server that knows nothing else.
            part.as_str().map(str::to_owned).or_else(|| part.as_array().map(|_| part.to_string()))
        })
        .collect();
    Some((parts?.join("\n"), body["usage"]["completion_tokens"].as_u64().unwrap_or(0)))
}

/// A checksum in an answer of the open inference protocol, read where it stands: nothing is made of the rest.
#[derive(Deserialize)]
struct Summed<'a> {
    #[serde(borrow)]
    outputs: Vec<Sum<'a>>,
}

#[derive(Deserialize)]
struct Sum<'a> {
    name: &'a str,
    datatype: &'a str,
    #[serde(default)]
    data: Option<[u64; 1]>,
}

/// The checksum that an answer of attention gives; nothing where it gives none.
pub fn checksum(body: &[u8]) -> Option<u64> {
    let told: Summed<'_> = serde_json::from_slice(body).ok()?;
    let sum = told.outputs.into_iter().find(|output| output.name == "checksum" && output.datatype == "UINT64")?;
    sum.data.map(|[sum]| sum)
}

/// What an error says, in one line.
pub fn error_of(error: &Value) -> String {
    let text = error["message"].as_str().or(error.as_str()).map_or_else(|| error.to_string(), str::to_owned);
    text.chars().take(300).collect()
}

/// What the body of an error says, in one line.
pub fn fault(body: &[u8]) -> String {
    let text = || String::from_utf8_lossy(&body[..body.len().min(300)]).trim().to_owned();
    serde_json::from_slice::<Value>(body).ok().and_then(|body| body.get("error").map(error_of)).unwrap_or_else(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_timed_by_its_pieces_of_text() {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let mut stream = Stream::default();
        stream.take(b": keep-alive\n\ndata: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n", at(1));
        assert!(stream.first.is_none());
        stream.take(b"data: {\"choices\":[{\"delta\":{\"content\":\"a", at(5));
        stream.take(b"b\"}}]}\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"c\"}}]}\n\n", at(9));
        stream.take(b"data:{\"choices\":[{\"text\":\" d\"}]}\n\n", at(29));
        assert_eq!((stream.text.as_str(), stream.first, stream.tokens(), stream.is_done), ("abc d", Some(at(9)), 3, false));
        assert_eq!(stream.between, [Duration::ZERO, Duration::from_millis(20)]);
        stream.take(b"data: {\"choices\":[],\"usage\":{\"completion_tokens\":7}}\n\ndata: [DONE]\n\n", at(30));
        assert_eq!((stream.tokens(), stream.is_done, stream.error), (7, true, None));
        let mut failed = Stream::default();
        failed.take(b"event: error\ndata: {\"error\":{\"message\":\"lost\"}}\n\n", at(1));
        assert_eq!((failed.error.as_deref(), failed.is_done), (Some("lost"), false));
    }

    #[test]
    fn an_answer_is_read_by_its_route() {
        let two = br#"{"data":[{"embedding":"AAAA"},{"embedding":[0.5,1]}]}"#;
        assert_eq!(said(Route::Embeddings, two).unwrap().0, "AAAA\n[0.5,1]");
        let text = br#"{"choices":[{"text":"a"}],"usage":{"completion_tokens":3}}"#;
        assert_eq!(said(Route::Completions, text), Some(("a".into(), 3)));
        assert_eq!(said(Route::Chat, br#"{"choices":[{"message":{"content":"b"}}]}"#), Some(("b".into(), 0)));
        for odd in [&b"{}"[..], br#"{"data":[]}"#, br#"{"data":[{"embedding":1}]}"#, b"<html>", text] {
            assert_eq!(said(Route::Embeddings, odd), None);
        }
        let sum = br#"{"model_name":"op.attention","outputs":[{"name":"o","datatype":"FP16","shape":[1],"parameters":{"x":1}},{"name":"checksum","datatype":"UINT64","shape":[1],"data":[18446744073709551615]}]}"#;
        assert_eq!((checksum(sum), said(Route::Attention, sum)), (Some(u64::MAX), None));
        for odd in [&b"{}"[..], br#"{"outputs":[]}"#, br#"{"outputs":[{"name":"checksum","datatype":"UINT64","data":[]}]}"#, b"<html>"] {
            assert_eq!(checksum(odd), None);
        }
        assert_eq!(fault(br#"{"error":{"message":"no model"}}"#), "no model");
        assert_eq!((fault(b"<h1>gone</h1>"), fault(br#"{"error":"old"}"#)), ("<h1>gone</h1>".into(), "old".into()));
    }
}
