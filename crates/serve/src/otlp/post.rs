//! One request to a collector.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::endpoint::Endpoint;

/// How long a connection may take to be made, and the collector to take or to say something.
const STEP: Duration = Duration::from_secs(2);
/// How long all of it may take.
const WHOLE: Duration = Duration::from_secs(5);
/// The bytes of an answer's header, at most.
const HEADER: usize = 16 << 10;

/// Sends spans, and waits until the collector has taken them.
///
/// # Errors
/// A collector that is not there, is too slow, or does not take them.
pub fn post(endpoint: &Endpoint, body: &[u8]) -> Result<()> {
    let end = Instant::now() + WHOLE;
    let mut stream = connect(endpoint)?;
    stream.set_read_timeout(Some(STEP))?;
    stream.set_write_timeout(Some(STEP))?;
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: {endpoint}\r\ncontent-type: application/x-protobuf\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        endpoint.path,
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    let (mut answer, mut bytes) = (Vec::new(), [0; 4096]);
    // What it says behind its header changes nothing.
    while !answer.windows(4).any(|four| four == b"\r\n\r\n") && answer.len() < HEADER && Instant::now() < end {
        match stream.read(&mut bytes)? {
            0 => break,
            count => answer.extend_from_slice(&bytes[..count]),
        }
    }
    let status = answer.strip_prefix(b"HTTP/1.").and_then(|rest| std::str::from_utf8(rest.get(2..5)?).ok()?.parse::<u16>().ok());
    match status {
        Some(200..300) => Ok(()),
        Some(status) => Err(Error::other(format!("the collector answers {status}"))),
        None => Err(Error::new(ErrorKind::InvalidData, "the collector speaks no HTTP")),
    }
}

fn connect(endpoint: &Endpoint) -> Result<TcpStream> {
    let mut failed = Error::new(ErrorKind::NotFound, "the collector's name leads nowhere");
    for addr in (endpoint.host.as_str(), endpoint.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&addr, STEP) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
