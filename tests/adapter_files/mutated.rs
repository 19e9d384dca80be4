//! Each parser on thousands of damaged inputs, from fixed seeds: what the fuzz targets do, in every run of the tests.
//! A parser may refuse or accept; it must not panic, and what it accepts must be usable.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use trifuse::adapters::bundle::{Bundle, to_bytes};
use trifuse::adapters::decompress::peft_files;
use trifuse::adapters::peft::{Config, inspect_bytes};
use trifuse::safetensors_file::TensorFile;
use trifuse::{DType, Error};

use crate::support::{adapter_tensors, config, forge, mutate, population};

#[test]
fn configurations() {
    let rng = &mut ChaCha8Rng::seed_from_u64(1);
    let seed = config(&json!({ "rank_pattern": {r"l\.(0|1)\.q": 4}, "alpha_pattern": {"v": 1.5}, "use_rslora": true, "target_modules": ".*q" }));
    let mut accepted = 0;
    for _ in 0..5000 {
        let mut text = seed.clone();
        mutate(rng, &mut text);
        if let Ok(config) = Config::parse("c".as_ref(), &text) {
            accepted += 1;
            assert!(config.rank("l.0.q") >= 1 && config.scaling("l.0.q").is_finite());
        }
    }
    assert!((100..4900).contains(&accepted), "{accepted} accepted: the damage is too weak or too strong to test anything");
}

#[test]
fn tensor_files() {
    let rng = &mut ChaCha8Rng::seed_from_u64(2);
    let (seed, config) = (adapter_tensors(), config(&json!({})));
    let mut accepted = 0;
    for _ in 0..5000 {
        let mut bytes = seed.clone();
        mutate(rng, &mut bytes);
        if let Ok(file) = TensorFile::from_bytes("t", bytes.clone()) {
            for name in file.names() {
                let _ = file.floats(&name);
            }
        }
        match inspect_bytes("t", &config, bytes).into_adapter() {
            Ok(adapter) => {
                accepted += 1;
                let finite = adapter.modules.values().all(|lora| lora.a.data.iter().chain(&lora.b.data).all(|value| value.is_finite()));
                assert!(finite && !adapter.modules.is_empty());
            }
            Err(error) => assert!(matches!(error, Error::Input { .. }), "{error}"),
        }
    }
    assert!((100..4900).contains(&accepted), "{accepted} accepted");
}

#[test]
fn bundles_with_forged_checksums() {
    let rng = &mut ChaCha8Rng::seed_from_u64(3);
    let seeds: Vec<Vec<u8>> = (0..8).map(|seed| to_bytes(&population(seed)).unwrap()).collect();
    let (mut opened, mut refused, mut read) = (0, 0, 0);
    for _ in 0..5000 {
        let mut bytes = seeds[rng.random_range(0..seeds.len())].clone();
        mutate(rng, &mut bytes);
        let Some(bytes) = forge(&bytes) else { continue };
        let Ok(bundle) = Bundle::from_bytes("t", bytes) else { continue };
        opened += 1;
        match bundle.population() {
            Err(error) => {
                refused += 1;
                assert!(matches!(error, Error::Input { .. }), "{error}");
            }
            Ok(population) => {
                read += 1;
                for (name, adapter) in &population.adapters {
                    let _ = peft_files(name, adapter, &population.projections, DType::F16, 1 << 26);
                }
                to_bytes(&population).expect("what can be read can be written");
            }
        }
    }
    assert!(opened > 500 && refused > 100 && read > 100, "{opened} opened, {refused} refused, {read} read: the damage tests too little");
}
