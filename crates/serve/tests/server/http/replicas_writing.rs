//! A language model on several devices: a prompt without a token is another engine's when its own is gone, and draws the same tokens there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use trifuse::llm::sample::SamplingParams;
use trifuse::llm::schedule::Finish;
use trifuse::llm::{Grammar, Rule};
use trifuse_serve::generate::{Generate, Prompt, answer};
use trifuse_serve::queueing::ledger::{Ledger, Outcome};
use trifuse_serve::queueing::ticket::Failure;
use trifuse_serve::{Handle, LanguageModel};

use super::faults::until;
use super::writes;
use crate::support::client::Client;
use crate::support::{backend, writer};

/// Allows every token, after what it does to the threads of some engines when a token is drawn there.
#[derive(Clone, Debug)]
struct Deadly {
    /// To how many of them it is still to do something.
    left: Arc<AtomicUsize>,
    deed: fn(),
}

impl Grammar for Deadly {
    fn begin(&self) -> trifuse::Result<Box<dyn Rule>> {
        Ok(Box::new(self.clone()))
    }
}

impl Rule for Deadly {
    fn allow(&mut self, mask: &mut [u32]) -> trifuse::Result<()> {
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            (self.deed)();
        }
        mask.fill(u32::MAX);
        Ok(())
    }

    fn push(&mut self, _: u32) -> trifuse::Result<()> {
        Ok(())
    }
}

fn deadly(engines: usize, deed: fn()) -> Arc<dyn Grammar> {
    Arc::new(Deadly { left: Arc::new(AtomicUsize::new(engines)), deed })
}

fn fails() {
    panic!("a fault that is planned");
}

fn hangs() {
    std::thread::sleep(Duration::from_secs(2));
}

struct Written {
    model: Arc<LanguageModel>,
    handle: Option<Handle>,
    ledger: Arc<Ledger>,
    _folder: tempfile::TempDir,
}

impl Written {
    fn on(devices: usize) -> Self {
        let folder = writer::folder();
        let devices = (0..devices).map(|_| backend::open()).collect();
        let model = Arc::new(writer::model_on(folder.path(), devices));
        let handle = Some(writes(Arc::clone(&model) as Arc<dyn Generate>));
        Self { model, handle, ledger: Arc::default(), _folder: folder }
    }

    fn client(&self) -> Client {
        Client::to(self.handle.as_ref().unwrap().addr()).unwrap()
    }

    /// The tokens of a drawn answer, and how it ended.
    fn write(&self, grammar: Option<Arc<dyn Grammar>>) -> (Vec<u32>, Result<Finish, Failure>) {
        let params = SamplingParams { seed: 7, ..SamplingParams::default() };
        let (accept, pending) = answer(&self.ledger);
        let prompt = Prompt {
            ids: vec![5, 6, 7],
            max_tokens: Some(12),
            params,
            prompt_logprobs: None,
            adapter: None,
            grammar,
            tenant: Default::default(),
            timeout: None,
        };
        self.model.submit(prompt, accept).unwrap();
        let read = async {
            let mut coming = pending.begin().await.unwrap();
            let mut ids = Vec::new();
            while let Some(token) = coming.token().await {
                ids.push(token.id);
            }
            (ids, coming.end().await)
        };
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(read)
    }

    fn lost(&self) -> usize {
        self.model.replicas().iter().filter(|replica| replica.is_lost()).count()
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let handle = self.handle.take().unwrap();
        handle.drain();
        handle.wait();
    }
}

fn ask(number: usize) -> Value {
    let model = [writer::NAME, writer::ADAPTERS[0], writer::ADAPTERS[1]][number % 3];
    json!({"model": model, "prompt": [3 + number % 40, 4, 5], "max_tokens": 16, "temperature": 0.9, "seed": number, "logprobs": 1})
}

#[test]
fn every_device_writes_and_each_draws_the_same() {
    let [one, two] = [1, 2].map(Written::on);
    let choice = |client: &mut Client, number: usize| {
        let answer = client.post("/v1/completions", &ask(number));
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["choices"][0].clone()
    };
    let expected: Vec<Value> = (0..9).map(|number| choice(&mut one.client(), number)).collect();
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (two, expected) = (&two, &expected);
            scope.spawn(move || {
                let mut client = two.client();
                (0..9).for_each(|turn| assert_eq!(choice(&mut client, (thread + turn) % 9), expected[(thread + turn) % 9]));
            });
        }
    });
    // Pages are given back with the last answer.
    until(|| two.model.cache_use() == Some(0.0));
    let told = two.client().get("/status").json()["devices"].clone();
    let tasks: Vec<u64> = told.as_array().unwrap().iter().map(|device| device["tasks"].as_u64().unwrap()).collect();
    assert!(tasks.len() == 2 && tasks.iter().all(|tasks| *tasks > 5) && tasks.iter().sum::<u64>() == 54, "{told}");
}

#[test]
fn an_engine_that_ends_hands_its_prompt_on_and_the_last_one_tells() {
    let written = Written::on(3);
    let (ids, end) = written.write(Some(deadly(0, fails)));
    assert!(!ids.is_empty() && end.is_ok(), "{ids:?}, {end:?}");
    assert_eq!(written.write(Some(deadly(1, fails))), (ids.clone(), end.clone()), "the second engine draws what the first would have");
    until(|| written.lost() == 1);
    let health = written.client().get("/health");
    assert_eq!((health.status, &health.json()["devices"]), (200, &json!({"all": 3, "working": 2})));
    assert_eq!(written.write(Some(deadly(2, fails))), (Vec::new(), Err(Failure::DeviceLost)), "once, and no more");
    assert_eq!((written.lost(), written.client().get("/health").status), (3, 503));
    let refused = written.client().post("/v1/completions", &ask(1));
    assert_eq!((refused.status, refused.code().as_str()), (503, "device_lost"));
    assert!(written.handle.as_ref().unwrap().is_lost());
    assert_eq!(Outcome::ALL.map(|outcome| written.ledger.ended(outcome)), [2, 1, 0, 0]);
}

#[test]
fn an_engine_that_hangs_is_given_up_while_another_works() {
    let written = Written::on(2);
    let expected = written.write(Some(deadly(0, hangs)));
    let began = Instant::now();
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while written.lost() == 0 {
                assert!(began.elapsed() < Duration::from_secs(30), "it is not given up");
                written.model.watch(Duration::from_millis(200));
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        assert_eq!(written.write(Some(deadly(1, hangs))), expected);
        watch.join().unwrap();
    });
    // The other one is kept, whatever it does.
    written.model.watch(Duration::ZERO);
    assert_eq!((written.lost(), written.write(Some(deadly(0, hangs)))), (1, expected));
    assert_eq!(Outcome::ALL.map(|outcome| written.ledger.ended(outcome)), [3, 0, 0, 0]);
}
