//! PEFT adapters: the configuration alone, and both files of a folder. What is taken is encoded, and read again from a bundle.

use rand::Rng as _;
use serde_json::json;
use trifuse::adapters::bundle::{Bundle, to_bytes};
use trifuse::adapters::encode::{EncodeOptions, Source, encode};
use trifuse::adapters::peft::{Config, inspect_bytes};

use super::super::mutate::{Rng, json, one, tensors};
use super::bundle::support::{adapter_tensors, config};
use super::{Answer, Subject, refused};

pub const CONFIG: Subject = Subject { name: "peft_config", sound: sound_config, change: json, parse: parse_config };
/// The input is the configuration's length in four bytes, the configuration, and the tensors.
pub const FOLDER: Subject = Subject { name: "peft_folder", sound: sound_folder, change: change_folder, parse: parse_folder };

fn sound_config(rng: &mut Rng) -> Vec<u8> {
    let changes = [
        json!({}),
        json!({ "target_modules": ".*(q|v)", "use_rslora": true }),
        json!({ "rank_pattern": {r"l\.(0|1)\.v": 2}, "alpha_pattern": {"v": 1.5, r"^l\.0\.q$": 3 }, "lora_dropout": 0.1 }),
        json!({ "target_modules": "all-linear", "layers_to_transform": [0], "layers_pattern": "l", "modules_to_save": null }),
        json!({ "init_lora_weights": "gaussian", "fan_in_fan_out": false, "base_model_name_or_path": "some/model", "revision": null, "inference_mode": true }),
    ];
    config(one(rng, &changes))
}

fn parse_config(text: &[u8]) -> Answer {
    let config = Config::parse("adapter_config.json".as_ref(), text).map_err(|error| refused(&error))?;
    for module in ["", "q", "l.0.q", "encoder.layer.0.attention.self.query", "\u{1b}[2J", &"a.".repeat(200)] {
        assert!(config.rank(module) >= 1 && config.scaling(module).is_finite(), "{module}");
        let _ = config.targets(module);
    }
    Ok(())
}

fn folder(config: &[u8], tensors: &[u8]) -> Vec<u8> {
    [&(config.len() as u32).to_le_bytes(), config, tensors].concat()
}

fn parts(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32::from_le_bytes(input.get(..4)?.try_into().ok()?) as usize;
    input[4..].split_at_checked(length)
}

fn sound_folder(rng: &mut Rng) -> Vec<u8> {
    // Patterns and layers that the tensors have.
    let some = [json!({}), json!({ "use_rslora": true }), json!({ "alpha_pattern": {"v": 1.5} }), json!({ "target_modules": ".*(q|v)" })];
    folder(&config(one(rng, &some)), &adapter_tensors())
}

fn change_folder(rng: &mut Rng, input: &[u8]) -> Vec<u8> {
    let (config, data) = parts(input).unwrap_or((b"{}", input));
    match rng.random_range(0..8) {
        0..3 => folder(&json(rng, config), data),
        3..7 => folder(config, &tensors(rng, data)),
        _ => folder(&json(rng, config), &tensors(rng, data)),
    }
}

fn parse_folder(input: &[u8]) -> Answer {
    let (config, data) = parts(input).ok_or("expected two files")?;
    let inspection = inspect_bytes("fuzz", config, data.to_vec());
    assert!(!inspection.faults.is_empty() || !inspection.modules.is_empty(), "an adapter of no module");
    let adapter = inspection.into_adapter().map_err(|error| refused(&error))?;
    let finite = adapter.modules.values().all(|lora| lora.a.data.iter().chain(&lora.b.data).all(|value| value.is_finite()));
    assert!(finite && adapter.modules.values().all(|lora| lora.scaling.is_finite()));
    // A wide rank takes an encoder seconds, which is no fault.
    if adapter.modules.values().all(|lora| lora.rank() <= 16) {
        let options = EncodeOptions { rank: Some(2), ..EncodeOptions::default() };
        let population = encode(&[Source::from(&adapter)], &options, &|_, _| {}).expect("what inspect takes, compress takes");
        let bytes = to_bytes(&population).expect("what is encoded can be written");
        assert!(Bundle::from_bytes("fuzz.s2lc", bytes).and_then(|bundle| bundle.verify()).is_ok(), "what is written can be read");
    }
    Ok(())
}
