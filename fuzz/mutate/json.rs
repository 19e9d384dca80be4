//! Changes of JSON: of keys, values and numbers, and of the text that holds them.

use rand::Rng as _;
use serde_json::{Map, Value, json};

use super::{Rng, bytes, one};

const WHOLE: [i64; 22] =
    [0, -1, 1, 2, 3, 7, 16, 255, 256, 1024, 1025, 4096, 4097, 65_536, 1 << 24, (1 << 24) + 1, i32::MAX as i64, 1 << 31, 1 << 32, 1 << 53, 1 << 62, i64::MIN];
const BROKEN: [f64; 14] = [-0.0, 0.5, 1.5, 1e9, 1e10, 6.6e4, 3.4e38, 3.5e38, 1e300, -1e300, 1e-300, 1e-45, f64::MIN_POSITIVE, f64::MAX];
const WORDS: [&str; 24] = [
    "",
    "x",
    "LORA",
    "none",
    "all",
    "../../etc/passwd",
    "/",
    ".",
    "a\0b",
    "\u{202e}",
    "\u{1b}]0;x\u{7}",
    "é",
    "NaN",
    "(a+)+$",
    "(",
    ".*",
    ".*.*.*x",
    "a{999}",
    "(?:.*a){20}",
    "\\p{L}+",
    "query",
    "0",
    "1e5",
    "\u{1F600}",
];

fn word(rng: &mut Rng) -> &'static str {
    WORDS[rng.random_range(0..WORDS.len())]
}

/// Makes one change somewhere in `value`.
pub fn change(rng: &mut Rng, value: &mut Value) {
    let count = nodes(value);
    let mut number = rng.random_range(0..count);
    let copy = if rng.random_ratio(1, 8) { at(value, &mut rng.random_range(0..count)).map(|node| node.clone()) } else { None };
    let Some(node) = at(value, &mut number) else { return };
    if let Some(copy) = copy.filter(|copy| nodes(copy) < 1000) {
        *node = copy;
        return;
    }
    match node {
        Value::Object(map) if rng.random_ratio(4, 5) => of_object(rng, map),
        Value::Array(items) if rng.random_ratio(4, 5) => of_array(rng, items),
        Value::Number(number) if rng.random() => *node = near(rng, number.as_f64().unwrap_or(0.0), number.as_i64()),
        Value::String(text) if rng.random() => of_text(rng, text),
        Value::Bool(set) => *set = !*set,
        node => *node = odd(rng),
    }
}

fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Object(map) => map.values().map(nodes).sum(),
        Value::Array(items) => items.iter().map(nodes).sum(),
        _ => 0,
    }
}

/// The node of that number, counted from the root.
fn at<'a>(value: &'a mut Value, number: &mut usize) -> Option<&'a mut Value> {
    if *number == 0 {
        return Some(value);
    }
    *number -= 1;
    match value {
        Value::Object(map) => map.values_mut().find_map(|inner| at(inner, number)),
        Value::Array(items) => items.iter_mut().find_map(|inner| at(inner, number)),
        _ => None,
    }
}

fn of_object(rng: &mut Rng, map: &mut Map<String, Value>) {
    let keys: Vec<String> = map.keys().cloned().collect();
    let Some(key) = keys.get(rng.random_range(0..keys.len().max(1))) else {
        map.insert(word(rng).into(), odd(rng));
        return;
    };
    let mut value = map.get(key).cloned().unwrap_or_default();
    match rng.random_range(0..6) {
        0 => drop(map.shift_remove(key)),
        1 => {
            map.shift_remove(key);
            let mut name = key.clone();
            of_text(rng, &mut name);
            map.insert(name, value);
        }
        2 => drop(map.insert(format!("{key}{}", word(rng)), value)),
        3 => {
            // Two values change places.
            let other = one(rng, &keys);
            std::mem::swap(&mut value, &mut map[other]);
            map[key] = value;
        }
        4 => drop(map.insert(word(rng).into(), odd(rng))),
        _ => map[key] = odd(rng),
    }
}

fn of_array(rng: &mut Rng, items: &mut Vec<Value>) {
    let at = rng.random_range(0..items.len().max(1));
    match rng.random_range(0..6) {
        _ if items.is_empty() => items.push(odd(rng)),
        0 => drop(items.remove(at)),
        1 => items.insert(at, items[at].clone()),
        2 => items.reverse(),
        3 if items.len() < 300 => {
            let again = items.clone();
            (0..*one(rng, &[1, 3, 40])).for_each(|_| items.extend(again.iter().cloned()));
        }
        4 => items.truncate(at),
        _ => items[at] = odd(rng),
    }
}

fn of_text(rng: &mut Rng, text: &mut String) {
    let place = text.char_indices().map(|(at, _)| at).nth(rng.random_range(0..text.chars().count().max(1))).unwrap_or(0);
    match rng.random_range(0..5) {
        0 => text.truncate(place),
        1 => text.insert_str(place, word(rng)),
        2 => *text = word(rng).into(),
        3 if text.len() < 2000 => *text = text.repeat(*one(rng, &[0, 2, 5, 400])),
        _ => text.insert(place, *one(rng, &['a', 'A', '0', '.', '/', '\\', '"', '\u{7f}', '\u{1b}', 'é'])),
    }
}

fn near(rng: &mut Rng, number: f64, whole: Option<i64>) -> Value {
    match (rng.random_range(0..6), whole) {
        (0, Some(whole)) => json!(whole.wrapping_add(1)),
        (1, Some(whole)) => json!(whole.wrapping_sub(1)),
        (2, Some(whole)) => json!(whole.wrapping_mul(*one(rng, &[2, -1, 1000, 1 << 32]))),
        (3, _) => json!(number * one(rng, &[-1.0, 0.5, 1e3, 1e30, 1e-30])),
        (4, _) => json!(one(rng, &BROKEN)),
        _ => json!(one(rng, &WHOLE)),
    }
}

fn odd(rng: &mut Rng) -> Value {
    match rng.random_range(0..12) {
        0..3 => json!(one(rng, &WHOLE)),
        3 => json!(u64::MAX),
        4 => json!(one(rng, &BROKEN)),
        5 => Value::Null,
        6 => json!(rng.random::<bool>()),
        7 => json!(word(rng)),
        8 => json!(*one(rng, &[json!([]), json!({}), json!([[]]), json!("x".repeat(5000))])),
        9 => json!({ word(rng): one(rng, &WHOLE) }),
        10 => Value::Array(vec![json!([]); rng.random_range(1..50)]),
        _ => Value::Array((0..rng.random_range(1..6)).map(|_| json!(one(rng, &WHOLE))).collect()),
    }
}

/// The text of `value`; a time in eight not quite: a key twice, deep nesting, a number that JSON has not, something behind the end.
pub fn text(rng: &mut Rng, value: &Value) -> Vec<u8> {
    let text = value.to_string();
    let text = match rng.random_range(0..72) {
        0 => text.replacen('{', "{\"r\":1,\"r\":2,", 1),
        1 => {
            let deep = *one(rng, &[100, 127, 128, 129, 20_000]);
            text.replacen(':', &format!(":{}{},\"x\":", "[".repeat(deep), "]".repeat(deep)), 1)
        }
        2 => format!("{text}{}", one(rng, &["}", "x", " \n", "\0", "{}"])),
        3 => text.replacen('0', "NaN", 1),
        4 => text.replacen('1', "1e999", 1),
        5 => format!("\u{feff}{text}"),
        6 => text.replacen('"', "\"\\ud800", 1),
        7 => text.replacen(',', ", ", rng.random_range(1..9)),
        8 => return bytes(rng, text.into_bytes()),
        _ => text,
    };
    text.into_bytes()
}
