//! The tokenizer of a GGUF file, which holds its tables and a name for how text is cut, as the `tokenizer.json` that says the same.

use std::path::Path;

use serde_json::{Value, json};

use crate::error::{Error, Result};

/// The tables of a byte-level BPE tokenizer.
#[derive(Clone, Copy, Debug)]
pub struct Vocabulary<'a> {
    /// The file that it is from.
    pub path: &'a Path,
    /// Every token's text, in the letters that stand for bytes.
    pub tokens: &'a [String],
    /// Every token's kind.
    pub types: &'a [i32],
    /// Pairs of tokens that become one, the first before all others.
    pub merges: &'a [String],
    /// How text is cut into words first, by its name in llama.cpp.
    pub pre: &'a str,
    /// The token in front of a text.
    pub first: Option<u64>,
    /// Whether it is put there, where the file says so.
    pub adds_first: Option<bool>,
    /// The token at the end of a text.
    pub last: Option<u64>,
    /// The template of a chat.
    pub template: Option<&'a str>,
}

/// A token that is no text: its kinds in a GGUF file.
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;

/// Words of Llama 3 and Qwen2, which differ in how many digits are one.
fn words(digits: &str) -> Value {
    let pattern = format!(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+");
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn bytes(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

impl Vocabulary<'_> {
    /// How text is normalised and cut, and whether the first token is put in front where the file does not say.
    fn cut(&self) -> Result<(Value, Value, bool)> {
        let nfc = json!({"type": "NFC"});
        Ok(match self.pre {
            "smollm" => (Value::Null, json!([{"type": "Digits", "individual_digits": true}, bytes(true)]), false),
            "gpt-2" | "gpt2" => (Value::Null, json!([bytes(true)]), false),
            "llama-bpe" | "llama3" | "llama-v3" => (Value::Null, json!([words(r"\p{N}{1,3}"), bytes(false)]), true),
            "qwen2" => (nfc, json!([words(r"\p{N}"), bytes(false)]), false),
            other => {
                let known = "smollm, gpt-2, llama-bpe or qwen2";
                return Err(Error::input_item(self.path, "tokenizer.ggml.pre", format!("expected {known}, found {other:?}")));
            }
        })
    }

    fn text(&self, id: u64) -> Option<&str> {
        self.tokens.get(usize::try_from(id).ok()?).map(String::as_str)
    }

    /// A `tokenizer.json` that says what these tables do.
    ///
    /// # Errors
    /// A way of cutting text that is not known; lists that do not fit each other.
    pub fn json(&self) -> Result<Vec<u8>> {
        let fault = |key: &str, problem: String| Error::input_item(self.path, key, problem);
        let (normalizer, cuts, by_habit) = self.cut()?;
        if self.types.len() != self.tokens.len() {
            return Err(fault("tokenizer.ggml.token_type", format!("expected {}, one a token, found {}", self.tokens.len(), self.types.len())));
        }
        let vocab: serde_json::Map<String, Value> = self.tokens.iter().zip(0u64..).map(|(token, id)| (token.clone(), id.into())).collect();
        if vocab.len() != self.tokens.len() {
            return Err(fault("tokenizer.ggml.tokens", format!("expected tokens that differ, found {} of {}", vocab.len(), self.tokens.len())));
        }
        let whole = self.tokens.iter().zip(self.types).zip(0u64..).filter(|((_, kind), _)| [CONTROL, USER_DEFINED].contains(*kind));
        let added: Vec<Value> = whole
            .map(|((content, kind), id)| {
                json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": *kind == CONTROL})
            })
            .collect();
        let first = self.first.filter(|_| self.adds_first.unwrap_or(by_habit));
        let template =
            first.map(|id| self.text(id).map(|text| (id, text)).ok_or_else(|| fault("tokenizer.ggml.bos_token_id", format!("expected a token, found {id}"))));
        let template = template.transpose()?.map(|(id, text)| {
            json!({"type": "TemplateProcessing", "pair": [],
                "single": [{"SpecialToken": {"id": text, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "special_tokens": {text: {"id": text, "ids": [id], "tokens": [text]}}})
        });
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts}, "post_processor": template,
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
                "fuse_unk": false, "byte_fallback": false, "ignore_merges": by_habit, "vocab": vocab, "merges": self.merges},
        });
        serde_json::to_vec(&tokenizer).map_err(|error| fault("tokenizer.ggml.tokens", error.to_string()))
    }

    /// The texts of the first and the last token, which templates name.
    pub fn marks(&self) -> [Option<String>; 2] {
        [self.first, self.last].map(|id| id.and_then(|id| self.text(id)).map(str::to_owned))
    }
}
