//! Bundles: the header, the index of each adapter, and its streams of numbers. Most inputs have every checksum made right again: the checks
//! of sense lie behind those.

use rand::Rng as _;
use trifuse::DType;
use trifuse::adapters::bundle::{Bundle, to_bytes};
use trifuse::adapters::decompress::{most_bytes, peft_files};
use trifuse::adapters::peft::inspect_bytes;

use super::super::mutate::{Rng, tensors};
use super::{Answer, Subject, refused};

#[path = "../../tests/adapter_files/support.rs"]
pub mod support;

pub const SUBJECT: Subject = Subject { name: "bundle", sound, change, parse };

fn sound(rng: &mut Rng) -> Vec<u8> {
    to_bytes(&support::population(rng.random())).expect("a sound population")
}

fn change(rng: &mut Rng, input: &[u8]) -> Vec<u8> {
    let changed = tensors(rng, input);
    support::forge(&changed).filter(|_| rng.random_ratio(15, 16)).unwrap_or(changed)
}

fn parse(bytes: &[u8]) -> Answer {
    let bundle = Bundle::from_bytes("fuzz.s2lc", bytes.to_vec()).map_err(|error| refused(&error))?;
    let population = bundle.population().map_err(|error| refused(&error))?;
    for (name, adapter) in &population.adapters {
        let Ok(files) = peft_files(name, adapter, &population.projections, DType::F32, most_bytes(&bundle)) else { continue };
        // `decompress` asks as well, and writes nothing that is refused.
        let _ = inspect_bytes(name, &files.config, files.tensors);
    }
    let again = to_bytes(&population).expect("what can be read can be written");
    assert!(Bundle::from_bytes("again.s2lc", again).and_then(|bundle| bundle.verify()).is_ok(), "what is written can be read");
    Ok(())
}
