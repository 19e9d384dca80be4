//! An encoder that was run in every shape before the first request makes nothing any more, whatever comes.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use trifuse::Result;
use trifuse::adapters::encoded::EncodedAdapter;
use trifuse::adapters::engine::AdapterId;
use trifuse::backends::AnyDevice;
use trifuse::model::{Encoder, Row};
use trifuse::session::Counters;
use trifuse_serve::{Embedder, EmbeddingModel, Models};

use crate::support::client::Client;
use crate::support::tiny::{self, ADAPTERS, NAME};
use crate::{Running, config};

/// What the encoder's session had made before the first request and after the last batch, and how many batches there were.
#[derive(Default)]
struct Seen {
    before: Option<Counters>,
    after: Counters,
    batches: usize,
}

struct Watched {
    encoder: Encoder<AnyDevice>,
    seen: Arc<Mutex<Seen>>,
}

impl Embedder for Watched {
    fn submit(&mut self, rows: &[Row<'_>], wanted: usize) -> Result<()> {
        // Batches that only warm up have no sentence that is wanted.
        let before = (wanted > 0).then(|| self.encoder.session().counters());
        self.encoder.submit_first(rows, wanted)?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = before {
            seen.before.get_or_insert(before);
            seen.batches += 1;
        }
        seen.after = self.encoder.session().counters();
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<f32>> {
        self.encoder.finish()
    }

    fn add(&mut self, name: &str, adapter: EncodedAdapter) -> Result<AdapterId> {
        self.encoder.add_adapter(name, adapter)
    }
}

#[test]
fn an_encoder_that_is_warm_plans_captures_and_allocates_nothing() {
    let folder = tiny::folder();
    let seen = Arc::<Mutex<Seen>>::default();
    let own = Arc::clone(&seen);
    let open = tiny::opens_as(folder.path(), |encoder| Box::new(Watched { encoder, seen: own }), |opened| opened.warm = true);
    let model = EmbeddingModel::new(NAME, "cpu:0", open);
    let server = Running::start(config(|_| {}), folder, Models { embeddings: Some(model), ..Models::default() });
    let address = server.handle().addr();
    std::thread::scope(|scope| {
        for client in 0..4usize {
            scope.spawn(move || {
                let mut connection = Client::to(address).unwrap();
                for round in 0..30 {
                    // One sentence or many, short and long, with adapters or without.
                    let sentence = |number: usize| "w1 ".repeat(1 + (client * 7919 + round * 31 + number * 17) % 30);
                    let sentences: Vec<String> = (0..[1, 3, 20][(client + round) % 3]).map(sentence).collect();
                    let model = ADAPTERS.get((client + 3 * round) % (ADAPTERS.len() + 1)).copied().unwrap_or(NAME);
                    let answer = connection.post("/v1/embeddings", &json!({"model": model, "input": sentences}));
                    assert_eq!((answer.status, answer.json()["data"].as_array().unwrap().len()), (200, sentences.len()), "{}", answer.text());
                }
            });
        }
    });
    let seen = seen.lock().unwrap();
    let before = seen.before.unwrap();
    assert!(before.plans > 0 && before.graphs > 0 && before.buffers > 0, "{before:?}");
    assert_eq!(seen.after - before, Counters::default(), "in {} batches", seen.batches);
    assert!(seen.batches > 20, "{}", seen.batches);
}
