//! `POST /v1/completions`: texts that go on with prompts.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use serde_json::{Value, json};

use super::answer::answer;
use super::app::App;
use super::caller::Caller;
use super::fault::Fault;
use super::fields::Fields;
use super::inputs::{Input, inputs};
use super::logprobs::{flat, flat_behind};
use super::speech::Part;
use super::writing::{Chunks, Writing, model, usage};
use crate::generate::Generate;

/// The most tokens where nothing is asked, as OpenAI has it.
const MAX_TOKENS: usize = 16;
/// The most probable tokens that are told at most.
const MOST_TOP: u64 = 5;

/// What is asked for.
pub struct Ask {
    model: String,
    prompts: Vec<Input>,
    echo: bool,
    logprobs: bool,
    writing: Writing,
}

impl Ask {
    /// Reads a body.
    ///
    /// # Errors
    /// It is not sound.
    pub fn read(body: &[u8], most: usize) -> Result<Self, Fault> {
        let mut fields = Fields::read(body)?;
        let name = fields.string("model")?.ok_or_else(|| Fault::expected("model", "the name of a model", "nothing"))?;
        let prompts = inputs("prompt", fields.needed("prompt", "a string, strings, ids or arrays of ids")?, most)?;
        let mut writing = Writing::read(&mut fields, &["max_tokens"])?;
        writing.max_tokens.get_or_insert(MAX_TOKENS);
        let logprobs = fields.count("logprobs", 0)?;
        if let Some(count) = logprobs {
            writing.params.top = u32::try_from(count).ok().filter(|_| count <= MOST_TOP).ok_or_else(|| Fault::expected("logprobs", "0 to 5", count))?;
        }
        // The sampled token's own probability is told with the first of the others.
        writing.params.top = if logprobs.is_some() { writing.params.top.max(1) } else { 0 };
        let echo = fields.flag("echo")?;
        if let (true, Some(count)) = (echo, logprobs) {
            if writing.stream {
                return Err(Fault::param("logprobs", "unsupported_parameter", "logprobs: not with echo and stream, as a prompt's are told at once"));
            }
            writing.prompt_logprobs = u32::try_from(count).ok();
        }
        if writing.stream && prompts.len() > 1 {
            return Err(Fault::expected("prompt", "one, as stream is set", prompts.len()));
        }
        fields.only("best_of", &json!(1))?;
        fields.only("suffix", &json!(""))?;
        fields.end()?;
        Ok(Self { model: name, prompts, echo, logprobs: logprobs.is_some(), writing })
    }
}

/// One choice of an answer.
fn choice(index: usize, text: &str, logprobs: Value, finish: Option<&str>) -> Value {
    json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish})
}

/// Goes on with the prompts of a request.
///
/// # Errors
/// A request that is not sound, or that is not let in; an engine that fails.
pub async fn completions(State(app): State<Arc<App>>, caller: Caller, request: Request<Body>) -> Result<Response, Fault> {
    let limits = &app.config.limits;
    let (parts, body) = request.into_parts();
    let body = super::body::read(&app, &parts.headers, body, limits.body_bytes).await?;
    let Ask { model: name, prompts, echo, logprobs, mut writing } = Ask::read(&body.bytes, limits.inputs)?;
    let (generator, adapter) = model(&app, &name).await?;
    let frame = json!({"id": format!("cmpl-{}", app.request_id()), "object": "text_completion", "created": app.now(), "model": name});
    let prompts = encoded(&app, &generator, prompts).await?;
    let told = |ids: &[u32]| if echo { String::from_utf8_lossy(&generator.decode(ids)).into_owned() } else { String::new() };
    writing.compile(&app, &generator).await?;
    let mut speeches = Vec::new();
    for ids in prompts {
        let (count, before) = (ids.len(), told(&ids));
        let first = writing.prompt_logprobs.and(ids.first().copied());
        speeches.push((count, (before, first), writing.begin(&app, &caller, &generator, adapter.clone(), ids).await?));
    }
    if writing.stream {
        let Some((prompt, (before, _), speech)) = speeches.pop() else { return Err(Fault::internal()) };
        let first = echo.then(|| choice(0, &before, Value::Null, None));
        let mut offset = before.chars().count();
        let choice = move |part: &Part| {
            let told = if logprobs { flat(generator.as_ref(), &part.tokens, &mut offset) } else { Value::Null };
            choice(0, &part.text, told, part.finish)
        };
        return Ok(Chunks { frame, first, choice: Box::new(choice), prompt, include_usage: writing.include_usage }.answer(&app, speech));
    }
    let (mut choices, mut prompt, mut generated) = (Vec::new(), 0, 0);
    for (index, (count, (before, first), mut speech)) in speeches.into_iter().enumerate() {
        let (part, finish) = speech.whole().await?;
        let mut offset = if first.is_some() { 0 } else { before.chars().count() };
        let told = if logprobs { flat_behind(generator.as_ref(), first, &part.tokens, &mut offset) } else { Value::Null };
        choices.push(choice(index, &(before + &part.text), told, Some(finish)));
        (prompt, generated) = (prompt + count, generated + speech.tokens);
    }
    app.shared.metrics.wrote(prompt, generated);
    let mut whole = frame;
    (whole["choices"], whole["usage"]) = (choices.into(), usage(prompt, generated));
    answer(&whole)
}

/// The ids of the prompts; texts are tokenized on a thread that may take its time.
async fn encoded(app: &App, generator: &Arc<dyn Generate>, prompts: Vec<Input>) -> Result<Vec<Vec<u32>>, Fault> {
    let own = Arc::clone(generator);
    let encode = move |prompt| match prompt {
        Input::Ids(ids) => Ok(ids),
        Input::Text(text) => own.encode(&text, true).map_err(|_| Fault::expected("prompt", "texts that the model has tokens for", "another")),
    };
    app.aside(move || prompts.into_iter().map(encode).collect()).await?
}
