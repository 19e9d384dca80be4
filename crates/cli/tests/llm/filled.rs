//! `repair --fill`: padding that carries the bases of adapters. The model answers as before, with adapters and without.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use libtest_mimic::Trial;
use trifuse::DType;
use trifuse::adapters::bundle::{Bundle, to_bytes};
use trifuse::adapters::encoded::{EncodedFactor, Population};
use trifuse::adapters::engine::{AdapterSource, ForModel};
use trifuse::backend::Backend;
use trifuse::llm::engine::{Engine, Request};
use trifuse::llm::{Config, Files, Model};

use super::engine::{adapters, roomy, serve};
use super::support::{Test, on_device};
use super::tiny::{VOCABULARY, kinds};

pub fn trials<D: Backend>(device: &Arc<D>) -> Vec<Trial> {
    let tests: [Test<D>; 2] = [
        ("filled: padding that carries bases changes no answer, with adapters and without", unchanged),
        ("filled: adapters of other bases, and those that come later, are served all the same", others),
    ];
    on_device(device, tests)
}

/// The trials of the command.
pub fn commands() -> Vec<Trial> {
    vec![
        Trial::test("repair --fill refuses adapters that share nothing, and factors that are filled", || {
            refused();
            Ok(())
        })
        .with_kind("command"),
    ]
}

/// The tests' adapters, `low` and `other` over two bases that they share in every projection, and `high` with inputs of its own.
pub fn population(config: &Config) -> Population {
    let mut population = adapters(config);
    for name in ["low", "other"] {
        for (path, projection) in &mut population.adapters.get_mut(name).unwrap().projections {
            let bases = &mut population.projections.get_mut(path).unwrap().input_bases;
            let EncodedFactor::Plain(basis) = std::mem::replace(&mut projection.input, EncodedFactor::Shared(bases.len())) else { panic!("a plain one") };
            bases.push(basis);
        }
    }
    population
}

pub fn repair(from: &Path, to: &Path, more: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trifuse"));
    command.arg("repair").arg(from).arg("-o").arg(to).args(["--to", "8", "--json"]).args(more).output().unwrap()
}

/// A tiny model with factors, the same filled with the bases of a bundle, and the bundle, in a folder.
fn prepared(kind: usize) -> (tempfile::TempDir, [Files; 2], Bundle) {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    std::fs::create_dir(at("model")).unwrap();
    kinds()[kind].write(&at("model"));
    let files = Files::open(&at("model")).unwrap();
    std::fs::write(at("all.s2lc"), to_bytes(&population(&files.config)).unwrap()).unwrap();
    let done = repair(&at("model"), &at("filled"), &["--fill", at("all.s2lc").to_str().unwrap()]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let told: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    let files = [files, Files::open(&at("filled")).unwrap()];
    let factored = files[0].config.with_ranks_of(files[0].weights.as_ref()).unwrap().ranks.iter().count();
    assert_eq!((told["filled"].as_u64(), told["factored"].as_u64()), (Some(factored as u64), Some(factored as u64)));
    for (path, rank) in files[1].config.ranks.iter() {
        let fill = files[1].config.fill(path).unwrap();
        // Two bases of three columns, behind the rank and in front of the stored one.
        assert!(fill.rows() == 6 && fill.at >= fill.rank && fill.at + 6 <= rank && rank % 8 == 0, "{path}: {fill:?} of {rank}");
    }
    let bundle = Bundle::open(at("all.s2lc")).unwrap();
    (place, files, bundle)
}

/// What each adapter answers to a prompt, with the logarithms of its tokens' probabilities.
fn answers<D: Backend>(engine: &mut Engine<D>) -> Vec<Vec<(u32, f64)>> {
    let prompt: Vec<u32> = (0..30).map(|at| at * at % VOCABULARY as u32).collect();
    let each = [None, Some("low"), Some("high"), Some("other")].map(|adapter| {
        let request = Request::new(prompt.clone(), 6).with_adapter(adapter.map(str::to_owned));
        let answer = serve(engine, &[(0, request)]).remove(0);
        assert_eq!(answer.error, None);
        answer.tokens.iter().map(|(token, bits)| (*token, f64::from_bits(*bits))).collect::<Vec<_>>()
    });
    each.into()
}

fn open<D: Backend>(device: &Arc<D>, files: &Files, source: Box<dyn AdapterSource>) -> Engine<D> {
    Engine::new(Model::open(device.clone(), files, DType::F32).unwrap(), roomy(), Some(source)).unwrap()
}

/// The same tokens, as probable to `most`.
fn assert_close(found: &[Vec<(u32, f64)>], wanted: &[Vec<(u32, f64)>], most: f64) {
    for (number, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        assert_eq!(found.len(), wanted.len());
        let off = found.iter().zip(wanted).map(|(a, b)| if a.0 == b.0 { (a.1 - b.1).abs() } else { f64::INFINITY }).fold(0.0, f64::max);
        assert!(off <= most, "adapter {number}: {off} off");
    }
}

fn unchanged<D: Backend>(device: &Arc<D>) {
    for kind in [8, 9] {
        let (_place, files, bundle) = prepared(kind);
        let ids: Vec<u32> = (0..40).map(|at| (at * 29 + 5) % VOCABULARY as u32).collect();
        let [plain, filled] = files.each_ref().map(|files| {
            let mut model = Model::open(device.clone(), files, DType::F32).unwrap();
            let mut context = model.context(64).unwrap();
            model.run(&mut context, &ids, ids.len()).unwrap()
        });
        let greatest = plain.iter().fold(0f32, |most, value| most.max(value.abs()));
        let off = plain.iter().zip(&filled).fold(0f32, |most, (a, b)| most.max((a - b).abs())) / greatest;
        // A product with more columns may be summed in another order.
        assert!(off < 1e-5, "{off} off without adapters");
        let [plain, filled] = files.each_ref().map(|files| answers(&mut open(device, files, Box::new(bundle.population().unwrap()))));
        assert!((0..4).all(|a| (0..a).all(|b| plain[a] != plain[b])), "the adapters differ");
        assert_close(&filled, &plain, 1e-4);
        // What only the product with the bases gives: without it the adapters are wrong.
        let change = |name: &str, values: &mut Vec<f32>| {
            if let Some(fill) = name.strip_suffix(".v.weight").and_then(|path| files[1].config.fill(path)) {
                let columns = values.len() / files[1].weights.shape(name).unwrap()[0] as usize;
                values[fill.at as usize * columns..].fill(0.0);
            }
        };
        let emptied = super::support::Changed { inner: files[1].weights.as_ref(), change: &change };
        let model = Model::new(device.clone(), files[1].config.clone(), &emptied, DType::F32).unwrap();
        let emptied = answers(&mut Engine::new(model, roomy(), Some(Box::new(bundle.population().unwrap()))).unwrap());
        assert_close(&emptied[..1], &plain[..1], 1e-4);
        assert!(emptied[1] != filled[1] && emptied[3] != filled[3], "the bases are not read");
    }
}

fn others<D: Backend>(device: &Arc<D>) {
    let (_place, files, bundle) = prepared(8);
    // Other bases than those in the padding: `low` and `other` have theirs by each other's number.
    let mut strange = bundle.population().unwrap();
    strange.projections.values_mut().for_each(|shared| shared.input_bases.reverse());
    let [plain, filled] = files.each_ref().map(|files| answers(&mut open(device, files, Box::new(strange.clone()))));
    assert_close(&filled, &plain, 1e-4);
    // An engine that begins with `high` alone, and gets the others while it runs.
    let all = bundle.population().unwrap();
    let mut few = all.clone();
    few.adapters.retain(|name, _| name == "high");
    let [plain, filled] = files.each_ref().map(|files| {
        let config = &files.config;
        let source = ForModel::new(Some(Box::new(few.clone())), (0..config.layers).flat_map(|layer| config.projections(layer)));
        let mut engine = open(device, files, Box::new(source));
        for name in ["low", "other"] {
            engine.add_adapter(name, all.adapters[name].clone()).unwrap();
            assert_eq!(*engine.encoded_adapter(name).unwrap(), all.adapters[name]);
        }
        answers(&mut engine)
    });
    assert_close(&filled, &plain, 1e-4);
}

fn refused() {
    let (place, files, _) = prepared(9);
    let at = |name: &str| place.path().join(name);
    std::fs::write(at("plain.s2lc"), to_bytes(&adapters(&files[0].config)).unwrap()).unwrap();
    for (from, bundle, part) in [("model", "plain.s2lc", "compress them with shared bases"), ("filled", "all.s2lc", "give the model that was repaired")] {
        let run = repair(&at(from), &at("out"), &["--fill", at(bundle).to_str().unwrap()]);
        let told = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(!run.status.success() && told.contains(part), "{told}");
        assert!(!at("out").exists());
    }
}
