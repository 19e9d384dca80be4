//! WordPiece of our own beside `tokenizers`, on drawn and on real texts: token for token the same, as it was on the million of
//! `TRIFUSE_TEXTS=1000000 TRIFUSE_TURN=11`.
//!
//! `TRIFUSE_TEXTS=1000000` takes that many texts in all; `TRIFUSE_TURN` draws others. It tells what a token takes by each of the two, with
//! `RAYON_NUM_THREADS=1 cargo test --release --all-features --test wordpiece -- MiniLM` on one core. MiniLM's vocabulary is in `.minilm`, which `./check minilm` fetches.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tokenizers::utils::truncation::TruncationParams;
use tokenizers::{PostProcessor, Tokenizer};
use trifuse::model::{Config, Text};

/// Texts that are compared at once.
const CHUNK: usize = 500;
const SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

fn main() {
    let arguments = Arguments::from_args();
    let texts = setting("TRIFUSE_TEXTS").unwrap_or(20_000);
    let seed = setting("TRIFUSE_TURN").unwrap_or(0) as u64;
    let mut trials = Vec::new();
    for (at, rules) in rules().into_iter().enumerate() {
        let name = rules.to_string();
        for (number, (kind, vocabulary)) in [("few letters", few_letters as fn(&mut ChaCha8Rng) -> _), ("all letters", all_letters)].into_iter().enumerate() {
            let (rules, seed) = (rules.clone(), seed * 100 + (2 * at + number) as u64);
            trials.push(Trial::test(format!("{kind}, {name}"), move || {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                let vocabulary = vocabulary(&mut rng);
                let folder = tempfile::tempdir().unwrap();
                std::fs::write(folder.path().join("tokenizer.json"), tokenizer(&rules, &vocabulary).to_string()).unwrap();
                compare(folder.path(), vocabulary.len(), &mut rng, texts / 10)
            }));
        }
    }
    let minilm = Path::new(env!("CARGO_MANIFEST_DIR")).join(".minilm");
    trials.push(match minilm.join("tokenizer.json").is_file() {
        true => Trial::test("MiniLM's vocabulary", move || {
            let folder = tempfile::tempdir().unwrap();
            std::fs::copy(minilm.join("tokenizer.json"), folder.path().join("tokenizer.json")).unwrap();
            compare(folder.path(), 30_522, &mut ChaCha8Rng::seed_from_u64(seed), texts / 5)
        }),
        false => Trial::test("MiniLM's vocabulary (skipped: no .minilm; run ./check minilm)", || Ok(())).with_ignored_flag(true),
    });
    libtest_mimic::run(&arguments, trials).exit();
}

fn setting(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

/// How BERT's normaliser is set: as models have it, and each way that changes what it does.
fn rules() -> Vec<Value> {
    let rule = |clean: bool, chinese: bool, accents: Value, lowercase: bool| json!({"type": "BertNormalizer", "clean_text": clean, "handle_chinese_chars": chinese, "strip_accents": accents, "lowercase": lowercase});
    vec![
        rule(true, true, Value::Null, true),
        rule(true, true, false.into(), false),
        rule(false, false, true.into(), false),
        rule(false, true, false.into(), true),
    ]
}

fn tokenizer(rules: &Value, vocabulary: &BTreeMap<String, u32>) -> Value {
    let added: Vec<Value> = SPECIAL
        .iter()
        .map(|mark| json!({"id": vocabulary[*mark], "content": mark, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}))
        .collect();
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": rules, "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", vocabulary["[SEP]"]], "cls": ["[CLS]", vocabulary["[CLS]"]]}, "decoder": null,
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 20, "vocab": vocabulary}})
}

fn numbered(tokens: BTreeSet<String>) -> BTreeMap<String, u32> {
    SPECIAL.iter().map(|mark| (*mark).to_owned()).chain(tokens).zip(0..).collect()
}

/// Tokens of three letters, so that words come apart in many ways and often late.
fn few_letters(rng: &mut ChaCha8Rng) -> BTreeMap<String, u32> {
    let token = |rng: &mut ChaCha8Rng| {
        let text: String = (0..rng.random_range(1..7)).map(|_| ['a', 'b', 'c'][rng.random_range(0..3)]).collect();
        if rng.random_bool(0.6) { format!("##{text}") } else { text }
    };
    numbered((0..60).map(|_| token(rng)).collect())
}

/// Tokens of letters of every script.
fn all_letters(rng: &mut ChaCha8Rng) -> BTreeMap<String, u32> {
    let token = |rng: &mut ChaCha8Rng| {
        let text: String = (0..rng.random_range(1..4)).map(|_| letter(rng)).collect();
        if rng.random_bool(0.5) { format!("##{text}") } else { text }
    };
    let mut tokens: BTreeSet<String> = (0..20_000).map(|_| token(rng)).collect();
    tokens.extend(["##", "#", "[", "]", "##ing", "ss", "##i\u{307}"].map(str::to_owned));
    tokens.retain(|token| !SPECIAL.contains(&token.as_str()));
    numbered(tokens)
}

/// A character: more often one of which much is to be decided.
fn letter(rng: &mut ChaCha8Rng) -> char {
    const RANGES: [(u32, u32); 16] = [
        (0x20, 0x7E),
        (0x61, 0x7A),
        (0xA0, 0x24F),
        (0x300, 0x36F),
        (0x370, 0x5FF),
        (0x600, 0x6FF),
        (0x900, 0xDFF),
        (0x1D00, 0x20FF),
        (0x2000, 0x206F),
        (0x3000, 0x30FF),
        (0x4E00, 0x4F00),
        (0xAC00, 0xAD00),
        (0xF900, 0xFAFF),
        (0x1_D100, 0x1_D24F),
        (0x1_F300, 0x1_F6FF),
        (0, 0x10_FFFF),
    ];
    let (low, high) = RANGES[rng.random_range(0..RANGES.len())];
    char::from_u32(rng.random_range(low..=high)).unwrap_or('\u{FFFD}')
}

/// Lines that people wrote.
fn lines() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = |folder: &str| std::fs::read_dir(root.join(folder)).into_iter().flatten().map(|entry| entry.unwrap().path()).collect::<Vec<PathBuf>>();
    let pages = [".", "docs", "lab", "src/model"].into_iter().flat_map(pages).filter(|path| path.is_file());
    let lines = pages.filter_map(|path| std::fs::read_to_string(path).ok()).flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<String>>());
    lines.filter(|line| line.len() < 2000).collect()
}

fn text(rng: &mut ChaCha8Rng, lines: &[String]) -> String {
    const ODD: [&str; 14] =
        ["[CLS]", "[SEP]", "[MASK", "[UNK]]", "\t", "\r\n", "\0", "\u{FFFD}", "\u{AD}", "\u{200B}", "\u{3000}", "İ", "ǅ", "e\u{301}\u{323}"];
    let mut text = String::new();
    for _ in 0..rng.random_range(0..12) {
        match rng.random_range(0..8) {
            0 => text += &lines[rng.random_range(0..lines.len())],
            1 => text += ODD[rng.random_range(0..ODD.len())],
            2 => text.extend((0..rng.random_range(1..30)).map(|_| letter(rng))),
            3 => text.extend((0..rng.random_range(15..25)).map(|_| ['a', 'b', 'é'][rng.random_range(0..3)])),
            _ => text.extend((0..rng.random_range(1..10)).map(|_| ['a', 'b', 'c', 'á', 'C'][rng.random_range(0..5)])),
        }
        if rng.random_bool(0.7) {
            text.push(' ');
        }
    }
    text
}

fn compare(folder: &Path, vocabulary: usize, rng: &mut ChaCha8Rng, texts: usize) -> Result<(), Failed> {
    let config = json!({"model_type": "bert", "vocab_size": vocabulary, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
        "intermediate_size": 8, "hidden_act": "gelu", "max_position_embeddings": 96, "type_vocab_size": 1, "layer_norm_eps": 1e-12});
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let own = Text::open(folder, &Config::open(folder).unwrap()).unwrap();
    assert!(format!("{own:?}").starts_with("WordPiece"), "{own:?}: it leaves the work to the library");
    let mut library = Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
    library.with_padding(None);
    let max_length = own.max_tokens();
    assert!(max_length > library.get_post_processor().unwrap().added_tokens(false));
    library.with_truncation(Some(TruncationParams { max_length, ..TruncationParams::default() })).unwrap();
    let lines = lines();
    let (mut cut, mut count, mut times) = (0, 0, [Duration::ZERO; 2]);
    for _ in 0..texts.div_ceil(CHUNK) {
        let texts: Vec<String> = (0..CHUNK).map(|_| text(rng, &lines)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let began = Instant::now();
        let found = own.tokens(&texts).unwrap();
        times[0] += began.elapsed();
        let began = Instant::now();
        let encodings = library.encode_batch_fast(texts.clone(), true).unwrap();
        times[1] += began.elapsed();
        for ((text, encoding), found) in texts.iter().zip(encodings).zip(found) {
            let expected: Vec<i32> = encoding.get_ids().iter().map(|id| *id as i32).collect();
            let over = !encoding.get_overflowing().is_empty();
            assert_eq!((&found.ids, found.cut), (&expected, over), "{text:?}");
            cut += usize::from(over);
            count += expected.len();
        }
    }
    assert!(cut > 0, "no text was too long");
    let [own, library] = times.map(|time| time.as_secs_f64() * 1e6 / count as f64);
    println!("{count} tokens, {own:.3} µs each, and {library:.3} by the library");
    Ok(())
}
