//! Text: completions and chats, whole and as streams, against a stand-in for an engine.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use trifuse_serve::Handle;
use trifuse_serve::generate::{Generate, Prompt};
use trifuse_serve::queueing::ledger::Outcome;

use super::writes;
use crate::Running;
use crate::support::client::Client;
use crate::support::parrot::Parrot;

struct Talk {
    parrot: Arc<Parrot>,
    handle: Option<Handle>,
}

impl Talk {
    fn new() -> Self {
        let parrot = Arc::new(Parrot::default());
        let handle = Some(writes(Arc::clone(&parrot) as Arc<dyn Generate>));
        Self { parrot, handle }
    }

    fn client(&self) -> Client {
        Client::to(self.handle.as_ref().unwrap().addr()).unwrap()
    }

    fn last(&self) -> Prompt {
        self.parrot.prompts.lock().unwrap().last().unwrap().clone()
    }

    fn ended(&self) -> [u64; 4] {
        Outcome::ALL.map(|outcome| self.handle.as_ref().unwrap().ledger().ended(outcome))
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let handle = self.handle.take().unwrap();
        handle.drain();
        handle.wait();
    }
}

/// The events of a stream, and its last line.
fn events(text: &str) -> (Vec<Value>, String) {
    let blocks: Vec<&str> = text.split("\n\n").filter(|block| !block.is_empty() && !block.starts_with(':')).collect();
    let data = |block: &&str| block.strip_prefix("data: ").and_then(|data| serde_json::from_str(data).ok());
    (blocks.iter().filter_map(data).collect(), blocks.last().unwrap().to_string())
}

fn said(body: &Value) -> (&str, &str) {
    let choice = &body["choices"][0];
    (choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap(), choice["finish_reason"].as_str().unwrap())
}

#[test]
fn a_prompt_is_gone_on_with_in_every_form() {
    let talk = Talk::new();
    let mut client = talk.client();
    let ask = |more: Value| {
        let mut body = json!({"model": "parrot", "prompt": "abc", "max_tokens": 50});
        more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
        body
    };
    let body = client.post("/v1/completions", &ask(json!({}))).json();
    assert_eq!((body["object"].as_str(), said(&body)), (Some("text_completion"), ("cba", "stop")));
    assert_eq!(body["usage"], json!({"prompt_tokens": 4, "completion_tokens": 3, "total_tokens": 7}));
    assert_eq!(said(&client.post("/v1/completions", &ask(json!({"prompt": [97, 98]}))).json()), ("ba", "stop"));
    let two = client.post("/v1/completions", &ask(json!({"prompt": ["ab", "éx"]}))).json();
    assert_eq!((two["choices"][0]["text"].as_str(), two["choices"][1]["index"].as_u64()), (Some("ba"), Some(1)));
    assert_eq!(two["usage"]["completion_tokens"], 5);
    assert_eq!(said(&client.post("/v1/completions", &ask(json!({"max_tokens": 2}))).json()), ("cb", "length"));
    assert_eq!(said(&client.post("/v1/completions", &ask(json!({"stop": "b"}))).json()), ("c", "stop"));
    assert_eq!(said(&client.post("/v1/completions", &ask(json!({"stop": ["zz", "ba"]}))).json()), ("c", "stop"));
    assert_eq!(said(&client.post("/v1/completions", &ask(json!({"echo": true}))).json()), ("abccba", "stop"));
    assert_eq!(said(&client.post("/v1/completions", &ask(json!({"model": "loud"}))).json()), ("CBA", "stop"));
    assert_eq!(said(&client.post("/v1/completions", &ask(json!({"model": "parrot:loud", "prompt": "é"}))).json()).1, "stop");
    let told = client.post("/v1/completions", &ask(json!({"logprobs": 2}))).json()["choices"][0]["logprobs"].clone();
    assert_eq!(told["tokens"], json!(["c", "b", "a"]));
    assert_eq!((told["text_offset"].clone(), told["token_logprobs"].clone()), (json!([0, 1, 2]), json!([-0.5, -0.5, -0.5])));
    assert_eq!(told["top_logprobs"][0], json!({"c": -0.5, "A": -1.5}));
    client.post("/v1/completions", &ask(json!({"temperature": 0, "top_p": 0.5, "seed": 7, "top_k": 3, "logit_bias": {"65": -100}})));
    let params = talk.last().params;
    assert_eq!((params.temperature, params.top_p, params.seed, params.top_k, params.bias), (0.0, 0.5, 7, 3, vec![(65, -100.0)]));
    assert_eq!(talk.ended(), [12, 0, 0, 0]);
}

#[test]
fn a_chat_is_gone_on_with_whole_and_in_parts() {
    let talk = Talk::new();
    let mut client = talk.client();
    let ask = |content: Value, stream: bool| json!({"model": "parrot", "messages": [{"role": "developer", "content": "be brief"}, {"role": "user", "content": content}], "stream": stream});
    let body = client.post("/v1/chat/completions", &ask(json!("abc"), false)).json();
    assert_eq!((body["object"].as_str(), said(&body)), (Some("chat.completion"), ("cba", "stop")));
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "bé"}]);
    let answer = client.post("/v1/chat/completions", &ask(parts, true));
    assert_eq!((answer.status, answer.headers["content-type"].as_str()), (200, "text/event-stream"));
    let text = answer.text();
    let (all, last) = events(&text);
    assert_eq!(last, "data: [DONE]");
    assert_eq!(all[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let spoken: String = all.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    // The bytes of é, the wrong way round, are none.
    assert_eq!(spoken, "\u{FFFD}\u{FFFD}ba");
    assert!(all.iter().all(|event| event["object"] == "chat.completion.chunk" && event["id"] == all[0]["id"] && event.get("usage").is_none()));
    assert_eq!(all.last().unwrap()["choices"][0]["finish_reason"], "stop");
    let mut body = ask(json!("xyz"), true);
    (body["stream_options"], body["logprobs"], body["top_logprobs"]) = (json!({"include_usage": true}), json!(true), json!(2));
    let text = client.post("/v1/chat/completions", &body).text();
    let (all, last) = events(&text);
    assert_eq!((last.as_str(), &all.last().unwrap()["usage"]), ("data: [DONE]", &json!({"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6})));
    assert_eq!((&all.last().unwrap()["choices"], &all[0]["usage"]), (&json!([]), &Value::Null));
    let told = &all[1]["choices"][0]["logprobs"]["content"][0];
    assert_eq!((told["token"].as_str(), &told["bytes"], told["top_logprobs"][1]["token"].as_str()), (Some("z"), &json!([122]), Some("A")));
    let refused = client.post("/v1/chat/completions", &json!({"model": "parrot", "messages": [{"role": "assistant", "content": "a"}]}));
    assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some("messages")));
}

#[test]
fn a_stream_that_fails_says_so_and_has_no_end_mark() {
    let talk = Talk::new();
    let mut client = talk.client();
    let answer = client.post("/v1/completions", &json!({"model": "parrot", "prompt": "ab!", "stream": true}));
    let text = answer.text();
    assert!(!text.contains("[DONE]") && text.contains("event: error\ndata: {\"error\":{"), "{text}");
    assert!(!text.contains("planned"), "what is wrong inside is not told");
    let whole = client.post("/v1/completions", &json!({"model": "parrot", "prompt": "ab!"}));
    assert_eq!((whole.status, whole.code().as_str()), (500, "internal"));
    let lost = client.post("/v1/completions", &json!({"model": "parrot", "prompt": "ab#", "stream": true}));
    assert_eq!((lost.status, lost.code().as_str()), (503, "device_lost"), "before the first byte it is an answer like others");
    assert_eq!(talk.ended(), [0, 2, 0, 0]);
}

#[test]
fn a_caller_who_goes_away_or_has_enough_ends_the_engine_too() {
    let talk = Talk::new();
    let mut client = talk.client();
    let body = json!({"model": "parrot", "prompt": "what?", "max_tokens": 190, "stop": "h", "stream": true});
    let (all, last) = events(&client.post("/v1/completions", &body).text());
    assert_eq!((last.as_str(), all.last().unwrap()["choices"][0]["finish_reason"].as_str()), ("data: [DONE]", Some("stop")));
    let body = json!({"model": "parrot", "messages": [{"role": "user", "content": "what?"}], "stream": true}).to_string();
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    client.write(head.as_bytes()).unwrap();
    assert_eq!(client.head().unwrap().status, 200);
    assert!(!client.chunk().unwrap().is_empty());
    drop(client);
    let began = std::time::Instant::now();
    while talk.ended() != [1, 0, 1, 0] {
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", talk.ended());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_prompt_that_is_echoed_has_its_probabilities_behind_its_first_token() {
    let talk = Talk::new();
    let body = json!({"model": "parrot", "prompt": ["abc", "z"], "echo": true, "logprobs": 1});
    let answer = talk.client().post("/v1/completions", &body).json();
    let (first, second) = (&answer["choices"][0], &answer["choices"][1]);
    assert_eq!((first["text"].as_str(), second["text"].as_str()), (Some("abccba"), Some("zz")));
    let told = &first["logprobs"];
    assert_eq!(told["tokens"], json!(["", "a", "b", "c", "c", "b", "a"]));
    assert_eq!(told["token_logprobs"], json!([null, -2.0, -2.0, -2.0, -0.5, -0.5, -0.5]));
    assert_eq!((&told["text_offset"], &told["top_logprobs"][0]), (&json!([0, 0, 1, 2, 3, 4, 5]), &Value::Null));
    assert_eq!((told["top_logprobs"][1].clone(), &answer["usage"]["completion_tokens"]), (json!({"a": -2.0}), &json!(4)));
}

#[test]
fn what_would_change_the_answer_and_is_not_supported_is_refused() {
    let talk = Talk::new();
    let mut client = talk.client();
    for (more, code, param) in [
        (json!({"n": 2}), "unsupported_parameter", "n"),
        (json!({"best_of": 3}), "unsupported_parameter", "best_of"),
        (json!({"suffix": "x"}), "unsupported_parameter", "suffix"),
        (json!({"guided_regex": "x"}), "unsupported_parameter", "guided_regex"),
        (json!({"temperature": 3}), "invalid_value", "temperature"),
        (json!({"top_p": "1"}), "invalid_value", "top_p"),
        (json!({"max_tokens": 0}), "invalid_value", "max_tokens"),
        (json!({"max_tokens": 300}), "context_length_exceeded", "prompt"),
        (json!({"stop": [""]}), "invalid_value", "stop"),
        (json!({"stream_options": {"include_usage": true}}), "invalid_value", "stream_options"),
        (json!({"logprobs": 6}), "invalid_value", "logprobs"),
        (json!({"logprobs": 1, "echo": true, "stream": true}), "unsupported_parameter", "logprobs"),
        (json!({"structured_outputs": {"regex": "a"}}), "unsupported_parameter", "structured_outputs"),
        (json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}), "invalid_value", "structured_outputs"),
        (json!({"structured_outputs": {"choice": "a"}}), "invalid_value", "structured_outputs.choice"),
        (json!({"response_format": {"type": "json_schema"}}), "invalid_value", "json_schema"),
        (json!({"response_format": {"type": "xml"}}), "invalid_value", "response_format.type"),
        (json!({"logit_bias": {"a": 1}}), "invalid_value", "logit_bias"),
        (json!({"prompt": [256]}), "invalid_value", "prompt"),
        (json!({"prompt": ["a", "b"], "stream": true}), "invalid_value", "prompt"),
    ] {
        let mut body = json!({"model": "parrot", "prompt": "abc"});
        more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
        let answer = client.post("/v1/completions", &body);
        assert_eq!((answer.status, answer.code().as_str()), (400, code), "{more}: {}", answer.text());
        assert_eq!(answer.json()["error"]["param"], param, "{more}");
    }
    let chat = |more: Value, message: Value| {
        let mut body = json!({"model": "parrot", "messages": [message]});
        more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
        body
    };
    let user = json!({"role": "user", "content": "a"});
    for body in [
        chat(json!({"tools": [{"type": "function"}]}), user.clone()),
        chat(json!({"response_format": {"type": "json_object"}}), user.clone()),
        chat(json!({"top_logprobs": 1}), user),
        chat(json!({}), json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})),
        chat(json!({}), json!({"role": "tool", "content": "a"})),
        chat(json!({}), json!("a")),
        json!({"model": "parrot", "messages": []}),
    ] {
        assert_eq!(client.post("/v1/chat/completions", &body).status, 400, "{body}");
    }
    // Why the template takes no such chat, and fields by the names that a chat has.
    let assistant = chat(json!({}), json!({"role": "assistant", "content": "a"}));
    let long = chat(json!({"max_tokens": 300}), json!({"role": "user", "content": "a"}));
    for (body, code, told) in [(assistant, "invalid_value", "expected a turn of the user, found another"), (long, "context_length_exceeded", "at most 200")] {
        let answer = client.post("/v1/chat/completions", &body);
        assert_eq!((answer.status, answer.code().as_str(), &answer.json()["error"]["param"]), (400, code, &json!("messages")), "{body}");
        assert!(answer.text().contains(told), "{}", answer.text());
    }
    assert_eq!(talk.ended(), [0; 4]);
}

#[test]
fn a_model_that_does_not_write_is_not_there_on_these_routes() {
    let (talk, server) = (Talk::new(), Running::new());
    let mut client = talk.client();
    for body in [json!({"model": "quiet", "prompt": "a"}), json!({"model": "parrot:quiet", "prompt": "a"})] {
        assert_eq!(client.post("/v1/completions", &body).code(), "model_not_found");
    }
    assert_eq!(client.post("/v1/embeddings", &json!({"model": "parrot", "input": "a"})).status, 404);
    let mut client = server.client();
    for model in ["tiny", "left", "other"] {
        assert_eq!(client.post("/v1/completions", &json!({"model": model, "prompt": "a"})).code(), "model_not_found");
        let chat = json!({"model": model, "messages": [{"role": "user", "content": "a"}]});
        assert_eq!(client.post("/v1/chat/completions", &chat).code(), "model_not_found");
    }
    let cards = talk.client().get("/v1/models").json();
    assert_eq!((cards["data"][0]["id"].as_str(), cards["data"][1]["parent"].as_str()), (Some("parrot"), Some("parrot")));
}
