//! `adapter_config.json`: what is accepted gives every module a rank and a finite scale.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trifuse::adapters::peft::Config;

fuzz_target!(|text: &[u8]| {
    if let Ok(config) = Config::parse("adapter_config.json".as_ref(), text) {
        for module in ["", "q", "encoder.layer.0.attention.self.query"] {
            assert!(config.rank(module) >= 1 && config.scaling(module).is_finite());
            let _ = config.targets(module);
        }
    }
});
