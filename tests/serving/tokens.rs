//! Text that comes in pieces, for every way to cut it.

use trifuse::Error;
use trifuse::llm::tokens::{Detokenizer, Piece};

/// The byte that an id stands for, for tokens of a byte, and all ways to join neighbours to one token.
fn every_split(bytes: &[u8]) -> impl Iterator<Item = Vec<Vec<u8>>> {
    assert!((1..=16).contains(&bytes.len()));
    (0..1u32 << (bytes.len() - 1)).map(move |cuts| {
        let mut tokens = vec![vec![bytes[0]]];
        for (at, byte) in bytes[1..].iter().enumerate() {
            if cuts >> at & 1 == 1 {
                tokens.push(Vec::new());
            }
            tokens.last_mut().unwrap().push(*byte);
        }
        tokens
    })
}

fn decoder(tokens: &[Vec<u8>]) -> impl Fn(&[u32]) -> Vec<u8> {
    |ids| ids.iter().flat_map(|id| tokens[*id as usize].clone()).collect()
}

/// The text, and the stop string that ended it, character by character.
fn naive(bytes: &[u8], stops: &[&str]) -> (String, Option<usize>) {
    let mut text = String::new();
    for character in String::from_utf8_lossy(bytes).chars() {
        text.push(character);
        let ended: Vec<usize> = (0..stops.len()).filter(|stop| text.ends_with(stops[*stop])).collect();
        if let Some(longest) = ended.into_iter().rev().max_by_key(|stop| stops[*stop].len()) {
            text.truncate(text.len() - stops[longest].len());
            return (text, Some(longest));
        }
    }
    (text, None)
}

/// All that may be shown of a text that goes on: no part of a character, no beginning of a stop string.
fn safe(bytes: &[u8], stops: &[&str]) -> String {
    // What is shown stays whatever comes: neither a letter nor the rest of a character changes it.
    let mut text = String::from_utf8_lossy(bytes).into_owned();
    if let Some(beginning) = (1..=3.min(bytes.len())).map(|count| &bytes[bytes.len() - count..]).find(|end| begins_character(end)) {
        text = String::from_utf8_lossy(&bytes[..bytes.len() - beginning.len()]).into_owned();
    }
    let held = text.char_indices().map(|(at, _)| at).find(|at| stops.iter().any(|stop| stop.starts_with(&text[*at..])));
    text.truncate(held.unwrap_or(text.len()));
    text
}

fn begins_character(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
}

fn check(bytes: &[u8], stops: &[&str]) {
    let (text, stop) = naive(bytes, stops);
    for tokens in every_split(bytes) {
        let decode = decoder(&tokens);
        let mut stream = Detokenizer::new(stops.iter().map(|stop| stop.to_string()).collect()).unwrap();
        let mut shown = String::new();
        let mut seen = Vec::new();
        let mut stopped = None;
        for id in 0..tokens.len() as u32 {
            let piece = stream.push(&decode, id);
            shown.push_str(&piece.text);
            seen.extend(&tokens[id as usize]);
            stopped = piece.stop;
            if stopped.is_some() {
                assert_eq!(stream.push(&decode, 0), Piece { text: String::new(), stop: stopped }, "nothing after a stop string");
                break;
            }
            assert_eq!(shown, safe(&seen, stops), "all that may be shown, of {seen:x?} in {tokens:x?}");
        }
        let end = stream.finish();
        shown.push_str(&end.text);
        assert_eq!((shown.as_str(), end.stop), (text.as_str(), stop), "{tokens:x?}");
        assert!(stopped.is_none() || stopped == end.stop);
    }
}

#[test]
fn characters_of_four_bytes_come_whole_however_they_are_cut() {
    check("🚀".as_bytes(), &[]);
    check("a🚀b😀".as_bytes(), &[]);
    check("æ–𝄞é".as_bytes(), &[]);
    check("日本語x".as_bytes(), &[]);
}

#[test]
fn bytes_that_are_no_characters_are_replaced_once() {
    let cases: [&[u8]; 9] = [
        b"\xff",
        b"a\xf0\x9f\x98",
        b"\xf0\x9f\x98z",
        b"\xc3(\xc3",
        b"\xe2\x82\xf0\x9f\x98\x80",
        b"\xed\xa0\x80.",
        b"\xc0\x80\xf5\x80",
        b"\x80\x80\xe2\x28\xa1",
        b"\xf0\x9f\xf0\x9f\x98\x80\xf0",
    ];
    cases.iter().for_each(|bytes| check(bytes, &[]));
    assert_eq!(naive(b"a\xf0\x9f\x98z", &[]).0, "a\u{FFFD}z", "once for three bytes");
    check(b"a\xf0\x9f\x98END", &["END", "\u{FFFD}E"]);
}

#[test]
fn stop_strings_are_cut_across_tokens() {
    check(b"one END two", &["END"]);
    check(b"no EN D, E", &["END"]);
    check(b"aaaaab", &["aab"]);
    check(b"abababac!", &["ababac"]);
    check("x🚀🛑y".as_bytes(), &["🛑"]);
    check("x🚀🛑y".as_bytes(), &["🚀🚀", "🚀🛑y"]);
    check(b"\n\nUser: hi", &["\nUser:", "\n\nHuman:"]);
    check(b"whole", &["whole"]);
}

#[test]
fn the_stop_string_that_is_complete_first_counts() {
    // "bc" is complete before "abcd", which begins before it.
    check(b"xabcdy", &["abcd", "bc"]);
    assert_eq!(naive(b"xabcdy", &["abcd", "bc"]), ("xa".into(), Some(1)));
    // Both end together: the longer one.
    check(b"xabcy", &["bc", "abc"]);
    assert_eq!(naive(b"xabcy", &["bc", "abc"]), ("x".into(), Some(1)));
    check(b"xaby", &["ab", "ab"]);
    assert_eq!(naive(b"xaby", &["ab", "ab"]), ("x".into(), Some(0)));
}

#[test]
fn a_tokenizer_that_drops_the_first_space_loses_none_between_tokens() {
    let words = [" The", " sea", " is", "land"];
    let decode = |ids: &[u32]| {
        let text: String = ids.iter().map(|id| words[*id as usize]).collect();
        text.strip_prefix(' ').unwrap_or(&text).as_bytes().to_vec()
    };
    let read = |mut stream: Detokenizer, ids: std::ops::Range<u32>| ids.map(|id| stream.push(&decode, id).text).collect::<Vec<_>>();
    let stream = || Detokenizer::new(Vec::new()).unwrap();
    assert_eq!(read(stream(), 0..4), ["The", " sea", " is", "land"]);
    assert_eq!(read(stream().after(0), 1..4), [" sea", " is", "land"]);
}

#[test]
fn an_empty_stop_string_is_refused() {
    let told = Detokenizer::new(vec!["a".into(), String::new()]);
    assert!(matches!(&told, Err(Error::Invalid { found, .. }) if found == "an empty one at place 1"), "{told:?}");
}
