//! The bytes of single tokens, as a tokenizer's vocabulary spells them.

use std::collections::HashMap;

use serde_json::Value;
use tokenizers::Tokenizer;

/// How a vocabulary spells bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// A character for each byte (the tokenizer of GPT-2): printable bytes are themselves, others are the characters from U+0100 on.
    ByteLevel(HashMap<char, u8>),
    /// Text with U+2581 for a space, and `<0xNN>` for a byte that is no text (SentencePiece with byte fallback).
    Fallback,
    /// Text of whole characters, which the tokenizer's own decoder gives.
    Plain,
}

impl Spelling {
    /// The spelling that the decoder of a `tokenizer.json` names.
    pub fn of(file: &[u8]) -> Self {
        #[derive(serde::Deserialize)]
        struct File {
            decoder: Option<Value>,
        }
        // The library has read the file before: what it does not name here is plain.
        let decoder = serde_json::from_slice::<File>(file).ok().and_then(|file| file.decoder).unwrap_or_default();
        let kinds: Vec<&str> = match decoder["decoders"].as_array() {
            Some(several) => several.iter().filter_map(|one| one["type"].as_str()).collect(),
            None => decoder["type"].as_str().into_iter().collect(),
        };
        match () {
            () if kinds.contains(&"ByteLevel") => Self::ByteLevel(characters()),
            () if kinds.contains(&"ByteFallback") => Self::Fallback,
            () => Self::Plain,
        }
    }

    /// The bytes of a token; none for one that is no text.
    pub fn bytes(&self, tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
        if let Some(added) = tokenizer.get_added_vocabulary().get_added_tokens_decoder().get(&id) {
            return if added.special { Vec::new() } else { added.content.clone().into_bytes() };
        }
        let Some(token) = tokenizer.id_to_token(id) else { return Vec::new() };
        match self {
            Self::ByteLevel(bytes) => {
                token.chars().flat_map(|character| bytes.get(&character).map_or_else(|| character.to_string().into_bytes(), |&byte| vec![byte])).collect()
            }
            Self::Fallback => match token.strip_prefix("<0x").and_then(|rest| u8::from_str_radix(rest.strip_suffix('>')?, 16).ok()) {
                Some(byte) => vec![byte],
                None => token.replace('\u{2581}', " ").into_bytes(),
            },
            Self::Plain => tokenizer.decode(&[id], true).unwrap_or_default().into_bytes(),
        }
    }
}

/// The byte of each character of a byte-level vocabulary.
fn characters() -> HashMap<char, u8> {
    let printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let others = (0..=255u8).filter(|byte| !printable(*byte)).zip(256u32..);
    let own = (0..=255u8).filter(|byte| printable(*byte)).map(|byte| (byte, u32::from(byte)));
    own.chain(others).filter_map(|(byte, code)| Some((char::from_u32(code)?, byte))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character_of_its_own() {
        let all = characters();
        assert_eq!(all.len(), 256);
        assert_eq!([all[&'A'], all[&'\u{120}'], all[&'\u{10a}'], all[&'\u{e9}']], [b'A', b' ', b'\n', 0xe9]);
    }

    #[test]
    fn the_decoder_says_how_bytes_are_spelled() {
        let of = |decoder: &str| Spelling::of(format!("{{\"decoder\": {decoder}}}").as_bytes());
        assert!(matches!(of(r#"{"type": "ByteLevel"}"#), Spelling::ByteLevel(_)));
        assert_eq!(of(r#"{"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}, {"type": "Fuse"}]}"#), Spelling::Fallback);
        assert_eq!([of("null"), of(r#"{"type": "WordPiece"}"#)], [Spelling::Plain, Spelling::Plain]);
    }
}
