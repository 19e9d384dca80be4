//! Answers that are held to a grammar, beside others that are not.

use std::sync::Arc;

use libtest_mimic::Trial;
use trifuse::backend::Backend;
use trifuse::llm::engine::Request;
use trifuse::llm::sample::SamplingParams;
use trifuse::llm::schedule::Finish;
use trifuse::llm::{Grammar, Rule};
use trifuse::{Error, Result};

use super::engine::{Arrival, assert_same, engine, roomy, serve, tiny};
use super::tiny::VOCABULARY;

pub fn trials<D: Backend>(device: &Arc<D>) -> Vec<Trial> {
    let device = device.clone();
    let test = move || {
        held(&device);
        Ok(())
    };
    vec![Trial::test("engine: an answer is held to its grammar, and others are as they were", test)]
}

/// Every token leaves the same rest by `of` as the place where it stands; behind `most` tokens nothing may come.
#[derive(Clone, Copy, Debug)]
struct Remainders {
    of: u32,
    most: u32,
}

impl Grammar for Remainders {
    fn begin(&self) -> Result<Box<dyn Rule>> {
        if self.of == 0 { Err(Error::invalid("grammar", "one with an answer", "none")) } else { Ok(Box::new(Counting { grammar: *self, place: 0 })) }
    }
}

struct Counting {
    grammar: Remainders,
    place: u32,
}

impl Rule for Counting {
    fn allow(&mut self, mask: &mut [u32]) -> Result<()> {
        let Remainders { of, most } = self.grammar;
        assert!(mask.iter().all(|word| *word == 0));
        if self.place >= most {
            return Err(Error::invalid("grammar", "an answer that has ended", "one that goes on"));
        }
        (0..VOCABULARY as u32).filter(|id| id % of == self.place % of).for_each(|id| mask[id as usize / 32] |= 1 << (id % 32));
        Ok(())
    }

    fn push(&mut self, token: u32) -> Result<()> {
        assert_eq!(token % self.grammar.of, self.place % self.grammar.of);
        self.place += 1;
        Ok(())
    }
}

fn held<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    let mut engine = engine(device, &tiny, roomy(), false);
    // Drawn by the device, and on the host, which knows the tokens before; greedy and not; enough of them for several threads.
    let request = |number: usize| {
        let sampling = SamplingParams { temperature: [0.0, 1.0][number % 2], seed: number as u64, ..SamplingParams::default() };
        let sampling = if number % 3 == 2 { SamplingParams { repetition: 1.2, ..sampling } } else { sampling };
        Request::new((0..10 + number as u32).collect(), 12).with_sampling(sampling)
    };
    let free: Vec<Arrival> = (0..6).map(|number| (0, request(number))).collect();
    let wanted = serve(&mut engine, &free);
    let grammar = |of: u32, most: u32| -> Option<Arc<dyn Grammar>> { Some(Arc::new(Remainders { of, most })) };
    let ruled = (0..12).map(|number| (number % 3, request(number).with_grammar(grammar(3 + number as u32 % 4, 100))));
    let found = serve(&mut engine, &free.iter().cloned().chain(ruled.clone()).collect::<Vec<Arrival>>());
    assert_same(&found[..6], &wanted, "beside answers that are held");
    for (number, answer) in found[6..].iter().enumerate() {
        let of = 3 + number as u32 % 4;
        assert_eq!((answer.tokens.len(), answer.finished.reason), (12, Finish::Length));
        assert!(answer.ids().iter().zip(0..).all(|(id, place)| id % of == place % of), "{:?} by {of}", answer.ids());
    }
    // The same in parts, and the same again: a rule goes on where its answer does.
    let again = serve(&mut engine, &ruled.collect::<Vec<Arrival>>());
    assert_same(&again, &found[6..], "alone");
    // A rule that fails ends its own answer, where it failed; one that has no answer is refused.
    let mut some = free.clone();
    some.push((0, request(1).with_grammar(grammar(2, 5))));
    let found = serve(&mut engine, &some);
    assert_same(&found[..6], &wanted, "beside one that fails");
    let failed = &found[6];
    assert_eq!((failed.tokens.len(), failed.finished.reason), (5, Finish::Error));
    assert!(failed.error.as_ref().is_some_and(|error| error.contains("one that goes on")), "{failed:?}");
    assert!(engine.submit(request(0).with_grammar(grammar(0, 1))).is_err());
}
