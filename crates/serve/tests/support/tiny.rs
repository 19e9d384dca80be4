//! A BERT encoder of two small blocks with drawn weights, its tokenizer, and adapters for it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tempfile::TempDir;
use trifuse::DType;
use trifuse::adapters::encode::{EncodeOptions, Source, encode};
use trifuse::adapters::encoded::{Matrix, Population, Rung};
use trifuse::adapters::engine::ForModel;
use trifuse::adapters::peft::{Lora, LoraAdapter};
use trifuse::backends::AnyDevice;
use trifuse::model::{Encoder, EncoderOptions, Row, Text};
use trifuse_serve::queueing::registry::Generation;
use trifuse_serve::{Embedder, EmbeddingModel, Open, Opened};

use super::backend;

pub const WIDTH: usize = 32;
const WIDE: usize = 64;
const LAYERS: usize = 2;
const WORDS: usize = 64;
pub const MAX_TOKENS: usize = 128;
/// The model's name in requests.
pub const NAME: &str = "tiny";
pub const ADAPTERS: [&str; 2] = ["left", "right"];

/// Numbers that look drawn.
pub fn values(seed: u64, count: usize, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next() * scale).collect()
}

/// A tensor's name, shape and values.
pub type Tensor = (String, Vec<usize>, Vec<f32>);

/// Writes a file of tensors.
pub fn store(path: &Path, tensors: &[Tensor]) {
    let views = tensors.iter().map(|(name, shape, data)| {
        (name.as_str(), safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytemuck::cast_slice(data)).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// The model's folder, which goes with what is returned.
pub fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    let config = json!({"model_type": "bert", "vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 2,
        "intermediate_size": WIDE, "hidden_act": "gelu", "max_position_embeddings": MAX_TOKENS, "type_vocab_size": 1, "layer_norm_eps": 1e-12});
    write("config.json", config.to_string());
    write("tokenizer.json", tokenizer());
    let mut tensors: Vec<Tensor> = Vec::new();
    let mut add = |name: &str, shape: &[usize], scale: f32| {
        let seed = tensors.len() as u64 + 1;
        tensors.push((name.into(), shape.to_vec(), values(seed, shape.iter().product(), scale)));
    };
    add("embeddings.word_embeddings.weight", &[WORDS, WIDTH], 1.0);
    add("embeddings.position_embeddings.weight", &[MAX_TOKENS, WIDTH], 0.2);
    add("embeddings.token_type_embeddings.weight", &[1, WIDTH], 0.2);
    let mut affine = |name: &str, shape: &[usize]| {
        add(&format!("{name}.weight"), shape, if shape.len() > 1 { 0.6 } else { 2.0 });
        add(&format!("{name}.bias"), &shape[..1], 0.1);
    };
    affine("embeddings.LayerNorm", &[WIDTH]);
    for layer in 0..LAYERS {
        let mut of = |name: &str, shape: &[usize]| affine(&format!("encoder.layer.{layer}.{name}"), shape);
        ["query", "key", "value"].iter().for_each(|name| of(&format!("attention.self.{name}"), &[WIDTH, WIDTH]));
        of("attention.output.dense", &[WIDTH, WIDTH]);
        of("attention.output.LayerNorm", &[WIDTH]);
        of("intermediate.dense", &[WIDE, WIDTH]);
        of("output.dense", &[WIDTH, WIDE]);
        of("output.LayerNorm", &[WIDTH]);
    }
    store(&folder.path().join("model.safetensors"), &tensors);
    folder
}

/// Words `w0` to `w59`, with a mark at each end of a text.
fn tokenizer() -> String {
    let marks = ["[CLS]", "[SEP]", "[UNK]"];
    let words = (0..WORDS - marks.len()).map(|word| format!("w{word}"));
    let vocabulary: BTreeMap<String, usize> = marks.iter().map(|mark| (*mark).to_owned()).chain(words).enumerate().map(|(id, word)| (word, id)).collect();
    let mark = |id: &str, at: u32| (id.to_owned(), json!({"id": id, "ids": [at], "tokens": [id]}));
    let special: serde_json::Map<String, serde_json::Value> = [mark("[CLS]", 0), mark("[SEP]", 1)].into_iter().collect();
    let place = |kind: &str, id: &str| json!({kind: {"id": id, "type_id": 0}});
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"}, "decoder": null,
        "post_processor": {"type": "TemplateProcessing", "single": [place("SpecialToken", "[CLS]"), place("Sequence", "A"), place("SpecialToken", "[SEP]")],
            "pair": [], "special_tokens": special},
        "model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": vocabulary}})
    .to_string()
}

fn population() -> Population {
    let config = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8});
    let modules = |seed: u64| -> BTreeMap<String, Lora> {
        let module = |layer: usize, name: &str, at: u64| {
            let [a, b] =
                [Matrix::new(4, WIDTH, values(seed + at, 4 * WIDTH, 0.8)).unwrap(), Matrix::new(WIDTH, 4, values(seed + at + 50, WIDTH * 4, 0.8)).unwrap()];
            (format!("encoder.layer.{layer}.attention.self.{name}"), Lora { a, b, scaling: 2.0, dtype: DType::F32 })
        };
        (0..LAYERS).flat_map(|layer| [module(layer, "query", layer as u64 * 2), module(layer, "value", layer as u64 * 2 + 1)]).collect()
    };
    let of: Vec<(&str, BTreeMap<String, Lora>)> = ADAPTERS.iter().enumerate().map(|(at, name)| (*name, modules(100 + 200 * at as u64))).collect();
    let sources: Vec<Source<'_>> = of.iter().map(|(name, modules)| Source { name, config: &config, modules }).collect();
    encode(&sources, &EncodeOptions { rungs: Some(vec![Rung::Plain]), ..EncodeOptions::default() }, &|_, _| {}).unwrap()
}

pub fn encoder(folder: &Path) -> Encoder<AnyDevice> {
    let device = backend::open();
    let options = EncoderOptions { dtype: backend::dtype(&device), reserve: backend::reserve(&device), ..EncoderOptions::default() };
    let mut encoder = Encoder::open(Arc::new(device), folder, options).unwrap();
    let config = encoder.config();
    let source = ForModel::new(Some(Box::new(population())), (0..config.layers).flat_map(|layer| config.projections(layer)));
    encoder.attach(Box::new(source)).unwrap();
    encoder
}

/// Writes a PEFT folder of an adapter of the queries and keys of a model of this width.
pub fn peft(folder: &Path, seed: u64, rank: usize, width: usize) {
    std::fs::create_dir_all(folder).unwrap();
    let config = json!({"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["query", "key"]});
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    let mut tensors: Vec<(String, [usize; 2], Vec<u8>)> = Vec::new();
    for (at, (layer, name)) in (0..LAYERS).flat_map(|layer| ["query", "key"].map(|name| (layer, name))).enumerate() {
        for (part, shape) in [("lora_A", [rank, width]), ("lora_B", [width, rank])] {
            let bytes = bytemuck::cast_slice(&values(seed + tensors.len() as u64 + 7 * at as u64, rank * width, 0.8)).to_vec();
            tensors.push((format!("base_model.model.encoder.layer.{layer}.attention.self.{name}.{part}.weight"), shape, bytes));
        }
    }
    let views =
        tensors.iter().map(|(name, shape, bytes)| (name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), bytes).unwrap()));
    std::fs::write(folder.join("adapter_model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

/// The model as a server takes it; `change` may put something else in its place.
pub fn model_with(folder: &Path, change: impl FnOnce(&mut Opened) + Send + 'static) -> EmbeddingModel {
    EmbeddingModel::new(NAME, backend::name(), opens(folder, change))
}

/// What opens the model on a device; `change` may put something else in its place.
pub fn opens(folder: &Path, change: impl FnOnce(&mut Opened) + Send + 'static) -> Open {
    opens_as(folder, |encoder| Box::new(encoder), change)
}

/// What opens the model on a device, with the encoder inside something else.
pub fn opens_as(
    folder: &Path,
    wrap: impl FnOnce(Encoder<AnyDevice>) -> Box<dyn Embedder> + Send + 'static,
    change: impl FnOnce(&mut Opened) + Send + 'static,
) -> Open {
    let folder = folder.to_path_buf();
    let open = move || {
        let encoder = encoder(&folder);
        let generation = |name: &&str| Generation::new(*name, format!("{name}-1"), encoder.adapter(name).unwrap());
        let adapters = ADAPTERS.iter().map(generation).collect();
        let text = Text::open(&folder, encoder.config())?;
        let mut opened = Opened { text, adapters, width: WIDTH, vocabulary: WORDS as u32, batch_tokens: 1024, warm: false, embedder: wrap(encoder) };
        change(&mut opened);
        Ok(opened)
    };
    Box::new(open)
}

/// What the library gives, one sentence alone at a time.
pub struct Reference {
    encoder: Encoder<AnyDevice>,
    text: Text,
}

impl Reference {
    pub fn new(folder: &Path) -> Self {
        let encoder = encoder(folder);
        let text = Text::open(folder, encoder.config()).unwrap();
        Self { encoder, text }
    }

    /// Adds an adapter as it is.
    pub fn add(&mut self, name: &str, adapter: &LoraAdapter) {
        let source = [Source { name, config: &adapter.config, modules: &adapter.modules }];
        let mut population = encode(&source, &EncodeOptions { rungs: Some(vec![Rung::Plain]), ..EncodeOptions::default() }, &|_, _| {}).unwrap();
        self.encoder.add_adapter(name, population.remove(name).unwrap()).unwrap();
    }

    pub fn ids(&self, text: &str) -> Vec<i32> {
        self.text.tokens(&[text]).unwrap().remove(0).ids
    }

    pub fn of_ids(&mut self, ids: &[i32], adapter: Option<&str>) -> Vec<u32> {
        let adapter = adapter.map(|name| self.encoder.adapter(name).unwrap());
        self.encoder.embed(&[Row { ids, adapter }]).unwrap().into_iter().map(f32::to_bits).collect()
    }

    pub fn of(&mut self, text: &str, adapter: Option<&str>) -> Vec<u32> {
        let ids = self.ids(text);
        self.of_ids(&ids, adapter)
    }
}
