//! Bundles, as they come and with every checksum made right again: the checks of sense lie behind those.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trifuse::DType;
use trifuse::adapters::bundle::{Bundle, to_bytes};
use trifuse::adapters::decompress::peft_files;

#[path = "../../tests/adapter_files/support.rs"]
mod support;

fuzz_target!(|bytes: &[u8]| {
    for bytes in [Some(bytes.to_vec()), support::forge(bytes)].into_iter().flatten() {
        let Ok(bundle) = Bundle::from_bytes("fuzz.s2lc", bytes) else { continue };
        let Ok(population) = bundle.population() else { continue };
        for (name, adapter) in &population.adapters {
            let _ = peft_files(name, adapter, &population.projections, DType::F16);
        }
        assert!(to_bytes(&population).is_ok(), "what can be read can be written");
    }
});
