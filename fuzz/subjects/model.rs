//! The folder of a model: its configurations, its tokenizer and its weights. What is taken embeds a text.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use rand::Rng as _;
use serde_json::{Value, json};
use trifuse::backends::cpu::Cpu;
use trifuse::device::Open;
use trifuse::model::{Config, Encoder, EncoderOptions, Row, Text};
use trifuse::{Error, Result};

use super::super::mutate::{Rng, json as change_json, one, store, tensors};
use super::bundle::support::ramp;
use super::scratch::Scratch;
use super::{Answer, Subject, refused};

/// The input is an object of the files' texts by name.
pub const CONFIG: Subject = Subject { name: "model_config", sound: sound_config, change: change_config, parse: parse_config };
pub const TOKENIZER: Subject = Subject { name: "tokenizer", sound: sound_tokenizer, change: change_json, parse: parse_tokenizer };
pub const WEIGHTS: Subject = Subject { name: "weights", sound: |_| weights(), change: tensors, parse: parse_weights };

/// The files of a configuration, and no others.
const FILES: [&str; 5] = ["config.json", "sentence_bert_config.json", "config_sentence_transformers.json", "modules.json", "1_Pooling/config.json"];
/// Blocks of the model.
const BLOCKS: usize = 1;
/// Tokens of a text: what is cut off long ones begins at 2 KiB.
const MAX_TOKENS: usize = 8;
const TEXTS: [&str; 6] = ["hello world", "a b c. the x,y", "", "é\u{301} \u{1F600}\u{202e}\0 [SEP] [PAD]", "##ing ▁ <unk> \n\t", "helloworldhello123"];

/// A folder with a model of one block, 8 wide.
pub struct Model {
    scratch: Scratch,
    device: Arc<Cpu>,
}

impl Model {
    pub fn new() -> Self {
        let tokenizer = ("tokenizer.json", tokenizers()[0].to_string().into_bytes());
        let files = configuration().into_iter().map(|(name, text)| (name, text.into_bytes()));
        let scratch = Scratch::new(files.chain([("model.safetensors", weights()), tokenizer]));
        Self { scratch, device: Arc::new(Cpu::open(0).expect("the processor")) }
    }

    /// The folder of its files.
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// The tokenizer.
    pub fn text(&self) -> Text {
        Config::open(self.folder()).and_then(|config| Text::open(self.folder(), &config)).expect("a sound model")
    }

    /// Embeds a text of three tokens.
    fn embed(&self) -> Result<()> {
        let mut encoder = Encoder::open(self.device.clone(), self.folder(), EncoderOptions::default())?;
        let hidden = encoder.config().hidden as usize;
        let embedded = encoder.embed(&[Row { ids: &[2, 8, 3], adapter: None }]).expect("what opens, embeds");
        assert_eq!(embedded.len(), hidden);
        Ok(())
    }
}

thread_local! {
    /// A folder for each subject, which changes its own files alone.
    static FOLDERS: [OnceCell<Model>; 3] = const { [const { OnceCell::new() }; 3] };
}

/// Calls `work` with a subject's folder.
fn with<T>(subject: usize, work: impl FnOnce(&Model) -> T) -> T {
    FOLDERS.with(|folders| work(folders[subject].get_or_init(Model::new)))
}

fn answer(result: Result<()>) -> Answer {
    result.map_err(|error| match error {
        // A folder where a file is named, as modules.json may.
        Error::Io { .. } => error.to_string(),
        error => refused(&error),
    })
}

fn configuration() -> BTreeMap<&'static str, String> {
    let module = |path: &str, kind: &str| json!({ "idx": 0, "name": "0", "path": path, "type": format!("sentence_transformers.models.{kind}") });
    let values = [
        json!({ "model_type": "bert", "vocab_size": 40, "hidden_size": 8, "num_hidden_layers": BLOCKS, "num_attention_heads": 2, "intermediate_size": 16,
            "hidden_act": "gelu", "max_position_embeddings": 32, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "position_embedding_type": "absolute" }),
        json!({ "max_seq_length": MAX_TOKENS, "do_lower_case": false }),
        json!({ "prompts": {}, "default_prompt_name": null }),
        json!([module("", "Transformer"), module("1_Pooling", "Pooling"), module("2_Normalize", "Normalize")]),
        json!({ "word_embedding_dimension": 8, "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true }),
    ];
    FILES.into_iter().zip(values.map(|value| value.to_string())).collect()
}

fn sound_config(rng: &mut Rng) -> Vec<u8> {
    let mut files = configuration();
    // Any may be left out but the first, and the last where the modules name it.
    match rng.random_range(0..4) {
        0 => files.retain(|name, _| *name == FILES[0]),
        1 => drop(files.remove(FILES[1])),
        2 => drop(files.remove(FILES[2])),
        _ => {}
    }
    json!(files).to_string().into_bytes()
}

fn change_config(rng: &mut Rng, input: &[u8]) -> Vec<u8> {
    let Ok(mut files) = serde_json::from_slice::<BTreeMap<String, String>>(input) else { return sound_config(rng) };
    let names: Vec<String> = files.keys().cloned().collect();
    if !names.is_empty() {
        let name = one(rng, &names);
        let text = change_json(rng, files[name].as_bytes());
        files.insert(name.clone(), String::from_utf8_lossy(&text).into_owned());
    }
    json!(files).to_string().into_bytes()
}

fn parse_config(input: &[u8]) -> Answer {
    let files: BTreeMap<String, String> = serde_json::from_slice(input).map_err(|_| "no object of texts")?;
    thread_local!(static SEEN: RefCell<HashMap<String, Answer>> = RefCell::default());
    with(0, |model| {
        for name in FILES {
            files.get(name).map_or_else(|| model.scratch.remove(name), |text| model.scratch.write(name, text.as_bytes()));
        }
        let config = Config::open(model.folder()).map_err(|error| answer(Err(error)).expect_err("it is an error"))?;
        // The same sizes and rules open the same model: most changes are of what is not read.
        let seen = format!("{config:?}");
        if let Some(answer) = SEEN.with_borrow(|all| all.get(&seen).cloned()) {
            return answer;
        }
        let _ = Text::open(model.folder(), &config).map(|text| text.tokens_each(&TEXTS));
        let answer = answer(model.embed());
        SEEN.with_borrow_mut(|all| all.insert(seen, answer.clone()));
        answer
    })
}

fn weights() -> Vec<u8> {
    let mut all: Vec<(String, Vec<usize>)> = Vec::new();
    let mut affine = |name: String, shape: &[usize]| {
        all.push((format!("{name}.weight"), shape.to_vec()));
        all.push((format!("{name}.bias"), shape[..1].to_vec()));
    };
    affine("embeddings.LayerNorm".into(), &[8]);
    for layer in 0..BLOCKS {
        let of = |name: &str| format!("encoder.layer.{layer}.{name}");
        ["query", "key", "value"].iter().for_each(|name| affine(of(&format!("attention.self.{name}")), &[8, 8]));
        affine(of("attention.output.dense"), &[8, 8]);
        affine(of("intermediate.dense"), &[16, 8]);
        affine(of("output.dense"), &[8, 16]);
        ["attention.output.LayerNorm", "output.LayerNorm"].iter().for_each(|name| affine(of(name), &[8]));
    }
    let tables = [("word_embeddings", 40), ("position_embeddings", 32), ("token_type_embeddings", 2)];
    all.extend(tables.map(|(name, rows)| (format!("embeddings.{name}.weight"), vec![rows, 8])));
    let tensors: Vec<_> = all.iter().map(|(name, shape)| (name.as_str(), "F32", &shape[..], ramp(0.01, shape.iter().product()))).collect();
    store(Some(&json!({ "format": "pt" })), &tensors)
}

fn parse_weights(input: &[u8]) -> Answer {
    with(1, |model| {
        model.scratch.write("model.safetensors", input);
        let opened = model.embed();
        answer(opened)
    })
}

fn sound_tokenizer(rng: &mut Rng) -> Vec<u8> {
    one(rng, &tokenizers()).to_string().into_bytes()
}

fn parse_tokenizer(input: &[u8]) -> Answer {
    with(2, |model| {
        let config = Config::open(model.folder()).expect("a sound configuration");
        model.scratch.write("tokenizer.json", input);
        let long = "hello world ".repeat(30 * MAX_TOKENS);
        let opened = Text::open(model.folder(), &config).and_then(|text| {
            let tokens = text.tokens_each(&[&TEXTS[..], &[long.as_str()]].concat());
            assert_eq!(tokens.len(), TEXTS.len() + 1, "an answer for each text");
            tokens.into_iter().try_for_each(|tokens| tokens.map(|tokens| assert!(tokens.ids.iter().all(|&id| (0..40).contains(&id)), "{tokens:?}")))
        });
        answer(opened)
    })
}

/// Tokenizers of each model and of most parts that the library knows.
fn tokenizers() -> [Value; 6] {
    let marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let words: Vec<&str> = marks.into_iter().chain("a b c hello world ##ing ##s the x y . , he ll hell w1 w2".split(' ')).collect();
    let vocabulary: Value = words.iter().enumerate().map(|(id, word)| (word.to_string(), json!(id))).collect::<serde_json::Map<_, _>>().into();
    let added =
        |id: usize| json!({ "id": id, "content": marks[id], "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true });
    let mark = |name: &str| json!({ "SpecialToken": { "id": name, "type_id": 0 } });
    let template = json!({ "type": "TemplateProcessing", "single": [mark("[CLS]"), { "Sequence": { "id": "A", "type_id": 0 } }, mark("[SEP]")], "pair": [],
        "special_tokens": { "[CLS]": { "id": "[CLS]", "ids": [2], "tokens": ["[CLS]"] }, "[SEP]": { "id": "[SEP]", "ids": [3], "tokens": ["[SEP]"] } } });
    let ends = |kind: &str| json!({ "type": kind, "sep": ["[SEP]", 3], "cls": ["[CLS]", 2], "trim_offsets": true, "add_prefix_space": true });
    let whole = |model: &Value, normalizer: Value, pre_tokenizer: Value, post_processor: &Value| {
        json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": (0..5).map(added).collect::<Vec<_>>(), "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true }, "model": model })
    };
    let pieces = json!({ "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocabulary });
    let whole_words = json!({ "type": "WordLevel", "unk_token": "[UNK]", "vocab": vocabulary });
    let pairs = json!({ "type": "BPE", "dropout": null, "unk_token": "[UNK]", "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
        "byte_fallback": false, "ignore_merges": false, "merges": ["h e", "l l", "he ll"],
        "vocab": { "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "h": 5, "e": 6, "l": 7, "he": 8, "ll": 9, "hell": 10 } });
    let likely = json!({ "type": "Unigram", "unk_id": 1, "byte_fallback": false,
        "vocab": words.iter().enumerate().map(|(id, word)| json!([word, -(id as f64)])).collect::<Vec<_>>() });
    let mut cut = whole(
        &pieces,
        json!({ "type": "Prepend", "prepend": "_" }),
        json!({ "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": r"\p{L}+|\d{1,3}" }, "behavior": "Isolated", "invert": false },
            { "type": "Punctuation", "behavior": "Isolated" }, { "type": "Digits", "individual_digits": true }] }),
        &ends("BertProcessing"),
    );
    cut["truncation"] = json!({ "direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0 });
    cut["padding"] = json!({ "strategy": { "Fixed": 16 }, "direction": "Right", "pad_to_multiple_of": 8, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]" });
    // A map of characters with one entry: its length, 16 bytes, and the text that it gives.
    let map = json!({ "type": "Precompiled", "precompiled_charsmap": "EAAAAAAAAAAAAAAAAAAAAAAAAABhYmMA" });
    [
        whole(
            &pieces,
            json!({ "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true }),
            json!({ "type": "BertPreTokenizer" }),
            &template,
        ),
        whole(&whole_words, json!({ "type": "Lowercase" }), json!({ "type": "Whitespace" }), &template),
        whole(
            &pairs,
            json!({ "type": "Sequence", "normalizers": [{ "type": "NFC" }, { "type": "Replace", "pattern": { "Regex": r"\s+" }, "content": " " }] }),
            json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true }),
            &template,
        ),
        whole(
            &likely,
            json!({ "type": "Sequence", "normalizers": [map, { "type": "NFKC" }, { "type": "Strip", "strip_left": true, "strip_right": true }, { "type": "StripAccents" }] }),
            json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true }),
            &template,
        ),
        whole(&pieces, json!({ "type": "ByteLevel" }), json!({ "type": "UnicodeScripts" }), &ends("RobertaProcessing")),
        cut,
    ]
}
