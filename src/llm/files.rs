//! A model's files: a folder of the Hugging Face libraries, or one GGUF file.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::chat::ChatTemplate;
use super::config::Config;
use super::keys::{Keys, ids};
use super::place::Place;
use super::tokenizer::Tokenizer;
use super::weights::{Factors, Folder, WeightSource};
use crate::error::{Error, Result};
use crate::model::{json, tokenizer_bytes};
use crate::read::read_file;

/// The longest template in a file of its own, in bytes.
const MAX_TEMPLATE_BYTES: u64 = 1 << 20;

/// What a model is made of, read and checked, and nothing on a device yet.
pub struct Files {
    /// The model's sizes and rules.
    pub config: Config,
    /// The weights, which are read when they are asked for.
    pub weights: Box<dyn WeightSource>,
    /// The model's tokenizer.
    pub tokenizer: Tokenizer,
    /// The template of a chat, where the model has one.
    pub template: Option<ChatTemplate>,
    /// Tokens at each of which a text ends.
    pub ends: Vec<u32>,
}

impl Files {
    /// Opens the model `name`: a folder, a GGUF file, a folder with one GGUF file and no `config.json`, or `organisation/name` in the local
    /// cache of Hugging Face's libraries. Nothing is ever downloaded.
    ///
    /// # Errors
    /// Files that are missing or not sound; a model that cannot be run, by the key that says so.
    pub fn open(name: &Path) -> Result<Self> {
        match Place::of(name)? {
            Place::Folder(folder) => Self::open_folder(&folder),
            Place::Gguf(path) => Self::open_gguf(&path),
        }
    }

    #[cfg(feature = "gguf")]
    fn open_gguf(path: &Path) -> Result<Self> {
        let file = super::weights::GgufFile::open(path)?;
        let config = file.config()?;
        let vocabulary = file.vocabulary()?;
        let tokenizer = Tokenizer::new(path, &vocabulary.json()?, config.vocabulary)?;
        let template = vocabulary.template.map(|template| ChatTemplate::new(path, template, vocabulary.marks())).transpose()?;
        let ends = config.ends.clone();
        Ok(Self { config, weights: Box::new(file), tokenizer, template, ends })
    }

    #[cfg(not(feature = "gguf"))]
    fn open_gguf(path: &Path) -> Result<Self> {
        Err(Error::unsupported("a model that is a file", format!("{}: this build has no reader of GGUF (feature gguf)", path.display())))
    }

    fn open_folder(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let map: Map<String, Value> = json(&path)?.ok_or_else(|| Error::input(&path, "expected the configuration of a model, found no such file"))?;
        let config = Config::new(&Keys { path: &path, map: &map })?;
        let path = folder.join("tokenizer.json");
        let tokenizer = Tokenizer::new(&path, &tokenizer_bytes(&path)?, config.vocabulary)?;
        let (template, marks) = template(folder)?;
        let generation: Map<String, Value> = json(&folder.join("generation_config.json"))?.unwrap_or_default();
        let mut ends = config.ends.clone();
        ends.extend(ids(generation.get("eos_token_id")));
        ends.extend(marks[1].as_deref().and_then(|mark| tokenizer.id_of(mark)));
        ends.sort_unstable();
        ends.dedup();
        Ok(Self { config, weights: Box::new(Factors::new(Box::new(Folder::open(folder)?))?), tokenizer, template, ends })
    }
}

/// The text of a token that a configuration names: plain, or as an object that says more.
fn mark(value: Option<&Value>) -> Option<String> {
    let value = value?;
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned)
}

impl ChatTemplate {
    /// The template in a folder of the Hugging Face libraries, such as that of a PEFT adapter, which was trained on chats of its own form; `None` where
    /// the folder has none.
    ///
    /// # Errors
    /// A template that cannot be read or is not sound.
    pub fn in_folder(folder: &Path) -> Result<Option<Self>> {
        template(folder).map(|(template, _)| template)
    }
}

/// The template of a chat that lies in a folder, and the texts of the first and of the last token.
fn template(folder: &Path) -> Result<(Option<ChatTemplate>, [Option<String>; 2])> {
    let path = folder.join("tokenizer_config.json");
    let own: Map<String, Value> = json(&path)?.unwrap_or_default();
    let marks = ["bos_token", "eos_token"].map(|key| mark(own.get(key)));
    let template = text(folder, &path, &own)?.map(|(path, text)| ChatTemplate::new(&path, &text, marks.clone())).transpose()?;
    Ok((template, marks))
}

/// The text of a template and the file that it is from: a file of its own, else in the tokenizer's configuration, alone or as the one of
/// several that is called `default`.
fn text(folder: &Path, path: &Path, own: &Map<String, Value>) -> Result<Option<(PathBuf, String)>> {
    let file = folder.join("chat_template.jinja");
    if crate::read::is_there(&file)? {
        let text = String::from_utf8(read_file(&file, MAX_TEMPLATE_BYTES)?).map_err(|error| Error::input(&file, error.to_string()))?;
        return Ok(Some((file, text)));
    }
    let text = match own.get("chat_template") {
        Some(Value::String(text)) => Some(text.as_str()),
        Some(Value::Array(several)) => several.iter().find(|one| one["name"] == "default").and_then(|one| one["template"].as_str()),
        _ => None,
    };
    Ok(text.map(|text| (path.to_path_buf(), text.to_owned())))
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a {} of {} layers from {}", self.config.family.name(), self.config.layers, self.weights.path().display())
    }
}
