//! Requests beside those that are measured, each over a connection of its own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use trifuse::Error;

use super::address::Address;
use super::said::fault;
use super::wire::{Lost, Patience, Wire};
use crate::cli::interrupt::Interrupt;

/// Who asks, and whom.
pub struct Caller<'a> {
    pub address: &'a Address,
    pub addresses: &'a [SocketAddr],
    pub key: Option<&'a str>,
    pub interrupt: &'a Interrupt,
}

/// Why a command does not go on.
#[derive(Debug)]
pub enum Stop {
    /// The program is to end.
    Interrupted,
    /// Something cannot be done.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A whole answer, whatever it says.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Where the answer is instead.
    pub location: Option<String>,
    pub body: Vec<u8>,
}

impl Answer {
    /// The status, and what an error says.
    pub fn words(&self) -> String {
        format!("{}: {}", self.status, fault(&self.body))
    }
}

/// A request that has a body, or none.
#[derive(Clone, Copy)]
pub enum Ask<'a> {
    Get,
    Post(&'a [u8]),
    Put(&'a [u8]),
    Delete,
}

impl Ask<'_> {
    fn method(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post(_) => "POST",
            Self::Put(_) => "PUT",
            Self::Delete => "DELETE",
        }
    }
}

impl Caller<'_> {
    /// The first lines of a request.
    pub fn head(&self, method: &str, path: &str) -> String {
        let Address { prefix, host } = self.address;
        let key = self.key.map_or_else(String::new, |key| format!("authorization: Bearer {key}\r\n"));
        format!("{method} {prefix}{path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: trifuse/{}\r\naccept: */*\r\n{key}", env!("CARGO_PKG_VERSION"))
    }

    /// Asks, and waits for the answer no longer than `time`, nor longer than the program is to go on.
    ///
    /// # Errors
    /// There is no whole answer.
    pub fn ask(&self, path: &str, ask: Ask<'_>, time: Duration) -> Result<Answer, Lost> {
        self.answer(path, ask, Patience { until: Instant::now() + time, interrupt: Some(self.interrupt) })
    }

    /// Asks also where the program is to end: for what leaves something on the server, or takes it away, and for what is told at the end.
    ///
    /// # Errors
    /// There is no whole answer.
    pub fn ask_to_the_end(&self, path: &str, ask: Ask<'_>, time: Duration) -> Result<Answer, Lost> {
        self.answer(path, ask, Patience { until: Instant::now() + time, interrupt: None })
    }

    fn answer(&self, path: &str, ask: Ask<'_>, patience: Patience<'_>) -> Result<Answer, Lost> {
        let mut request = self.head(ask.method(), path).into_bytes();
        let (kind, sent) = match ask {
            Ask::Get | Ask::Delete => ("", &b""[..]),
            Ask::Post(body) => ("content-type: application/json\r\n", body),
            Ask::Put(body) => ("content-type: application/octet-stream\r\n", body),
        };
        if !matches!(ask, Ask::Get) {
            request.extend_from_slice(format!("{kind}content-length: {}\r\n", sent.len()).as_bytes());
        }
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(sent);
        let mut body = Vec::new();
        let head = Wire::open(self.addresses).map_err(Lost::Ended)?.ask(&request, &patience, &mut |part| body.extend_from_slice(part))?;
        Ok(Answer { status: head.status, location: head.location, body })
    }
}
