//! Lines of `embed`: taken or refused one by one, and tokenized.

use std::cell::OnceCell;
use std::io::Cursor;

use rand::Rng as _;
use serde_json::json;
use trifuse::model::Text;

use super::super::mutate::{Rng, bytes, json, one};
use super::model::Model;
use super::{Answer, Subject};

#[path = "../../crates/cli/src/cli/embed/input.rs"]
#[allow(dead_code, unused_imports, reason = "its tests run with the command's")]
mod input;

pub const SUBJECT: Subject = Subject { name: "lines", sound, change, parse };

fn sound(rng: &mut Rng) -> Vec<u8> {
    let some = [
        json!({ "text": "hello world" }).to_string(),
        json!({ "text": "the x y a b c", "adapter": "one", "more": [1, null] }).to_string(),
        json!({ "text": "é \u{1F600} \u{202e} [SEP] \0", "adapter": null }).to_string(),
        "plain text, no JSON\r".into(),
        "the hello x".into(),
        // More than is read of a text.
        "a".repeat(2100),
    ];
    (0..rng.random_range(1..6)).flat_map(|_| format!("{}\n", one(rng, &some)).into_bytes()).collect()
}

fn change(rng: &mut Rng, input: &[u8]) -> Vec<u8> {
    let mut lines: Vec<&[u8]> = input.split_inclusive(|&byte| byte == b'\n').collect();
    let at = rng.random_range(0..lines.len().max(1));
    let changed = match lines.get(at) {
        Some(line) if rng.random_ratio(3, 4) => [json(rng, line.trim_ascii_end()), b"\n".to_vec()].concat(),
        _ => return bytes(rng, input.to_vec()),
    };
    lines[at] = &changed;
    lines.concat()
}

fn parse(bytes: &[u8]) -> Answer {
    thread_local!(static TEXT: OnceCell<Text> = const { OnceCell::new() });
    let mut lines = input::Lines::new(Box::new(Cursor::new(bytes.to_vec())), "fuzz.jsonl".as_ref());
    let (mut count, mut answer) = (0, Ok(()));
    loop {
        let taken = lines.take(64).expect("memory can be read");
        if taken.is_empty() {
            break;
        }
        count += taken.len();
        let texts: Vec<&str> = taken.iter().flatten().map(|request| request.text.as_str()).collect();
        assert!(texts.iter().all(|text| !text.trim().is_empty()), "a line of no words");
        let tokens = TEXT.with(|text| text.get_or_init(|| Model::new().text()).tokens_each(&texts));
        assert_eq!(tokens.len(), texts.len(), "an answer for each text");
        answer = taken.into_iter().find_map(Result::err).map_or(answer, Err);
    }
    let ends = bytes.iter().filter(|&&byte| byte == b'\n').count();
    assert_eq!(count, ends + usize::from(bytes.last().is_some_and(|&last| last != b'\n')), "an answer for each line");
    answer
}
