//! The probabilities of tokens, in the two forms in which OpenAI's routes tell them.

use serde_json::{Map, Value, json};

use crate::generate::{Generate, Token};

fn text(generator: &dyn Generate, id: u32) -> String {
    String::from_utf8_lossy(&generator.decode(&[id])).into_owned()
}

/// The form of `/v1/completions`. `offset` is where the text of the tokens begins, in characters, and goes on by it.
pub fn flat(generator: &dyn Generate, tokens: &[Token], offset: &mut usize) -> Value {
    let mut offsets = Vec::new();
    let texts: Vec<String> = tokens.iter().map(|token| text(generator, token.id)).collect();
    for text in &texts {
        offsets.push(*offset);
        *offset += text.chars().count();
    }
    let top = |token: &Token| token.top.iter().map(|(id, logprob)| (text(generator, *id), json!(logprob))).collect::<Map<String, Value>>();
    json!({
        "tokens": texts,
        "token_logprobs": tokens.iter().map(|token| token.logprob).collect::<Vec<f32>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

/// The same behind the first token of a prompt, of which nothing can be told, where there is one.
pub fn flat_behind(generator: &dyn Generate, first: Option<u32>, tokens: &[Token], offset: &mut usize) -> Value {
    let Some(first) = first else { return flat(generator, tokens, offset) };
    let first = Token { id: first, of_prompt: true, logprob: 0.0, top: Vec::new() };
    let mut told = flat(generator, &[&[first], tokens].concat(), offset);
    (told["token_logprobs"][0], told["top_logprobs"][0]) = (Value::Null, Value::Null);
    told
}

/// The form of `/v1/chat/completions`.
pub fn nested(generator: &dyn Generate, tokens: &[Token]) -> Value {
    let one = |id: u32, logprob: f32| json!({"token": text(generator, id), "logprob": logprob, "bytes": generator.decode(&[id])});
    let whole = |token: &Token| {
        let mut told = one(token.id, token.logprob);
        told["top_logprobs"] = token.top.iter().map(|(id, logprob)| one(*id, *logprob)).collect();
        told
    };
    json!({"content": tokens.iter().map(whole).collect::<Vec<_>>()})
}
