//! Tokens from text, by the model's own `tokenizer.json`.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use tokenizers::utils::truncation::{TruncationDirection, TruncationParams, TruncationStrategy};
use tokenizers::{Encoding, PostProcessor, Tokenizer};

use super::config::Config;
use super::growth;
use super::wordpiece::WordPiece;
use crate::error::{Error, Result};
use crate::read::{is_there, read_file};

/// Longest `tokenizer.json`, in bytes. Those of the largest vocabularies have 40 million.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// The bytes of a text that are read for each token that the model takes, at most; the rest counts as too long and is left out.
/// A token of real text has 4 bytes or so.
const BYTES_PER_TOKEN: usize = 256;
/// The bytes of the texts that are tokenized together, about: the tokenizer takes some 150 times that in memory.
const CHUNK_BYTES: usize = 1 << 20;
/// So few texts are tokenized faster than other threads are woken for them.
const FEW: usize = 32;

/// A model's tokenizer.
pub struct Text {
    inner: Tokenizer,
    /// What gives the same tokens faster, where the file describes BERT's WordPiece.
    own: Option<WordPiece>,
    /// The tokenizer's file.
    path: PathBuf,
    vocabulary: u32,
    max_tokens: usize,
    lowercase: bool,
}

/// One text as the model reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Rows of the token table, with the marks at both ends.
    pub ids: Vec<i32>,
    /// Whether the text was longer than the model allows, or than 256 bytes for each token of that, and its end left out.
    pub cut: bool,
}

impl Text {
    /// Reads `tokenizer.json` in a model's folder. Its own padding is switched off, since this crate pads nothing.
    ///
    /// # Errors
    /// A file that is missing, that the library does not understand, or that leaves a text no room for a token.
    pub fn open(folder: &Path, config: &Config) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        let bytes = tokenizer_bytes(&path)?;
        let mut inner = guarded(|| Tokenizer::from_bytes(&bytes)).map_err(|problem| Error::input(&path, problem))?;
        let own = inner.get_truncation().map_or(usize::MAX, |truncation| truncation.max_length);
        let max_tokens = config.max_tokens.min(own);
        inner.with_padding(None);
        // Checked here: the library subtracts the marks from the length without looking, and panics.
        let marks = guarded(|| Ok::<_, Error>(inner.get_post_processor().map_or(0, |post| post.added_tokens(false))))
            .map_err(|problem| Error::input(&path, problem))?;
        if max_tokens <= marks {
            let problem = format!("expected room for more than the {marks} marks of a sentence, found {max_tokens}");
            return Err(Error::input_item(&path, "truncation.max_length", problem));
        }
        let truncation =
            TruncationParams { max_length: max_tokens, strategy: TruncationStrategy::LongestFirst, stride: 0, direction: TruncationDirection::Right };
        inner.with_truncation(Some(truncation)).map_err(|error| Error::input(&path, error.to_string()))?;
        let encode = |text: &str| {
            let encoding = guarded(|| inner.encode_fast(text, true)).ok()?;
            Some(encoding.get_ids().iter().map(|&id| id as i32).collect())
        };
        let own = WordPiece::of(&inner, config.vocabulary, &encode);
        Ok(Self { inner, own, path, vocabulary: config.vocabulary, max_tokens, lowercase: config.lowercase })
    }

    /// The most tokens of a text, with the marks at both ends.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// The tokens of each text, in order, on every core.
    ///
    /// # Errors
    /// A tokenizer that has no token for a text, or one that the model's table does not have: faults of the file.
    pub fn tokens(&self, texts: &[&str]) -> Result<Vec<Tokens>> {
        self.tokens_each(texts).into_iter().collect()
    }

    /// The tokens of each text as [`tokens`](Self::tokens) gives them, or why it has none: one text is not another's loss.
    /// A text is cut before it is tokenized, so that a long one costs what its first tokens do.
    pub fn tokens_each(&self, texts: &[&str]) -> Vec<Result<Tokens>> {
        match &self.own {
            Some(own) if texts.len() <= FEW => texts.iter().map(|text| self.one(own, text)).collect(),
            Some(own) => texts.par_iter().with_min_len(FEW).map(|text| self.one(own, text)).collect(),
            None => self.by_library(texts),
        }
    }

    fn one(&self, own: &WordPiece, text: &str) -> Result<Tokens> {
        let (text, short) = self.head(text);
        match own.tokens(&self.cased(text), self.max_tokens) {
            Some((ids, cut)) => Ok(Tokens { ids, cut: cut || short }),
            None => self.one_by_library(text, short),
        }
    }

    fn by_library(&self, texts: &[&str]) -> Vec<Result<Tokens>> {
        let texts: Vec<(&str, bool)> = texts.iter().map(|text| self.head(text)).collect();
        let mut out = Vec::with_capacity(texts.len());
        let mut rest = &texts[..];
        while !rest.is_empty() {
            let mut bytes = 0;
            let count = rest.iter().take_while(|(text, _)| {
                bytes += text.len();
                bytes <= CHUNK_BYTES
            });
            let (chunk, later) = rest.split_at(count.count().max(1));
            self.chunk(chunk, &mut out);
            rest = later;
        }
        out
    }

    /// As much of a text as is read, and whether that is less than all.
    fn head<'a>(&self, text: &'a str) -> (&'a str, bool) {
        let most = self.max_tokens.saturating_mul(BYTES_PER_TOKEN);
        if text.len() <= most {
            return (text, false);
        }
        let end = (0..=most).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        (&text[..end], true)
    }

    /// Adds the tokens of `texts` to `out`: of all at once, or one by one where a text among them has none.
    fn chunk(&self, texts: &[(&str, bool)], out: &mut Vec<Result<Tokens>>) {
        if let Ok(encodings) = guarded(|| self.inner.encode_batch_fast(texts.iter().map(|(text, _)| self.cased(text)).collect(), true)) {
            out.extend(encodings.iter().zip(texts).map(|(encoding, &(_, short))| self.of(encoding, short)));
            return;
        }
        out.extend(texts.iter().map(|&(text, short)| self.one_by_library(text, short)));
    }

    fn one_by_library(&self, text: &str, short: bool) -> Result<Tokens> {
        let encoding = guarded(|| self.inner.encode_fast(self.cased(text), true));
        let encoding = encoding.map_err(|problem| Error::input(&self.path, format!("expected tokens for every text, found: {problem}")))?;
        self.of(&encoding, short)
    }

    fn cased<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.lowercase { text.to_lowercase().into() } else { text.into() }
    }

    fn of(&self, encoding: &Encoding, short: bool) -> Result<Tokens> {
        if let Some(id) = encoding.get_ids().iter().find(|&&id| id >= self.vocabulary) {
            let problem = format!("expected ids below the {} tokens of the model, found {id}: is it another model's?", self.vocabulary);
            return Err(Error::input(&self.path, problem));
        }
        Ok(Tokens { ids: encoding.get_ids().iter().map(|&id| id as i32).collect(), cut: short || !encoding.get_overflowing().is_empty() })
    }
}

/// The bytes of a model's `tokenizer.json`.
///
/// # Errors
/// No such file; one that is longer than those of the largest vocabularies.
pub fn tokenizer_bytes(path: &Path) -> Result<Vec<u8>> {
    if !is_there(path)? {
        return Err(Error::input(path, "expected the model's tokenizer, found no such file"));
    }
    let bytes = read_file(path, MAX_FILE_BYTES)?;
    growth::check(&bytes).map_err(|problem| Error::input(path, problem))?;
    Ok(bytes)
}

/// What `work` of the tokenizer's library gives, or its fault in words. The library panics on some damaged files, when it reads them or
/// when it uses them; nothing of this crate's is changed by `work`, and the tokenizer itself does not change when it is used.
pub fn guarded<T, E: std::fmt::Display>(work: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(panic) => {
            let told = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!(
                "the tokenizer's library failed on it, so the file is damaged or of a form that it does not know: {}",
                told.unwrap_or("it says no more")
            ))
        }
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.own.is_some() { "WordPiece" } else { "tokenizer" };
        write!(f, "{kind} of {} tokens, at most {} a text", self.vocabulary, self.max_tokens)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::model::Pooling;
    use crate::ops::Activation;

    /// A tokenizer of three words, with `[CLS]` before them and `[SEP]` behind, and this `truncation`.
    fn open(truncation: &str, unknown: &str) -> Result<Text> {
        open_in(false, truncation, unknown)
    }

    fn open_in(lowercase: bool, truncation: &str, unknown: &str) -> Result<Text> {
        let folder = tempfile::tempdir().unwrap();
        let mark = |id: &str, at: u32| format!(r#""{id}": {{"id": "{id}", "ids": [{at}], "tokens": ["{id}"]}}"#);
        let place = |kind: &str, id: &str| format!(r#"{{"{kind}": {{"id": "{id}", "type_id": 0}}}}"#);
        let single = [place("SpecialToken", "[CLS]"), place("Sequence", "A"), place("SpecialToken", "[SEP]")].join(",");
        let marks = [mark("[CLS]", 0), mark("[SEP]", 1)].join(",");
        let json = format!(
            r#"{{"version": "1.0", "truncation": {truncation}, "padding": null, "added_tokens": [], "normalizer": null,
                "pre_tokenizer": {{"type": "Whitespace"}}, "decoder": null,
                "post_processor": {{"type": "TemplateProcessing", "single": [{single}], "pair": [], "special_tokens": {{{marks}}}}},
                "model": {{"type": "WordLevel", "unk_token": "{unknown}", "vocab": {{"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "one": 3, "far": 9}}}}}}"#
        );
        std::fs::write(folder.path().join("tokenizer.json"), json).unwrap();
        Text::open(folder.path(), &config(lowercase))
    }

    fn config(lowercase: bool) -> Config {
        Config {
            vocabulary: 4,
            hidden: 1,
            layers: 1,
            heads: 1,
            intermediate: 1,
            activation: Activation::GeluErf,
            positions: 8,
            token_types: 1,
            norm_eps: 0.0,
            pooling: Pooling::Mean,
            normalise: true,
            max_tokens: 8,
            lowercase,
        }
    }

    fn cut_to(length: usize) -> String {
        format!(r#"{{"direction": "Right", "max_length": {length}, "strategy": "LongestFirst", "stride": 0}}"#)
    }

    #[test]
    fn a_text_is_cut_to_what_both_files_allow() {
        let tokens = |text: &Text| text.tokens(&["one one one one one one one one"]).unwrap().remove(0);
        assert_eq!(tokens(&open("null", "[UNK]").unwrap()), Tokens { ids: vec![0, 3, 3, 3, 3, 3, 3, 1], cut: true });
        assert_eq!(tokens(&open(&cut_to(3), "[UNK]").unwrap()), Tokens { ids: vec![0, 3, 1], cut: true });
        assert_eq!(open("null", "[UNK]").unwrap().tokens(&["what"]).unwrap()[0], Tokens { ids: vec![0, 2, 1], cut: false });
    }

    #[test]
    fn texts_are_put_into_lower_case_where_the_model_says_so() {
        let ids = |lowercase: bool| open_in(lowercase, "null", "[UNK]").unwrap().tokens(&["ONE"]).unwrap().remove(0).ids;
        assert_eq!((ids(false), ids(true)), (vec![0, 2, 1], vec![0, 3, 1]));
    }

    #[test]
    fn one_text_without_tokens_is_not_anothers_loss() {
        let text = open("null", "[NONE]").unwrap();
        let tokens = text.tokens_each(&["one", "what", "far", "one one"]);
        let told: Vec<String> = tokens.iter().map(|tokens| tokens.as_ref().map_or_else(ToString::to_string, |tokens| format!("{:?}", tokens.ids))).collect();
        assert_eq!((told[0].as_str(), told[3].as_str()), ("[0, 3, 1]", "[0, 3, 3, 1]"));
        assert!(told[1].contains("expected tokens for every text") && told[2].contains("another model"), "{told:?}");
    }

    #[test]
    fn a_long_text_costs_what_its_first_tokens_do() {
        let text = open("null", "[UNK]").unwrap();
        let [long, wide] = ["one ".repeat(4 << 20), "é".repeat(1 << 20)];
        let began = std::time::Instant::now();
        let tokens = text.tokens(&[&long, "one", &wide, &long]).unwrap();
        assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
        assert_eq!(tokens[0], Tokens { ids: vec![0, 3, 3, 3, 3, 3, 3, 1], cut: true });
        assert_eq!((tokens[1].cut, tokens[2].cut), (false, true));
    }

    #[test]
    fn a_file_that_the_library_panics_on_is_refused() {
        // The mark that the template names is not among the special tokens: the library looks it up without asking.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        let json = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "decoder": null,
            "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
            "pair": [], "special_tokens": {}}, "model": {"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}}"#;
        std::fs::write(&path, json).unwrap();
        let refused = Text::open(folder.path(), &config(false)).and_then(|text| text.tokens(&["a"]));
        let error = refused.unwrap_err();
        assert!(matches!(&error, Error::Input { .. }) && error.to_string().contains("tokenizer.json"), "{error}");
    }

    #[test]
    fn a_tokenizer_that_cannot_be_used_is_the_files_fault() {
        for length in 0..=2 {
            let error = open(&cut_to(length), "[UNK]").unwrap_err();
            assert!(matches!(&error, Error::Input { .. }) && error.to_string().contains("truncation.max_length"), "{error}");
        }
        for (unknown, text, word) in [("[UNK]", "far", "another model"), ("[NONE]", "what", "expected tokens for every text")] {
            let error = open("null", unknown).unwrap().tokens(&[text]).unwrap_err();
            assert!(matches!(&error, Error::Input { .. }) && error.to_string().contains(word), "{error}");
        }
    }
}
