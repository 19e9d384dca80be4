//! `serve`, run as a user runs it: what it answers is what `embed` writes, and a signal ends it.
#![cfg(all(unix, feature = "serve"))]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::command::{text, trifuse};
use super::support::{model, root};

/// A server, which goes with this.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn start() -> Self {
        let population = text(&root().join("crates/cli/data/adapters/A"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_trifuse"));
        command.args(["serve", "--json", "--model", &text(&model()), "--adapters", &population, "--listen", "127.0.0.1:0", "--drain-delay", "0"]);
        command.args(["--backend", "cpu"]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let notes = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let address = notes.filter_map(|note| note.split_once("http://").map(|(_, address)| address.to_owned())).next().unwrap();
        Self { child, address }
    }

    /// The status and the body of an answer.
    fn ask(&self, body: &Value) -> (u16, Value) {
        let body = body.to_string();
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = "POST /v1/embeddings HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: ";
        write!(stream, "{head}{}\r\n\r\n{body}", body.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It has ended already, but where the test fails before.
        let _ = self.child.kill();
    }
}

pub fn answers_as_embed_writes() {
    let adapters = [Some("rust"), None, Some("sqlite")];
    let lines: String = adapters.iter().map(|adapter| format!("{}\n", json!({"text": "let x = 1;", "adapter": adapter}))).collect();
    let population = text(&root().join("crates/cli/data/adapters/A"));
    let written = trifuse(&["embed", "--model", &text(&model()), "--adapters", &population], lines.as_bytes());
    let written: Vec<Value> = String::from_utf8(written.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let served = &mut Served::start();
    let name = model().file_name().unwrap().to_str().unwrap().trim_start_matches('.').to_owned();
    let (status, body) = served.ask(&json!({"model": name, "input": vec!["let x = 1;"; 3], "adapters": adapters}));
    assert_eq!(status, 200, "{body}");
    for (index, line) in written.iter().enumerate() {
        assert_eq!(body["data"][index]["embedding"], line["embedding"], "{:?}", adapters[index]);
    }
    assert_eq!(written.len(), 3);
    let (status, body) = served.ask(&json!({"model": "nobody", "input": "a"}));
    assert_eq!((status, body["error"]["code"].as_str()), (404, Some("model_not_found")));
    assert!(Command::new("kill").args(["-TERM", &served.child.id().to_string()]).status().unwrap().success());
    assert_eq!(served.child.wait().unwrap().code(), Some(0));
    let mut report = String::new();
    served.child.stdout.take().unwrap().read_to_string(&mut report).unwrap();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!((&report["command"], &report["accepted"], &report["finished"]), (&json!("serve"), &json!(1), &json!(1)), "{report}");
}
