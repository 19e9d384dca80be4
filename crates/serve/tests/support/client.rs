//! A client of one connection.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// The code of an answer that is an error, whose body is checked to be one.
    pub fn code(&self) -> String {
        let body = self.json();
        let error = &body["error"];
        assert!(error["message"].as_str().is_some_and(|message| message.len() > 10) && error["type"].is_string(), "{body}");
        assert!(self.headers.contains_key("x-request-id"), "{:?}", self.headers);
        error["code"].as_str().unwrap().to_owned()
    }

    pub fn closes(&self) -> bool {
        self.headers.get("connection").is_some_and(|value| value == "close")
    }
}

/// A connection.
pub struct Client {
    pub stream: BufReader<TcpStream>,
    /// Whether any of the answer came that is waited for.
    pub begun: bool,
}

impl Client {
    pub fn to(addr: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), begun: false })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.begun = false;
        self.stream.get_mut().write_all(bytes)
    }

    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\n");
        headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        if method == "POST" {
            head += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        self.write(&[head.as_bytes(), b"\r\n", body].concat())?;
        self.answer()
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.send("GET", path, &[], b"").unwrap()
    }

    pub fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[], body.to_string().as_bytes()).unwrap()
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(Error::new(ErrorKind::UnexpectedEof, "the connection ended")),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// The status and headers of the next answer.
    pub fn head(&mut self) -> Result<Answer> {
        let first = self.line()?;
        self.begun = true;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(|| Error::other(first.clone()))?;
        let mut headers = BTreeMap::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        Ok(Answer { status, headers, body: Vec::new() })
    }

    /// The next chunk of a body that comes in chunks; empty at its end.
    pub fn chunk(&mut self) -> Result<Vec<u8>> {
        let length = usize::from_str_radix(&self.line()?, 16).map_err(Error::other)?;
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    }

    /// The next answer.
    pub fn answer(&mut self) -> Result<Answer> {
        let mut answer = self.head()?;
        if answer.headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
            loop {
                match self.chunk()? {
                    chunk if chunk.is_empty() => break,
                    chunk => answer.body.extend(chunk),
                }
            }
        } else {
            answer.body = self.sized(&answer)?;
        }
        Ok(answer)
    }

    /// The body of an answer that tells its length.
    pub fn sized(&mut self, answer: &Answer) -> Result<Vec<u8>> {
        let mut body = vec![0; answer.headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0)];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }

    /// Whether the server has ended the connection, rather than reset it.
    pub fn ends(&mut self) -> bool {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).is_ok_and(|_| rest.is_empty())
    }
}
