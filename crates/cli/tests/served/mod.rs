//! `trifuse serve` as a user runs it, for tests of whole models.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

/// A server, which goes with this.
pub struct Served {
    child: Child,
    address: String,
    /// What it told until it could be asked.
    pub notes: Vec<String>,
}

impl Served {
    /// A server on the processor with these options, once it answers.
    pub fn start(options: &[&str]) -> Self {
        Self::on("cpu", options)
    }

    /// A server on these devices with these options, once it answers.
    pub fn on(devices: &str, options: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trifuse"));
        command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--drain-delay", "0", "--backend", devices]).args(options);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut notes = Vec::new();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let address = lines.find_map(|note| {
            let address = note.split_once("http://").map(|(_, address)| address.to_owned());
            notes.push(note);
            address
        });
        Self { child, address: address.unwrap_or_else(|| panic!("no address: {notes:?}")), notes }
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address.parse().unwrap()
    }

    /// The status and the text of an answer.
    pub fn text(&self, path: &str, body: &Value) -> (u16, String) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let method = if body.is_empty() { "GET" } else { "POST" };
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}", body.len());
        write!(stream, "{head}\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// The status and the body of an answer.
    pub fn ask(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.text(path, body);
        (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
    }

    /// Lets `trifuse load` ask it, checks that nothing was wrong, and gives the report.
    pub fn load(&self, options: &[&str]) -> Value {
        let url = format!("http://{}", self.address);
        let output = Command::new(env!("CARGO_BIN_EXE_trifuse")).args(["load", &url, "--json", "--quiet", "--check"]).args(options).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        assert_eq!(output.status.code(), Some(0), "{report}");
        report
    }

    /// Ends it by a signal, and checks that it answered this many requests, all that it let in.
    pub fn end(&mut self, answered: usize) {
        self.signal();
        self.ended(answered);
    }

    /// Tells it to end, as a service manager does.
    pub fn signal(&self) {
        self.kill("-TERM");
    }

    /// Tells it to read its files again, as a service manager does.
    pub fn hang_up(&self) {
        self.kill("-HUP");
    }

    fn kill(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success());
    }

    /// Waits until it has ended, and checks that it answered this many requests, all that it let in.
    pub fn ended(&mut self, answered: usize) {
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        let mut report = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut report).unwrap();
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!((&report["command"], &report["accepted"], &report["finished"]), (&json!("serve"), &json!(answered), &json!(answered)), "{report}");
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It has ended already, but where the test fails before.
        let _ = self.child.kill();
    }
}
