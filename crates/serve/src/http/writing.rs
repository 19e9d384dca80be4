//! What requests for text have in common: how tokens are drawn, when a text ends, and how it is sent.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::response::Response;
use serde_json::{Value, json};
use tokio::time::sleep;
use trifuse::Error;
use trifuse::llm::sample::SamplingParams;
use trifuse::llm::tokens::Detokenizer;
use trifuse::llm::{Grammar, Structure};

use super::app::App;
use super::caller::Caller;
use super::fault::Fault;
use super::fields::Fields;
use super::leased::leased;
use super::missing::no_text;
use super::speech::{Of, Part, Speech};
use super::sse::{Events, Gone};
use super::structured::structure;
use crate::generate::{Generate, Prompt, answer};
use crate::queueing::registry::{Lease, Model};

/// The most stop strings.
const MOST_STOPS: usize = 16;
/// How long a stream says nothing at most.
const SILENCE: Duration = Duration::from_secs(15);

/// How a text is wanted.
#[derive(Clone, Debug)]
pub struct Writing {
    /// How tokens are drawn.
    pub params: SamplingParams,
    /// Whether the prompt's tokens are told of, and with how many others each.
    pub prompt_logprobs: Option<u32>,
    /// Strings that end the text.
    pub stops: Vec<String>,
    /// The most tokens.
    pub max_tokens: Option<usize>,
    /// The form that the text is to have, and the field that says so.
    structure: Option<(&'static str, Structure)>,
    /// What the text is held to; see [`compile`](Self::compile).
    grammar: Option<Arc<dyn Grammar>>,
    /// Whether parts are sent as they come.
    pub stream: bool,
    /// Whether a stream tells the tokens used at its end.
    pub include_usage: bool,
}

impl Writing {
    /// Reads the fields. `max_tokens` names the field of the most tokens, of which the first that is there counts.
    ///
    /// # Errors
    /// A field that is not sound, or that would change the answer in a way that is not supported.
    pub fn read(fields: &mut Fields, max_tokens: &[&str]) -> Result<Self, Fault> {
        let mut most = None;
        for name in max_tokens {
            most = most.or(fields.count(name, 1)?);
        }
        let mut number = |name: &str, range: [f64; 2], default: f32| Ok::<_, Fault>(fields.number(name, range)?.map_or(default, |value| value as f32));
        let plain = SamplingParams::default();
        let mut params = SamplingParams {
            temperature: number("temperature", [0.0, 2.0], plain.temperature)?,
            top_p: number("top_p", [0.0, 1.0], plain.top_p)?,
            min_p: number("min_p", [0.0, 1.0], plain.min_p)?,
            presence: number("presence_penalty", [-2.0, 2.0], plain.presence)?,
            frequency: number("frequency_penalty", [-2.0, 2.0], plain.frequency)?,
            repetition: number("repetition_penalty", [0.0, 2.0], plain.repetition)?,
            ..plain
        };
        params.top_k = fields.count("top_k", 0)?.map_or(0, |count| u32::try_from(count).unwrap_or(u32::MAX));
        // Without a seed every request draws other numbers.
        params.seed = fields.count("seed", 0)?.unwrap_or_else(|| std::hash::RandomState::new().hash_one(0));
        params.bias = bias(fields)?;
        let stops = stops(fields)?;
        let structure = structure(fields)?;
        fields.only("n", &json!(1))?;
        fields.ignore("user");
        let stream = fields.flag("stream")?;
        let include_usage = match fields.take("stream_options") {
            None => false,
            Some(_) if !stream => return Err(Fault::expected("stream_options", "nothing, as stream is not set", "a value")),
            Some(options) => {
                let mut options = Fields::within("stream_options", options)?;
                let include = options.flag("include_usage")?;
                options.end()?;
                include
            }
        };
        Ok(Self {
            params,
            prompt_logprobs: None,
            stops,
            max_tokens: most.map(|most| usize::try_from(most).unwrap_or(usize::MAX)),
            structure,
            grammar: None,
            stream,
            include_usage,
        })
    }

    /// Makes the grammar of the structure, where there is one, on a thread that may take its time.
    ///
    /// # Errors
    /// A structure that cannot be followed.
    pub async fn compile(&mut self, app: &App, generator: &Arc<dyn Generate>) -> Result<(), Fault> {
        let Some((field, structure)) = self.structure.take() else { return Ok(()) };
        let own = Arc::clone(generator);
        let made = app.aside(move || own.grammar(&structure)).await?;
        let code = |error: &Error| if matches!(error, Error::Unsupported { .. }) { "unsupported_parameter" } else { "invalid_value" };
        self.grammar = Some(made.map_err(|error| Fault::param(field, code(&error), error.to_string()))?);
        Ok(())
    }

    /// Hands a prompt to the engine.
    ///
    /// # Errors
    /// A prompt that does not fit; values that the model does not take; an engine that lets nothing in.
    pub async fn begin(
        &self,
        app: &App,
        caller: &Caller,
        generator: &Arc<dyn Generate>,
        adapter: Option<Lease<String>>,
        ids: Vec<u32>,
    ) -> Result<Speech, Fault> {
        let most = generator.max_tokens();
        let room = most.saturating_sub(ids.len());
        let Some(last) = ids.last().copied() else { return Err(Fault::expected("prompt", "at least one token", "none")) };
        if self.max_tokens.unwrap_or(1) > room {
            let wanted = self.max_tokens.map_or(String::new(), |wanted| format!(" and {wanted} to generate"));
            let message = format!("expected at most {most} tokens, found {} in the prompt{wanted}", ids.len());
            return Err(Fault::param("prompt", "context_length_exceeded", message));
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= generator.vocabulary()) {
            return Err(Fault::expected("prompt", &format!("ids below {}", generator.vocabulary()), id));
        }
        self.params.validate(generator.vocabulary()).map_err(|error| Fault::invalid("invalid_value", error.to_string()))?;
        let text = Detokenizer::new(self.stops.clone()).map_err(|error| Fault::expected("stop", "strings that are not empty", error))?.after(last);
        let meter = app.meter(caller.tenant);
        meter.as_ref().map_or(Ok(()), |meter| meter.prompt(ids.len()))?;
        let (accept, pending) = answer(&app.shared.ledger);
        let name = adapter.as_ref().map_or_else(|| generator.keeper().base().to_owned(), |lease| lease.alias.clone());
        let prompt = Prompt {
            ids,
            max_tokens: self.max_tokens,
            params: self.params.clone(),
            prompt_logprobs: self.prompt_logprobs,
            adapter,
            grammar: self.grammar.clone(),
            tenant: caller.tenant,
            timeout: caller.timeout,
        };
        let of = Of { prompt: prompt.ids.len(), account: caller.account.clone(), meter };
        let since = Instant::now();
        caller.account.asks(&name);
        generator.submit(prompt, accept).map_err(|refused| {
            of.meter.iter().for_each(|meter| meter.back(of.prompt));
            refused.closed
        })?;
        app.shared.metrics.models.asked(&name);
        Ok(Speech::new(pending.begin().await?, text, Arc::clone(generator), Arc::clone(&app.shared.metrics), since, of))
    }
}

fn bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, Fault> {
    let Some(value) = fields.take("logit_bias") else { return Ok(Vec::new()) };
    let wrong = || Fault::expected("logit_bias", "ids with numbers from -100 to 100", "another value");
    let pairs = value.as_object().ok_or_else(wrong)?.iter().map(|(id, amount)| {
        let amount = amount.as_f64().filter(|amount| (-100.0..=100.0).contains(amount));
        Some((id.parse().ok()?, amount? as f32))
    });
    pairs.collect::<Option<_>>().ok_or_else(wrong)
}

fn stops(fields: &mut Fields) -> Result<Vec<String>, Fault> {
    let list = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(other) => vec![other],
    };
    let strings: Option<Vec<String>> = list.iter().map(|value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)).collect();
    let expected = format!("a string, or at most {MOST_STOPS}, none of them empty");
    strings.filter(|strings| strings.len() <= MOST_STOPS).ok_or_else(|| Fault::expected("stop", &expected, "another value"))
}

/// A generator, and the adapter to go with it.
type Writer = (Arc<dyn Generate>, Option<Lease<String>>);

/// The generator, and the adapter that `model` names.
///
/// # Errors
/// There is no such model.
pub async fn model(app: &Arc<App>, model: &str) -> Result<Writer, Fault> {
    let Some(generator) = &app.generator else { return Err(no_text(app, model, None)) };
    let lease = || {
        let found = generator.keeper().names().lease(model);
        match found {
            Ok(Model::Base) => Ok((Arc::clone(generator), None)),
            Ok(Model::Adapter(lease)) => Ok((Arc::clone(generator), Some(lease))),
            Err(there) => Err(no_text(app, model, Some(&there))),
        }
    };
    leased(app, generator.keeper().base(), || vec![model.to_owned()], lease).await
}

/// Asks the engine for one token, as a request would.
///
/// # Errors
/// The engine does not answer.
pub async fn one_token(app: &App, generator: &Arc<dyn Generate>) -> Result<(), Fault> {
    let (accept, pending) = answer(&app.shared.ledger);
    let params = SamplingParams::greedy();
    let timeout = Some(Duration::from_secs(10));
    let prompt = Prompt { ids: vec![0], max_tokens: Some(1), params, prompt_logprobs: None, adapter: None, grammar: None, tenant: Default::default(), timeout };
    generator.submit(prompt, accept).map_err(|refused| refused.closed)?;
    let mut coming = pending.begin().await?;
    while coming.token().await.is_some() {}
    coming.end().await?;
    Ok(())
}

/// The tokens used.
pub fn usage(prompt: usize, generated: usize) -> Value {
    json!({"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated})
}

/// How the events of a stream look.
pub struct Chunks {
    /// What every event has: `id`, `object`, `created` and `model`.
    pub frame: Value,
    /// The choice of the first event, where it comes before any text.
    pub first: Option<Value>,
    /// The choice of a part.
    pub choice: Box<dyn FnMut(&Part) -> Value + Send>,
    /// The tokens of the prompt.
    pub prompt: usize,
    /// Whether the last event tells the tokens used.
    pub include_usage: bool,
}

impl Chunks {
    fn event(&self, choices: Value, usage: Option<Value>) -> Value {
        let mut event = self.frame.clone();
        event["choices"] = choices;
        if self.include_usage {
            event["usage"] = usage.unwrap_or(Value::Null);
        }
        event
    }

    /// The answer that sends the parts of `speech` as they come.
    pub fn answer(self, app: &Arc<App>, speech: Speech) -> Response {
        let (events, response) = Events::answer();
        let app = Arc::clone(app);
        // Where the caller is gone there is nobody to tell.
        tokio::spawn(async move { drop(self.send(&app, speech, events).await) });
        response
    }

    async fn send(mut self, app: &App, mut speech: Speech, events: Events) -> Result<(), Gone> {
        if let Some(first) = self.first.take() {
            events.data(&self.event(json!([first]), None)).await?;
        }
        loop {
            let part = tokio::select! {
                part = speech.next() => part,
                () = events.gone() => return Err(Gone),
                () = sleep(SILENCE) => {
                    events.nothing().await?;
                    continue;
                }
            };
            let part = match part {
                Ok(part) => part,
                Err(failure) => return events.fail(&failure.into()).await,
            };
            let choice = (self.choice)(&part);
            events.data(&self.event(json!([choice]), None)).await?;
            if part.finish.is_some() {
                break;
            }
        }
        app.shared.metrics.wrote(self.prompt, speech.tokens);
        if self.include_usage {
            events.data(&self.event(json!([]), Some(usage(self.prompt, speech.tokens)))).await?;
        }
        events.done().await
    }
}
