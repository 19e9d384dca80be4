//! Any folder of real adapters, given by TRIFUSE_ADAPTERS: each opens, and survives a bundle and the way back.

use std::collections::BTreeMap;

use half::f16;
use trifuse::DType;
use trifuse::adapters::bundle::{Bundle, write};
use trifuse::adapters::certificate::Certificate;
use trifuse::adapters::decompress::decompress;
use trifuse::adapters::encoded::*;
use trifuse::adapters::peft::{Lora, LoraAdapter, open_all};

/// On the rung that loses nothing but the rounding to f16.
fn plain(lora: &Lora) -> EncodedProjection {
    let half = |matrix: Matrix<f32>| EncodedFactor::Plain(matrix.map(f16::from_f32));
    let certificate = Certificate {
        rung: Rung::Plain,
        rank: lora.rank(),
        basis_energy: 1.0,
        cos_factor: 1.0,
        cos_delta: 1.0,
        output_error_gaussian: 0.0,
        output_error_held_out: None,
        bits_per_element: 16.0,
        bytes: lora.bytes(),
        bytes_before: lora.bytes(),
    };
    EncodedProjection { input: half(lora.a.transposed()), core: None, output: half(lora.b.clone()), scaling: lora.scaling, certificate }
}

fn encode(adapters: &[LoraAdapter]) -> Population {
    let mut population = Population { projections: BTreeMap::new(), adapters: BTreeMap::new() };
    for adapter in adapters {
        for (module, lora) in &adapter.modules {
            let shared = SharedProjection { d_in: lora.a.cols, d_out: lora.b.rows, input_bases: vec![], output_bases: vec![] };
            population.projections.insert(module.clone(), shared);
        }
        let projections = adapter.modules.iter().map(|(module, lora)| (module.clone(), plain(lora))).collect();
        population.adapters.insert(adapter.name.clone(), EncodedAdapter { config: adapter.config.clone(), projections });
    }
    population
}

#[test]
#[ignore = "needs TRIFUSE_ADAPTERS, a folder of PEFT adapters in f16"]
fn a_folder_of_adapters_comes_back_to_the_last_bit() {
    let source = std::env::var("TRIFUSE_ADAPTERS").expect("TRIFUSE_ADAPTERS names a folder of PEFT adapters");
    let adapters = open_all(&[&source]).unwrap();
    let folder = match std::env::var("TRIFUSE_OUT") {
        Ok(out) => out.into(),
        Err(_) => tempfile::tempdir().unwrap().keep(),
    };
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("all.s2lc");
    let bytes = write(&path, &encode(&adapters)).unwrap();
    let payload: u64 = adapters.iter().flat_map(|adapter| adapter.modules.values()).map(Lora::bytes).sum();
    println!("{} adapters: {payload} bytes of factors in a file of {bytes}: {:.2} % more", adapters.len(), 100.0 * (bytes as f64 / payload as f64 - 1.0));
    let bundle = Bundle::open(&path).unwrap();
    decompress(&bundle, None, folder.join("out"), DType::F16).unwrap();
    for (adapter, back) in adapters.iter().zip(open_all(&[folder.join("out")]).unwrap()) {
        assert_eq!((&back.name, &back.config, &back.modules), (&adapter.name, &adapter.config, &adapter.modules));
    }
    if std::env::var("TRIFUSE_OUT").is_err() {
        std::fs::remove_dir_all(folder).unwrap();
    }
}
