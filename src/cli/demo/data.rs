//! The adapters and activations that the program carries: real ones, from `tests/data/`; where they come from is said there.

use std::path::{Path, PathBuf};

use trifuse::adapters::peft::{CONFIG_FILE, TENSOR_FILE};
use trifuse::{Error, Result};

/// Inputs of some projections of the model that the adapters are for.
pub const ACTIVATIONS: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/calibration.safetensors"));

/// One adapter's two files.
struct Embedded {
    population: &'static str,
    name: &'static str,
    config: &'static [u8],
    tensors: &'static [u8],
}

macro_rules! embedded {
    ($($population:literal: $($name:literal)+;)+) => {
        const ADAPTERS: &[Embedded] = &[$($(embedded!(@ $population, $name)),+),+];
    };
    (@ $population:literal, $name:literal) => {
        Embedded {
            population: $population,
            name: $name,
            config: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/adapters/", $population, "/", $name, "/adapter_config.json")),
            tensors: include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/adapters/", $population, "/", $name, "/adapter_model.safetensors")),
        }
    };
}

// A started from different random matrices each, B from a common one.
embedded! {
    "A": "apache_french" "bible_kjv" "rust" "sqlite";
    "B": "bible_kjv" "rust" "sqlite";
}

/// Writes a population's folders below `folder`, to be read as any other adapters are; the folder that holds them.
pub fn extract(population: &str, folder: &Path) -> Result<PathBuf> {
    let root = folder.join(population);
    for adapter in ADAPTERS.iter().filter(|adapter| adapter.population == population) {
        let folder = root.join(adapter.name);
        std::fs::create_dir_all(&folder).map_err(Error::io(&folder, "create"))?;
        for (file, bytes) in [(CONFIG_FILE, adapter.config), (TENSOR_FILE, adapter.tensors)] {
            let path = folder.join(file);
            std::fs::write(&path, bytes).map_err(Error::io(&path, "write"))?;
        }
    }
    Ok(root)
}
