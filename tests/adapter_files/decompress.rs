use serde_json::json;
use trifuse::adapters::bundle::{Bundle, to_bytes};
use trifuse::adapters::decompress::{decompress, decompress_within, peft_files};
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
    let (adapter, population) = plain(&json!({}));
    let back = back(&population, DType::F16);
    assert_eq!(back.config, adapter.config);
    assert_eq!(back.modules.keys().collect::<Vec<_>>(), adapter.modules.keys().collect::<Vec<_>>());
    for (module, lora) in &adapter.modules {
        let found = &back.modules[module];
        assert_eq!((&found.a, &found.b, found.scaling), (&lora.a, &lora.b, lora.scaling));
    }
}

fn back(population: &Population, dtype: DType) -> LoraAdapter {
    let folder = tempfile::tempdir().unwrap();
    decompress(&bundle(population), None, folder.path().join("out"), dtype).unwrap();
    LoraAdapter::open(folder.path().join("out/rust")).unwrap()
}

#[test]
fn one_scale_of_all_modules_stays_out_of_the_factors() {
    let (adapter, population) = plain(&json!({ "use_rslora": true, "lora_alpha": 5 }));
    let back = back(&population, DType::F32);
    assert_eq!((&back.config["r"], &back.config["use_rslora"]), (&json!(2), &json!(false)));
    for (module, lora) in &adapter.modules {
        let found = &back.modules[module];
        assert_eq!((&found.a, &found.b), (&lora.a, &lora.b));
        assert_eq!(found.scaling, lora.scaling, "{module}: exact through alpha over r");
    }
}

#[test]
fn scales_that_differ_are_multiplied_into_b() {
    let (adapter, population) = plain(&json!({ "alpha_pattern": {"q": 7} }));
    let back = back(&population, DType::F32);
    assert_eq!((&back.config["r"], &back.config["lora_alpha"]), (&json!(2), &json!(2)));
    for (module, lora) in &adapter.modules {
        let found = &back.modules[module];
        assert_eq!((&found.a, &found.b, found.scaling), (&lora.a, &lora.b.map(|value| value * lora.scaling), 1.0), "{module}");
    }
}

#[test]
fn a_rank_that_changed_is_padded() {
    let (adapter, mut population) = plain(&json!({ "use_rslora": true, "lora_alpha": 3.5 }));
    let q = population.adapters.get_mut("rust").unwrap().projections.get_mut("l.0.q").unwrap();
    // Only the first column is kept: as codes of no bits, the second holds nothing.
    let keep = |factor: &EncodedFactor| match factor {
        EncodedFactor::Plain(values) => EncodedFactor::Plain(Matrix::new(values.rows, 1, (0..values.rows).map(|row| values.at(row, 0)).collect()).unwrap()),
        other => other.clone(),
    };
    (q.input, q.output) = (keep(&q.input), keep(&q.output));
    let back = back(&population, DType::F32);
    let q = &back.modules["l.0.q"];
    assert_eq!((q.rank(), back.modules["l.0.v"].rank()), (2, 2));
    assert!((0..q.a.cols).all(|col| q.a.at(1, col) == 0.0) && (0..q.b.rows).all(|row| q.b.at(row, 1) == 0.0));
    assert!(back.modules.values().all(|lora| lora.scaling == adapter.modules["l.0.q"].scaling));
    assert_eq!((&back.config["rank_pattern"], &back.config["alpha_pattern"]), (&json!({}), &json!({})));
    assert_eq!(back.config["target_modules"], adapter.config["target_modules"]);
}

/// How a reader comes by the scale of a module, of its configuration and the rank of its B; none where it refuses the adapter.
type Reader = fn(&serde_json::Value, usize) -> Option<f64>;

/// vLLM and LoRAX, one of which serves no rank above `r`: `lora_alpha` over `r`, or over its root where `use_rslora` says so.
fn served(config: &serde_json::Value, rank: usize) -> Option<f64> {
    let (r, alpha) = (config["r"].as_f64()?, config["lora_alpha"].as_f64()?);
    let below = if config["use_rslora"] == true { r.sqrt() } else { r };
    (rank as f64 == r).then_some(alpha / below)
}

/// llama.cpp's converter: `lora_alpha` alone, which is divided by the tensor's own rank. An alpha of 0 counts as none.
fn converted(config: &serde_json::Value, rank: usize) -> Option<f64> {
    let alpha = f64::from(config["lora_alpha"].as_f64()? as f32);
    Some(if alpha == 0.0 { 1.0 } else { alpha / rank as f64 })
}

#[test]
fn readers_that_know_no_pattern_get_the_same_product() {
    let readers: [(&str, Reader); 2] = [("served", served), ("converted", converted)];
    let (mut products, mut scaled, mut ranks) = (0, 0, 0);
    for seed in 0..60 {
        let population = population(seed);
        if population.adapters.values().any(|adapter| adapter.projections.is_empty()) {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        decompress(&bundle(&population), None, &out, DType::F32).unwrap();
        for adapter in open_all(&[&out]).unwrap() {
            let encoded = &population.adapters[&adapter.name].projections;
            scaled += usize::from(encoded.values().any(|projection| projection.scaling != encoded.values().next().unwrap().scaling));
            let rank = |module: &String| encoded[module].plain_rank(&population.projections[module]).unwrap();
            ranks += usize::from(encoded.keys().any(|module| rank(module) != adapter.modules[module].rank()));
            for ((module, projection), (name, scale)) in encoded.iter().flat_map(|projection| readers.iter().map(move |reader| (projection, reader))) {
                let lora = &adapter.modules[module];
                let scale = scale(&adapter.config, lora.rank()).unwrap_or_else(|| panic!("seed {seed}: {name} refuses {module}"));
                let expected = projection.delta(&population.projections[module]).unwrap();
                let most = expected.data.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
                for (found, expected) in product(&adapter, module).iter().zip(&expected.data) {
                    let found = found / f64::from(lora.scaling) * scale;
                    assert!((found - expected).abs() <= 1e-6 * most + 1e-30, "seed {seed}, {name}, {module}: {found} and {expected}");
                }
                products += 1;
            }
        }
    }
    assert!(products > 100 && scaled > 10 && ranks > 10, "{products} products, {scaled} adapters of several scales, {ranks} of several ranks");
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

#[test]
fn more_bytes_than_allowed_are_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let population = (0..).map(population).find(|population| population.adapters.values().any(|adapter| !adapter.projections.is_empty())).unwrap();
    let error = decompress_within(&bundle(&population), None, folder.path().join("out"), DType::F32, 8, &|| Ok(())).unwrap_err();
    assert!(error.to_string().contains("at most 8 bytes"), "{error}");
    let (name, adapter) = population.adapters.iter().find(|(_, adapter)| !adapter.projections.is_empty()).unwrap();
    let error = peft_files(name, adapter, &population.projections, DType::F32, 8).unwrap_err();
    assert!(matches!(&error, Error::Invalid { expected, .. } if expected.contains("at most 8 bytes")), "{error}");
    assert!(peft_files(name, adapter, &population.projections, DType::F32, 1 << 20).is_ok());
    let ended = decompress_within(&bundle(&population), None, folder.path().join("out"), DType::F32, 1 << 30, &|| Err(Error::input("x", "ended")));
    assert!(ended.unwrap_err().to_string().contains("ended"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn what_is_written_is_what_is_read_whatever_the_configuration_says() {
    for config in [
        serde_json::json!({ "peft_type": "LORA", "r": 8, "lora_alpha": 16, "bias": "all" }),
        serde_json::json!({ "peft_type": "IA3", "r": 8, "lora_alpha": 1e12 }),
        serde_json::json!({ "peft_type": "LORA", "r": 8, "lora_alpha": 16, "modules_to_save": ["score"] }),
        serde_json::json!([1, 2]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut population = (0..).map(population).find(|population| population.adapters.values().all(|adapter| !adapter.projections.is_empty())).unwrap();
        population.adapters.values_mut().for_each(|adapter| adapter.config = config.clone());
        let out = folder.path().join("out");
        decompress(&bundle(&population), None, &out, DType::F32).unwrap();
        assert_eq!(open_all(&[&out]).unwrap().len(), population.adapters.len(), "{config}");
    }
}
