//! A GGUF file: configuration, weights and tokenizer in one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anamnesis::{F32Out, GgufMetadataArray, GgufMetadataValue, GgufTensorInfo, GgufType, ParseLimits, ParsedGguf, parse_gguf_bytes_with_limits};
use serde_json::{Map, Value};

use super::names;
use super::source::WeightSource;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::llm::keys::Keys;
use crate::llm::vocabulary::Vocabulary;
use crate::llm::{Config, Family, Scaling};
use crate::read::read_file;

/// The longest file, in bytes.
const MAX_FILE_BYTES: u64 = 256 << 30;
/// The most bytes of metadata that are held, and the most items of a list among them.
const MAX_TOTAL_BYTES: u64 = 2 << 30;
const MAX_ITEMS: u64 = 1 << 24;

/// An open GGUF file, whose metadata are sound.
pub struct GgufFile {
    path: PathBuf,
    inner: ParsedGguf,
    family: Family,
    /// Each tensor's number, by its name in the Hugging Face libraries.
    tensors: BTreeMap<String, usize>,
    heads: [usize; 2],
}

impl GgufFile {
    /// Reads the file at `path`. It is not mapped: a mapped file that another program cuts short kills the process that reads it.
    ///
    /// # Errors
    /// A file that is not sound; an architecture, or a tensor, that is not supported, by its name.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = read_file(path, MAX_FILE_BYTES)?;
        let room = (bytes.len() as u64).max(MAX_TOTAL_BYTES);
        let limits = ParseLimits::unbounded().with_max_single_alloc(room).with_max_total_bytes(MAX_TOTAL_BYTES).with_max_item_count(MAX_ITEMS);
        let inner = parse_gguf_bytes_with_limits(bytes, &limits).map_err(|error| Error::input(path, error.to_string()))?;
        let architecture = inner.metadata().get("general.architecture").and_then(GgufMetadataValue::as_string).unwrap_or_default();
        let Some(family) = names::family(architecture) else {
            return Err(Error::input_item(path, "general.architecture", format!("expected llama, qwen2 or qwen3, found {architecture:?}")));
        };
        let mut tensors = BTreeMap::new();
        for (number, info) in inner.tensor_info().iter().enumerate() {
            match names::of_tensor(&info.name) {
                Some(name) => drop(tensors.insert(name, number)),
                None if info.name == names::ROPE_FACTORS => {}
                None => return Err(Error::input_item(path, &info.name, "expected the tensors of a decoder of this family, found one that it does not have")),
            }
        }
        let mut file = Self { path: path.into(), inner, family, tensors, heads: [0; 2] };
        let config = file.config()?;
        file.heads = [config.heads, config.kv_heads].map(|heads| heads as usize);
        Ok(file)
    }

    /// The keys of `config.json` that say what the file's own keys do.
    ///
    /// # Errors
    /// A key that is unknown.
    pub fn keys(&self) -> Result<Map<String, Value>> {
        let own = format!("{}.", self.family.name());
        let mut map = Map::new();
        map.insert("model_type".into(), self.family.name().into());
        let mut scaling = Map::new();
        for (full, value) in self.inner.metadata() {
            let Some(key) = full.strip_prefix(&own) else { continue };
            let fault = |problem: String| Err(Error::input_item(&self.path, full, problem));
            let Some(given) = json(value) else { return fault("expected a number, a word or a list of them".into()) };
            if let Some((_, name)) = names::KEYS.iter().find(|(known, _)| *known == key) {
                map.insert((*name).into(), given);
            } else if let Some(name) =
                key.strip_prefix("rope.scaling.").filter(|name| ["type", "factor", "original_context_length", "attn_factor"].contains(name))
            {
                scaling.insert(scaling_key(name).into(), given);
            } else if key == "expert_count" {
                map.insert("num_experts".into(), given);
            } else if !names::READ.contains(&key) {
                return fault(format!("expected keys of a plain {} model, found one that is not known", self.family.name()));
            }
        }
        if self.family == Family::Llama && map.contains_key("sliding_window") {
            map.insert("model_type".into(), Family::Mistral.name().into());
        }
        // The file holds an f32, and 1e-5 is written so: the shortest number that is that f32.
        if let Some(eps) = map.get("rms_norm_eps").and_then(Value::as_f64) {
            map.insert("rms_norm_eps".into(), shortest(eps as f32).into());
        }
        if !map.contains_key("vocab_size") {
            map.insert("vocab_size".into(), self.strings("tokenizer.ggml.tokens").map_or(0, <[String]>::len).into());
        }
        if scaling.get("rope_type").is_some_and(|kind| kind != "none") {
            map.insert("rope_scaling".into(), scaling.into());
        }
        map.insert("tie_word_embeddings".into(), (!self.tensors.contains_key("lm_head.weight")).into());
        map.insert("attention_bias".into(), (self.family != Family::Qwen2 && self.tensors.contains_key("model.layers.0.self_attn.q_proj.bias")).into());
        let ends = ["eos", "eot"].map(|name| self.number(&format!("tokenizer.ggml.{name}_token_id")));
        map.insert("eos_token_id".into(), ends.into_iter().flatten().collect::<Vec<u64>>().into());
        Ok(map)
    }

    /// The configuration that the keys give.
    ///
    /// # Errors
    /// A key that is missing or unknown, or says what cannot be run.
    pub fn config(&self) -> Result<Config> {
        let own = format!("{}.", self.family.name());
        let map = self.keys()?;
        let mut config = Config::new(&Keys { path: &self.path, map: &map })?;
        if let Some(info) = self.inner.tensor_info().iter().find(|info| info.name == names::ROPE_FACTORS) {
            config.scaling = Scaling::Divided(self.floats(info)?);
        }
        let turned = self.number(&format!("{own}rope.dimension_count"));
        if turned.is_some_and(|turned| turned != config.head_dim) {
            let problem = format!("expected {}, as rotary positions turn whole heads, found {}", config.head_dim, turned.unwrap_or(0));
            return Err(Error::input_item(&self.path, format!("{own}rope.dimension_count"), problem));
        }
        Ok(config)
    }

    /// What the file says of its tokens.
    ///
    /// # Errors
    /// A tokenizer of a kind that is not supported, by the key that says so.
    pub fn vocabulary(&self) -> Result<Vocabulary<'_>> {
        let fault = |key: &str, problem: String| Error::input_item(&self.path, key, problem);
        let word = |key: &str| self.inner.metadata().get(key).and_then(GgufMetadataValue::as_string);
        let list = |key: &str| self.strings(key).ok_or_else(|| fault(key, "expected a list of texts, found none".into()));
        match word("tokenizer.ggml.model") {
            Some("gpt2") => {}
            other => return Err(fault("tokenizer.ggml.model", format!("expected gpt2, which is byte-level BPE, found {other:?}"))),
        }
        let types = match self.inner.metadata().get("tokenizer.ggml.token_type").and_then(GgufMetadataValue::as_array) {
            Some(GgufMetadataArray::I32(types)) => types.as_slice(),
            _ => return Err(fault("tokenizer.ggml.token_type", "expected a list of i32, found none".into())),
        };
        Ok(Vocabulary {
            path: &self.path,
            tokens: list("tokenizer.ggml.tokens")?,
            types,
            merges: list("tokenizer.ggml.merges")?,
            pre: word("tokenizer.ggml.pre").unwrap_or("default"),
            first: self.number("tokenizer.ggml.bos_token_id"),
            adds_first: self.inner.metadata().get("tokenizer.ggml.add_bos_token").and_then(GgufMetadataValue::as_bool),
            last: self.number("tokenizer.ggml.eos_token_id"),
            template: word("tokenizer.chat_template"),
        })
    }

    fn strings(&self, key: &str) -> Option<&[String]> {
        self.inner.metadata().get(key)?.as_array()?.as_string_slice()
    }

    fn number(&self, key: &str) -> Option<u64> {
        json(self.inner.metadata().get(key)?)?.as_u64()
    }

    fn floats(&self, info: &GgufTensorInfo) -> Result<Vec<f32>> {
        let fault = |problem: String| Error::input_item(&self.path, &info.name, problem);
        let plain = match info.dtype {
            GgufType::F32 => Some(DType::F32),
            GgufType::F16 => Some(DType::F16),
            GgufType::BF16 => Some(DType::BF16),
            _ => None,
        };
        let values: Vec<f32> = if let Some(dtype) = plain {
            let tensor = self.inner.tensors().find(|tensor| tensor.name == info.name).ok_or_else(|| fault("expected its bytes, found none".into()))?;
            dtype.decode(&tensor.data).into_iter().map(|value| value as f32).collect()
        } else {
            let bytes = self.inner.dequantize_tensor_as::<F32Out>(info).map_err(|error| fault(error.to_string()))?;
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        };
        match values.iter().find(|value| !value.is_finite()) {
            Some(value) => Err(fault(format!("expected finite numbers, found {value}"))),
            None => Ok(values),
        }
    }

    fn info(&self, name: &str) -> Option<&GgufTensorInfo> {
        self.inner.tensor_info().get(*self.tensors.get(name)?)
    }
}

impl WeightSource for GgufFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn shape(&self, name: &str) -> Option<Vec<u64>> {
        // The file has the fastest dimension first.
        Some(self.info(name)?.shape.iter().rev().map(|&size| size as u64).collect())
    }

    fn names(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }

    fn read(&self, name: &str) -> Result<(Vec<u64>, Vec<f32>)> {
        let missing = || Error::input_item(&self.path, name, "expected this tensor, found none of that name");
        let (info, shape) = self.info(name).zip(self.shape(name)).ok_or_else(missing)?;
        let values = self.floats(info)?;
        let heads = match name.rsplit('.').nth(1) {
            Some("q_proj") => self.heads[0],
            Some("k_proj") => self.heads[1],
            _ => return Ok((shape, values)),
        };
        let (rows, columns) = (shape.first().copied().unwrap_or(0) as usize, shape.get(1).copied().unwrap_or(1) as usize);
        if !names::permuted(self.family) || heads == 0 || rows % (2 * heads) != 0 {
            return Ok((shape, values));
        }
        Ok((shape, names::unpermute(&values, heads, columns)))
    }
}

/// The name that `config.json` has for a key of `rope.scaling`.
fn scaling_key(name: &str) -> &'static str {
    match name {
        "type" => "rope_type",
        "factor" => "factor",
        "attn_factor" => "attention_factor",
        _ => "original_max_position_embeddings",
    }
}

/// The shortest decimal number that is this f32.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// A value as JSON; `None` for lists, which no key of a configuration holds.
fn json(value: &GgufMetadataValue) -> Option<Value> {
    Some(match value {
        GgufMetadataValue::U8(v) => (*v).into(),
        GgufMetadataValue::I8(v) => (*v).into(),
        GgufMetadataValue::U16(v) => (*v).into(),
        GgufMetadataValue::I16(v) => (*v).into(),
        GgufMetadataValue::U32(v) => (*v).into(),
        GgufMetadataValue::I32(v) => (*v).into(),
        GgufMetadataValue::U64(v) => (*v).into(),
        GgufMetadataValue::I64(v) => (*v).into(),
        GgufMetadataValue::F32(v) => (*v).into(),
        GgufMetadataValue::F64(v) => (*v).into(),
        GgufMetadataValue::Bool(v) => (*v).into(),
        GgufMetadataValue::String(v) => v.as_str().into(),
        _ => return None,
    })
}

impl std::fmt::Debug for GgufFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} tensors of a {} in {}", self.tensors.len(), self.family.name(), self.path.display())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::HashMap;

    use anamnesis::{GgufWriteTensor, write_gguf};

    use super::*;
    use GgufMetadataValue::{F32, String as Word, U32};

    /// One layer of two heads of four rows, over one head of k and v. Row `r` of a matrix of `c` columns holds `r`, `r + 0.01` and so on.
    const TENSORS: [(&str, [usize; 2]); 11] = [
        ("token_embd.weight", [5, 8]),
        ("output_norm.weight", [8, 0]),
        ("blk.0.attn_q.weight", [8, 8]),
        ("blk.0.attn_k.weight", [4, 8]),
        ("blk.0.attn_v.weight", [4, 8]),
        ("blk.0.attn_output.weight", [8, 8]),
        ("blk.0.ffn_gate.weight", [6, 8]),
        ("blk.0.ffn_up.weight", [6, 8]),
        ("blk.0.ffn_down.weight", [8, 6]),
        ("blk.0.attn_norm.weight", [8, 0]),
        ("blk.0.ffn_norm.weight", [8, 0]),
    ];

    fn open(change: &[(&str, GgufMetadataValue)], more: &[(&str, [usize; 2])]) -> Result<GgufFile> {
        let mut keys: HashMap<String, GgufMetadataValue> = HashMap::new();
        let numbers = [("block_count", 1), ("embedding_length", 8), ("feed_forward_length", 6), ("attention.head_count", 2), ("attention.head_count_kv", 1)];
        keys.extend(numbers.into_iter().chain([("context_length", 64), ("vocab_size", 5)]).map(|(key, value)| (format!("llama.{key}"), U32(value))));
        keys.insert("llama.attention.layer_norm_rms_epsilon".into(), F32(1e-5));
        keys.insert("general.architecture".into(), Word("llama".into()));
        keys.extend(change.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        let tensors: Vec<(&str, Vec<usize>, Vec<u8>)> = TENSORS
            .iter()
            .chain(more)
            .map(|(name, [rows, columns])| {
                let shape = if *columns == 0 { vec![*rows] } else { vec![*columns, *rows] };
                let value = |row: usize, column: usize| (row as f32 + column as f32 / 100.0).to_le_bytes();
                (*name, shape, (0..*rows).flat_map(|row| (0..(*columns).max(1)).flat_map(move |column| value(row, column))).collect())
            })
            .collect();
        let written: Vec<GgufWriteTensor<'_>> = tensors.iter().map(|(name, shape, data)| GgufWriteTensor { name, shape, dtype: GgufType::F32, data }).collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        write_gguf(&path, &written, &keys).unwrap();
        GgufFile::open(&path)
    }

    #[test]
    fn names_shapes_and_rows_are_those_of_the_other_libraries() {
        let file = open(&[], &[]).unwrap();
        let config = file.config().unwrap();
        assert_eq!((config.norm_eps, config.tied, config.head_dim, config.rope_base), (1e-5, true, 4, 1e4));
        let firsts = |name: &str| -> Vec<f32> { file.read(name).unwrap().1.chunks_exact(8).map(|row| row[0]).collect() };
        assert_eq!(firsts("model.layers.0.self_attn.q_proj.weight"), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
        assert_eq!(firsts("model.layers.0.self_attn.k_proj.weight"), [0.0, 2.0, 1.0, 3.0]);
        assert_eq!(firsts("model.layers.0.self_attn.v_proj.weight"), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(file.shape("model.layers.0.mlp.down_proj.weight"), Some(vec![8, 6]));
        assert!(file.values("model.layers.0.mlp.down_proj.weight", &[6, 8]).is_err() && file.read("lm_head.weight").is_err());
        let own = open(&[], &[("output.weight", [5, 8]), ("rope_freqs.weight", [2, 0])]).unwrap().config().unwrap();
        assert!(!own.tied && own.scaling == Scaling::Divided(vec![0.0, 1.0]));
    }

    #[test]
    fn what_is_not_known_is_refused_by_its_name() {
        let stretched = [("llama.rope.scaling.type", Word("yarn".into())), ("llama.rope.scaling.factor", F32(4.0))];
        assert!(matches!(open(&stretched, &[]).unwrap().config().unwrap().scaling, Scaling::Yarn { factor: 4.0, .. }));
        for (key, value, named) in [
            ("general.architecture", Word("gemma3".into()), "general.architecture"),
            ("llama.attention.clamp_kqv", F32(8.0), "llama.attention.clamp_kqv"),
            ("llama.expert_count", U32(8), "num_experts"),
            ("llama.rope.dimension_count", U32(2), "llama.rope.dimension_count"),
            ("llama.block_count", U32(0), "num_hidden_layers"),
        ] {
            let error = open(&[(key, value)], &[]).unwrap_err();
            assert!(matches!(&error, Error::Input { item: Some(item), .. } if item == named), "{key}: {error}");
        }
        assert!(open(&[], &[("blk.0.ffn_gate_inp.weight", [5, 8])]).unwrap_err().to_string().contains("blk.0.ffn_gate_inp.weight"));
        let file = open(&[("tokenizer.ggml.model", Word("llama".into()))], &[]).unwrap();
        assert!(file.vocabulary().unwrap_err().to_string().contains("tokenizer.ggml.model"));
    }

    #[test]
    fn a_file_that_is_cut_short_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        for bytes in [&b""[..], b"GGUF", b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x7f"] {
            std::fs::write(&path, bytes).unwrap();
            assert!(matches!(GgufFile::open(&path), Err(Error::Input { .. })), "{bytes:?}");
        }
    }
}
