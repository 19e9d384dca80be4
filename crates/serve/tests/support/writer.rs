//! A language model of two small layers with drawn weights, its tokenizer, and adapters for it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tempfile::TempDir;
use trifuse::DType;
use trifuse::adapters::encode::{EncodeOptions, Source, encode};
use trifuse::adapters::encoded::{Matrix, Population, Rung};
use trifuse::adapters::peft::Lora;
use trifuse::backends::AnyDevice;
use trifuse::llm::engine::{Engine, EngineOptions};
use trifuse::llm::{Config, Files, Model};
use trifuse_serve::queueing::registry::Generation;
use trifuse_serve::{EngineOn, LanguageModel, Speech};

use super::backend;
use super::tiny::{Tensor, store, values};

const HIDDEN: usize = 32;
const WIDE: usize = 64;
const LAYERS: usize = 2;
pub const VOCABULARY: usize = 64;
/// The model's name in requests.
pub const NAME: &str = "writer";
pub const ADAPTERS: [&str; 2] = ["prose", "verse"];
const RANK: usize = 4;

/// The model's folder, which goes with what is returned.
pub fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    let config = json!({"model_type": "llama", "tie_word_embeddings": true, "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
        "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": WIDE, "rms_norm_eps": 1e-5, "max_position_embeddings": 512,
        "rope_theta": 500.0, "eos_token_id": 2});
    write("config.json", config.to_string());
    let vocabulary: serde_json::Map<String, serde_json::Value> = (0..VOCABULARY).map(|id| (format!("t{id}"), id.into())).collect();
    let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": null, "decoder": null, "model": {"type": "WordLevel", "unk_token": "t0", "vocab": vocabulary}});
    write("tokenizer.json", tokenizer.to_string());
    write("chat_template.jinja", "{% for m in messages %}{{ m.content }} {% endfor %}".into());
    let mut tensors: Vec<Tensor> = Vec::new();
    let mut add = |name: String, shape: &[usize], centre: f32, scale: f32| {
        let drawn = values(tensors.len() as u64 + 900, shape.iter().product(), scale).into_iter().map(|value| centre + value).collect();
        tensors.push((format!("{name}.weight"), shape.to_vec(), drawn));
    };
    add("model.embed_tokens".into(), &[VOCABULARY, HIDDEN], 0.0, 2.0);
    add("model.norm".into(), &[HIDDEN], 1.0, 0.5);
    for layer in 0..LAYERS {
        let of = |name: &str| format!("model.layers.{layer}.{name}");
        for (name, shape) in [
            ("self_attn.q_proj", [HIDDEN, HIDDEN]),
            ("self_attn.k_proj", [HIDDEN / 2, HIDDEN]),
            ("self_attn.v_proj", [HIDDEN / 2, HIDDEN]),
            ("self_attn.o_proj", [HIDDEN, HIDDEN]),
            ("mlp.gate_proj", [WIDE, HIDDEN]),
            ("mlp.up_proj", [WIDE, HIDDEN]),
            ("mlp.down_proj", [HIDDEN, WIDE]),
        ] {
            add(of(name), &shape, 0.0, 0.6);
        }
        ["input_layernorm", "post_attention_layernorm"].into_iter().for_each(|name| add(of(name), &[HIDDEN], 1.0, 0.5));
    }
    store(&folder.path().join("model.safetensors"), &tensors);
    folder
}

/// The adapters of [`ADAPTERS`], encoded as they are.
pub fn population(config: &Config) -> Population {
    let peft = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": 8});
    let modules = |seed: u64| -> BTreeMap<String, Lora> {
        let attention = (0..config.layers).flat_map(|layer| config.projections(layer)).filter(|(path, _)| path.ends_with("q_proj") || path.ends_with("v_proj"));
        let lora = |(number, (path, [d_out, d_in])): (usize, (String, [u64; 2]))| {
            let factor = |rows: usize, columns: usize, more: u64| Matrix::new(rows, columns, values(seed + number as u64 + more, rows * columns, 0.8)).unwrap();
            let [a, b] = [factor(RANK, d_in as usize, 0), factor(d_out as usize, RANK, 50)];
            (path, Lora { a, b, scaling: 2.0, dtype: DType::F32 })
        };
        attention.enumerate().map(lora).collect()
    };
    let of: Vec<(&str, BTreeMap<String, Lora>)> = ADAPTERS.iter().enumerate().map(|(at, name)| (*name, modules(5000 + 200 * at as u64))).collect();
    let sources: Vec<Source<'_>> = of.iter().map(|(name, modules)| Source { name, config: &peft, modules }).collect();
    encode(&sources, &EncodeOptions { rungs: Some(vec![Rung::Plain]), ..EncodeOptions::default() }, &|_, _| {}).unwrap()
}

/// Writes a PEFT folder of an adapter of the model's queries and values.
pub fn peft(folder: &Path, seed: u64) {
    std::fs::create_dir_all(folder).unwrap();
    let config = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]});
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    let mut tensors: Vec<Tensor> = Vec::new();
    for (layer, name, outputs) in (0..LAYERS).flat_map(|layer| [(layer, "q_proj", HIDDEN), (layer, "v_proj", HIDDEN / 2)]) {
        for (part, shape) in [("lora_A", [RANK, HIDDEN]), ("lora_B", [outputs, RANK])] {
            let drawn = values(seed + tensors.len() as u64, shape[0] * shape[1], 0.8);
            tensors.push((format!("base_model.model.model.layers.{layer}.self_attn.{name}.{part}.weight"), shape.to_vec(), drawn));
        }
    }
    store(&folder.join("adapter_model.safetensors"), &tensors);
}

/// The model as a server takes it: each answer has the bits that it has alone.
pub fn model(folder: &Path) -> LanguageModel {
    model_on(folder, vec![backend::open()])
}

/// The same on these devices.
pub fn model_on(folder: &Path, devices: Vec<AnyDevice>) -> LanguageModel {
    let files = Files::open(folder).unwrap();
    let options = EngineOptions::default().with_page(8).with_cache_bytes(16 << 20).with_seats(16).with_context(Some(256)).with_invariant(true);
    let engine = |device: AnyDevice| {
        let dtype = backend::dtype(&device);
        let model = Model::open(Arc::new(device), &files, dtype).unwrap();
        let engine = Engine::new(model, options, Some(Box::new(population(&files.config)))).unwrap();
        EngineOn::start(backend::name(), engine).unwrap()
    };
    let engines = devices.into_iter().map(engine).collect();
    let generation = |name: &&str| Generation::new(*name, format!("{name}-1"), (*name).to_owned());
    let adapters = ADAPTERS.iter().map(generation).collect();
    let Files { tokenizer, template, ends, .. } = files;
    LanguageModel::start(engines, Speech { name: NAME.into(), tokenizer, template, ends, adapters }).unwrap()
}

/// What the base writes behind a prompt where nothing else runs: always the most probable token.
pub fn alone(folder: &Path, prompts: &[Vec<u32>], most: usize) -> Vec<String> {
    let files = Files::open(folder).unwrap();
    let mut model = Model::open(Arc::new(backend::open()), &files, DType::F32).unwrap();
    let mut write = |prompt: &Vec<u32>| {
        let mut context = model.context(prompt.len() + most).unwrap();
        let (mut logits, mut ids) = (model.run(&mut context, prompt, 1).unwrap(), Vec::new());
        while ids.len() < most {
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32;
            if files.ends.contains(&best) {
                break;
            }
            ids.push(best);
            logits = model.run(&mut context, &[best], 1).unwrap();
        }
        String::from_utf8(files.tokenizer.bytes(&ids)).unwrap()
    };
    prompts.iter().map(&mut write).collect()
}
