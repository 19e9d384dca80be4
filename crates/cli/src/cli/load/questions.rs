//! What is asked: texts or ids, of models that are drawn.

use std::io::Write;

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use trifuse::{Error, Result};

use super::args::{Args, Route};
use super::caller::Caller;
use crate::cli::calibrate;

/// Different texts where they are drawn: few enough that each comes again for each of many models, so that answers can be compared.
const TEXTS: usize = 64;
/// Lengths of drawn texts, in words or ids.
const LENGTHS: std::ops::RangeInclusive<u32> = 4..=48;
/// The first id that is drawn: those before it are often marks.
const FIRST_ID: u32 = 3;
/// Words of drawn texts.
const WORDS: [&str; 32] = [
    "the", "river", "bends", "past", "an", "old", "mill", "where", "water", "turns", "a", "wheel", "of", "dark", "wood", "and", "grain", "becomes", "flour",
    "for", "bread", "that", "people", "carry", "home", "before", "evening", "while", "children", "count", "small", "boats",
];

/// One of the requests that may be asked: the text's number, and the model's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Question {
    pub text: u32,
    pub model: u32,
}

/// A name that requests may give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    pub name: String,
    /// The base, where this is an adapter of one.
    pub parent: Option<String>,
}

/// All requests that may be asked.
pub struct Questions {
    /// The names that are asked.
    pub models: Vec<Model>,
    /// The lines of each request before the length of its body.
    head: String,
    /// The first field of each body, which names a model.
    names: Vec<String>,
    /// The texts in JSON, with the names of their fields; whole bodies of queries of attention.
    texts: Vec<String>,
    /// The last fields of each body.
    rest: String,
}

impl Questions {
    /// What the arguments ask, of these models.
    ///
    /// # Errors
    /// A file of texts that cannot be used.
    pub fn new(args: &Args, caller: &Caller<'_>, models: Vec<Model>, random: &mut ChaCha8Rng) -> Result<Self> {
        let inputs = args.inputs as usize;
        let alone: Vec<Value> = match (&args.texts, args.ids) {
            (Some(path), _) => calibrate::texts(path)?.into_iter().map(Value::String).collect(),
            (None, ids) => (0..TEXTS.max(inputs))
                .map(|_| match ids {
                    Some(most) => drawn(random, args.length, |random| random.random_range(FIRST_ID..most).into()),
                    None => drawn(random, args.length, |random| WORDS[random.random_range(0..WORDS.len())].into()),
                })
                .collect(),
        };
        // Each is the first of its request once.
        let together = |first: usize| -> Value { (0..inputs).map(|more| alone[(first + more) % alone.len()].clone()).collect() };
        let texts = (0..alone.len()).map(|at| match args.route {
            Route::Embeddings if inputs > 1 => format!("\"input\":{}", together(at)),
            Route::Embeddings => format!("\"input\":{}", alone[at]),
            Route::Completions => format!("\"prompt\":{}", alone[at]),
            Route::Chat => format!("\"messages\":{}", json!([{"role": "user", "content": alone[at]}])),
            Route::Attention => String::new(),
        });
        let rest = match (args.route, args.stream) {
            (Route::Embeddings, _) => ",\"encoding_format\":\"base64\"}".into(),
            (_, false) => format!(",\"max_tokens\":{},\"temperature\":0}}", args.max_tokens),
            (_, true) => format!(",\"max_tokens\":{},\"temperature\":0,\"stream\":true,\"stream_options\":{{\"include_usage\":true}}}}", args.max_tokens),
        };
        let names = models.iter().map(|model| format!("{{\"model\":{},", Value::from(model.name.as_str()))).collect();
        Ok(Self { head: head(caller, args.route), names, texts: texts.collect(), rest, models })
    }

    /// Queries of attention, one a set.
    pub fn of_sets(caller: &Caller<'_>, models: Vec<Model>, queries: Vec<String>) -> Self {
        Self { head: head(caller, Route::Attention), names: vec![String::new(); models.len()], texts: queries, rest: String::new(), models }
    }

    /// Any of them.
    pub fn draw(&self, random: &mut ChaCha8Rng) -> Question {
        let mut below = |count: usize| random.random_range(0..count.max(1)) as u32;
        Question { text: below(self.texts.len()), model: below(self.names.len()) }
    }

    /// The first of each model.
    pub fn probes(&self) -> impl Iterator<Item = Question> {
        (0..self.models.len() as u32).map(|model| Question { text: 0, model })
    }

    /// Each of the first model.
    pub fn all_texts(&self) -> impl Iterator<Item = Question> {
        (0..self.texts.len() as u32).map(|text| Question { text, model: 0 })
    }

    /// Writes the whole request in place of what is in `bytes`.
    pub fn write(&self, question: Question, bytes: &mut Vec<u8>) {
        let parts = [&self.names[question.model as usize], &self.texts[question.text as usize], &self.rest];
        let length: usize = parts.iter().map(|part| part.len()).sum();
        bytes.clear();
        bytes.extend_from_slice(self.head.as_bytes());
        // A vector takes whatever is written, and nothing else is allocated.
        let _ = write!(bytes, "{length}\r\n\r\n");
        parts.iter().for_each(|part| bytes.extend_from_slice(part.as_bytes()));
    }
}

/// The lines of a request before the length of its body.
fn head(caller: &Caller<'_>, route: Route) -> String {
    format!("{}content-type: application/json\r\ncontent-length: ", caller.head("POST", route.path()))
}

/// Refuses options that do not go together.
///
/// # Errors
/// They do not.
pub fn check(args: &Args) -> Result<()> {
    let refused = |option: &str, needs: &str| Err(Error::invalid(option, needs, args.route.path()));
    match args.route {
        Route::Embeddings if args.stream => refused("--stream", "--route completions or chat"),
        Route::Completions | Route::Chat if args.inputs > 1 => refused("--inputs", "--route embeddings"),
        Route::Chat if args.ids.is_some() => refused("--ids", "--route embeddings or completions"),
        Route::Attention => {
            let given = [
                ("--model", !args.models.is_empty()),
                ("--adapters", args.adapters.is_some()),
                ("--texts", args.texts.is_some()),
                ("--ids", args.ids.is_some()),
                ("--length", args.length.is_some()),
                ("--inputs", args.inputs > 1),
                ("--stream", args.stream),
            ];
            given.iter().find(|(_, given)| *given).map_or(Ok(()), |(option, _)| refused(option, "--route embeddings, completions or chat"))
        }
        _ => args.attention.given().map_or(Ok(()), |option| refused(option, "--route attention")),
    }
}

/// A text of drawn words, or drawn ids.
fn drawn(random: &mut ChaCha8Rng, length: Option<u32>, one: impl Fn(&mut ChaCha8Rng) -> Value) -> Value {
    let length = length.unwrap_or_else(|| random.random_range(LENGTHS));
    let parts: Vec<Value> = (0..length).map(|_| one(random)).collect();
    let words: Option<Vec<&str>> = parts.iter().map(Value::as_str).collect();
    match words.map(|words| words.join(" ")) {
        Some(text) => text.into(),
        None => parts.into(),
    }
}
