use serde_json::json;
use trifuse::adapters::bundle::{Bundle, to_bytes};
use trifuse::adapters::decompress::decompress;
use trifuse::adapters::encoded::*;
use trifuse::adapters::peft::{LoraAdapter, inspect_bytes, open_all};
use trifuse::{DType, Error};

use crate::support::{adapter_tensors, config, population};

fn bundle(population: &Population) -> Bundle {
    Bundle::from_bytes("test.s2lc", to_bytes(population).unwrap()).unwrap()
}

fn product(adapter: &LoraAdapter, module: &str) -> Vec<f64> {
    let lora = &adapter.modules[module];
    let dot = |row: usize, col: usize| (0..lora.rank()).map(|k| f64::from(lora.b.at(row, k)) * f64::from(lora.a.at(k, col))).sum::<f64>();
    let elements = (0..lora.b.rows).flat_map(|row| (0..lora.a.cols).map(move |col| (row, col)));
    elements.map(|(row, col)| dot(row, col) * f64::from(lora.scaling)).collect()
}

#[test]
fn the_product_survives_the_way_back_to_peft() {
    for (seed, dtype) in (0..60).zip([DType::F32, DType::F16, DType::BF16].into_iter().cycle()) {
        let population = population(seed);
        if population.adapters.values().any(|adapter| adapter.projections.is_empty()) {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        decompress(&bundle(&population), None, &out, dtype).unwrap();
        for adapter in open_all(&[&out]).unwrap() {
            let encoded = &population.adapters[&adapter.name];
            assert_eq!(adapter.modules.keys().collect::<Vec<_>>(), encoded.projections.keys().collect::<Vec<_>>());
            assert_eq!(adapter.config["lora_dropout"], 0.1, "keys that the product does not need stay");
            for (module, projection) in &encoded.projections {
                let expected = projection.delta(&population.projections[module]).unwrap();
                let scale = expected.data.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
                let tolerance = 32.0 * scale * 2f64.powi(-(dtype.significand_bits() as i32));
                for (found, expected) in product(&adapter, module).iter().zip(&expected.data) {
                    assert!((found - expected).abs() <= tolerance + 1e-30, "seed {seed}, {dtype}: {found} and {expected}");
                }
            }
        }
    }
}

/// `inspect_bytes` of a sound adapter, encoded on the rung that loses nothing.
fn plain(changes: &serde_json::Value) -> (LoraAdapter, Population) {
    let adapter = inspect_bytes("rust", &config(changes), adapter_tensors()).into_adapter().unwrap();
    let mut population = Population { projections: Default::default(), adapters: Default::default() };
    let mut projections = std::collections::BTreeMap::new();
    for (module, lora) in &adapter.modules {
        let half = |matrix: Matrix<f32>| EncodedFactor::Plain(matrix.map(half::f16::from_f32));
        let certificate = crate::support::population(0).adapters.values().flat_map(|adapter| adapter.projections.values()).next().unwrap().certificate.clone();
        let (input, output) = (half(lora.a.transposed()), half(lora.b.clone()));
        projections.insert(module.clone(), EncodedProjection { input, core: None, output, scaling: lora.scaling, certificate });
        let shared = SharedProjection { d_in: lora.a.cols, d_out: lora.b.rows, input_bases: vec![], output_bases: vec![] };
        population.projections.insert(module.clone(), shared);
    }
    population.adapters.insert("rust".into(), EncodedAdapter { config: adapter.config.clone(), projections });
    (adapter, population)
}

#[test]
fn plain_adapters_come_back_to_the_last_bit_with_their_own_configuration() {
    for changes in [json!({}), json!({ "use_rslora": true, "lora_alpha": 5 }), json!({ "alpha_pattern": {"q": 7} })] {
        let (adapter, population) = plain(&changes);
        let folder = tempfile::tempdir().unwrap();
        decompress(&bundle(&population), None, folder.path().join("out"), DType::F16).unwrap();
        let back = LoraAdapter::open(folder.path().join("out/rust")).unwrap();
        assert_eq!(back.config, adapter.config);
        for (module, lora) in &adapter.modules {
            assert_eq!((&back.modules[module].a, &back.modules[module].b), (&lora.a, &lora.b));
            assert_eq!(back.modules[module].scaling, lora.scaling);
        }
    }
}

#[test]
fn a_rank_that_changed_is_written_as_patterns() {
    let (adapter, mut population) = plain(&json!({ "use_rslora": true, "lora_alpha": 3.5 }));
    let projections = &mut population.adapters.get_mut("rust").unwrap().projections;
    let q = projections.get_mut("l.0.q").unwrap();
    // Only the first column is kept: as codes of no bits, the second holds nothing.
    let keep = |factor: &EncodedFactor| match factor {
        EncodedFactor::Plain(values) => EncodedFactor::Plain(Matrix::new(values.rows, 1, (0..values.rows).map(|row| values.at(row, 0)).collect()).unwrap()),
        other => other.clone(),
    };
    (q.input, q.output) = (keep(&q.input), keep(&q.output));
    let folder = tempfile::tempdir().unwrap();
    decompress(&bundle(&population), Some(&["rust".into()]), folder.path().join("out"), DType::F32).unwrap();
    let back = LoraAdapter::open(folder.path().join("out/rust")).unwrap();
    assert_eq!((back.modules["l.0.q"].rank(), back.modules["l.0.v"].rank()), (1, 2));
    for (module, lora) in &adapter.modules {
        assert_eq!(back.modules[module].scaling, lora.scaling, "{module}: exact through alpha over r");
    }
    assert_eq!(back.config["rank_pattern"]["l.0.q"], 1);
    assert_eq!(back.config["use_rslora"], false);
    assert_eq!(back.config["target_modules"], adapter.config["target_modules"]);
}

#[test]
fn values_beyond_f16_are_balanced_or_refused() {
    let (_, mut population) = plain(&json!({}));
    let projections = &mut population.adapters.get_mut("rust").unwrap().projections;
    let q = projections.get_mut("l.0.q").unwrap();
    let shared = population.projections["l.0.q"].clone();
    // B is a thousand times larger than f16 can hold through the core, A as much smaller.
    q.core = Matrix::new(2, 2, vec![3e5, 0.0, 0.0, 1e-9]).ok();
    let expected = q.delta(&shared).unwrap();
    let folder = tempfile::tempdir().unwrap();
    decompress(&bundle(&population), None, folder.path().join("out"), DType::F16).unwrap();
    let back = LoraAdapter::open(folder.path().join("out/rust")).unwrap();
    for (found, expected) in product(&back, "l.0.q").iter().zip(&expected.data) {
        assert!((found - expected).abs() <= expected.abs() * 2e-3, "{found} and {expected}");
    }
    let q = population.adapters.get_mut("rust").unwrap().projections.get_mut("l.0.q").unwrap();
    q.core = Matrix::new(2, 2, vec![1e30, 0.0, 0.0, 1.0]).ok();
    let error = decompress(&bundle(&population), None, folder.path().join("vast"), DType::F16).unwrap_err();
    assert!(error.to_string().contains("l.0.q") && error.to_string().contains("f32"), "{error}");
    assert!(!folder.path().join("vast").exists());
    decompress(&bundle(&population), None, folder.path().join("vast"), DType::F32).unwrap();
}

#[test]
fn nothing_is_half_written_or_overwritten() {
    let population = population(1);
    let bundle = bundle(&population);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let error = decompress(&bundle, Some(&["rust".into(), "missing".into()]), &out, DType::F32).unwrap_err();
    assert!(error.to_string().contains("\"missing\""), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("mine"), "kept").unwrap();
    assert!(matches!(decompress(&bundle, None, &out, DType::F32), Err(Error::Invalid { .. })));
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1);
}
