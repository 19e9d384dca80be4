//! Names of a GGUF file, and what they are called in the Hugging Face libraries.

use crate::llm::Family;

/// Tensors outside of layers.
const OUTSIDE: [(&str, &str); 3] =
    [("token_embd.weight", "model.embed_tokens.weight"), ("output_norm.weight", "model.norm.weight"), ("output.weight", "lm_head.weight")];

/// Tensors of a layer, without `.weight` and `.bias`.
const INSIDE: [(&str, &str); 11] = [
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
];

/// The divisors of the rotary positions, which are a part of the configuration and no weight.
pub const ROPE_FACTORS: &str = "rope_freqs.weight";

/// A tensor's name in the Hugging Face libraries.
pub fn of_tensor(name: &str) -> Option<String> {
    if let Some((_, full)) = OUTSIDE.iter().find(|(own, _)| *own == name) {
        return Some((*full).to_owned());
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let layer: usize = layer.parse().ok()?;
    let (part, end) = rest.rsplit_once('.').filter(|(_, end)| ["weight", "bias"].contains(end))?;
    let (_, full) = INSIDE.iter().find(|(own, _)| *own == part)?;
    Some(format!("model.layers.{layer}.{full}.{end}"))
}

/// Keys of an architecture, without its name in front, and those of `config.json` that say the same.
pub const KEYS: [(&str, &str); 11] = [
    ("block_count", "num_hidden_layers"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("attention.key_length", "head_dim"),
    ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
    ("attention.sliding_window", "sliding_window"),
    ("context_length", "max_position_embeddings"),
    ("rope.freq_base", "rope_theta"),
    ("vocab_size", "vocab_size"),
];

/// Keys of an architecture that are read elsewhere, or change nothing here.
pub const READ: [&str; 4] = ["attention.value_length", "rope.dimension_count", "rope.scaling.finetuned", "expert_used_count"];

/// The family that an architecture is. Mistral's files say `llama`.
pub fn family(architecture: &str) -> Option<Family> {
    [Family::Llama, Family::Qwen2, Family::Qwen3].into_iter().find(|family| family.name() == architecture)
}

/// Whether q and k lie in a file with their pairs side by side, as the interleaved rotary positions of llama.cpp have them.
pub fn permuted(family: Family) -> bool {
    family == Family::Llama
}

/// Rows of q or k in the order of the Hugging Face libraries, which pair halves of a head: row `2j + s` of a head is its row `s·d/2 + j`.
pub fn unpermute(values: &[f32], heads: usize, columns: usize) -> Vec<f32> {
    let rows = values.len() / columns.max(1);
    let (d, mut all) = (rows / heads.max(1), Vec::with_capacity(values.len()));
    for head in 0..heads {
        for half in 0..2 {
            for j in 0..d / 2 {
                let row = head * d + 2 * j + half;
                all.extend_from_slice(&values[row * columns..(row + 1) * columns]);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_other_libraries() {
        let name = |name: &str| of_tensor(name).unwrap_or_default();
        assert_eq!(name("token_embd.weight"), "model.embed_tokens.weight");
        assert_eq!(name("blk.11.attn_q.weight"), "model.layers.11.self_attn.q_proj.weight");
        assert_eq!(name("blk.0.attn_k.bias"), "model.layers.0.self_attn.k_proj.bias");
        assert_eq!(name("blk.0.ffn_norm.weight"), "model.layers.0.post_attention_layernorm.weight");
        for other in ["blk.0.ffn_gate_exps.weight", "blk.x.attn_q.weight", "blk.0.attn_q", "blk.0.attn_q.scale", "v.blk.0.attn_q.weight"] {
            assert_eq!(of_tensor(other), None, "{other}");
        }
    }

    #[test]
    fn pairs_that_lie_side_by_side_become_halves() {
        // Two heads of four rows of one column: pairs (0, 1), (2, 3).
        let rows: Vec<f32> = (0..8u8).map(f32::from).collect();
        assert_eq!(unpermute(&rows, 2, 1), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
    }
}
