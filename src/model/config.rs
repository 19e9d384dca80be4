//! The configuration in a model's folder: `config.json`, and the layout of sentence-transformers around it.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result, ensure};
use crate::ops::Activation;
use crate::read::{is_there, read_file};

/// Longest of these files, in bytes. Real ones have a few kilobytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// How token states become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean over the tokens of a sentence.
    Mean,
}

/// The sizes and rules of a BERT encoder (arXiv:1810.04805).
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Rows of the token table.
    pub vocabulary: u32,
    /// Elements of a token's state.
    pub hidden: u64,
    /// The number of transformer blocks.
    pub layers: usize,
    /// Attention heads of a block; divides `hidden`.
    pub heads: u64,
    /// Elements between the two products of the MLP.
    pub intermediate: u64,
    /// The activation between those two products.
    pub activation: Activation,
    /// Rows of the table of positions, which is also the most tokens of a sentence.
    pub positions: u32,
    /// Rows of the table of token types, of which 0 is used.
    pub token_types: u64,
    /// The number that LayerNorm adds to the variance.
    pub norm_eps: f32,
    /// How token states become one vector.
    pub pooling: Pooling,
    /// Whether the pooled vector is divided by its L2 norm.
    pub normalise: bool,
    /// The most tokens of a sentence by the configuration. The tokenizer may allow fewer.
    pub max_tokens: usize,
    /// Whether texts are lower-cased before they become tokens.
    pub lowercase: bool,
}

/// The file `config.json`. Keys that change nothing in the forward pass are not read.
#[derive(Deserialize)]
struct Bert {
    model_type: Option<String>,
    vocab_size: u32,
    hidden_size: u64,
    num_hidden_layers: usize,
    num_attention_heads: u64,
    intermediate_size: u64,
    hidden_act: String,
    max_position_embeddings: u32,
    type_vocab_size: u64,
    layer_norm_eps: f64,
    position_embedding_type: Option<String>,
}

/// One entry of `modules.json`.
#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

/// The file `sentence_bert_config.json`.
#[derive(Deserialize)]
struct SentenceBert {
    max_seq_length: Option<usize>,
    do_lower_case: Option<bool>,
}

/// The file `config_sentence_transformers.json`.
#[derive(Deserialize)]
struct SentenceTransformers {
    default_prompt_name: Option<String>,
}

/// The file `config.json` of a pooling module.
#[derive(Deserialize)]
struct PoolingFile {
    #[serde(default)]
    pooling_mode_mean_tokens: bool,
    #[serde(flatten)]
    others: serde_json::Map<String, serde_json::Value>,
}

impl Config {
    /// Reads the folder of a model. A folder without `modules.json` is taken for a plain encoder. Its token states are averaged and
    /// normalised, as in sentence-transformers' models of this family.
    ///
    /// # Errors
    /// A file that is missing or not sound; a model that is not this encoder, by the key that says so.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let bert: Bert = json(&path)?.ok_or_else(|| Error::input(&path, "expected the configuration of a model, found no such file"))?;
        let mut config = Self::of(&path, bert)?;
        if let Some(SentenceBert { max_seq_length, do_lower_case }) = json(&folder.join("sentence_bert_config.json"))? {
            config.max_tokens = config.max_tokens.min(max_seq_length.unwrap_or(usize::MAX));
            config.lowercase = do_lower_case.unwrap_or(false);
        }
        let path = folder.join("config_sentence_transformers.json");
        if let Some(SentenceTransformers { default_prompt_name: Some(prompt) }) = json(&path)? {
            return Err(Error::input_item(&path, "default_prompt_name", format!("expected none, found {prompt:?}: no prompt is put in front of texts here")));
        }
        let path = folder.join("modules.json");
        if let Some(modules) = json::<Vec<Module>>(&path)? {
            config.normalise = false;
            let mut pooled = false;
            for Module { path: place, kind } in modules {
                match kind.rsplit('.').next().unwrap_or_default() {
                    "Transformer" => {}
                    "Pooling" => {
                        pooled = true;
                        mean_only(&folder.join(&place).join("config.json"))?;
                    }
                    "Normalize" => config.normalise = true,
                    _ => return Err(Error::input_item(&path, kind, "expected Transformer, Pooling and Normalize: no other module is supported")),
                }
            }
            if !pooled {
                return Err(Error::input(&path, "expected a Pooling module: without one there is no vector a sentence"));
            }
        }
        if config.max_tokens < 3 {
            return Err(Error::input(folder, format!("expected room for at least 3 tokens a sentence, found {}", config.max_tokens)));
        }
        Ok(config)
    }

    fn of(path: &Path, bert: Bert) -> Result<Self> {
        let refuse = |key: &str, expected: &str, found: String| Err(Error::input_item(path, key, format!("expected {expected}, found {found}")));
        for (key, kind, only) in [("model_type", &bert.model_type, "bert"), ("position_embedding_type", &bert.position_embedding_type, "absolute")] {
            if let Some(other) = kind.as_deref().filter(|kind| *kind != only) {
                return refuse(key, only, format!("{other:?}"));
            }
        }
        let activation = match bert.hidden_act.as_str() {
            "gelu" => Activation::GeluErf,
            "gelu_new" | "gelu_pytorch_tanh" => Activation::GeluTanh,
            "relu" => Activation::Relu,
            "silu" | "swish" => Activation::Silu,
            other => return refuse("hidden_act", "gelu, gelu_new, gelu_pytorch_tanh, relu or silu", format!("{other:?}")),
        };
        for (key, size) in [
            ("vocab_size", u64::from(bert.vocab_size)),
            ("hidden_size", bert.hidden_size),
            ("num_hidden_layers", bert.num_hidden_layers as u64),
            ("num_attention_heads", bert.num_attention_heads),
            ("intermediate_size", bert.intermediate_size),
            ("max_position_embeddings", u64::from(bert.max_position_embeddings)),
            ("type_vocab_size", bert.type_vocab_size),
        ] {
            if size == 0 || size > 1 << 24 {
                return refuse(key, "1 to 2^24", size.to_string());
            }
        }
        if !bert.hidden_size.is_multiple_of(bert.num_attention_heads) || bert.hidden_size / bert.num_attention_heads > 256 {
            let found = format!("{} for hidden_size {}", bert.num_attention_heads, bert.hidden_size);
            return refuse("num_attention_heads", "a divisor of hidden_size that leaves at most 256 elements a head", found);
        }
        let eps = bert.layer_norm_eps as f32;
        if !(eps.is_finite() && eps >= 0.0) {
            return refuse("layer_norm_eps", "a finite number of at least 0", bert.layer_norm_eps.to_string());
        }
        Ok(Self {
            vocabulary: bert.vocab_size,
            hidden: bert.hidden_size,
            layers: bert.num_hidden_layers,
            heads: bert.num_attention_heads,
            intermediate: bert.intermediate_size,
            activation,
            positions: bert.max_position_embeddings,
            token_types: bert.type_vocab_size,
            norm_eps: eps,
            pooling: Pooling::Mean,
            normalise: true,
            max_tokens: bert.max_position_embeddings as usize,
            lowercase: false,
        })
    }

    /// The module paths of a block's six linear layers, and `[d_out, d_in]` of each layer.
    pub fn projections(&self, layer: usize) -> [(String, [u64; 2]); 6] {
        let (hidden, wide) = (self.hidden, self.intermediate);
        [
            ("attention.self.query", [hidden, hidden]),
            ("attention.self.key", [hidden, hidden]),
            ("attention.self.value", [hidden, hidden]),
            ("attention.output.dense", [hidden, hidden]),
            ("intermediate.dense", [wide, hidden]),
            ("output.dense", [hidden, wide]),
        ]
        .map(|(name, shape)| (format!("encoder.layer.{layer}.{name}"), shape))
    }

    /// Checks that an adapter's projection, `[d_out, d_in]`, is one of the model's.
    ///
    /// # Errors
    /// A projection that the model does not have, or has with other sizes.
    pub fn fits(&self, path: &str, shape: [u64; 2]) -> Result<()> {
        let own = (0..self.layers).flat_map(|layer| self.projections(layer)).find(|(own, _)| own == path);
        let Some((_, own)) = own else {
            return Err(Error::invalid(path, "a projection of the model: this is an adapter for another one", "one that it does not have"));
        };
        ensure(own == shape, path, format_args!("[d_out, d_in] = {own:?}, as the model has it: this is an adapter for another one"), format_args!("{shape:?}"))
    }
}

/// Refuses a pooling other than the mean.
fn mean_only(path: &Path) -> Result<()> {
    let pooling: PoolingFile = json(path)?.ok_or_else(|| Error::input(path, "expected the configuration of the pooling, found no such file"))?;
    let other = pooling.others.iter().find(|(key, value)| key.starts_with("pooling_mode_") && value.as_bool() == Some(true));
    match (pooling.pooling_mode_mean_tokens, other) {
        (true, None) => Ok(()),
        (_, Some((key, _))) => Err(Error::input_item(path, key, "expected pooling_mode_mean_tokens alone: no other pooling is supported")),
        (false, None) => Err(Error::input_item(path, "pooling_mode_mean_tokens", "expected true: no other pooling is supported")),
    }
}

/// The configurations of the modules that `modules.json` names; none where it cannot be read.
pub(super) fn module_files(folder: &Path) -> Vec<PathBuf> {
    let modules = json::<Vec<Module>>(&folder.join("modules.json")).ok().flatten().unwrap_or_default();
    modules.into_iter().map(|module| folder.join(module.path).join("config.json")).collect()
}

/// The file's JSON, or nothing where there is no such file.
pub fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    // A link that leads nowhere is no absent file: its defaults would be those of another model.
    if !is_there(path)? {
        return Ok(None);
    }
    let bytes = read_file(path, MAX_FILE_BYTES)?;
    serde_json::from_slice(&bytes).map(Some).map_err(|error| Error::input(path, error.to_string()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MINILM: &str = r#"{"hidden_act": "gelu", "hidden_size": 384, "intermediate_size": 1536, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12, "num_hidden_layers": 6,
        "position_embedding_type": "absolute", "type_vocab_size": 2, "vocab_size": 30522, "an_unknown_key": 1}"#;

    #[test]
    fn the_layout_of_sentence_transformers_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let open = || Config::open(folder.path());
        assert!(open().is_err());
        write("config.json", MINILM);
        let plain = open().unwrap();
        assert!((plain.max_tokens, plain.normalise, plain.activation) == (512, true, Activation::GeluErf));
        write("sentence_bert_config.json", r#"{"max_seq_length": 256, "do_lower_case": false}"#);
        let modules =
            |last: &str| format!(r#"[{{"path": "", "type": "sentence_transformers.models.Transformer"}}, {{"path": "1_Pooling", "type": "a.Pooling"}}{last}]"#);
        write("modules.json", &modules(""));
        std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
        assert!(open().is_err(), "the pooling has no configuration");
        write("1_Pooling/config.json", r#"{"word_embedding_dimension": 384, "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true}"#);
        assert_eq!((open().unwrap().max_tokens, open().unwrap().normalise), (256, false));
        write("modules.json", &modules(r#", {"path": "2_Normalize", "type": "a.Normalize"}"#));
        assert!(open().unwrap().normalise);
        assert!(!open().unwrap().lowercase);
        write("sentence_bert_config.json", r#"{"do_lower_case": true}"#);
        assert_eq!((open().unwrap().max_tokens, open().unwrap().lowercase), (512, true));
        write("config_sentence_transformers.json", r#"{"prompts": {"query": "query: "}, "default_prompt_name": null}"#);
        assert!(open().is_ok());
        write("config_sentence_transformers.json", r#"{"prompts": {"query": "query: "}, "default_prompt_name": "query"}"#);
        assert!(open().unwrap_err().to_string().contains("default_prompt_name"));
        write("config_sentence_transformers.json", "{}");
        write("modules.json", &modules(r#", {"path": "2_Dense", "type": "a.Dense"}"#));
        assert!(open().unwrap_err().to_string().contains("a.Dense"));
        write("modules.json", &modules(""));
        write("1_Pooling/config.json", r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#);
        assert!(open().unwrap_err().to_string().contains("pooling_mode_cls_token"));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_that_leads_nowhere_is_not_an_absent_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), MINILM).unwrap();
        for name in ["sentence_bert_config.json", "config_sentence_transformers.json", "modules.json"] {
            let link = folder.path().join(name);
            std::os::unix::fs::symlink("nowhere", &link).unwrap();
            assert!(Config::open(folder.path()).unwrap_err().to_string().contains(name));
            std::fs::remove_file(link).unwrap();
        }
        assert!(Config::open(folder.path()).is_ok());
    }

    #[test]
    fn other_models_are_refused_by_the_key_that_says_so() {
        let folder = tempfile::tempdir().unwrap();
        for (from, to, key) in [
            ("\"bert\"", "\"roberta\"", "model_type"),
            ("absolute", "relative_key", "position_embedding_type"),
            ("gelu", "mish", "hidden_act"),
            (": 12,", ": 7,", "num_attention_heads"),
            (": 30522", ": 0", "vocab_size"),
            ("1e-12", "-1", "layer_norm_eps"),
        ] {
            std::fs::write(folder.path().join("config.json"), MINILM.replace(from, to)).unwrap();
            let error = Config::open(folder.path()).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }
}
