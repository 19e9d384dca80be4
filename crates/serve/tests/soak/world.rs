//! What is asked, and what the library alone answers.

use std::path::PathBuf;
use std::sync::Arc;

use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use tempfile::TempDir;
use trifuse::DType;
use trifuse::backends::AnyDevice;
use trifuse::llm::Files;
use trifuse_serve::Models;

use super::adapters::Shelf;
use super::attention::{OTHERS, Query, queries};
use super::killed::write_asks;
use super::mutate::Rng;
use super::support::client::Client;
use super::support::{backend, tiny, writer};

/// Texts for embeddings.
const TEXTS: usize = 24;
/// The first of them, which are asked for by adapters that come and go.
pub const LATE_TEXTS: usize = 8;
/// Vectors of a text: of the base, and of the adapters that stay.
const OF_TEXT: usize = 1 + tiny::ADAPTERS.len();
/// Prompts to go on with.
const PROMPTS: usize = 10;
/// Tokens of an answer, at most.
const MOST: usize = 24;

/// A text for one model, and the bits of its vector.
pub struct Vector {
    pub model: String,
    pub text: String,
    pub ids: Vec<i32>,
    pub bits: Vec<u32>,
}

/// A prompt for one model, and what it is answered.
pub struct Writing {
    /// The request for a completion, which is no stream.
    pub ask: Value,
    /// The text, why it ended, and the logarithms of probabilities.
    pub choice: Value,
}

/// The models' files, and every right answer.
pub struct World {
    /// The device, which stays open, so that the driver gives up nothing of it between lives.
    pub device: AnyDevice,
    pub encoder: TempDir,
    pub writer: TempDir,
    pub vectors: Vec<Vector>,
    pub shelf: Shelf,
    pub queries: Vec<[Query; OTHERS]>,
    pub writings: Vec<Writing>,
}

impl World {
    pub fn new() -> Self {
        let (device, encoder, writer) = (backend::open(), tiny::folder(), writer::folder());
        every_thread_encodes(&writer);
        let mut library = tiny::Reference::new(encoder.path());
        let vectors = vectors(&mut library);
        let texts: Vec<&[i32]> = vectors.chunks(OF_TEXT).take(LATE_TEXTS).map(|same| same[0].ids.as_slice()).collect();
        let others: Vec<&[u32]> = vectors[..OF_TEXT].iter().map(|vector| vector.bits.as_slice()).collect();
        let shelf = Shelf::new(&mut library, &texts, &others);
        let writings = writings(&writer, backend::dtype(&device));
        let world = Self { device, encoder, writer, vectors, shelf, queries: queries(), writings };
        write_asks(&world, &world.asks());
        world
    }

    /// The file of what client processes ask.
    pub fn asks(&self) -> PathBuf {
        self.encoder.path().join("asks.json")
    }

    /// The vectors of a text: of the base, and of the adapters that stay.
    pub fn of_text(&self, text: usize) -> &[Vector] {
        &self.vectors[text * OF_TEXT..][..OF_TEXT]
    }
}

/// A thread that multiplies matrices for the first time keeps memory for it, twice the largest cache of the processor. Which threads of the pool are asked to is
/// chance, so all of them are, before anything is measured. One whose part others take over is not; where caches are large what it reserves later is not
/// counted.
fn every_thread_encodes(folder: &TempDir) {
    let config = Files::open(folder.path()).unwrap().config;
    rayon::broadcast(|_| drop(writer::population(&config)));
}

fn vectors(library: &mut tiny::Reference) -> Vec<Vector> {
    let mut rng = Rng::seed_from_u64(11);
    let mut all = Vec::new();
    for _ in 0..TEXTS {
        let words: Vec<String> = (0..rng.random_range(1..24)).map(|_| format!("w{}", rng.random_range(0..60))).collect();
        let text = words.join(" ");
        let ids = library.ids(&text);
        for (model, adapter) in std::iter::once((tiny::NAME, None)).chain(tiny::ADAPTERS.map(|name| (name, Some(name)))) {
            all.push(Vector { model: model.into(), text: text.clone(), ids: ids.clone(), bits: library.of_ids(&ids, adapter) });
        }
    }
    // A base that answered in an adapter's place would be seen.
    all.chunks(OF_TEXT).for_each(|same| assert!(same[1].bits != same[0].bits && same[2].bits != same[0].bits && same[1].bits != same[2].bits));
    all
}

/// Each prompt and model, asked for one at a time of a server that does nothing else. What the base says is held against the model without an engine,
/// which has no rule of invariance: in f32 alone no two tokens are that near.
fn writings(folder: &TempDir, dtype: DType) -> Vec<Writing> {
    let models = Models { generator: Some(Arc::new(writer::model(folder.path()))), ..Models::default() };
    let handle = super::life::server(None, models);
    let mut client = Client::to(handle.addr()).unwrap();
    let mut rng = Rng::seed_from_u64(12);
    let prompts: Vec<Vec<u32>> = (0..PROMPTS).map(|_| (0..rng.random_range(2..30)).map(|_| rng.random_range(3..writer::VOCABULARY as u32)).collect()).collect();
    let expected = writer::alone(folder.path(), &prompts, MOST);
    let mut all = Vec::new();
    for (number, (prompt, alone)) in prompts.iter().zip(&expected).enumerate() {
        for model in std::iter::once(writer::NAME).chain(writer::ADAPTERS) {
            for temperature in [0.0, 0.9] {
                let ask = json!({"model": model, "prompt": prompt, "max_tokens": MOST, "temperature": temperature, "seed": number, "logprobs": 1});
                let answer = client.post("/v1/completions", &ask);
                assert_eq!(answer.status, 200, "{}", answer.text());
                let choice = answer.json()["choices"][0].clone();
                if (model, temperature, dtype) == (writer::NAME, 0.0, DType::F32) {
                    assert_eq!(choice["text"].as_str(), Some(alone.as_str()), "{ask}");
                }
                all.push(Writing { ask, choice });
            }
        }
    }
    // Six are of one prompt, two of each model: an adapter that the base stood in for would have its probabilities.
    all.chunks(6).for_each(|same| assert!(same[0].choice != same[2].choice && same[0].choice != same[4].choice && same[2].choice != same[4].choice));
    drop(client);
    handle.drain();
    handle.wait();
    all
}
