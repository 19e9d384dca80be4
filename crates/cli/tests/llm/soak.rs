//! Random load on the engine: requests come, share prefixes, are given up and run out of time, while adapters come, go and are replaced. Each answer
//! is the one that its request gets alone, and whatever was taken for it is given back.
//!
//! `TRIFUSE_SOAK_REQUESTS` says how many there are in place of a few hundred.

use std::collections::HashMap;
use std::sync::Arc;

use libtest_mimic::Trial;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use trifuse::DType;
use trifuse::adapters::encoded::Population;
use trifuse::backend::Backend;
use trifuse::llm::engine::{Engine, Output};
use trifuse::llm::schedule::Finish;
use trifuse::llm::step::RequestId;

use super::coming::open;
use super::engine::{Answer, Arrival, adapters, assert_same, each_alone, requests, roomy, tiny};

/// Requests that differ; each is asked for many times.
const DISTINCT: usize = 64;
/// The adapters' contents, and the names that lead to one of them at a time.
const CONTENTS: [&str; 3] = ["low", "high", "other"];
const NAMES: [&str; 4] = ["first", "second", "third", "fourth"];
/// A type whose sums show the order that they were added up in.
const DTYPE: DType = DType::F16;
/// The most requests that are under way, more than there are seats.
const UNDER_WAY: usize = 40;

pub fn trials<D: Backend>(device: &Arc<D>) -> Vec<Trial> {
    let device = device.clone();
    vec![Trial::test("engine: under random load each answer is the one that its request gets alone", move || {
        random_load(&device);
        Ok(())
    })]
}

/// A request under way: which of the distinct ones it is, and its tokens so far with the bits of their log-probabilities.
struct UnderWay {
    which: usize,
    tokens: Vec<(u32, u64)>,
}

/// What became of all requests.
#[derive(Debug, Default)]
struct Ends {
    whole: usize,
    given_up: usize,
    late: usize,
    cached: usize,
    preempted: usize,
}

/// The load, and the engine under it.
struct Load<'a, D: Backend> {
    engine: Engine<D>,
    random: ChaCha8Rng,
    population: Population,
    distinct: &'a [Arrival],
    alone: &'a [Answer],
    /// The content that each name leads to.
    names: [Option<usize>; NAMES.len()],
    under_way: HashMap<RequestId, UnderWay>,
    ends: Ends,
}

impl<D: Backend> Load<'_, D> {
    /// Has a name lead to another content, or to none.
    fn rename(&mut self) {
        let name = self.random.random_range(0..NAMES.len());
        if self.names[name].take().is_some() {
            self.engine.remove_adapter(NAMES[name]).unwrap();
        }
        if self.random.random_bool(0.8) {
            let content = self.random.random_range(0..CONTENTS.len());
            self.engine.add_adapter(NAMES[name], self.population.adapters[CONTENTS[content]].clone()).unwrap();
            self.names[name] = Some(content);
        }
    }

    /// Asks for one of the distinct requests, unless no name leads to its adapter.
    fn ask(&mut self, step: u64) -> bool {
        let which = self.random.random_range(0..self.distinct.len());
        let mut request = self.distinct[which].1.clone();
        if let Some(content) = &request.adapter {
            let leads = |held: &Option<usize>| held.is_some_and(|held| CONTENTS[held] == content);
            let Some(name) = self.names.iter().position(leads) else { return false };
            request.adapter = Some(NAMES[name].into());
        }
        if self.random.random_bool(0.05) {
            request.deadline = Some(step + self.random.random_range(1..8));
        }
        let id = self.engine.submit(request).unwrap();
        self.under_way.insert(id, UnderWay { which, tokens: Vec::new() });
        true
    }

    /// Gives one up that is under way.
    fn give_up(&mut self) {
        let mut ids: Vec<RequestId> = self.under_way.keys().copied().collect();
        ids.sort_unstable();
        let id = ids[self.random.random_range(0..ids.len())];
        let finished = self.engine.finish(id, Finish::Cancelled).unwrap().unwrap();
        assert_eq!(finished.reason, Finish::Cancelled);
        let ended = self.under_way.remove(&id).unwrap();
        self.ends.given_up += 1;
        self.is_begun(&ended);
    }

    /// What came of a request that ended early is how its answer begins.
    fn is_begun(&self, ended: &UnderWay) {
        let mut wanted = self.alone[ended.which].clone();
        assert!(ended.tokens.len() <= wanted.tokens.len());
        wanted.tokens.truncate(ended.tokens.len());
        let found = Answer { tokens: ended.tokens.clone(), ..wanted.clone() };
        assert_same(&[found], &[wanted], "begun");
    }

    /// Takes what a step told.
    fn take(&mut self, output: Output) {
        match output {
            Output::Prompt { .. } => panic!("nobody asked"),
            Output::Token { request, choice } => {
                // What was given up is told of no more.
                self.under_way.get_mut(&request).unwrap().tokens.push((choice.token, choice.log_probability.to_bits()));
            }
            Output::Ended { finished, error } => {
                let ended = self.under_way.remove(&finished.request).unwrap();
                self.ends.cached += usize::from(finished.cached > 0);
                self.ends.preempted += usize::from(finished.preemptions > 0);
                if finished.reason == Finish::Deadline {
                    self.ends.late += 1;
                    return self.is_begun(&ended);
                }
                self.ends.whole += 1;
                let found = Answer { tokens: ended.tokens, finished, error };
                assert_same(&[found], std::slice::from_ref(&self.alone[ended.which]), "under load");
            }
        }
    }

    /// Runs `count` requests to their ends.
    fn run(&mut self, count: usize) {
        let (mut asked, mut outputs) = (0, Vec::new());
        for step in 0.. {
            // Bursts, and pauses in which the engine runs empty.
            for _ in 0..self.random.random_range(0..5) {
                if step % 97 < 80 && asked < count && self.under_way.len() < UNDER_WAY {
                    asked += usize::from(self.ask(step));
                }
            }
            if self.random.random_bool(0.05) {
                self.rename();
            }
            if !self.under_way.is_empty() && self.random.random_bool(0.08) {
                self.give_up();
            }
            self.engine.step(step, &mut outputs).unwrap();
            for output in outputs.drain(..) {
                self.take(output);
            }
            if asked == count && self.engine.is_idle() {
                break;
            }
        }
        assert!(self.under_way.is_empty());
    }
}

fn random_load<D: Backend>(device: &Arc<D>) {
    let count = std::env::var("TRIFUSE_SOAK_REQUESTS").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let tiny = tiny(0);
    let mut distinct = requests(DISTINCT, 90, true, 99);
    // Half of them begin as one of the others does, so that their pages are found.
    for number in 0..DISTINCT / 2 {
        let begun = distinct[number].1.prompt.clone();
        distinct[DISTINCT - 1 - number].1.prompt.splice(0..0, begun);
    }
    let alone = each_alone(DTYPE, device, &tiny, &distinct, true);
    // A request of 190 tokens takes 24 pages of 8, and there are 60.
    let page_bytes = 2 * tiny.files.config.key() * DTYPE.size() * tiny.files.config.layers as u64 * 8;
    let options = roomy().with_seats(12).with_budget(96).with_cache_bytes(60 * page_bytes).with_context(Some(240)).with_reserve(4);
    let engine = open(DTYPE, device, &tiny, options);
    let free = engine.usage().free_pages;
    let population = adapters(&tiny.files.config);
    let random = ChaCha8Rng::seed_from_u64(count as u64);
    let mut load = Load { engine, random, population, distinct: &distinct, alone: &alone, names: [None; 4], under_way: HashMap::new(), ends: Ends::default() };
    load.run(count);
    let (ends, usage) = (load.ends, load.engine.usage());
    println!("{count} requests on {}: {ends:?}, {} plans", device.caps().name, load.engine.plans_made());
    assert_eq!(ends.whole + ends.given_up + ends.late, count);
    assert!(ends.whole > count / 2 && ends.given_up > 0 && ends.late > 0 && ends.cached > 0 && ends.preempted > 0, "{ends:?}");
    assert_eq!((usage.running, usage.waiting, usage.used_pages, usage.free_pages), (0, 0, 0, free));
}
