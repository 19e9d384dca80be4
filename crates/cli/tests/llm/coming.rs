//! Adapters that come, go and are replaced while the engine runs: each request keeps what it began with.

use std::sync::Arc;

use libtest_mimic::Trial;
use trifuse::adapters::encoded::{EncodedAdapter, Population};
use trifuse::adapters::engine::ForModel;
use trifuse::backend::Backend;
use trifuse::llm::Model;
use trifuse::llm::engine::{Engine, EngineOptions, Output, Request, Service};
use trifuse::{DType, Result};

use super::engine::{Answer, Tiny, adapters, assert_same, engine, roomy, serve, tiny};

pub fn trials<D: Backend>(device: &Arc<D>) -> Vec<Trial> {
    let run = |test: fn(&Arc<D>)| {
        let device = device.clone();
        move || {
            test(&device);
            Ok(())
        }
    };
    vec![
        Trial::test("engine: adapters come, go and are replaced, and each request keeps its own", run(while_requests_run)),
        Trial::test("engine: on a thread of its own it takes adapters and forgets them", run(on_a_thread)),
    ]
}

/// An engine of no adapters that takes any.
pub fn open<D: Backend>(dtype: DType, device: &Arc<D>, tiny: &Tiny, options: EngineOptions) -> Engine<D> {
    let config = &tiny.files.config;
    let source = ForModel::new(None, (0..config.layers).flat_map(|layer| config.projections(layer)));
    Engine::new(Model::open(device.clone(), &tiny.files, dtype).unwrap(), options, Some(Box::new(source))).unwrap()
}

fn ask(first: u32, adapter: Option<&str>) -> Request {
    Request::new((first..first + 20).collect(), 24).with_adapter(adapter.map(str::to_owned))
}

/// What each adapter answers where all were there from the start.
fn alone<D: Backend>(device: &Arc<D>, tiny: &Tiny, adapter: Option<&str>) -> Answer {
    serve(&mut engine(device, tiny, roomy(), true), &[(0, ask(3, adapter))]).remove(0)
}

/// Computes `steps` steps.
fn steps<D: Backend>(engine: &mut Engine<D>, steps: usize, outputs: &mut Vec<Output>) {
    for _ in 0..steps {
        engine.step(0, outputs).unwrap();
    }
}

/// The tokens, and the end, of the only request among `outputs` that has this number.
fn answer(outputs: &[Output], of: trifuse::llm::step::RequestId) -> Answer {
    let (mut tokens, mut end) = (Vec::new(), None);
    for output in outputs {
        match output {
            Output::Token { request, choice } if *request == of => tokens.push((choice.token, choice.log_probability.to_bits())),
            Output::Ended { finished, error } if finished.request == of => end = Some((*finished, error.clone())),
            _ => {}
        }
    }
    let (finished, error) = end.unwrap();
    Answer { tokens, finished, error }
}

fn while_requests_run<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    let Population { adapters, .. } = adapters(&tiny.files.config);
    let of = |name: &str| -> EncodedAdapter { adapters[name].clone() };
    let wanted = [None, Some("low"), Some("high"), Some("other")].map(|name| alone(device, &tiny, name));
    assert!((0..4).all(|a| (0..a).all(|b| wanted[a].tokens != wanted[b].tokens)), "the adapters differ");
    let mut engine = open(DType::F32, device, &tiny, roomy().with_reserve(1));
    let mut outputs = Vec::new();
    assert!(engine.submit(ask(3, Some("low"))).is_err(), "there is none yet");
    let base = engine.submit(ask(3, None)).unwrap();
    steps(&mut engine, 4, &mut outputs);
    // The first of its form; another of that form, within the reserve; one of another form.
    engine.add_adapter("low", of("low")).unwrap();
    assert!(engine.add_adapter("low", of("other")).is_err(), "the name is taken");
    let low = engine.submit(ask(3, Some("low"))).unwrap();
    steps(&mut engine, 4, &mut outputs);
    engine.add_adapter("other", of("other")).unwrap();
    let other = engine.submit(ask(3, Some("other"))).unwrap();
    steps(&mut engine, 4, &mut outputs);
    engine.add_adapter("high", of("high")).unwrap();
    let high = engine.submit(ask(3, Some("high"))).unwrap();
    steps(&mut engine, 4, &mut outputs);
    // Gone while a request has it, and back under its name with another content, also for a request that still waits.
    engine.remove_adapter("low").unwrap();
    assert!(engine.remove_adapter("low").is_err() && engine.submit(ask(3, Some("low"))).is_err());
    engine.add_adapter("low", of("other")).unwrap();
    let again = engine.submit(ask(3, Some("low"))).unwrap();
    while !engine.is_idle() {
        engine.step(0, &mut outputs).unwrap();
    }
    let found = [base, low, high, other].map(|request| answer(&outputs, request));
    assert_same(&found, &wanted, "while adapters come");
    assert_same(&[answer(&outputs, again)], &wanted[3..], "another content, and no prefix of the one before");
    // Long rows of them: what goes makes room for what comes.
    for round in 0..6 {
        let name = format!("round {round}");
        engine.add_adapter(&name, of(["low", "high", "other"][round % 3])).unwrap();
        let answer = serve(&mut engine, &[(0, ask(3, Some(&name)))]).remove(0);
        assert!(engine.is_resident(&name));
        assert_same(&[answer], &[wanted[1 + round % 3].clone()], &name);
        engine.remove_adapter(&name).unwrap();
        assert!(!engine.is_resident(&name));
    }
    assert_eq!(engine.adapters().collect::<Vec<_>>(), ["high", "low", "other"]);
    // An adapter of another model changes nothing.
    let mut stranger = of("low");
    stranger.projections = stranger.projections.into_iter().map(|(path, projection)| (path.replace("layers.0", "layers.99"), projection)).collect();
    assert!(engine.add_adapter("stranger", stranger).is_err());
    assert_same(&serve(&mut engine, &[(0, ask(3, Some("high")))]), &wanted[2..3], "after a stranger");
}

fn on_a_thread<D: Backend>(device: &Arc<D>) {
    let tiny = tiny(0);
    let Population { adapters, .. } = adapters(&tiny.files.config);
    let wanted = [None, Some("low")].map(|name| alone(device, &tiny, name));
    let service = Service::start(open(DType::F32, device, &tiny, roomy())).unwrap();
    let ids = |outputs: Vec<Result<Output>>| -> Vec<u32> {
        outputs.into_iter().filter_map(|output| if let Output::Token { choice, .. } = output.unwrap() { Some(choice.token) } else { None }).collect()
    };
    let long = service.stream(ask(3, None)).unwrap();
    service.add_adapter("low", adapters["low"].clone()).unwrap();
    assert!(service.add_adapter("low", adapters["low"].clone()).is_err());
    let low = service.stream(ask(3, Some("low"))).unwrap();
    service.remove_adapter("low").unwrap();
    assert!(service.remove_adapter("low").is_err());
    assert_eq!(ids(low.collect()), wanted[1].ids());
    assert_eq!(ids(long.collect()), wanted[0].ids());
    assert_eq!(service.are_resident(vec!["low".into()]).unwrap(), [false]);
    assert!(!service.is_lost());
    service.drain();
}
