//! `serve` with a language model, run as a user runs it: completions and chats are what the library says, alone and many at once, with adapters and without.
#![cfg(all(unix, feature = "serve"))]

use serde_json::{Value, json};
use trifuse::DType;
use trifuse::adapters::bundle;
use trifuse::backends::cpu::Cpu;
use trifuse::device::Open;
use trifuse::llm::{Files, Model};

use super::engine::adapters;
use super::served::Served;
use super::tiny::kinds;

/// The text that a completion or a chat says, and why it ended.
fn said(body: &Value) -> (String, String) {
    let choice = &body["choices"][0];
    let text = choice["text"].as_str().or(choice["message"]["content"].as_str()).unwrap_or_else(|| panic!("{body}"));
    (text.to_owned(), choice["finish_reason"].as_str().unwrap().to_owned())
}

pub fn answers_as_the_library_says() {
    let folder = tempfile::tempdir().unwrap();
    kinds()[0].write(folder.path());
    let files = Files::open(folder.path()).unwrap();
    let file = folder.path().join("adapters.s2lc");
    bundle::write(&file, &adapters(&files.config)).unwrap();
    let (model, file) = (folder.path().to_str().unwrap(), file.to_str().unwrap());
    let mut served = Served::start(&["--model", model, "--name", "tiny", "--adapters", file, "--invariant", "--seats", "8", "--warm"]);
    let made = served.notes.iter().find_map(|note| note.split_once("warm after ")?.1.split_once(": "));
    assert!(made.is_some_and(|(_, made)| !made.starts_with("0 plans")), "{:?}", served.notes);
    let (status, body) = served.ask("/v1/models", &Value::Null);
    let names: Vec<&str> = body["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
    assert_eq!((status, names), (200, vec!["tiny", "high", "low", "other"]));

    // What the model alone says to a prompt, and to a chat.
    let mut alone = Model::open(std::sync::Arc::new(Cpu::open(0).unwrap()), &files, DType::F32).unwrap();
    let mut greedy = |prompt: &[u32], most: usize| {
        let mut context = alone.context(64).unwrap();
        let (mut logits, mut ids) = (alone.run(&mut context, prompt, 1).unwrap(), Vec::new());
        while ids.len() < most {
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32;
            if files.ends.contains(&best) {
                break;
            }
            ids.push(best);
            logits = alone.run(&mut context, &[best], 1).unwrap();
        }
        String::from_utf8(files.tokenizer.bytes(&ids)).unwrap()
    };
    let prompt = [5u32, 6, 256, 31];
    let (status, body) = served.ask("/v1/completions", &json!({"model": "tiny", "prompt": prompt, "max_tokens": 9, "temperature": 0}));
    assert_eq!((status, said(&body).0), (200, greedy(&prompt, 9)), "{body}");
    assert_eq!(body["usage"]["prompt_tokens"], 4);
    let chat = json!({"model": "tiny", "messages": [{"role": "user", "content": "t5 t6"}], "max_tokens": 7, "temperature": 0});
    let (status, body) = served.ask("/v1/chat/completions", &chat);
    assert_eq!((status, said(&body).0), (200, greedy(&[5, 6], 7)), "{body}");
    // The same as a stream.
    let mut streamed = chat.clone();
    streamed["stream"] = true.into();
    let (status, text) = served.text("/v1/chat/completions", &streamed);
    let events: Vec<&str> = text.split("data: ").filter_map(|event| event.split("\n\n").next()).collect();
    let pieces = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let whole: String = pieces.filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned)).collect();
    assert_eq!((status, whole, text.contains("[DONE]")), (200, greedy(&[5, 6], 7), true), "{text}");

    // Many at once, drawn and with adapters, each as it is alone; then one that is not there.
    let ask = |number: usize| {
        let name = ["tiny", "low", "high", "other", "tiny:low"][number % 5];
        let ids: Vec<usize> = (0..10 + number * 3).map(|at| (at * at + number) % 257).collect();
        let body = json!({"model": name, "prompt": ids, "max_tokens": 12, "temperature": 0.8, "seed": number, "logprobs": 1});
        let (status, body) = served.ask("/v1/completions", &body);
        assert_eq!(status, 200, "{body}");
        (said(&body), body["choices"][0]["logprobs"]["token_logprobs"].clone())
    };
    let each: Vec<_> = (0..10).map(ask).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..10).map(|number| scope.spawn(move || ask(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(together, each);
    assert_ne!(each[0].0, each[1].0);
    let (status, body) = served.ask("/v1/completions", &json!({"model": "nobody", "prompt": [1], "max_tokens": 1}));
    assert_eq!((status, body["error"]["code"].as_str()), (404, Some("model_not_found")));
    let (status, body) = served.ask("/v1/completions", &json!({"model": "tiny", "prompt": vec![1; 2000], "max_tokens": 1}));
    assert_eq!((status, body["error"]["code"].as_str()), (400, Some("context_length_exceeded")), "{body}");
    let report = served.load(&[
        "--route",
        "completions",
        "--stream",
        "--ids=257",
        "--adapters",
        "mixed",
        "--concurrency",
        "4",
        "--seconds",
        "2",
        "--warmup",
        "0",
        "--max-tokens",
        "8",
    ]);
    let run = &report["runs"][0];
    assert!(run["answered"].as_u64().unwrap() > 4 && run["tokens_per_second"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!((&run["failed"], &run["wrong"]), (&json!({}), &json!(0)), "{report}");
    // An answer that ends at once has no first token.
    let [answered, first] = [&run["answered"], &run["first_token"]["count"]].map(|count| count.as_u64().unwrap());
    assert!(first <= answered && first > answered / 2, "{report}");
    // One of each model before, and those of the load.
    served.end(3 + 20 + report["models"].as_array().unwrap().len() + run["answered"].as_u64().unwrap() as usize);
}
