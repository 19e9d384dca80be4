//! Tokens from text, by the model's own `tokenizer.json`.

use std::path::{Path, PathBuf};

use tokenizers::utils::truncation::{TruncationDirection, TruncationParams, TruncationStrategy};
use tokenizers::{Encoding, PostProcessor, Tokenizer};

use super::config::Config;
use crate::error::{Error, Result};

/// A model's tokenizer.
pub struct Text {
    inner: Tokenizer,
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
    /// Whether the text was longer than the model allows, and its end was cut.
    pub cut: bool,
}

impl Text {
    /// Reads `tokenizer.json` in a model's folder. Its own padding is switched off, since this crate pads nothing.
    ///
    /// # Errors
    /// A file that is missing, that the library does not understand, or that leaves a text no room for a token.
    pub fn open(folder: &Path, config: &Config) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        if !path.is_file() {
            return Err(Error::input(&path, "expected the model's tokenizer, found no such file"));
        }
        let mut inner = Tokenizer::from_file(&path).map_err(|error| Error::input(&path, error.to_string()))?;
        let own = inner.get_truncation().map_or(usize::MAX, |truncation| truncation.max_length);
        let max_tokens = config.max_tokens.min(own);
        inner.with_padding(None);
        // This is checked here, since the library subtracts the marks from the length unchecked, and panics.
        let marks = inner.get_post_processor().map_or(0, |post| post.added_tokens(false));
        if max_tokens <= marks {
            let problem = format!("expected room for more than the {marks} marks of a sentence, found {max_tokens}");
            return Err(Error::input_item(&path, "truncation.max_length", problem));
        }
        let truncation =
            TruncationParams { max_length: max_tokens, strategy: TruncationStrategy::LongestFirst, stride: 0, direction: TruncationDirection::Right };
        inner.with_truncation(Some(truncation)).map_err(|error| Error::input(&path, error.to_string()))?;
        Ok(Self { inner, path, vocabulary: config.vocabulary, max_tokens, lowercase: config.lowercase })
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
        let encodings = match self.lowercase {
            true => self.inner.encode_batch_fast(texts.iter().map(|text| text.to_lowercase()).collect(), true),
            false => self.inner.encode_batch_fast(texts.to_vec(), true),
        };
        let encodings = encodings.map_err(|error| Error::input(&self.path, format!("expected tokens for every text, found: {error}")))?;
        encodings.iter().map(|encoding| self.of(encoding)).collect()
    }

    fn of(&self, encoding: &Encoding) -> Result<Tokens> {
        if let Some(id) = encoding.get_ids().iter().find(|&&id| id >= self.vocabulary) {
            let problem = format!("expected ids below the {} tokens of the model, found {id}: is it another model's?", self.vocabulary);
            return Err(Error::input(&self.path, problem));
        }
        Ok(Tokens { ids: encoding.get_ids().iter().map(|&id| id as i32).collect(), cut: !encoding.get_overflowing().is_empty() })
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tokenizer of {} tokens, at most {} a text", self.vocabulary, self.max_tokens)
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
        let config = Config {
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
        };
        Text::open(folder.path(), &config)
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
