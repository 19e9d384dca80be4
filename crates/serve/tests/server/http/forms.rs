//! Forms of answers that a vocabulary can write, and those that it cannot.

use std::sync::Arc;

use serde_json::json;
use trifuse_serve::Server;
use trifuse_serve::queueing::ledger::Outcome;

use crate::config;
use crate::support::client::Client;
use crate::support::writer;

#[test]
fn a_form_that_no_token_begins_is_the_callers_fault_and_not_the_servers() {
    let folder = writer::folder();
    let handle = Server::start(config(|_| {}), None, Some(Arc::new(writer::model(folder.path())))).unwrap();
    let mut client = Client::to(handle.addr()).unwrap();
    // The words of this vocabulary are t0 to t63, and none of them begins JSON.
    for (field, form) in [
        ("response_format", json!({"type": "json_object"})),
        ("response_format", json!({"type": "json_schema", "json_schema": {"schema": {"type": "object"}}})),
        ("structured_outputs", json!({"regex": "[a-c]+"})),
    ] {
        let mut ask = json!({"model": writer::NAME, "prompt": [5, 6], "max_tokens": 3});
        ask[field] = form;
        let answer = client.post("/v1/completions", &ask);
        let body = answer.json();
        assert_eq!((answer.status, &body["error"]["param"], answer.code().as_str()), (400, &json!(field), "invalid_value"), "{ask}: {body}");
    }
    let ask = json!({"model": writer::NAME, "prompt": [5, 6], "max_tokens": 1, "structured_outputs": {"regex": "t[0-9]+"}});
    let answer = client.post("/v1/completions", &ask);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let ledger = handle.ledger();
    assert_eq!((ledger.accepted(), ledger.ended(Outcome::Finished)), (1, 1));
    drop(client);
    handle.drain();
    handle.wait();
}
