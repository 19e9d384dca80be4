//! The real adapters of crates/cli/data, or of the folder that TRIFUSE_ADAPTERS names: each opens, and survives a bundle and
//! the way back to the last bit.

use std::collections::BTreeMap;
use std::path::Path;

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
    let certificate = Certificate::plain(lora.rank(), lora.bytes());
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

fn there_and_back(source: &Path) {
    let adapters = open_all(&[source]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.s2lc");
    let bytes = write(&path, &encode(&adapters)).unwrap();
    let payload: u64 = adapters.iter().flat_map(|adapter| adapter.modules.values()).map(Lora::bytes).sum();
    println!("{}: {} adapters, {payload} bytes of factors in a file of {bytes}", source.display(), adapters.len());
    // Index, configuration and header: four kilobytes an adapter of 36 projections, and as much for all.
    assert!(bytes - payload < 5000 * (adapters.len() as u64 + 1), "{bytes} bytes for {payload}");
    let bundle = Bundle::open(&path).unwrap();
    decompress(&bundle, None, folder.path().join("out"), DType::F16).unwrap();
    let back = open_all(&[folder.path().join("out")]).unwrap();
    assert_eq!(back.len(), adapters.len());
    for (adapter, back) in adapters.iter().zip(back) {
        assert_eq!((&back.name, &back.config, &back.modules), (&adapter.name, &adapter.config, &adapter.modules));
    }
}

#[test]
fn real_adapters_come_back_to_the_last_bit() {
    if let Some(folder) = std::env::var_os("TRIFUSE_ADAPTERS") {
        return there_and_back(Path::new(&folder));
    }
    for population in ["A", "B", "C"] {
        there_and_back(&Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/cli/data/adapters").join(population));
    }
}
