//! The map of characters in a tokenizer's normaliser. The tokenizer's library asks for as much memory as the map's first four bytes say,
//! before it looks at how long the map is: 8 GiB for a file of some bytes.

use serde::Deserialize;
use serde_json::Value;

/// The part of `tokenizer.json` that holds such maps.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    normalizer: Value,
}

/// Checks the maps of a `tokenizer.json`.
///
/// # Errors
/// Text that is not JSON, or a map that says to be longer than it is, in words.
pub(super) fn check(file: &[u8]) -> Result<(), String> {
    let file: File = serde_json::from_slice(file).map_err(|error| error.to_string())?;
    within(&file.normalizer)
}

/// Checks the maps at any depth.
fn within(value: &Value) -> Result<(), String> {
    match value {
        Value::Array(items) => items.iter().try_for_each(within),
        Value::Object(map) => map.iter().try_for_each(|(key, value)| match value.as_str().filter(|_| key == "precompiled_charsmap") {
            Some(text) => match first_bytes(text) {
                Some(said) if u64::from(said) > text.len() as u64 / 4 * 3 => {
                    Err(format!("precompiled_charsmap: expected a map as long as its text, found one that says {said} bytes in {} characters", text.len()))
                }
                _ => Ok(()),
            },
            None => within(value),
        }),
        _ => Ok(()),
    }
}

/// The number in the first four bytes of a text in base 64, lowest byte first; none where there are no four.
fn first_bytes(text: &str) -> Option<u32> {
    let digit = |mark: u8| match mark {
        b'A'..=b'Z' => Some(mark - b'A'),
        b'a'..=b'z' => Some(mark - b'a' + 26),
        b'0'..=b'9' => Some(mark - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    };
    let bits = text.as_bytes().get(..6)?.iter().try_fold(0u64, |bits, &mark| Some(bits << 6 | u64::from(digit(mark)?)))?;
    // Six digits are four bytes and four bits.
    Some(((bits >> 4) as u32).swap_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_that_says_more_than_it_has_is_refused() {
        let file = |map: &str| {
            format!(r#"{{"model": {{}}, "normalizer": {{"type": "Sequence", "normalizers": [{{"type": "Precompiled", "precompiled_charsmap": "{map}"}}]}}}}"#)
        };
        assert_eq!(first_bytes("EAAAAAAA"), Some(16));
        assert_eq!(first_bytes("/////w"), Some(u32::MAX));
        assert_eq!((first_bytes("AAAA"), first_bytes("!AAAAA")), (None, None));
        for (map, sound) in [("EAAAAAAAAAAAAAAAAAAAAAAAAABhYmMA", true), ("", true), ("EAAAAAAA", false), ("xxxxxxxxxxxx", false)] {
            assert_eq!(check(file(map).as_bytes()).is_ok(), sound, "{map}");
        }
        assert_eq!(check(br#"{"normalizer": null}"#), Ok(()));
        assert_eq!(check(b"{}"), Ok(()));
        assert!(check(br#"{"normalizer": null, "normalizer": {}}"#).is_err(), "readers differ in which they take");
    }
}
