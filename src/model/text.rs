//! Text to tokens, by the model's own `tokenizer.json`.

use std::path::Path;

use tokenizers::utils::truncation::{TruncationDirection, TruncationParams, TruncationStrategy};
use tokenizers::{Encoding, Tokenizer};

use super::config::Config;
use crate::error::{Error, Result};

/// A model's tokenizer.
pub struct Text {
    inner: Tokenizer,
    vocabulary: u32,
    max_tokens: usize,
}

/// One text as the model reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Rows of the token table, the marks at both ends included.
    pub ids: Vec<i32>,
    /// Whether the text was longer than the model allows, and its end left out.
    pub cut: bool,
}

impl Text {
    /// Reads `tokenizer.json` in a model's folder. Its own padding is switched off: this crate pads nothing.
    ///
    /// # Errors
    /// A file that is missing or that the library does not understand.
    pub fn open(folder: &Path, config: &Config) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        if !path.is_file() {
            return Err(Error::input(&path, "expected the model's tokenizer, found no such file"));
        }
        let fault = |error: tokenizers::Error| Error::input(&path, error.to_string());
        let mut inner = Tokenizer::from_file(&path).map_err(fault)?;
        let own = inner.get_truncation().map_or(usize::MAX, |truncation| truncation.max_length);
        let max_tokens = config.max_tokens.min(own);
        inner.with_padding(None);
        let truncation =
            TruncationParams { max_length: max_tokens, strategy: TruncationStrategy::LongestFirst, stride: 0, direction: TruncationDirection::Right };
        inner.with_truncation(Some(truncation)).map_err(|error| Error::input(&path, error.to_string()))?;
        Ok(Self { inner, vocabulary: config.vocabulary, max_tokens })
    }

    /// The most tokens of a text, the marks at both ends included.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// The tokens of each text, in their order; on every core.
    ///
    /// # Errors
    /// A text that the library refuses, or a token that the model's table does not have.
    pub fn tokens(&self, texts: &[&str]) -> Result<Vec<Tokens>> {
        let encodings = self.inner.encode_batch_fast(texts.to_vec(), true);
        let encodings = encodings.map_err(|error| Error::invalid("text", "text that the model's tokenizer takes", error))?;
        encodings.iter().map(|encoding| self.of(encoding)).collect()
    }

    fn of(&self, encoding: &Encoding) -> Result<Tokens> {
        if let Some(id) = encoding.get_ids().iter().find(|&&id| id >= self.vocabulary) {
            return Err(Error::invalid("tokenizer", format!("ids below the model's {} tokens", self.vocabulary), id));
        }
        Ok(Tokens { ids: encoding.get_ids().iter().map(|&id| id as i32).collect(), cut: !encoding.get_overflowing().is_empty() })
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tokenizer of {} tokens, at most {} a text", self.vocabulary, self.max_tokens)
    }
}
