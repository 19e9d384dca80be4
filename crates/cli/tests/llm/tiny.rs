//! A tiny model of every family, its weights drawn from a seed and written to a folder, against the equations in float64.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use libtest_mimic::Trial;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use trifuse::DType;
use trifuse::backend::Backend;
use trifuse::llm::{Files, Message, Model};

const HIDDEN: usize = 96;
const WIDE: usize = 200;
pub const VOCABULARY: usize = 257;
const LAYERS: usize = 2;

/// A tiny model: what differs between the families.
pub struct Kind {
    name: &'static str,
    config: Value,
    heads: [usize; 2],
    head_dim: usize,
    /// How many tokens back one sees, itself among them.
    window: usize,
    tied: bool,
    bias: bool,
    head_norm: bool,
    /// The rank of a projection, by its layer and its number, where it is two factors.
    rank: fn(usize, usize) -> Option<usize>,
    /// What the stored rank is a multiple of.
    stored: usize,
    /// Groups of heads of k and v that have factors of their own, which are stored by PaLU's names where there are several.
    groups: usize,
    /// How far a pair of a head turns from a token to the next, and the factor in front of the scores.
    turns: fn(usize, usize) -> f64,
    sharpness: f64,
}

/// Pair `j` of a head of `d`.
fn plain_turns(j: usize, d: usize) -> f64 {
    500f64.powf(-2.0 * j as f64 / d as f64)
}

pub fn kinds() -> Vec<Kind> {
    let plain = |name, config| Kind {
        name,
        config,
        heads: [3, 1],
        head_dim: 32,
        window: usize::MAX,
        tied: false,
        bias: false,
        head_norm: false,
        rank: |_, _| None,
        stored: 1,
        groups: 1,
        turns: plain_turns,
        sharpness: 1.0,
    };
    vec![
        Kind { tied: true, ..plain("llama, tied", json!({"model_type": "llama", "tie_word_embeddings": true})) },
        Kind {
            heads: [4, 4],
            head_dim: 24,
            ..plain("llama, a KV head a head", json!({"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 4}))
        },
        Kind { window: 5, ..plain("mistral with a window", json!({"model_type": "mistral", "sliding_window": 5})) },
        Kind { bias: true, ..plain("qwen2", json!({"model_type": "qwen2"})) },
        Kind {
            turns: |j, d| plain_turns(j, d) / 2.5,
            ..plain("llama, linear scaling", json!({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.5}}))
        },
        Kind {
            // Pairs that turn more than 3 times in 40 tokens stay, those that turn less than once are slowed, and those between in part.
            turns: |j, d| {
                let kept = ((40.0 * plain_turns(j, d) / std::f64::consts::TAU - 1.0) / 2.0).clamp(0.0, 1.0);
                plain_turns(j, d) * (kept + (1.0 - kept) / 4.0)
            },
            ..plain(
                "llama 3 scaling",
                json!({"model_type": "llama", "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0,
                    "original_max_position_embeddings": 40}}),
            )
        },
        Kind {
            // Of heads of 32 to a base of 500, pairs 0 to 3 turn twice and more in 40 tokens, from pair 10 on less than a tenth of a time: the ramp.
            turns: |j, d| {
                let pair = |turns: f64| d as f64 * (40.0 / (turns * std::f64::consts::TAU)).ln() / (2.0 * 500f64.ln());
                let (first, last) = (pair(2.0).floor(), pair(0.1).ceil());
                let slowed = ((j as f64 - first) / (last - first)).clamp(0.0, 1.0);
                plain_turns(j, d) * (slowed / 4.0 + 1.0 - slowed)
            },
            sharpness: (0.1 * 4f64.ln() + 1.0).powi(2),
            ..plain(
                "llama, YaRN",
                json!({"model_type": "llama", "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.1,
                    "original_max_position_embeddings": 40}}),
            )
        },
        Kind {
            head_norm: true,
            heads: [4, 2],
            head_dim: 40,
            ..plain("qwen3", json!({"model_type": "qwen3", "head_dim": 40, "num_attention_heads": 4, "num_key_value_heads": 2}))
        },
        Kind { rank: |layer, number| (layer == 0).then_some(7 + 6 * number), ..plain("llama, a factored layer", json!({"model_type": "llama"})) },
        // Just below 320, so that rows between the factors are made to start on lines of a cache, beside some that are not.
        Kind {
            rank: |_, number| [Some(311), Some(5), Some(313), Some(319), None, Some(315), Some(312)][number],
            ..plain("llama, ranks near lines", json!({"model_type": "llama"}))
        },
        Kind {
            head_norm: true,
            heads: [4, 2],
            head_dim: 40,
            rank: |layer, number| (layer == 1).then_some(9 + 5 * number),
            ..plain("qwen3, a factored layer", json!({"model_type": "qwen3", "head_dim": 40, "num_attention_heads": 4, "num_key_value_heads": 2}))
        },
        // A step's few launches on a GPU: heads that are turned as they are appended, caches that a block has whole, norms inside products.
        Kind {
            heads: [4, 2],
            head_dim: 64,
            ..plain("llama, heads of 64", json!({"model_type": "llama", "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2}))
        },
        Kind { rank: some_ranks, bias: true, ..plain("qwen2, factored in part", json!({"model_type": "qwen2"})) },
    ]
}

/// Models whose pages hold latents of keys and values.
pub fn latents() -> Vec<Kind> {
    let [plain, other, qwen3, two_factors] = [8, 8, 7, 12].map(|number| kinds().swap_remove(number));
    let latent = |mut config: Value| {
        config["low_rank"] = json!({"latent": true});
        config
    };
    let palu = json!({"model_type": "palullama", "num_attention_heads": 4, "num_key_value_heads": 4, "head_wise_ranks": {}});
    vec![
        Kind { name: "latent: llama", config: latent(plain.config.clone()), rank: latent_ranks, ..plain },
        Kind { name: "latent: qwen3", config: latent(qwen3.config.clone()), rank: latent_ranks, ..qwen3 },
        Kind {
            name: "latent: qwen2 with factors everywhere",
            config: latent(two_factors.config.clone()),
            rank: |layer, number| latent_ranks(layer, number).or(Some(9 + 2 * number)),
            ..two_factors
        },
        Kind { name: "latent: PaLU's groups of heads", config: palu, heads: [4, 4], head_dim: 24, groups: 2, rank: latent_ranks, ..other },
    ]
}

/// Ranks of k and v that are no multiples of anything, but even, for two groups of heads.
fn latent_ranks(layer: usize, number: usize) -> Option<usize> {
    [[None, Some(22), Some(14)], [None, Some(10), Some(30)]][layer].get(number).copied().flatten()
}

/// Odd ranks of q, v, the output, up and down, in turn.
fn some_ranks(layer: usize, number: usize) -> Option<usize> {
    [[Some(21), None, Some(5), None, None, Some(33), None], [None, None, None, Some(29), Some(41), None, Some(35)]][layer][number]
}

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

impl Kind {
    fn tensors(&self) -> Tensors {
        let mut random = ChaCha8Rng::seed_from_u64(30);
        let mut all = Tensors::new();
        let mut add = |name: String, shape: &[usize], centre: f32, spread: f32| {
            let values = (0..shape.iter().product()).map(|_| centre + spread * (random.random::<f32>() - 0.5)).collect();
            all.insert(format!("{name}.weight"), (shape.to_vec(), values));
        };
        let [q, k] = self.heads.map(|heads| heads * self.head_dim);
        let mut blocks = Vec::new();
        add("model.embed_tokens".into(), &[VOCABULARY, HIDDEN], 0.0, 2.0);
        add("model.norm".into(), &[HIDDEN], 1.0, 0.5);
        if !self.tied {
            add("lm_head".into(), &[VOCABULARY, HIDDEN], 0.0, 0.5);
        }
        for layer in 0..LAYERS {
            let of = |name: &str| format!("model.layers.{layer}.{name}");
            for (number, (name, shape)) in [
                ("self_attn.q_proj", [q, HIDDEN]),
                ("self_attn.k_proj", [k, HIDDEN]),
                ("self_attn.v_proj", [k, HIDDEN]),
                ("self_attn.o_proj", [HIDDEN, q]),
                ("mlp.gate_proj", [WIDE, HIDDEN]),
                ("mlp.up_proj", [WIDE, HIDDEN]),
                ("mlp.down_proj", [HIDDEN, WIDE]),
            ]
            .into_iter()
            .enumerate()
            {
                let Some(rank) = (self.rank)(layer, number) else {
                    add(of(name), &shape, 0.0, 0.5);
                    continue;
                };
                let groups = if number == 1 || number == 2 { self.groups } else { 1 };
                // Products of the factors vary as the matrices do.
                let spread = (0.5 * (12.0 / rank as f32).sqrt()).sqrt();
                add(format!("{}.v", of(name)), &[rank, shape[1]], 0.0, spread);
                add(format!("{}.u", of(name)), &[shape[0], rank], 0.0, spread);
                blocks.push((format!("{}.u.weight", of(name)), groups));
            }
            ["input_layernorm", "post_attention_layernorm"].into_iter().for_each(|name| add(of(name), &[HIDDEN], 1.0, 0.5));
            if self.head_norm {
                ["self_attn.q_norm", "self_attn.k_norm"].into_iter().for_each(|name| add(of(name), &[self.head_dim], 1.0, 0.5));
            }
        }
        // A group of heads reads its own columns alone.
        for (name, groups) in blocks {
            let (shape, values) = all.get_mut(&name).unwrap();
            let (rows, columns) = (shape[0] / groups, shape[1] / groups);
            values.iter_mut().enumerate().filter(|(at, _)| at / shape[1] / rows != at % shape[1] / columns).for_each(|(_, value)| *value = 0.0);
        }
        if self.bias {
            for (name, size) in (0..LAYERS)
                .flat_map(|layer| ["q", "k", "v"].map(|part| (format!("model.layers.{layer}.self_attn.{part}_proj.bias"), if part == "q" { q } else { k })))
            {
                all.insert(name, (vec![size], (0..size).map(|_| random.random::<f32>() - 0.5).collect()));
            }
        }
        all
    }

    pub fn write(&self, folder: &Path) {
        let mut config = json!({"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 3, "num_key_value_heads": 1,
            "intermediate_size": WIDE, "rms_norm_eps": 1e-5, "max_position_embeddings": 1024, "rope_theta": 500.0, "eos_token_id": 2});
        self.config.as_object().unwrap().iter().for_each(|(key, value)| config[key] = value.clone());
        let vocab: serde_json::Map<String, Value> = (0..VOCABULARY).map(|id| (format!("t{id}"), id.into())).collect();
        let tokenizer = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": null, "decoder": null, "model": {"type": "WordLevel", "unk_token": "t0", "vocab": vocab}});
        for (name, value) in [("config.json", config), ("tokenizer.json", tokenizer), ("generation_config.json", json!({"eos_token_id": [2, 7]}))] {
            std::fs::write(folder.join(name), value.to_string()).unwrap();
        }
        std::fs::write(folder.join("chat_template.jinja"), "{% for m in messages %}{{ m.content }} {% endfor %}").unwrap();
        // Two files and an index, as larger models have.
        let mut places = serde_json::Map::new();
        let tensors: Tensors = self
            .tensors()
            .into_iter()
            .map(|(name, tensor)| (name.clone(), self.padded(&name, tensor)))
            .flat_map(|(name, tensor)| self.named(name, tensor))
            .collect();
        let (first, second): (Vec<_>, Vec<_>) = tensors.iter().partition(|(name, _)| name.contains("layers.0."));
        for (file, part) in [("model-1.safetensors", first), ("model-2.safetensors", second)] {
            let views = part.iter().map(|(name, (shape, values))| {
                places.insert((*name).clone(), file.into());
                ((*name).clone(), TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(values)).unwrap())
            });
            std::fs::write(folder.join(file), safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap()).unwrap();
        }
        std::fs::write(folder.join("model.safetensors.index.json"), json!({"weight_map": places}).to_string()).unwrap();
    }

    /// A tensor by the names that it is stored with: PaLU's for factors of k and v by groups of heads.
    fn named(&self, name: String, (shape, values): (Vec<usize>, Vec<f32>)) -> Tensors {
        let of = |end: &str| name.strip_suffix(end).filter(|path| self.groups > 1 && (path.ends_with("k_proj") || path.ends_with("v_proj")));
        if let Some(path) = of(".v.weight") {
            return Tensors::from([(format!("{path}.VT.weight"), (shape, values))]);
        }
        let Some(path) = of(".u.weight") else { return Tensors::from([(name, (shape, values))]) };
        let (rows, columns) = (shape[0] / self.groups, shape[1] / self.groups);
        let block = |group: usize| {
            let lines = values.chunks_exact(shape[1]).skip(group * rows).take(rows);
            let own = lines.flat_map(|line| line[group * columns..][..columns].to_vec()).collect();
            (format!("{path}.U.{group}.weight"), (vec![rows, columns], own))
        };
        (0..self.groups).map(block).collect()
    }

    /// A factor as it is stored: with rows or columns of zeros.
    fn padded(&self, name: &str, (shape, values): (Vec<usize>, Vec<f32>)) -> (Vec<usize>, Vec<f32>) {
        let more = |rank: usize| rank.next_multiple_of(self.stored) - rank;
        match shape[..] {
            [rank, columns] if name.ends_with(".v.weight") => (vec![rank + more(rank), columns], [values, vec![0.0; more(rank) * columns]].concat()),
            [rows, rank] if name.ends_with(".u.weight") => {
                let padded = values.chunks_exact(rank).flat_map(|row| row.iter().copied().chain(vec![0.0; more(rank)])).collect();
                (vec![rows, rank + more(rank)], padded)
            }
            _ => (shape, values),
        }
    }

    /// Logits of every token, from the equations.
    fn logits(&self, ids: &[u32]) -> Vec<f64> {
        let tensors = self.tensors();
        let of = |name: &str| -> Vec<f64> { tensors[name].1.iter().map(|&value| value.into()).collect() };
        let norm = |x: &[f64], weight: &[f64]| -> Vec<f64> {
            let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + 1e-5).sqrt();
            x.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
        };
        let times = |x: &[f64], name: &str| -> Vec<f64> { of(name).chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect() };
        let product = |x: &[f64], name: &str| -> Vec<f64> {
            let factor = |which: &str| name.replace(".weight", &format!(".{which}.weight"));
            if tensors.contains_key(name) { times(x, name) } else { times(&times(x, &factor("v")), &factor("u")) }
        };
        let table = of("model.embed_tokens.weight");
        let mut states: Vec<Vec<f64>> = ids.iter().map(|&id| table[id as usize * HIDDEN..][..HIDDEN].to_vec()).collect();
        let d = self.head_dim;
        for layer in 0..LAYERS {
            let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
            let heads = |x: &[f64], part: &str, position: usize| -> Vec<Vec<f64>> {
                let mut all = product(x, &name(&format!("self_attn.{part}_proj")));
                if self.bias {
                    all.iter_mut().zip(of(&format!("model.layers.{layer}.self_attn.{part}_proj.bias"))).for_each(|(x, b)| *x += b);
                }
                let turned = all.chunks_exact(d).map(|head| {
                    if part == "v" {
                        return head.to_vec();
                    }
                    let head = if self.head_norm { norm(head, &of(&name(&format!("self_attn.{part}_norm")))) } else { head.to_vec() };
                    let mut turned = head.clone();
                    for j in 0..d / 2 {
                        let angle = position as f64 * (self.turns)(j, d);
                        turned[j] = head[j] * angle.cos() - head[j + d / 2] * angle.sin();
                        turned[j + d / 2] = head[j + d / 2] * angle.cos() + head[j] * angle.sin();
                    }
                    turned
                });
                turned.collect()
            };
            let normed: Vec<Vec<f64>> = states.iter().map(|x| norm(x, &of(&name("input_layernorm")))).collect();
            let [q, k, v] = ["q", "k", "v"].map(|part| normed.iter().enumerate().map(|(at, x)| heads(x, part, at)).collect::<Vec<_>>());
            for (at, state) in states.iter_mut().enumerate() {
                let mut attended = Vec::new();
                for (head, q) in q[at].iter().enumerate() {
                    let kv = head / (self.heads[0] / self.heads[1]);
                    let seen: Vec<usize> = (0..=at).filter(|key| at - key < self.window).collect();
                    let scores: Vec<f64> =
                        seen.iter().map(|&key| q.iter().zip(&k[key][kv]).map(|(q, k)| q * k).sum::<f64>() * self.sharpness / (d as f64).sqrt()).collect();
                    let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                    let sum: f64 = weights.iter().sum();
                    attended.extend((0..d).map(|e| seen.iter().zip(&weights).map(|(&key, w)| w * v[key][kv][e]).sum::<f64>() / sum));
                }
                state.iter_mut().zip(product(&attended, &name("self_attn.o_proj"))).for_each(|(x, y)| *x += y);
                let x = norm(state, &of(&name("post_attention_layernorm")));
                let [gate, up] = ["gate", "up"].map(|part| product(&x, &name(&format!("mlp.{part}_proj"))));
                let inner: Vec<f64> = gate.iter().zip(&up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
                state.iter_mut().zip(product(&inner, &name("mlp.down_proj"))).for_each(|(x, y)| *x += y);
            }
        }
        let last = of("model.norm.weight");
        let head = if self.tied { "model.embed_tokens.weight" } else { "lm_head.weight" };
        states.iter().flat_map(|x| product(&norm(x, &last), head)).collect()
    }
}

pub fn trials<D: Backend>(device: &Arc<D>) -> Vec<Trial> {
    let trials = kinds().into_iter().chain(latents()).map(|kind| {
        let device = device.clone();
        Trial::test(format!("tiny {}", kind.name), move || {
            against(&device, &kind);
            Ok(())
        })
    });
    let device = device.clone();
    let padded = Trial::test("tiny ranks that are stored with zeros", move || {
        padded(&device);
        Ok(())
    });
    trials.chain([padded]).collect()
}

/// Zeros up to a multiple of eight are what ranks are padded with in memory anyway: the same bits. More of them change the order of sums at most.
fn padded<D: Backend>(device: &Arc<D>) {
    let ids: Vec<u32> = (0..40u32).map(|at| at * 7 % VOCABULARY as u32).collect();
    let logits = |stored: usize, dtype: DType| {
        let folder = tempfile::tempdir().unwrap();
        Kind { stored, ..kinds().pop().unwrap() }.write(folder.path());
        let mut model = Model::open(device.clone(), &Files::open(folder.path()).unwrap(), dtype).unwrap();
        let rank = model.config().ranks.get("model.layers.0.self_attn.q_proj");
        assert_eq!(rank, Some(21u64.next_multiple_of(stored as u64)));
        let mut context = model.context(ids.len()).unwrap();
        model.run(&mut context, &ids, ids.len()).unwrap()
    };
    for (dtype, lanes) in [(DType::F32, 4), (DType::F16, 8)] {
        assert!(logits(1, dtype) == logits(lanes, dtype), "{dtype}: other bits");
    }
    let (plain, more) = (logits(1, DType::F32), logits(64, DType::F32));
    let greatest = plain.iter().fold(0f32, |most, value| most.max(value.abs()));
    assert!(plain.iter().zip(&more).all(|(a, b)| (a - b).abs() <= 1e-5 * greatest));
}

fn against<D: Backend>(device: &Arc<D>, kind: &Kind) {
    let folder = tempfile::tempdir().unwrap();
    kind.write(folder.path());
    let files = Files::open(folder.path()).unwrap();
    assert_eq!(files.ends, [2, 7]);
    let text = files.template.as_ref().unwrap().render(&[Message::new("user", "t5 t6"), Message::new("user", "t256")], true).unwrap();
    assert_eq!(files.tokenizer.encode(&text, false).unwrap(), [5, 6, 256]);
    let ids: Vec<u32> = (0..70u32).map(|at| at * at * 31 % VOCABULARY as u32).collect();
    let want = kind.logits(&ids);
    let greatest = want.iter().fold(0f64, |most, value| most.max(value.abs()));
    for (dtype, most) in [(DType::F32, 2e-5), (DType::F16, 2e-2), (DType::BF16, 1.5e-1)] {
        let mut model = Model::open(device.clone(), &files, dtype).unwrap();
        let mut context = model.context(ids.len()).unwrap();
        let check = |logits: &[f32], from: usize, how: &str| {
            let off = logits.iter().zip(&want[from * VOCABULARY..]).map(|(a, b)| (f64::from(*a) - b).abs());
            let off = off.fold(0.0, |most, off| if off > most || off.is_nan() { off } else { most }) / greatest;
            assert!(off <= most, "{} {dtype} {how}: off by {off:e} of the greatest logit, {most:e} allowed", kind.name);
        };
        check(&model.run(&mut context, &ids, ids.len()).unwrap(), 0, "all at once");
        context.truncate(9);
        check(&model.run(&mut context, &ids[9..16], 7).unwrap(), 9, "in parts");
        for (at, id) in ids.iter().enumerate().take(21).skip(16) {
            check(&model.run(&mut context, &[*id], 1).unwrap(), at, "one by one");
        }
    }
    let mut model = Model::open(device.clone(), &files, DType::F32).unwrap();
    let mut context = model.context(64).unwrap();
    for (ids, wanted) in [(&[][..], 0), (&[1, 257], 1), (&[1, u32::MAX], 1), (&[1], 2), (&ids[..65], 1)] {
        assert!(matches!(model.run(&mut context, ids, wanted), Err(trifuse::Error::Invalid { .. })), "{ids:?}");
        assert!(context.is_empty());
    }
    assert!(model.context(1025).is_err() && model.context(0).is_err());
}
