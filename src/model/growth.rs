//! How much a tokenizer may make of a text. Its file says what is put in the place of each character, and how long a word may be: some
//! kilobytes can ask for gigabytes and minutes. The tokenizer's library believes all of it.

use serde::Deserialize;
use serde_json::Value;

/// Bytes that may be put in one place, and how many times as long all replacements together may make a text.
const MOST: usize = 64;
/// Characters of a word that is looked up piece by piece, which takes the square of them.
const MAX_WORD: u64 = 1000;

/// The parts of `tokenizer.json` that say so.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    model: Option<Model>,
}

/// The parts of the model; not its vocabulary.
#[derive(Deserialize)]
struct Model {
    #[serde(default)]
    continuing_subword_prefix: Value,
    #[serde(default)]
    end_of_word_suffix: Value,
    #[serde(default)]
    max_input_chars_per_word: Value,
}

/// Checks a `tokenizer.json`.
///
/// # Errors
/// Text that is not such a file, or that asks for more than is allowed, in words.
pub(super) fn check(file: &[u8]) -> Result<(), String> {
    let file: File = serde_json::from_slice(file).map_err(|error| error.to_string())?;
    let mut times = 1;
    for part in [&file.normalizer, &file.pre_tokenizer] {
        within(part, "", &mut times)?;
    }
    if times > MOST {
        return Err(format!("normalizer: expected replacements that make a text at most {MOST} times as long, found {times} times"));
    }
    once(&file.post_processor)?;
    let Some(model) = file.model else { return Ok(()) };
    short("continuing_subword_prefix", &model.continuing_subword_prefix)?;
    short("end_of_word_suffix", &model.end_of_word_suffix)?;
    match model.max_input_chars_per_word.as_u64().filter(|&word| word > MAX_WORD) {
        Some(word) => Err(format!("max_input_chars_per_word: expected at most {MAX_WORD}, found {word}")),
        None => Ok(()),
    }
}

/// Checks every template of one text, at any depth. Where it has the text again, the library joins each piece that a long text was cut into with
/// each piece.
fn once(post_processor: &Value) -> Result<(), String> {
    match post_processor {
        Value::Array(items) => items.iter().try_for_each(once),
        Value::Object(map) => {
            let texts = map.get("single").and_then(Value::as_array).map_or(0, |pieces| pieces.iter().filter(|piece| piece.get("Sequence").is_some()).count());
            if texts > 1 {
                return Err(format!("post_processor: expected a template with the text once, found it {texts} times"));
            }
            map.values().try_for_each(once)
        }
        _ => Ok(()),
    }
}

fn short(key: &str, value: &Value) -> Result<(), String> {
    match value.as_str().map(str::len).filter(|&length| length > MOST) {
        Some(length) => Err(format!("{key}: expected at most {MOST} bytes, found {length}")),
        None => Ok(()),
    }
}

/// Checks every text at any depth but patterns, and multiplies `times` by the replacements.
fn within(value: &Value, key: &str, times: &mut usize) -> Result<(), String> {
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| within(item, key, times)),
        Value::Object(map) => map.iter().filter(|(key, _)| *key != "pattern").try_for_each(|(key, value)| within(value, key, times)),
        Value::String(map) if key == "precompiled_charsmap" => charsmap(map),
        Value::String(text) => {
            if key == "content" {
                *times = times.saturating_mul(text.len().max(1));
            }
            short(key, value)
        }
        _ => Ok(()),
    }
}

/// Checks a map of characters: its first four bytes are the length of a table, behind which are texts with a zero after each. The library
/// asks for as much memory as they say before it looks at how long the map is.
fn charsmap(text: &str) -> Result<(), String> {
    // What is no base 64 is for the library to refuse.
    let bytes = bytes(text);
    let Some((said, rest)) = bytes.split_first_chunk() else { return Ok(()) };
    let said = u32::from_le_bytes(*said);
    let Some(texts) = rest.get(said as usize..) else {
        return Err(format!("precompiled_charsmap: expected a table of at most {} bytes, as there are, found {said}", rest.len()));
    };
    match texts.split(|&byte| byte == 0).map(<[u8]>::len).max().filter(|&longest| longest > MOST) {
        Some(longest) => Err(format!("precompiled_charsmap: expected texts of at most {MOST} bytes, found {longest}")),
        None => Ok(()),
    }
}

/// The bytes of a text in base 64, up to the first mark that is none of it.
fn bytes(text: &str) -> Vec<u8> {
    let digit = |mark: u8| match mark {
        b'A'..=b'Z' => Some(mark - b'A'),
        b'a'..=b'z' => Some(mark - b'a' + 26),
        b'0'..=b'9' => Some(mark - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    };
    let digits: Vec<u8> = text.bytes().map_while(digit).collect();
    digits.chunks(4).flat_map(|four| (1..four.len()).map(|at| four[at - 1] << (2 * at) | four[at] >> (6 - 2 * at))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_that_says_more_than_it_has_is_refused() {
        assert_eq!(bytes("EAAAAGFiYwA="), b"\x10\0\0\0abc\0");
        assert_eq!((bytes("/////w"), bytes("AA!A")), (vec![255; 4], vec![0]));
        let file = |map: &str| {
            format!(r#"{{"model": {{}}, "normalizer": {{"type": "Sequence", "normalizers": [{{"type": "Precompiled", "precompiled_charsmap": "{map}"}}]}}}}"#)
        };
        let long = format!("AAAAAA{}", "YWFh".repeat(40));
        for (map, sound) in [("EAAAAAAAAAAAAAAAAAAAAAAAAABhYmMA", true), ("", true), ("EAAAAAAA", false), ("xxxxxxxxxxxx", false), (&long, false)] {
            assert_eq!(check(file(map).as_bytes()).is_ok(), sound, "{map}");
        }
    }

    #[test]
    fn a_template_has_its_text_once() {
        let text = r#"{"Sequence": {"id": "A", "type_id": 0}}"#;
        let file = |pieces: &[&str]| {
            let template = format!(r#"{{"type": "TemplateProcessing", "single": [{}], "pair": [{text}, {text}]}}"#, pieces.join(","));
            check(format!(r#"{{"post_processor": {{"type": "Sequence", "processors": [{{"type": "ByteLevel"}}, {template}]}}}}"#).as_bytes())
        };
        assert_eq!(file(&[text, r#"{"SpecialToken": {"id": "[SEP]", "type_id": 0}}"#]), Ok(()));
        assert!(file(&[text, text]).is_err_and(|why| why.contains("found it 2 times")));
    }

    #[test]
    fn a_text_does_not_grow_out_of_proportion() {
        let replace = |content: &str| format!(r#"{{"type": "Replace", "pattern": {{"Regex": "{}"}}, "content": "{content}"}}"#, "a|".repeat(200));
        let file =
            |normalizers: &[String]| check(format!(r#"{{"normalizer": {{"type": "Sequence", "normalizers": [{}]}}}}"#, normalizers.join(",")).as_bytes());
        assert_eq!(file(&[replace("▁"), replace(" "), replace("")]), Ok(()));
        assert!(file(&[replace(&"x".repeat(65))]).is_err_and(|why| why.contains("content")));
        assert!(file(&[replace("xxxxxxxxx"), replace("xxxxxxxx")]).is_err_and(|why| why.contains("72 times")));
        assert_eq!(check(br###"{"model": {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": {"a": 0}}}"###), Ok(()));
        assert!(check(br#"{"model": {"max_input_chars_per_word": 100000}}"#).is_err());
        assert!(check(format!(r#"{{"model": {{"end_of_word_suffix": "{}"}}}}"#, "x".repeat(65)).as_bytes()).is_err());
        assert_eq!(check(br#"{"normalizer": null, "pre_tokenizer": null}"#), Ok(()));
        assert!(check(br#"{"normalizer": null, "normalizer": {}}"#).is_err(), "readers differ in which they take");
    }
}
