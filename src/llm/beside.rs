//! What lies beside the weights in a folder of a model: its configuration, tokenizer and template, as files.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::place::Place;
use crate::error::{Error, Result};
use crate::model::json;
use crate::read::{is_there, read_file};

/// Files of a folder that are no weights.
const NAMES: [&str; 8] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
];
/// The longest of them, in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// The files of a model that are no weights.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    /// The keys of `config.json`.
    pub config: Map<String, Value>,
    /// The other files, by name.
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Beside {
    /// Reads what lies beside the weights of the model `name`, which [`Files::open`](super::Files::open) takes. Of a GGUF file they are made.
    ///
    /// # Errors
    /// Files that cannot be read; a GGUF file with what `config.json` has no keys for.
    pub fn of(name: &Path) -> Result<Self> {
        match Place::of(name)? {
            Place::Folder(folder) => Self::of_folder(&folder),
            Place::Gguf(path) => Self::of_gguf(&path),
        }
    }

    fn of_folder(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let config = json(&path)?.ok_or_else(|| Error::input(&path, "expected the configuration of a model, found no such file"))?;
        let mut files = BTreeMap::new();
        for name in NAMES {
            let path = folder.join(name);
            if is_there(&path)? {
                files.insert(name.to_owned(), read_file(&path, MAX_BYTES)?);
            }
        }
        Ok(Self { config, files })
    }

    #[cfg(feature = "gguf")]
    fn of_gguf(path: &Path) -> Result<Self> {
        let file = super::weights::GgufFile::open(path)?;
        let mut config = file.keys()?;
        let found = file.config()?;
        if let super::Scaling::Divided(_) = found.scaling {
            return Err(Error::unsupported("a folder of this model", format!("{}: config.json has no key for divisors of rotary positions", path.display())));
        }
        let architecture = match found.family {
            super::Family::Llama => "LlamaForCausalLM",
            super::Family::Mistral => "MistralForCausalLM",
            super::Family::Qwen2 => "Qwen2ForCausalLM",
            super::Family::Qwen3 => "Qwen3ForCausalLM",
        };
        config.insert("architectures".into(), vec![architecture].into());
        config.insert("hidden_act".into(), "silu".into());
        config.insert("head_dim".into(), found.head_dim.into());
        let vocabulary = file.vocabulary()?;
        let mut files = BTreeMap::from([("tokenizer.json".to_owned(), vocabulary.json()?)]);
        if let Some(template) = vocabulary.template {
            files.insert("chat_template.jinja".into(), template.as_bytes().to_vec());
        }
        let [first, last] = vocabulary.marks();
        let mut marks = Map::new();
        marks.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
        marks.extend([("bos_token", first), ("eos_token", last)].into_iter().filter_map(|(key, mark)| Some((key.to_owned(), mark?.into()))));
        files.insert("tokenizer_config.json".into(), Value::Object(marks).to_string().into_bytes());
        Ok(Self { config, files })
    }

    #[cfg(not(feature = "gguf"))]
    fn of_gguf(path: &Path) -> Result<Self> {
        Err(Error::unsupported("a model that is a file", format!("{}: this build has no reader of GGUF (feature gguf)", path.display())))
    }
}
