//! `POST /v1/chat/completions`: the assistant's next turn.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use serde_json::{Value, json};
use trifuse::Error;
use trifuse::llm::Message;

use super::answer::answer;
use super::app::App;
use super::caller::Caller;
use super::fault::Fault;
use super::fields::Fields;
use super::logprobs::nested;
use super::speech::Part;
use super::writing::{Chunks, Writing, model, usage};

/// The most probable tokens that are told at most.
const MOST_TOP: u64 = 20;

/// What is asked for.
pub struct Ask {
    model: String,
    messages: Vec<Message>,
    logprobs: bool,
    writing: Writing,
}

impl Ask {
    /// Reads a body.
    ///
    /// # Errors
    /// It is not sound.
    pub fn read(body: &[u8]) -> Result<Self, Fault> {
        let mut fields = Fields::read(body)?;
        let name = fields.string("model")?.ok_or_else(|| Fault::expected("model", "the name of a model", "nothing"))?;
        let messages = messages(fields.needed("messages", "an array of messages")?)?;
        let mut writing = Writing::read(&mut fields, &["max_completion_tokens", "max_tokens"])?;
        let logprobs = fields.flag("logprobs")?;
        let top = fields.count("top_logprobs", 0)?;
        let top = match top {
            Some(_) if !logprobs => return Err(Fault::expected("top_logprobs", "nothing, as logprobs is not set", "a value")),
            Some(top) => u32::try_from(top).ok().filter(|_| top <= MOST_TOP).ok_or_else(|| Fault::expected("top_logprobs", "0 to 20", top))?,
            None => 0,
        };
        writing.params.top = if logprobs { top.max(1) } else { 0 };
        fields.only("tools", &json!([]))?;
        fields.only("modalities", &json!(["text"]))?;
        fields.end()?;
        Ok(Self { model: name, messages, logprobs, writing })
    }
}

/// The turns of a chat.
fn messages(value: Value) -> Result<Vec<Message>, Fault> {
    let list = match value {
        Value::Array(list) if !list.is_empty() => list,
        _ => return Err(Fault::expected("messages", "an array of at least one message", "another value")),
    };
    list.into_iter().enumerate().map(|(at, value)| message(&format!("messages[{at}]"), value)).collect()
}

fn message(param: &str, value: Value) -> Result<Message, Fault> {
    let mut fields = Fields::within(param, value)?;
    let role = match fields.string("role")?.as_deref() {
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant")) => role,
        _ => return Err(Fault::expected(&format!("{param}.role"), "system, developer, user or assistant", "another value")),
    }
    .to_owned();
    let param = format!("{param}.content");
    let text = match fields.needed("content", "a text, or parts of type text")? {
        Value::String(text) => text,
        Value::Array(parts) => parts.into_iter().map(|part| text(&param, part)).collect::<Result<String, Fault>>()?,
        _ => return Err(Fault::expected(&param, "a text, or parts of type text", "another value")),
    };
    // Nothing is made of a name, as templates know none.
    fields.ignore("name");
    fields.end()?;
    Ok(Message::new(role, text))
}

/// The text of a part.
fn text(param: &str, part: Value) -> Result<String, Fault> {
    let mut fields = Fields::within(param, part)?;
    if fields.string("type")?.as_deref() != Some("text") {
        return Err(Fault::param(param, "unsupported_parameter", format!("{param}: only parts of type text are supported")));
    }
    let text = fields.string("text")?.ok_or_else(|| Fault::expected(param, "a text", "nothing"))?;
    fields.end()?;
    Ok(text)
}

/// Why a model makes no text of a chat, as far as it is the caller's: not where its files lie.
fn refused(error: Error) -> Fault {
    let why = match error {
        Error::Input { problem, .. } => problem,
        other => other.to_string(),
    };
    let why: String = why.chars().take(500).collect();
    Fault::param("messages", "invalid_value", format!("messages: {why}"))
}

/// Gives the assistant's next turn.
///
/// # Errors
/// A request that is not sound, or that is not let in; an engine that fails.
pub async fn chat(State(app): State<Arc<App>>, caller: Caller, request: Request<Body>) -> Result<Response, Fault> {
    let limits = &app.config.limits;
    let (parts, body) = request.into_parts();
    let body = super::body::read(&app, &parts.headers, body, limits.body_bytes).await?;
    let Ask { model: name, messages, logprobs, mut writing } = Ask::read(&body.bytes)?;
    let (generator, adapter) = model(&app, &name).await?;
    let (own, lease) = (Arc::clone(&generator), adapter.clone());
    let encode = move || {
        let text = own.render(&messages, lease.as_ref()).map_err(refused)?;
        own.encode(&text, false).map_err(|_| Fault::expected("messages", "texts that the model has tokens for", "another"))
    };
    let ids = app.aside(encode).await??;
    let prompt = ids.len();
    let object = if writing.stream { "chat.completion.chunk" } else { "chat.completion" };
    let frame = json!({"id": format!("chatcmpl-{}", app.request_id()), "object": object, "created": app.now(), "model": name});
    writing.compile(&app, &generator).await?;
    let mut speech = writing.begin(&app, &caller, &generator, adapter, ids).await.map_err(|fault| fault.renamed("prompt", "messages"))?;
    if writing.stream {
        let first = json!({"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null});
        let choice = move |part: &Part| {
            let told = if logprobs { nested(generator.as_ref(), &part.tokens) } else { Value::Null };
            let delta = if part.text.is_empty() { json!({}) } else { json!({"content": part.text}) };
            json!({"index": 0, "delta": delta, "logprobs": told, "finish_reason": part.finish})
        };
        return Ok(Chunks { frame, first: Some(first), choice: Box::new(choice), prompt, include_usage: writing.include_usage }.answer(&app, speech));
    }
    let (part, finish) = speech.whole().await?;
    app.shared.metrics.wrote(prompt, speech.tokens);
    let told = if logprobs { nested(generator.as_ref(), &part.tokens) } else { Value::Null };
    let mut whole = frame;
    whole["choices"] = json!([{"index": 0, "message": {"role": "assistant", "content": part.text}, "logprobs": told, "finish_reason": finish}]);
    whole["usage"] = usage(prompt, speech.tokens);
    answer(&whole)
}
