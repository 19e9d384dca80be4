//! A long answer has no pause. Time on a machine that others use proves nothing, so what is counted is what a pause would come from: steps that bring no
//! token, and plans that are made while an answer is written.

use std::sync::Arc;

use libtest_mimic::Trial;
use trifuse::backend::Backend;
use trifuse::llm::engine::{Engine, EngineOptions, Output, Request};

use super::engine::{engine, tiny};
use super::support::on_device;
use super::tiny::VOCABULARY;

const PROMPT: usize = 37;
const ANSWER: usize = 256;
const PAGE: usize = 8;

pub fn trials<D: Backend>(device: &Arc<D>) -> Vec<Trial> {
    on_device(device, [("steady: each step of a long answer brings its token, and few make plans", each_step_brings_a_token)])
}

/// What a step did: the tokens that it told of, and whether plans were made for it.
type Done = (usize, bool);

/// The steps of one answer. A salt of its own keeps it from the pages of those before.
fn steps<D: Backend>(engine: &mut Engine<D>, salt: u8) -> Vec<Done> {
    let prompt = (0..PROMPT as u32).map(|at| at * at % VOCABULARY as u32).collect();
    engine.submit(Request::new(prompt, ANSWER).with_salt(Some(vec![salt]))).unwrap();
    let (mut steps, mut outputs) = (Vec::new(), Vec::new());
    while !engine.is_idle() {
        assert!(steps.len() < 2 * ANSWER, "no end of {steps:?}");
        let made = engine.plans_made();
        engine.step(steps.len() as u64, &mut outputs).unwrap();
        let tokens = outputs.drain(..).filter(|output| matches!(output, Output::Token { .. })).count();
        steps.push((tokens, engine.plans_made() > made));
    }
    steps
}

fn each_step_brings_a_token<D: Backend>(device: &Arc<D>) {
    for invariant in [false, true] {
        let tiny = tiny(0);
        let options = EngineOptions::default().with_page(PAGE as u32).with_cache_bytes(8 << 20).with_seats(2).with_budget(64);
        let mut engine = engine(device, &tiny, options.with_invariant(invariant), false);
        for salt in 0..2 {
            let steps = steps(&mut engine, salt);
            // The prompt is read in one step. Where the next step is launched first, what is launched behind the last token tells of none.
            let told: Vec<usize> = steps.iter().map(|step| step.0).collect();
            assert!(told[..ANSWER].iter().all(|tokens| *tokens == 1), "a step without its token: {told:?}");
            assert_eq!(told.iter().sum::<usize>(), ANSWER);
            let made: Vec<usize> = steps.iter().enumerate().filter(|(_, step)| step.1).map(|(number, _)| number).collect();
            if salt > 0 {
                assert_eq!(made, [0usize; 0], "the second answer waits for plans");
                continue;
            }
            // A shape for the prompt and one for the first token behind it; then one whenever the pages of a text have doubled.
            let doubled = ((PROMPT + ANSWER).div_ceil(PAGE).next_power_of_two() / PROMPT.div_ceil(PAGE).next_power_of_two()).ilog2() as usize;
            assert!(made.len() <= 2 + doubled, "plans are made in the steps {made:?}");
        }
    }
}
