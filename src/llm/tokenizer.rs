//! Tokens from text, and text from tokens as they come.

use std::path::{Path, PathBuf};

use tokenizers::Tokenizer as Inner;

use super::spelling::Spelling;
use super::stops::Stops;
use crate::error::{Error, Result};
use crate::model::guarded;

/// A model's tokenizer.
pub struct Tokenizer {
    inner: Inner,
    /// The file that it is from.
    path: PathBuf,
    vocabulary: u32,
    spelling: Spelling,
}

impl Tokenizer {
    /// A tokenizer from the bytes of a `tokenizer.json`. Its own padding and truncation are switched off.
    ///
    /// # Errors
    /// What the library does not understand.
    pub fn new(path: &Path, bytes: &[u8], vocabulary: u32) -> Result<Self> {
        let mut inner = guarded(|| Inner::from_bytes(bytes)).map_err(|problem| Error::input(path, problem))?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| Error::input(path, error.to_string()))?;
        Ok(Self { inner, path: path.into(), vocabulary, spelling: Spelling::of(bytes) })
    }

    /// The tokens of a text. With `marks` the tokenizer adds what it puts around a text, as its first token; the text of a chat has those
    /// already.
    ///
    /// # Errors
    /// A tokenizer that has no token for the text, or one that the model's table does not have: faults of the file.
    pub fn encode(&self, text: &str, marks: bool) -> Result<Vec<u32>> {
        let encoding = guarded(|| self.inner.encode_fast(text, marks));
        let encoding = encoding.map_err(|problem| Error::input(&self.path, format!("expected tokens for every text, found: {problem}")))?;
        let ids = encoding.get_ids();
        match ids.iter().find(|&&id| id >= self.vocabulary) {
            Some(id) => {
                let problem = format!("expected ids below the {} tokens of the model, found {id}: is it another model's?", self.vocabulary);
                Err(Error::input(&self.path, problem))
            }
            None => Ok(ids.to_vec()),
        }
    }

    /// The text of tokens, without those that are no text. Bytes that are no UTF-8 show as U+FFFD.
    ///
    /// # Errors
    /// A tokenizer that cannot turn its tokens back: a fault of the file.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        guarded(|| self.inner.decode(ids, true)).map_err(|problem| Error::input(&self.path, problem))
    }

    /// The bytes of tokens that stand side by side, without those that are no text: parts of characters are there as they are.
    pub fn bytes(&self, ids: &[u32]) -> Vec<u8> {
        // A token that the library cannot spell has no bytes.
        let of = |&id: &u32| guarded(|| Ok::<_, String>(self.spelling.bytes(&self.inner, id))).unwrap_or_default();
        ids.iter().flat_map(of).collect()
    }

    /// The token with this text.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tokenizer of {} tokens from {}", self.vocabulary, self.path.display())
    }
}

/// The most tokens that wait for the rest of a character. One has at most four bytes.
const MOST_WAITING: usize = 8;

/// Text from tokens as they come: a character is given when all its bytes are there, and nothing that may be the start of a stop string.
#[derive(Debug)]
pub struct TextStream {
    stops: Stops,
    ids: Vec<u32>,
    /// Tokens up to `given` are text that was given; those from `context` on are decoded with it, as a word's first letter may depend on
    /// what is before it.
    context: usize,
    given: usize,
}

impl TextStream {
    /// A stream that ends before any of the strings, as [`Stops`] finds them.
    ///
    /// # Errors
    /// An empty stop string.
    pub fn new(stops: &[String]) -> Result<Self> {
        Ok(Self { stops: Stops::new(stops.to_vec())?, ids: Vec::new(), context: 0, given: 0 })
    }

    /// Whether a stop string came.
    pub fn stopped(&self) -> bool {
        self.stops.ended().is_some()
    }

    /// The text that the next token completes; empty where a character or a stop text may go on.
    ///
    /// # Errors
    /// Those of [`Tokenizer::decode`].
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String> {
        if self.stopped() {
            return Ok(String::new());
        }
        self.ids.push(id);
        let new = self.new_text(tokenizer)?;
        if new.ends_with('\u{fffd}') && self.ids.len() - self.given < MOST_WAITING {
            return Ok(String::new());
        }
        (self.context, self.given) = (self.given, self.ids.len());
        Ok(self.stops.push(&new).text)
    }

    /// The text that was held back when no more tokens come.
    ///
    /// # Errors
    /// Those of [`Tokenizer::decode`].
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String> {
        if self.stopped() {
            return Ok(String::new());
        }
        let new = self.new_text(tokenizer)?;
        self.given = self.ids.len();
        Ok(self.stops.finish(&new).text)
    }

    fn new_text(&self, tokenizer: &Tokenizer) -> Result<String> {
        let before = tokenizer.decode(&self.ids[self.context..self.given])?;
        let all = tokenizer.decode(&self.ids[self.context..])?;
        Ok(all.strip_prefix(&before).map_or(all.clone(), str::to_owned))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::llm::vocabulary::Vocabulary;

    /// A tokenizer whose tokens are bytes, and one that is no text.
    fn bytes(pre: &str) -> Result<Tokenizer> {
        // The letters that stand for bytes: printable ones for themselves, others from U+0100 on.
        let plain = |byte: u32| (33..=126).contains(&byte) || (161..=172).contains(&byte) || (174..=255).contains(&byte);
        let mut next = 256;
        let letters = (0..256u32).map(|byte| {
            let letter = if plain(byte) { byte } else { next };
            next += u32::from(!plain(byte));
            char::from_u32(letter).unwrap().to_string()
        });
        let tokens: Vec<String> = letters.chain(["<|end|>".to_owned()]).collect();
        let types: Vec<i32> = (0..257).map(|id| if id == 256 { 3 } else { 1 }).collect();
        let path = Path::new("tokenizer.json");
        let vocabulary =
            Vocabulary { path, tokens: &tokens, types: &types, merges: &[], pre, first: Some(256), adds_first: Some(false), last: Some(256), template: None };
        Tokenizer::new(path, &vocabulary.json()?, 257)
    }

    fn streamed(ids: &[u32], stops: &[&str]) -> (Vec<String>, bool) {
        let tokenizer = bytes("smollm").unwrap();
        let mut stream = TextStream::new(&stops.iter().map(|stop| (*stop).to_owned()).collect::<Vec<_>>()).unwrap();
        let mut parts: Vec<String> = ids.iter().map(|&id| stream.push(&tokenizer, id).unwrap()).collect();
        parts.push(stream.finish(&tokenizer).unwrap());
        (parts, stream.stopped())
    }

    fn ids(text: &[u8]) -> Vec<u32> {
        text.iter().map(|&byte| byte.into()).collect()
    }

    #[test]
    fn characters_come_when_all_their_bytes_are_there() {
        let (parts, _) = streamed(&ids("a🚀b é".as_bytes()), &[]);
        assert_eq!(parts, ["a", "", "", "", "🚀", "b", " ", "", "é", ""]);
        let (parts, _) = streamed(&ids(b"\xf0\x9fa\xff"), &[]);
        assert_eq!(parts.concat(), "\u{fffd}a\u{fffd}", "what is no UTF-8 shows once");
        let many = [0x80; 30];
        assert_eq!(streamed(&ids(&many), &[]).0.concat().chars().filter(|mark| *mark == '\u{fffd}').count(), 30);
    }

    #[test]
    fn a_stop_text_is_found_wherever_it_is_split() {
        let (parts, stopped) = streamed(&ids("one\nUser: two".as_bytes()), &["\nUser:", "zzz"]);
        assert!(stopped);
        assert_eq!(parts.concat(), "one");
        assert_eq!(parts[..4], ["o", "n", "e", ""]);
        let (parts, stopped) = streamed(&ids("\nUs\nUsed".as_bytes()), &["\nUser:"]);
        assert!(!stopped && parts.concat() == "\nUs\nUsed");
        let (parts, stopped) = streamed(&ids("ends \nUse".as_bytes()), &["\nUser:"]);
        assert!(!stopped && parts.concat() == "ends \nUse", "what was held comes at the end");
    }

    #[test]
    fn marks_are_tokens_and_no_text() {
        let tokenizer = bytes("smollm").unwrap();
        assert_eq!(tokenizer.encode("a<|end|>", false).unwrap(), [97, 256]);
        assert_eq!((tokenizer.decode(&[97, 256]).unwrap().as_str(), tokenizer.id_of("<|end|>")), ("a", Some(256)));
        for pre in ["gpt-2", "llama-bpe", "qwen2"] {
            assert_eq!(bytes(pre).unwrap().encode("a 1", false).unwrap(), [97, 32, 49], "{pre}");
        }
        let error = bytes("chameleon").unwrap_err().to_string();
        assert!(error.contains("tokenizer.ggml.pre") && error.contains("chameleon"), "{error}");
    }
}
