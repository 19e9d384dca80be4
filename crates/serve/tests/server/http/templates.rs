//! Chats with an adapter that has a template of its own, which comes and goes with it.

use std::path::Path;

use serde_json::json;
use trifuse_serve::{AdapterRoot, Models};

use crate::support::client::Client;
use crate::support::writer;
use crate::{Running, config};

/// What a chat of two turns says by a model, and how many tokens its prompt has.
fn chat(client: &mut Client, model: &str) -> (String, u64) {
    let messages = json!([{"role": "user", "content": "t5"}, {"role": "user", "content": "t6"}]);
    let answer = client.post("/v1/chat/completions", &json!({"model": model, "messages": messages, "max_tokens": 8, "temperature": 0}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let body = answer.json();
    (body["choices"][0]["message"]["content"].as_str().unwrap().to_owned(), body["usage"]["prompt_tokens"].as_u64().unwrap())
}

/// What a model says behind a text.
fn behind(client: &mut Client, model: &str, prompt: &str) -> String {
    let answer = client.post("/v1/completions", &json!({"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["choices"][0]["text"].as_str().unwrap().to_owned()
}

/// Loads the adapter of that name from the folder of the same; whether the name leads to another content than before.
fn load(client: &mut Client, name: &str) -> bool {
    let body = json!({"lora_name": name, "lora_path": name, "load_inplace": true}).to_string();
    let answer = client.send("POST", "/v1/load_lora_adapter", &[("accept", "application/json")], body.as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["changed"].as_bool().unwrap()
}

fn write(folder: &Path, name: &str, text: &str) {
    std::fs::write(folder.join(name), text).unwrap();
}

#[test]
fn a_chat_with_an_adapter_has_the_template_of_its_folder_and_any_other_that_of_the_model() {
    let (folder, root) = (writer::folder(), tempfile::tempdir().unwrap());
    let [own, plain] = ["own", "plain"].map(|name| root.path().join(name));
    [&own, &plain].into_iter().for_each(|folder| writer::peft(folder, 31));
    write(&own, "chat_template.jinja", "{% for m in messages %}{{ m.content }} t7 {% endfor %}");
    let model = writer::model(folder.path());
    let adapters = AdapterRoot::open(root.path()).unwrap();
    let server = Running::start(
        config(move |config| config.adapter_root = Some(adapters)),
        folder,
        Models { generator: Some(std::sync::Arc::new(model)), ..Models::default() },
    );
    let mut client = server.client();
    assert!(load(&mut client, "own") && load(&mut client, "plain"));
    for (name, prompt) in [("own", "t5 t7 t6 t7"), ("plain", "t5 t6"), (writer::NAME, "t5 t6"), ("writer:own", "t5 t7 t6 t7")] {
        let said = behind(&mut client, name, prompt);
        assert_eq!(chat(&mut client, name), (said, prompt.split(' ').count() as u64), "{name}");
    }
    // The template is part of the content: another one is another generation of the name, and the same one is not.
    assert!(!load(&mut client, "own"));
    std::fs::remove_file(own.join("chat_template.jinja")).unwrap();
    write(&own, "tokenizer_config.json", &json!({"chat_template": "t9 {{ messages[0].content }}"}).to_string());
    assert!(load(&mut client, "own"));
    assert_eq!(chat(&mut client, "own"), (behind(&mut client, "own", "t9 t5"), 2));
    // One that is no template is refused, and the name goes on with what it has.
    write(&own, "chat_template.jinja", "{% for %}");
    let body = json!({"lora_name": "own", "lora_path": "own", "load_inplace": true});
    let answer = client.post("/v1/load_lora_adapter", &body);
    assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (400, Some("lora_path")), "{}", answer.text());
    assert_eq!(chat(&mut client, "own").1, 2);
}
