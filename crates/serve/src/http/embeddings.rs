//! `POST /v1/embeddings`: OpenAI's route, with an adapter of its own for every input where that is wanted.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::oneshot;

use super::answer;
use super::app::App;
use super::caller::Caller;
use super::fault::Fault;
use super::fields::Fields;
use super::inputs::{Input, inputs};
use super::leased::leased;
use super::missing::no_vectors;
use crate::embeddings::Embeddings;
use crate::line::{Copies, Sentence};
use crate::queueing::registry::{Lease, Model};

/// What is asked for.
pub struct Ask {
    model: String,
    input: Vec<Input>,
    base64: bool,
    dimensions: Option<u64>,
    adapters: Option<Value>,
    truncate: bool,
}

impl Ask {
    /// Reads a body.
    ///
    /// # Errors
    /// It is not sound.
    pub fn read(body: &[u8], most: usize) -> Result<Self, Fault> {
        let mut fields = Fields::read(body)?;
        let ask = Self {
            model: fields.string("model")?.ok_or_else(|| Fault::expected("model", "the name of a model", "nothing"))?,
            input: inputs("input", fields.needed("input", "a string, strings, ids or arrays of ids")?, most)?,
            base64: match fields.string("encoding_format")?.as_deref() {
                None | Some("float") => false,
                Some("base64") => true,
                Some(other) => return Err(Fault::expected("encoding_format", "float or base64", format!("{other:?}"))),
            },
            dimensions: fields.count("dimensions", 1)?,
            adapters: fields.take("adapters"),
            truncate: fields.flag("truncate")?,
        };
        fields.ignore("user");
        fields.end()?;
        Ok(ask)
    }

    /// Every name in it.
    fn names(&self) -> Vec<String> {
        let adapters = self.adapters.as_ref().and_then(Value::as_array).into_iter().flatten();
        std::iter::once(self.model.as_str()).chain(adapters.filter_map(Value::as_str)).map(str::to_owned).collect()
    }

    /// The adapter of each input.
    fn models(&self, app: &App, embeddings: &Embeddings) -> Result<Vec<Option<Lease<Copies>>>, Fault> {
        let registry = embeddings.registry();
        let lease = |param: &str, name: &str| match registry.lease(name) {
            Ok(Model::Base) => Ok(None),
            Ok(Model::Adapter(lease)) => Ok(Some(lease)),
            Err(there) => Err(no_vectors(app, param, name, Some(&there))),
        };
        let model = lease("model", &self.model)?;
        let Some(adapters) = &self.adapters else { return Ok(vec![model; self.input.len()]) };
        let expected = format!("{} names of adapters or null, one an input", self.input.len());
        let list = adapters.as_array().filter(|list| list.len() == self.input.len());
        let list = list.ok_or_else(|| Fault::expected("adapters", &expected, "another value or count"))?;
        if model.is_some() {
            return Err(Fault::expected("adapters", "nothing, as model names an adapter itself", "adapters too; name the base model"));
        }
        let one = |(at, name): (usize, &Value)| match name {
            Value::Null => Ok(None),
            Value::String(name) => lease(&format!("adapters[{at}]"), name),
            _ => Err(Fault::expected(&format!("adapters[{at}]"), "the name of an adapter or null", "another value")),
        };
        list.iter().enumerate().map(one).collect()
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    object: &'static str,
    data: Vec<Row<'a>>,
    model: &'a str,
    usage: Usage,
}

#[derive(Serialize)]
struct Row<'a> {
    object: &'static str,
    index: usize,
    embedding: Vector<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter_generation: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector<'a> {
    Float(&'a [f32]),
    Base64(String),
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Embeds the inputs of a request.
///
/// # Errors
/// A request that is not sound, or that is not let in; a device that fails.
pub async fn embeddings(State(app): State<Arc<App>>, caller: Caller, request: Request<Body>) -> Result<Response, Fault> {
    let limits = &app.config.limits;
    let (parts, body) = request.into_parts();
    let deadline = caller.deadline(&app.shared);
    let body = super::body::read(&app, &parts.headers, body, limits.embeddings_bytes).await?;
    let ask = Ask::read(&body.bytes, limits.inputs)?;
    let Some(embeddings) = &app.embeddings else {
        return Err(no_vectors(&app, "model", &ask.model, None));
    };
    caller.account.asks(&ask.model);
    let models = leased(&app, embeddings.adapters().base(), || ask.names(), || ask.models(&app, embeddings)).await?;
    if ask.dimensions.is_some_and(|dimensions| dimensions != embeddings.width as u64) {
        let message = format!("dimensions: expected {}, as the model has, or nothing", embeddings.width);
        return Err(Fault::param("dimensions", "unsupported_parameter", message));
    }
    // Before the work of tokenizing: what would be refused behind it is refused here.
    let left = deadline.map(|deadline| deadline.saturating_sub(app.shared.clock.now()));
    embeddings.ask(caller.tenant, 1, left)?;
    let Ask { model, input, base64, truncate, .. } = ask;
    // Texts are work for another thread. Ids are none, and to wake one for them costs more than they do.
    let tokens = if input.iter().all(|input| matches!(input, Input::Ids(_))) {
        tokens(&app, input, truncate)?
    } else {
        let own = Arc::clone(&app);
        app.aside(move || tokens(&own, input, truncate)).await??
    };
    let count: usize = tokens.iter().map(Vec::len).sum();
    let meter = app.meter(caller.tenant);
    meter.as_ref().map_or(Ok(()), |meter| meter.prompt(count))?;
    let sentences =
        tokens.into_iter().zip(models.iter().cloned()).map(|(ids, adapter)| Sentence { ids, adapter, spent: Arc::clone(caller.account.spent()) }).collect();
    let (answer, answered) = oneshot::channel();
    let entered = embeddings.enter(caller.tenant, sentences, deadline, Box::new(move |result| drop(answer.send(result))));
    let waiter = entered.inspect_err(|_| meter.iter().for_each(|meter| meter.back(count)))?;
    count_names(&app, embeddings, &models);
    let rows = answered.await.map_err(|_| Fault::internal())??;
    drop(waiter);
    app.shared.metrics.tokens(count, 0);
    caller.account.has(count, 0);
    let data = rows.iter().zip(&models).enumerate().map(|(index, (row, adapter))| Row {
        object: "embedding",
        index,
        embedding: if base64 { Vector::Base64(encoded(row)) } else { Vector::Float(row) },
        adapter_generation: adapter.as_ref().map(|lease| lease.content.as_str()),
    });
    let usage = Usage { prompt_tokens: count, total_tokens: count };
    answer::answer(&Answer { object: "list", data: data.collect(), model: &model, usage })
}

/// Counts a request for each model and adapter that it names.
fn count_names(app: &App, embeddings: &Embeddings, models: &[Option<Lease<Copies>>]) {
    let registry = embeddings.registry();
    let names: BTreeSet<&str> = models.iter().map(|lease| lease.as_ref().map_or(registry.base(), |lease| lease.alias.as_str())).collect();
    names.into_iter().for_each(|name| app.shared.metrics.models.asked(name));
}

/// The base64 of the vector's little-endian bytes.
fn encoded(row: &[f32]) -> String {
    BASE64_STANDARD.encode(row.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
}

/// The ids of every input.
fn tokens(app: &App, input: Vec<Input>, truncate: bool) -> Result<Vec<Vec<i32>>, Fault> {
    let Some(embeddings) = &app.embeddings else { return Err(Fault::internal()) };
    let most = embeddings.text().max_tokens();
    let long = |at: usize, found: &str| {
        let message = format!("input {at}: expected at most {most} tokens, found {found}; \"truncate\": true leaves out the end of a text");
        Fault::param("input", "context_length_exceeded", message)
    };
    let texts: Vec<&str> = input.iter().filter_map(|input| if let Input::Text(text) = input { Some(text.as_str()) } else { None }).collect();
    let mut of_texts = embeddings.text().tokens_each(&texts).into_iter();
    let mut all = Vec::with_capacity(input.len());
    for (at, input) in input.iter().enumerate() {
        let ids = match input {
            Input::Text(_) => {
                let tokens = of_texts.next().ok_or_else(Fault::internal)?.map_err(|_| Fault::expected("input", "texts that the model has tokens for", at))?;
                if tokens.cut && !truncate {
                    return Err(long(at, "more"));
                }
                tokens.ids
            }
            Input::Ids(ids) if ids.len() > most => return Err(long(at, &ids.len().to_string())),
            Input::Ids(ids) => match ids.iter().find(|id| **id >= embeddings.vocabulary) {
                Some(id) => return Err(Fault::expected("input", &format!("ids below {}", embeddings.vocabulary), id)),
                None => ids.iter().map(|id| *id as i32).collect(),
            },
        };
        if ids.is_empty() {
            return Err(Fault::expected("input", "at least one token an input", format!("none in input {at}")));
        }
        all.push(ids);
    }
    Ok(all)
}

/// Asks the device for one vector, as a request would.
///
/// # Errors
/// The device does not answer.
pub async fn probe(app: &App, embeddings: &Embeddings) -> Result<(), Fault> {
    let (answer, answered) = oneshot::channel();
    let deadline = Some(app.shared.clock.now() + Duration::from_secs(10));
    let sentences = vec![Sentence { ids: vec![0], adapter: None, spent: Default::default() }];
    let _waiter = embeddings.enter(Default::default(), sentences, deadline, Box::new(move |result| drop(answer.send(result))))?;
    answered.await.map_err(|_| Fault::internal())??;
    Ok(())
}
