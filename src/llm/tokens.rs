//! Text from tokens as they come. A character may lie in several tokens, and a stop string may begin in one and end in another.

pub use super::stops::Piece;
use super::stops::Stops;
use crate::error::Result;

/// What turns ids into bytes: a tokenizer.
///
/// More ids at the end give more bytes at the end, and never others before. The bytes of the ids need not be UTF-8: a token may hold a part of a
/// character.
pub trait Decode {
    /// The bytes of some ids that stand side by side.
    fn decode(&self, ids: &[u32]) -> Vec<u8>;
}

impl<F: Fn(&[u32]) -> Vec<u8>> Decode for F {
    fn decode(&self, ids: &[u32]) -> Vec<u8> {
        self(ids)
    }
}

/// The text of an answer, piece by piece.
///
/// A piece ends where a character ends, and before anything that may become a stop string. All pieces together are what
/// [`String::from_utf8_lossy`] makes of all bytes, up to the first stop string: they do not depend on how the text is cut into tokens. Bytes
/// that are no UTF-8 become U+FFFD, once for each part that could have begun a character.
#[derive(Clone, Debug)]
pub struct Detokenizer {
    stops: Stops,
    /// The last token. Some tokenizers drop a space before the first of the ids that they decode.
    before: Option<u32>,
    /// The beginning of a character.
    bytes: Vec<u8>,
}

impl Detokenizer {
    /// An empty text that ends before any of the strings, as [`Stops`] finds them.
    ///
    /// # Errors
    /// An empty stop string.
    pub fn new(stops: Vec<String>) -> Result<Self> {
        Ok(Self { stops: Stops::new(stops)?, before: None, bytes: Vec::new() })
    }

    /// Begins behind a token, the last of the prompt, rather than at the start of a text.
    #[must_use]
    pub fn after(self, token: u32) -> Self {
        Self { before: Some(token), ..self }
    }

    /// Adds a token. After a stop string nothing comes any more.
    pub fn push(&mut self, decode: &impl Decode, token: u32) -> Piece {
        if self.stops.ended().is_some() {
            return self.stops.push("");
        }
        let added = match self.before.replace(token) {
            None => decode.decode(&[token]),
            Some(before) => {
                let mut both = decode.decode(&[before, token]);
                both.drain(..decode.decode(&[before]).len().min(both.len()));
                both
            }
        };
        self.bytes.extend(added);
        let text = self.complete();
        self.stops.push(&text)
    }

    /// The end of the text: what was held back. The beginning of a character becomes U+FFFD.
    pub fn finish(&mut self) -> Piece {
        let rest = if std::mem::take(&mut self.bytes).is_empty() { "" } else { "\u{FFFD}" };
        self.stops.finish(rest)
    }

    /// Takes all bytes but the beginning of a character at the end.
    fn complete(&mut self) -> String {
        let mut text = String::new();
        let mut taken = 0;
        for chunk in self.bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            taken += chunk.valid().len();
            let invalid = chunk.invalid();
            // More bytes may complete what is invalid at the end and nowhere else.
            let may_go_on = taken + invalid.len() == self.bytes.len() && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if may_go_on {
                break;
            }
            if !invalid.is_empty() {
                text.push('\u{FFFD}');
                taken += invalid.len();
            }
        }
        self.bytes.drain(..taken);
        text
    }
}
