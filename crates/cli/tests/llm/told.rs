//! How probable a prompt's tokens were: the same whether it is computed whole, in parts, beside others, or behind one that is cached.

use std::sync::Arc;

use libtest_mimic::Trial;
use trifuse::DType;
use trifuse::backend::Backend;
use trifuse::llm::Model;
use trifuse::llm::engine::{Engine, Output, Request};
use trifuse::llm::sample::{Choice, describe};

use super::engine::{engine, roomy, tiny};
use super::tiny::VOCABULARY;

pub fn trials<D: Backend>(device: &Arc<D>) -> Vec<Trial> {
    let device = device.clone();
    let test = move || {
        told(&device);
        Ok(())
    };
    vec![Trial::test("engine: a prompt's tokens are told of, however it is computed", test)]
}

/// What is told of the prompts of these requests, and how many tokens each draws.
fn ask<D: Backend>(engine: &mut Engine<D>, requests: Vec<Request>) -> Vec<(Vec<Choice>, usize)> {
    let ids: Vec<_> = requests.into_iter().map(|request| engine.submit(request).unwrap()).collect();
    let (mut all, mut outputs) = (vec![(Vec::new(), 0); ids.len()], Vec::new());
    let place = |request| ids.iter().position(|id| *id == request).unwrap();
    while !engine.is_idle() {
        engine.step(0, &mut outputs).unwrap();
        for output in outputs.drain(..) {
            match output {
                Output::Prompt { request, choices } => {
                    assert_eq!(all[place(request)].1, 0, "before the first token");
                    all[place(request)].0.extend(choices);
                }
                Output::Token { request, .. } => all[place(request)].1 += 1,
                Output::Ended { error, .. } => assert_eq!(error, None),
            }
        }
    }
    all
}

fn told<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    let prompts: Vec<Vec<u32>> = [1usize, 2, 40, 61].iter().map(|length| (0..*length as u32).map(|at| (at * 37 + 5) % VOCABULARY as u32).collect()).collect();
    let mut model = Model::open(device.clone(), &tiny.files, DType::F32).unwrap();
    let mut wanted = Vec::new();
    for prompt in &prompts {
        let mut context = model.context(prompt.len()).unwrap();
        let logits = model.run(&mut context, prompt, prompt.len()).unwrap();
        let rows = logits.chunks_exact(VOCABULARY).zip(&prompt[1..]);
        wanted.push(rows.map(|(logits, next)| describe(logits, *next, 3)).collect::<Vec<Choice>>());
    }
    let request = |prompt: &Vec<u32>| Request::new(prompt.clone(), 3);
    for (how, options) in [
        ("whole", roomy()),
        ("in parts of 7", roomy().with_seats(2).with_budget(7)),
        ("one token at a time", roomy().with_seats(1).with_budget(1)),
        ("with few pages", roomy().with_seats(4).with_cache_bytes(1 << 16)),
    ] {
        let mut engine = engine(device, &tiny, options, false);
        // A prompt that is cached is computed all the same, and others beside it are told nothing.
        ask(&mut engine, vec![request(&prompts[3])]);
        let mut requests: Vec<Request> = prompts.iter().map(|prompt| request(prompt).with_prompt_logprobs(Some(3))).collect();
        requests.push(request(&prompts[2]));
        let found = ask(&mut engine, requests);
        assert_eq!(found[4], (Vec::new(), 3), "{how}");
        for (prompt, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
            assert_eq!((found.0.len(), found.1), (prompts[prompt].len() - 1, 3), "{how}: prompt {prompt}");
            for (place, (found, wanted)) in found.0.iter().zip(wanted).enumerate() {
                assert_eq!((found.token, found.top.len()), (wanted.token, 3), "{how}");
                let off = (found.log_probability - wanted.log_probability).abs();
                assert!(off < 1e-4, "{how}: prompt {prompt}, token {place}: off by {off}");
            }
        }
    }
}
