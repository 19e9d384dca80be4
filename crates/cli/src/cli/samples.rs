//! Real adapters and activations inside the binary, so that `demo` and `verify` need no file. See `data/README.md`.

use std::path::Path;

use trifuse::Result;
use trifuse::adapters::peft::{LoraAdapter, inspect_bytes};
use trifuse_cli::verify::Prefix;

/// One adapter folder.
struct Folder {
    population: &'static str,
    name: &'static str,
    config: &'static [u8],
    tensors: &'static [u8],
}

macro_rules! folders {
    ($($population:literal / $name:literal),* $(,)?) => {
        &[$(Folder {
            population: $population,
            name: $name,
            config: include_bytes!(concat!("../../data/adapters/", $population, "/", $name, "/adapter_config.json")),
            tensors: include_bytes!(concat!("../../data/adapters/", $population, "/", $name, "/adapter_model.safetensors")),
        }),*]
    };
}

const FOLDERS: &[Folder] =
    folders!["A" / "apache_french", "A" / "bible_kjv", "A" / "rust", "A" / "sqlite", "B" / "bible_kjv", "B" / "rust", "B" / "sqlite", "C" / "r4_rust"];

/// The adapters of a population: `A`, each from a start of its own; `B`, all from one start; `C`, another rank.
pub fn population(name: &str) -> Result<Vec<LoraAdapter>> {
    FOLDERS
        .iter()
        .filter(|folder| folder.population == name)
        .map(|folder| inspect_bytes(folder.name, folder.config, folder.tensors.to_vec()).into_adapter())
        .collect()
}

/// Inputs of some projections of the model that the adapters are for: a calibration file.
pub const ACTIVATIONS: &[u8] = include_bytes!("../../data/calibration.safetensors");

/// Query, key and value of a shared prefix.
pub fn prefix() -> Result<Prefix> {
    Prefix::parse(Path::new("prefix.safetensors"), include_bytes!("../../data/prefix.safetensors"))
}
