//! Pages that hold latents of keys and values: the answers of the same model with keys and values in its pages, in less memory.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use libtest_mimic::Trial;
use serde_json::Value;
use trifuse::DType;
use trifuse::adapters::bundle::to_bytes;
use trifuse::adapters::encoded::Population;
use trifuse::adapters::engine::ForModel;
use trifuse::backend::Backend;
use trifuse::llm::engine::{Engine, EngineOptions, Request};
use trifuse::llm::{Config, Files, Model};

use super::engine::{Tiny, adapters, alone_in, assert_same, requests, roomy, serve, tiny_of};
use super::support::{Test, on_device};
use super::tiny::{VOCABULARY, kinds, latents};

pub fn trials<D: Backend>(device: &Arc<D>) -> Vec<Trial> {
    let tests: [Test<D>; 4] = [
        ("latent: answers are those of the same model with keys and values in its pages", as_with_keys),
        ("latent: a request in any batch, in parts, from the cache and preempted has the bits that it has alone", in_any_batch),
        ("latent: adapters that leave k and v serve, others are refused", adapted),
        ("latent: adapters of k and v serve where the padding carries their bases", filled),
    ];
    on_device(device, tests)
}

/// The trials of the command.
pub fn commands() -> Vec<Trial> {
    let trial = Trial::test("shrink --latent, repair and eval, as a user runs them", || {
        as_a_user();
        Ok(())
    });
    vec![trial.with_kind("command")]
}

/// An engine of a model, whose pages hold latents or not.
fn open<D: Backend>(device: &Arc<D>, tiny: &Tiny, options: EngineOptions, latent: bool, population: Option<Population>) -> Engine<D> {
    let config = Config { latent, ..tiny.files.config.clone() };
    let model = Model::new(device.clone(), config, tiny.files.weights.as_ref(), DType::F32).unwrap();
    assert_eq!(model.config().latent, latent);
    Engine::new(model, options, population.map(|population| Box::new(population) as Box<_>)).unwrap()
}

fn as_with_keys<D: Backend>(device: &Arc<D>) {
    for kind in latents() {
        let tiny = tiny_of(&kind);
        let arrivals = requests(6, 60, false, 5);
        let [latent, keys] = [true, false].map(|latent| serve(&mut open(device, &tiny, roomy(), latent, None), &arrivals));
        for (latent, keys) in latent.iter().zip(&keys) {
            assert_eq!((latent.error.as_ref(), latent.ids()), (None, keys.ids()));
            let off = |a: &(u32, u64), b: &(u32, u64)| (f64::from_bits(a.1) - f64::from_bits(b.1)).abs();
            assert!(latent.tokens.iter().zip(&keys.tokens).all(|(a, b)| off(a, b) < 1e-4));
        }
    }
}

fn in_any_batch<D: Backend>(device: &Arc<D>) {
    for kind in [0, 3] {
        let tiny = tiny_of(&latents()[kind]);
        let open = |options: EngineOptions| open(device, &tiny, options, true, None);
        let arrivals = requests(12, 60, false, 11);
        let alone = alone_in(&mut open(roomy()), &arrivals);
        assert_same(&serve(&mut open(roomy()), &arrivals), &alone, "together");
        assert_same(&serve(&mut open(roomy().with_seats(3).with_budget(40)), &arrivals), &alone, "three at a time, in parts");
        // What was computed before is taken from its pages, which two requests share.
        let prompt: Vec<u32> = (0..41).map(|at| at * 37 % VOCABULARY as u32).collect();
        let mut engine = open(roomy());
        let first = serve(&mut engine, &[(0, Request::new(prompt.clone(), 6))]).remove(0);
        let again = serve(&mut engine, &[(0, Request::new(prompt.clone(), 6)), (0, Request::new(prompt.clone(), 6))]);
        assert!(again.iter().all(|answer| answer.finished.cached == 40));
        assert_same(&again, &[first.clone(), first], "from the cache");
        // A request of 80 tokens takes 10 pages of 8, and there are not 40.
        let arrivals: Vec<_> = (0..4u32).map(|number| (0, Request::new((0..20).map(|at| (at * 31 + number * 7) % VOCABULARY as u32).collect(), 60))).collect();
        let alone = alone_in(&mut open(roomy()), &arrivals);
        let few = serve(&mut open(roomy().with_cache_bytes(13 * 8 * 1200)), &arrivals);
        assert!(few.iter().map(|answer| answer.finished.preemptions).sum::<u32>() > 0, "the pages are too many");
        assert_same(&few, &alone, "preempted");
    }
}

/// The tests' adapters without their parts of k and v.
fn without_keys(config: &Config) -> Population {
    let mut population = adapters(config);
    let leaves = |path: &String| !(path.ends_with("k_proj") || path.ends_with("v_proj"));
    population.projections.retain(|path, _| leaves(path));
    population.adapters.values_mut().for_each(|adapter| adapter.projections.retain(|path, _| leaves(path)));
    population
}

fn adapted<D: Backend>(device: &Arc<D>) {
    let tiny = tiny_of(&latents()[2]);
    let config = &tiny.files.config;
    let arrivals = requests(10, 60, true, 7);
    let [latent, keys] = [true, false].map(|latent| serve(&mut open(device, &tiny, roomy(), latent, Some(without_keys(config))), &arrivals));
    for (latent, keys) in latent.iter().zip(&keys) {
        assert_eq!((latent.error.as_ref(), latent.ids()), (None, keys.ids()));
    }
    let model = Model::open(device.clone(), &tiny.files, DType::F32).unwrap();
    let error = Engine::new(model, roomy(), Some(Box::new(adapters(config)))).unwrap_err().to_string();
    assert!(error.contains("leave k and v") && error.contains("self_attn.k_proj"), "{error}");
    let source = ForModel::new(None, (0..config.layers).flat_map(|layer| config.projections(layer)));
    let mut engine = Engine::new(Model::open(device.clone(), &tiny.files, DType::F32).unwrap(), roomy(), Some(Box::new(source))).unwrap();
    assert!(engine.add_adapter("low", adapters(config).adapters["low"].clone()).unwrap_err().to_string().contains("leave k and v"));
    engine.add_adapter("low", without_keys(config).adapters["low"].clone()).unwrap();
}

/// A model whose padding carries the bases of `low` and `other`, with latents and with keys and values in its pages.
fn filled<D: Backend>(device: &Arc<D>) {
    for kind in [0, 2] {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        std::fs::create_dir(at("model")).unwrap();
        latents()[kind].write(&at("model"));
        let mut population = super::filled::population(&Files::open(&at("model")).unwrap().config);
        population.adapters.remove("high");
        std::fs::write(at("all.s2lc"), to_bytes(&population).unwrap()).unwrap();
        let done = super::filled::repair(&at("model"), &at("filled"), &["--fill", at("all.s2lc").to_str().unwrap()]);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let files = Files::open(&at("filled")).unwrap();
        let tiny = Tiny::new(files, place);
        let arrivals: Vec<_> = requests(8, 50, true, 9)
            .into_iter()
            .map(|(step, request)| {
                let adapter = request.adapter.clone().filter(|name| name != "high");
                (step, request.with_adapter(adapter))
            })
            .collect();
        assert!(arrivals.iter().any(|(_, request)| request.adapter.is_some()) && arrivals.iter().any(|(_, request)| request.adapter.is_none()));
        let of = |latent: bool, options| open(device, &tiny, options, latent, Some(population.clone()));
        let [latent, keys] = [true, false].map(|latent| serve(&mut of(latent, roomy()), &arrivals));
        for (latent, keys) in latent.iter().zip(&keys) {
            assert_eq!((latent.error.as_ref(), latent.ids()), (None, keys.ids()));
            let off = |a: &(u32, u64), b: &(u32, u64)| (f64::from_bits(a.1) - f64::from_bits(b.1)).abs();
            assert!(latent.tokens.iter().zip(&keys.tokens).all(|(a, b)| off(a, b) < 1e-4));
        }
        assert_same(&latent, &alone_in(&mut of(true, roomy().with_budget(40)), &arrivals), "alone, in parts");
        let base: Vec<_> = arrivals.iter().map(|(step, request)| (*step, request.clone().with_adapter(None::<String>))).collect();
        let base = serve(&mut of(true, roomy()), &base);
        assert!(latent.iter().zip(&base).zip(&arrivals).all(|((with, without), (_, request))| request.adapter.is_none() || with.tokens != without.tokens));
    }
}

fn trifuse(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trifuse")).args(arguments).args(["--backend", "cpu"]).env_remove("TRIFUSE_BACKEND").output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = trifuse(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn as_a_user() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (model, text) = (at("model"), at("text.txt"));
    std::fs::create_dir(&model).unwrap();
    kinds()[1].write(Path::new(&model));
    let words: Vec<String> = (0..1500u32).map(|at| format!("t{}", (at * at * 7 + at * 3) % VOCABULARY as u32)).collect();
    std::fs::write(&text, words.join(" ")).unwrap();
    let common = ["shrink", &model, "--latent", "--calibrate", &text, "--window", "50", "--tokens", "600", "--probe", "50", "--held-out", "50", "--json"];
    let shrunk = json(&[&common[..], &["-o", &at("latent"), "--keep", "0.7"]].concat());
    // Four heads of 24 are 96 columns of k, and of v, in both layers.
    let ranks = shrunk["ranks"].as_object().unwrap();
    let kept: u64 = ranks.values().map(|rank| rank.as_u64().unwrap()).sum();
    assert_eq!((ranks.len(), shrunk["budget"].as_u64(), shrunk["cost"].as_u64()), (4, Some(268), Some(kept)));
    assert!(kept <= 268 && kept > 260, "{shrunk}");
    let repaired = json(&["repair", &at("latent"), "-o", &at("repaired"), "--to", "8", "--json"]);
    assert_eq!(repaired["factored"], 4);
    for name in ["latent", "repaired"] {
        assert!(Files::open(Path::new(&at(name))).unwrap().config.latent, "{name}");
    }
    // The same factors with keys and values in pages.
    std::fs::create_dir(at("keys")).unwrap();
    for entry in std::fs::read_dir(at("latent")).unwrap().flatten() {
        std::fs::copy(entry.path(), Path::new(&at("keys")).join(entry.file_name())).unwrap();
    }
    let path = Path::new(&at("keys")).join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((config["low_rank"]["latent"].as_bool(), config["low_rank"]["budget"]["of"].as_str()), (Some(true), Some("cache")));
    config["low_rank"]["latent"] = false.into();
    std::fs::write(&path, config.to_string()).unwrap();
    let all = [at("latent"), at("repaired"), at("keys")];
    let named: Vec<&str> = all.iter().flat_map(|name| ["--model", name.as_str()]).collect();
    let table = json(&[&["eval", "--baseline-model", &model, "--window", "64", "--windows", "3", "--dtype", "f32", "--json", &text][..], &named].concat());
    let nats = |row: usize| table["ppl"][row]["nll"].as_f64().unwrap();
    assert!((nats(0) - nats(2)).abs() < 1e-5 && (nats(1) - nats(2)).abs() < 1e-4, "{table}");
    assert!(table["ppl"][0]["kl_mean"].as_f64().unwrap() > 1e-6);
    for (more, part) in [(&["--ranks", "nearest:8"][..], "budget of pages"), (&["--leave", "k_proj"], "--leave"), (&["--dense"], "--dense")] {
        let run = trifuse(&[&common[..], &["-o", &at("none"), "--keep", "0.7"], more].concat());
        let told = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(!run.status.success() && told.contains(part), "{more:?}: {told}");
    }
}
