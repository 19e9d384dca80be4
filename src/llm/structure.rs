//! Answers of a given form: JSON of a schema, a regular expression, one of several texts, a grammar. What may come next is worked out by `llguidance`.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use super::grammar::{Grammar, Rule};
use super::tokenizer::Tokenizer;
use crate::error::{Error, Result, ensure};

/// The longest description of a form, in bytes.
const MAX_BYTES: usize = 256 << 10;
/// The most texts of a choice.
const MAX_CHOICES: usize = 4096;

/// The form of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Structure {
    /// Any object in JSON.
    JsonObject,
    /// A value in JSON that this JSON Schema describes.
    JsonSchema(Value),
    /// A text that the whole of this regular expression matches.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text of this grammar in Lark's notation, whose first rule is `start`.
    Lark(String),
}

impl Structure {
    fn grammar(&self) -> Result<TopLevelGrammar> {
        let bytes = match self {
            Self::JsonObject => 0,
            Self::JsonSchema(schema) => schema.to_string().len(),
            Self::Regex(text) | Self::Lark(text) => text.len(),
            Self::Choice(texts) => texts.iter().map(String::len).sum(),
        };
        ensure(bytes <= MAX_BYTES, "structure", format_args!("at most {MAX_BYTES} bytes"), bytes)?;
        Ok(match self {
            Self::JsonObject => TopLevelGrammar::from_json_schema(json!({"type": "object"})),
            Self::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
            Self::Regex(text) => TopLevelGrammar::from_regex(text),
            Self::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
            Self::Choice(texts) => {
                ensure((1..=MAX_CHOICES).contains(&texts.len()), "structure: choice", format_args!("1 to {MAX_CHOICES} texts"), texts.len())?;
                ensure(texts.iter().all(|text| !text.is_empty()), "structure: choice", "texts that are not empty", "an empty one")?;
                // A string of JSON is one of this notation.
                let texts: Vec<String> = texts.iter().map(|text| Value::from(text.as_str()).to_string()).collect();
                TopLevelGrammar::from_lark(format!("start: {}", texts.join(" | ")))
            }
        })
    }
}

/// What makes grammars of structures, for one vocabulary.
pub struct Structures(ParserFactory);

impl Structures {
    /// Structures of texts in the tokens of `tokenizer`, of which those in `ends` end an answer. Takes a moment for a large vocabulary.
    ///
    /// # Errors
    /// No token that ends an answer, or one that is not in the vocabulary.
    pub fn new(tokenizer: &Tokenizer, vocabulary: u32, ends: &[u32]) -> Result<Self> {
        Self::of_words((0..vocabulary).map(|id| tokenizer.bytes(&[id])).collect(), ends)
    }

    /// Structures in tokens of these bytes; a token without bytes is no text.
    fn of_words(mut words: Vec<Vec<u8>>, ends: &[u32]) -> Result<Self> {
        let count = words.len();
        let fault = |found: String| Error::invalid("structure", format!("a token below {count} that ends an answer"), found);
        let first = *ends.first().ok_or_else(|| fault("none".into()))?;
        if let Some(id) = ends.iter().find(|id| **id as usize >= count) {
            return Err(fault(id.to_string()));
        }
        for (id, word) in words.iter_mut().enumerate() {
            // What is no text has a name that no text has.
            if word.is_empty() || word[0] == TokTrie::SPECIAL_TOKEN_MARKER || ends.contains(&(id as u32)) {
                *word = [&[TokTrie::SPECIAL_TOKEN_MARKER], format!("[{id}]").as_bytes()].concat();
            }
        }
        let size = u32::try_from(count).map_err(|_| fault(format!("{count} tokens")))?;
        let trie = TokTrie::from(&TokRxInfo::new(size, first), &words).with_eos_tokens(ends);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(refused)?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits { verbose_errors: false, ..ParserLimits::default() };
        Ok(Self(factory))
    }

    /// The grammar of a structure.
    ///
    /// # Errors
    /// A structure that is too long or too large, is not sound, or uses what is not supported, by what is wrong with it.
    pub fn grammar(&self, structure: &Structure) -> Result<Arc<dyn Grammar>> {
        let parser = self.0.create_parser(structure.grammar()?);
        let matcher = Matcher::new(parser);
        match matcher.get_error() {
            Some(error) => Err(refused(error)),
            None => Ok(Arc::new(Compiled(Mutex::new(matcher)))),
        }
    }
}

impl std::fmt::Debug for Structures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "structures over {} tokens", self.0.tok_env().tok_trie().vocab_size())
    }
}

fn refused(error: impl std::fmt::Display) -> Error {
    Error::invalid("structure", "one that can be followed", error)
}

/// A grammar at its beginning.
struct Compiled(Mutex<Matcher>);

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a grammar")
    }
}

impl Grammar for Compiled {
    fn begin(&self) -> Result<Box<dyn Rule>> {
        let matcher = self.0.lock().unwrap_or_else(PoisonError::into_inner).deep_clone();
        Ok(Box::new(Following(matcher)))
    }
}

/// An answer on its way through a grammar.
struct Following(Matcher);

impl Rule for Following {
    fn allow(&mut self, mask: &mut [u32]) -> Result<()> {
        let allowed = self.0.compute_mask_or_eos().map_err(refused)?;
        // Behind the vocabulary there is a bit of its own, which may take one word more.
        let tokens = self.0.tok_env().map_err(refused)?.tok_trie().vocab_size().div_ceil(32);
        let words = allowed.as_slice().get(..tokens).unwrap_or_default();
        ensure(mask.len() == words.len(), "mask", format_args!("{} words", words.len()), mask.len())?;
        mask.copy_from_slice(words);
        Ok(())
    }

    fn push(&mut self, token: u32) -> Result<()> {
        // Where nothing but an end may come, the matcher has stopped before it.
        if self.0.is_stopped() && self.0.tok_env().map_err(refused)?.tok_trie().eos_tokens().contains(&token) {
            return Ok(());
        }
        self.0.consume_token(token).map_err(refused)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    const END: u32 = 300;
    const ALSO: u32 = 301;

    /// A token a byte, some words of several, one that is no text, and two ends.
    fn structures() -> Structures {
        let mut words: Vec<Vec<u8>> = (0..=255u8).map(|byte| vec![byte]).collect();
        words.extend(
            ["{\"", "\":", "true", "false", "null", "12", " ", "name", "age", "red", "re", "d", "green", "\"}", ", \"", "[]"]
                .map(|word| word.as_bytes().to_vec()),
        );
        words.resize(302, Vec::new());
        Structures::of_words(words, &[END, ALSO]).unwrap()
    }

    fn bytes(token: u32) -> Vec<u8> {
        let words = ["{\"", "\":", "true", "false", "null", "12", " ", "name", "age", "red", "re", "d", "green", "\"}", ", \"", "[]"];
        u8::try_from(token).map_or_else(|_| words[token as usize - 256].as_bytes().to_vec(), |byte| vec![byte])
    }

    /// Texts that come of drawing any token that may come, each 400 tokens at most.
    fn walks(structure: &Structure, count: u64) -> Vec<String> {
        let grammar = structures().grammar(structure).unwrap();
        let walk = |seed: u64| {
            let (mut rule, mut random, mut text) = (grammar.begin().unwrap(), ChaCha8Rng::seed_from_u64(seed), Vec::new());
            for step in 0..400 {
                let mut mask = vec![0; 302usize.div_ceil(32)];
                rule.allow(&mut mask).unwrap();
                let open = |id: u32| mask[id as usize / 32] >> (id % 32) & 1 == 1;
                assert_eq!(open(END), open(ALSO), "either end");
                let may: Vec<u32> = (0..END).filter(|id| open(*id)).collect();
                assert!(may.iter().all(|id| *id < 272), "no token that is no text");
                if may.is_empty() || (open(END) && random.random::<bool>()) {
                    assert!(open(END), "{structure:?}: nothing may come after {:?}", String::from_utf8_lossy(&text));
                    rule.push(END).unwrap();
                    return Some(String::from_utf8(text).unwrap());
                }
                // Quotation marks and brackets, so that texts end.
                let closing: Vec<u32> = may.iter().copied().filter(|id| bytes(*id).iter().any(|byte| b"\"}]".contains(byte))).collect();
                let from = if step > 40 && !closing.is_empty() { &closing } else { &may };
                let token = from[random.random_range(0..from.len())];
                text.extend(bytes(token));
                rule.push(token).unwrap();
            }
            None
        };
        (0..count).filter_map(walk).collect()
    }

    #[test]
    fn whatever_is_drawn_is_json_of_the_schema() {
        let schema = json!({"type": "object", "additionalProperties": false, "required": ["name", "age"],
            "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 120}, "colour": {"enum": ["red", "green"]}}});
        let texts = walks(&Structure::JsonSchema(schema), 60);
        assert!(texts.len() >= 50, "{} of 60 came to an end", texts.len());
        for text in texts {
            let value: Value = serde_json::from_str(&text).map_err(|error| format!("{text:?}: {error}")).unwrap();
            assert!(value["name"].as_str().is_some_and(|name| name.chars().count() <= 5), "{text}");
            assert!(value["age"].as_u64().is_some_and(|age| age <= 120), "{text}");
            assert!(value.get("colour").is_none_or(|colour| colour == "red" || colour == "green"), "{text}");
            assert!(value.as_object().unwrap().len() <= 3, "{text}");
        }
    }

    #[test]
    fn objects_expressions_choices_and_grammars_hold() {
        let objects = walks(&Structure::JsonObject, 30);
        assert!(!objects.is_empty() && objects.iter().all(|text| serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object())), "{objects:?}");
        let dates = walks(&Structure::Regex("[0-9]{4}-(0[1-9]|1[0-2])".into()), 30);
        assert!(dates.len() == 30 && dates.iter().all(|text| text.len() == 7 && text.as_bytes()[4] == b'-'), "{dates:?}");
        let texts = vec!["red".to_owned(), "a \"b\"\n".into(), "gr\u{fc}n".into()];
        let chosen = walks(&Structure::Choice(texts.clone()), 60);
        assert!(chosen.len() == 60 && texts.iter().all(|text| chosen.contains(text)) && chosen.iter().all(|text| texts.contains(text)), "{chosen:?}");
        let nested = walks(&Structure::Lark("start: \"(\" start? \")\"".into()), 60);
        assert!(nested.len() > 10 && nested.iter().all(|text| text.len() % 2 == 0 && text.starts_with('(') && text.ends_with(')')), "{nested:?}");
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        let structures = structures();
        for structure in [
            Structure::JsonSchema(json!({"type": "nothing"})),
            Structure::JsonSchema(json!({"$ref": "elsewhere"})),
            Structure::Regex("(".into()),
            Structure::Choice(vec![]),
            Structure::Choice(vec![String::new()]),
            Structure::Lark("start: other".into()),
            Structure::Regex("a".repeat(MAX_BYTES + 1)),
        ] {
            assert!(matches!(structures.grammar(&structure), Err(Error::Invalid { .. })), "{structure:?}");
        }
        assert!(Structures::of_words(vec![vec![b'a']], &[]).is_err() && Structures::of_words(vec![vec![b'a']], &[1]).is_err());
        let grammar = structures.grammar(&Structure::Choice(vec!["red".into()])).unwrap();
        let mut rule = grammar.begin().unwrap();
        assert!(rule.allow(&mut [0; 3]).is_err() && rule.push(u32::from(b'x')).is_err());
        // A vocabulary that fills its last word.
        let whole = Structures::of_words((0..=255u8).map(|byte| vec![byte]).collect(), &[0]).unwrap();
        let mut mask = [0; 8];
        whole.grammar(&Structure::Choice(vec!["a".into()])).unwrap().begin().unwrap().allow(&mut mask).unwrap();
        assert_eq!(mask, [0, 0, 0, 2, 0, 0, 0, 0]);
        // One answer's fault is not another's.
        assert!(grammar.begin().unwrap().push(u32::from(b'r')).is_ok());
    }
}
