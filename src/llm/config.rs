//! The configuration of a decoder: `config.json`, or the keys of a GGUF file under their names there.

use serde_json::Value;

use super::fill::Fills;
use super::keys::{Keys, ids};
use super::ranks::Ranks;
use super::rope::Scaling;
use crate::error::{Error, Result};
use crate::ops::pointwise::Turn;

/// A kind of decoder. All share one forward pass; a family says what else is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Llama (arXiv:2302.13971), and what was built to its plan, as SmolLM2.
    Llama,
    /// Mistral (arXiv:2310.06825): Llama, perhaps with a window of attention.
    Mistral,
    /// Qwen2 (arXiv:2407.10671): Llama with biases on q, k and v.
    Qwen2,
    /// Qwen3 (arXiv:2505.09388): Llama with a norm of each head of q and k.
    Qwen3,
}

impl Family {
    /// Every family.
    pub const ALL: [Self; 4] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3];

    /// The family's `model_type`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }
}

/// The sizes and rules of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The kind of decoder.
    pub family: Family,
    /// Rows of the token table, and logits of a token.
    pub vocabulary: u32,
    /// Elements of a token's state.
    pub hidden: u64,
    /// The number of layers.
    pub layers: usize,
    /// Heads of q.
    pub heads: u64,
    /// Heads of k and v; divides `heads`.
    pub kv_heads: u64,
    /// Elements of a head.
    pub head_dim: u64,
    /// Elements between the products of the MLP.
    pub intermediate: u64,
    /// The number that RMSNorm adds to the mean square.
    pub norm_eps: f32,
    /// The base of the rotary positions.
    pub rope_base: f32,
    /// How the rotary positions are stretched.
    pub scaling: Scaling,
    /// The most tokens that the model was made for.
    pub context: usize,
    /// How many tokens back a token sees, itself among them, where that is limited.
    pub window: Option<u64>,
    /// Whether the head's weight is the token table.
    pub tied: bool,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether the output of attention has a bias.
    pub output_bias: bool,
    /// Whether q and k are normed, head by head.
    pub head_norm: bool,
    /// Tokens at each of which a text ends, as far as the configuration says.
    pub ends: Vec<u32>,
    /// The projections that are two factors each.
    pub ranks: Ranks,
    /// What the padding of their first factors carries.
    pub fills: Fills,
    /// Whether pages hold what lies between the factors of k and v, in place of keys and values.
    pub latent: bool,
}

impl Config {
    /// Reads a configuration, by the keys of `config.json`.
    ///
    /// # Errors
    /// A model that is none of these, by the key that says so.
    pub fn new(keys: &Keys<'_>) -> Result<Self> {
        let names = Family::ALL.map(Family::name);
        // PaLU's models of Llama are Llama with factors, by a name of their own.
        let found = keys.get("model_type").and_then(Value::as_str).map(|name| if name == "palullama" { Family::Llama.name() } else { name });
        let Some(family) = Family::ALL.into_iter().find(|family| found == Some(family.name())) else {
            return keys.refuse("model_type", format_args!("one of {names:?}"), found.map_or("no such key".into(), |name| format!("{name:?}")));
        };
        keys.only("hidden_act", &["silu".into(), "swish".into()], "silu: no other activation is supported")?;
        keys.only("hidden_activation", &["silu".into()], "silu: no other activation is supported")?;
        for key in ["mlp_bias", "rope_interleaved", "use_sliding_window", "alibi", "scale_attention_softmax_in_fp32", "use_qk_norm"] {
            keys.only(key, &[false.into()], "false: a model with this is not supported")?;
        }
        keys.only("partial_rotary_factor", &[1.0.into(), 1.into()], "1: rotary positions turn whole heads")?;
        keys.only("no_rope_layers", &[], "none: every layer has rotary positions")?;
        keys.only("quantization_config", &[], "none: weights of f32, f16 or bf16, or a GGUF file")?;
        for key in ["num_local_experts", "num_experts", "logit_scale", "embedding_multiplier", "residual_multiplier", "attention_multiplier"] {
            keys.only(key, &[1.into(), 1.0.into(), 0.into()], "none: a model with this is not supported")?;
        }
        if let Some(Value::Array(kinds)) = keys.get("layer_types")
            && let Some(other) = kinds.iter().find(|kind| kind.as_str() != Some("full_attention"))
        {
            return keys.refuse("layer_types", "full_attention in every layer", other);
        }
        let (hidden, heads) = (keys.wanted("hidden_size")?, keys.wanted("num_attention_heads")?);
        let kv_heads = keys.size("num_key_value_heads")?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return keys.refuse("num_key_value_heads", format_args!("a divisor of num_attention_heads, {heads}"), kv_heads);
        }
        let head_dim = match keys.size("head_dim")? {
            Some(size) => size,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => return keys.refuse("num_attention_heads", format_args!("a divisor of hidden_size, {hidden}, where there is no head_dim"), heads),
        };
        if head_dim > 256 || head_dim % 2 > 0 {
            return keys.refuse("head_dim", "an even size of at most 256", head_dim);
        }
        let eps = keys.number("rms_norm_eps")?.unwrap_or(1e-6) as f32;
        let context = keys.wanted("max_position_embeddings")? as usize;
        let attention_bias = keys.flag("attention_bias")?.unwrap_or(false);
        if attention_bias && family == Family::Mistral {
            return keys.refuse("attention_bias", "false in a mistral", true);
        }
        let (base, scaling) = Scaling::of(keys, context)?;
        let window = if family == Family::Mistral { keys.size("sliding_window")? } else { None };
        let config = Self {
            family,
            vocabulary: keys.wanted("vocab_size")? as u32,
            hidden,
            layers: keys.wanted("num_hidden_layers")? as usize,
            heads,
            kv_heads,
            head_dim,
            intermediate: keys.wanted("intermediate_size")?,
            norm_eps: eps,
            rope_base: base as f32,
            scaling,
            context,
            window,
            tied: keys.flag("tie_word_embeddings")?.unwrap_or(false),
            qkv_bias: attention_bias || family == Family::Qwen2,
            output_bias: attention_bias && family != Family::Qwen2,
            head_norm: family == Family::Qwen3,
            ends: ids(keys.get("eos_token_id")),
            ranks: Ranks::default(),
            fills: Fills::default(),
            latent: false,
        };
        let ranks = Ranks::of_keys(keys, |path| config.projection(path).is_some())?;
        let fills = Fills::of_keys(keys, &ranks)?;
        let latent = Ranks::latent(keys)?;
        Ok(Self { ranks, fills, latent, ..config })
    }

    /// Elements of a token's q.
    pub fn query(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Elements of a token's k, and of its v.
    pub fn key(&self) -> u64 {
        self.kv_heads * self.head_dim
    }

    /// How far the pairs of a head turn from a token to the next.
    pub(super) fn turn(&self) -> Turn {
        if self.scaling == Scaling::None { Turn::base(self.rope_base) } else { Turn::Table }
    }

    /// Whether the model has a projection of that path and `[d_out, d_in]`.
    ///
    /// # Errors
    /// A projection that it does not have, or one of another shape.
    pub fn fits(&self, path: &str, found: [u64; 2]) -> Result<()> {
        match self.projection(path) {
            Some(expected) if expected == found => Ok(()),
            Some(expected) => {
                Err(Error::invalid(format!("adapter: {path}"), format!("[d_out, d_in] of {expected:?}, as the model has it"), format!("{found:?}")))
            }
            None => Err(Error::invalid("adapter", "projections of the model, such as model.layers.0.self_attn.q_proj", path)),
        }
    }

    /// The `[d_out, d_in]` of the projection of that path, where the model has it.
    pub fn projection(&self, path: &str) -> Option<[u64; 2]> {
        let layer: usize = path.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()?;
        let all = (layer < self.layers).then(|| self.projections(layer))?;
        all.into_iter().find_map(|(own, shape)| (own == path).then_some(shape))
    }

    /// Whether q, k and v lie apart, each in rows of its own.
    pub fn apart(&self) -> bool {
        let factored = |layer| self.projections(layer)[..3].iter().any(|(path, _)| self.ranks.get(path).is_some());
        !self.ranks.is_empty() && (0..self.layers).any(factored)
    }

    /// The module paths of a layer's seven projections, and `[d_out, d_in]` of each.
    pub fn projections(&self, layer: usize) -> [(String, [u64; 2]); 7] {
        let (hidden, wide, query, key) = (self.hidden, self.intermediate, self.query(), self.key());
        [
            ("self_attn.q_proj", [query, hidden]),
            ("self_attn.k_proj", [key, hidden]),
            ("self_attn.v_proj", [key, hidden]),
            ("self_attn.o_proj", [hidden, query]),
            ("mlp.gate_proj", [wide, hidden]),
            ("mlp.up_proj", [wide, hidden]),
            ("mlp.down_proj", [hidden, wide]),
        ]
        .map(|(name, shape)| (format!("model.layers.{layer}.{name}"), shape))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn read(change: Value) -> Result<Config> {
        let mut keys = json!({"model_type": "llama", "vocab_size": 257, "hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 3,
            "num_key_value_heads": 1, "intermediate_size": 200, "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "an_unknown_key": 7});
        for (key, value) in change.as_object().unwrap() {
            keys[key] = value.clone();
        }
        Config::new(&Keys { path: Path::new("config.json"), map: keys.as_object().unwrap() })
    }

    #[test]
    fn families_differ_in_what_they_add() {
        let plain = read(json!({"eos_token_id": [2, 5]})).unwrap();
        assert_eq!((plain.head_dim, plain.query(), plain.key(), plain.rope_base, plain.ends), (32, 96, 32, 1e4, vec![2, 5]));
        assert!(!plain.qkv_bias && !plain.head_norm && !plain.tied && plain.window.is_none());
        let mistral = read(json!({"model_type": "mistral", "sliding_window": 64, "head_dim": 40})).unwrap();
        assert_eq!((mistral.window, mistral.head_dim, mistral.query()), (Some(64), 40, 120));
        let qwen2 = read(json!({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": false})).unwrap();
        assert!(qwen2.qkv_bias && !qwen2.output_bias && qwen2.window.is_none());
        assert!(read(json!({"model_type": "qwen3", "tie_word_embeddings": true})).is_ok_and(|config| config.head_norm && config.tied));
    }

    #[test]
    fn factored_projections_are_told_by_path() {
        let (up, q) = ("model.layers.1.mlp.up_proj", "model.layers.0.self_attn.q_proj");
        let config = read(json!({"low_rank": {"method": "svd", "ranks": {up: 7, q: 9}, "stored": {up: 8}}})).unwrap();
        assert_eq!((config.ranks.get(up), config.ranks.get(q), config.ranks.get("model.layers.0.mlp.up_proj")), (Some(8), Some(9), None));
        assert!(config.apart() && !read(json!({"low_rank": {"ranks": {up: 7}}})).unwrap().apart());
    }

    #[test]
    fn what_cannot_be_run_is_refused_by_its_key() {
        for (key, value) in [
            ("model_type", json!("gemma3")),
            ("model_type", json!(null)),
            ("hidden_act", json!("gelu")),
            ("hidden_size", json!(0)),
            ("hidden_size", json!("96")),
            ("num_key_value_heads", json!(2)),
            ("num_attention_heads", json!(5)),
            ("head_dim", json!(33)),
            ("rms_norm_eps", json!(-1.0)),
            ("mlp_bias", json!(true)),
            ("use_sliding_window", json!(true)),
            ("partial_rotary_factor", json!(0.5)),
            ("quantization_config", json!({"bits": 4})),
            ("num_local_experts", json!(8)),
            ("layer_types", json!(["full_attention", "sliding_attention"])),
            ("rope_scaling", json!({"rope_type": "dynamic", "factor": 2.0})),
            ("rope_theta", json!(0)),
            ("low_rank", json!([7])),
            ("low_rank", json!({"ranks": {"model.layers.2.mlp.up_proj": 7}})),
            ("low_rank", json!({"ranks": {"model.layers.1.mlp.up_proj": 0}})),
            ("low_rank", json!({"ranks": {"model.layers.1.mlp.up_proj": 7}, "stored": {"model.layers.1.mlp.up_proj": 6}})),
        ] {
            let error = read(json!({key: value, "num_key_value_heads": if key == "num_key_value_heads" { value.clone() } else { json!(1) }})).unwrap_err();
            assert!(matches!(&error, Error::Input { item: Some(item), .. } if item == key), "{key}: {error}");
        }
    }
}
