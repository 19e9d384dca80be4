//! The model, its adapters, and the reference outputs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use trifuse::adapters::encode::{EncodeOptions, Source, encode};
use trifuse::adapters::encoded::{Population, Rung};
use trifuse::adapters::peft::LoraAdapter;
use trifuse::backend::Backend;
use trifuse::model::{Encoder, EncoderOptions, Row};
use trifuse::safetensors_file::TensorFile;
use trifuse::{DType, Result};

pub fn root() -> &'static Path {
    let built = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    // A copy of the tree on another machine lies elsewhere than where this was built.
    if built.is_dir() { built } else { Path::new(".") }
}

pub fn model() -> PathBuf {
    root().join(".minilm")
}

pub fn weights_are_there() -> bool {
    ["model.safetensors", "tokenizer.json", "config.json"].iter().all(|file| model().join(file).is_file())
}

pub fn encoder<D: Backend>(device: &Arc<D>, dtype: DType) -> Encoder<D> {
    Encoder::open(device.clone(), &model(), EncoderOptions { dtype, ..EncoderOptions::default() }).unwrap()
}

/// Adapters of `crates/cli/data` by `POPULATION/NAME`, under their folders' names.
pub fn adapters(places: &[&str]) -> Vec<LoraAdapter> {
    let folder = root().join("crates/cli/data/adapters");
    places.iter().map(|place| LoraAdapter { name: (*place).into(), ..LoraAdapter::open(folder.join(place)).unwrap() }).collect()
}

/// The same adapters encoded; with the options' default of nothing asked, not at all.
pub fn population(adapters: &[LoraAdapter], options: &EncodeOptions) -> Result<Population> {
    let sources: Vec<Source<'_>> = adapters.iter().map(Source::from).collect();
    encode(&sources, options, &|_, _| {})
}

pub fn plain() -> EncodeOptions {
    EncodeOptions { rungs: Some(vec![Rung::Plain]), ..EncodeOptions::default() }
}

/// The reference outputs.
pub struct Golden {
    file: TensorFile,
    pub sentences: Vec<String>,
    pub ids: Vec<Vec<i32>>,
}

impl Golden {
    pub fn open() -> Self {
        let file = TensorFile::open(root().join("tests/golden/minilm.safetensors")).unwrap();
        let sentences: Vec<String> = serde_json::from_str(file.metadata("sentences").unwrap()).unwrap();
        let integers = |name: &str| -> Vec<i64> { file.bytes(name).unwrap().1.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect() };
        let (ids, mask) = (integers("input_ids"), integers("attention_mask"));
        let length = ids.len() / sentences.len();
        let row = |row: usize| (row * length..(row + 1) * length).filter(|&at| mask[at] == 1).map(|at| ids[at] as i32).collect();
        let ids = (0..sentences.len()).map(row).collect();
        Self { file, sentences, ids }
    }

    /// `[sentences, hidden]`.
    pub fn embeddings(&self, name: &str) -> Vec<f32> {
        self.file.floats(&format!("emb.{}", name.replace('/', "."))).unwrap().2
    }
}

/// A batch of these sentences, each with the adapter of that name, or none.
pub fn batch<'a, D: Backend>(encoder: &Encoder<D>, sentences: &'a [Vec<i32>], names: &[Option<&str>]) -> Vec<Row<'a>> {
    let adapter = |row: usize| names[row % names.len()].map(|name| encoder.adapter(name).unwrap());
    sentences.iter().enumerate().map(|(row, ids)| Row { ids, adapter: adapter(row) }).collect()
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}
