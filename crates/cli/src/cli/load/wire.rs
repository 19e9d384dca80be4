//! HTTP/1.1 on one connection, by hand: nothing stands between a request and the clock.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::unread::Unread;
use crate::cli::interrupt::Interrupt;

/// How often a wait looks whether it has lasted too long, or the program is to end.
pub const LOOK: Duration = Duration::from_millis(50);
/// The longest time that a connection takes to be there.
const CONNECT: Duration = Duration::from_secs(10);
/// The longest head of an answer, and the longest line between the chunks of one.
const MAX_HEAD: usize = 64 << 10;
/// The longest answer.
const MAX_BODY: u64 = 256 << 20;

/// Why there is no answer.
#[derive(Debug)]
pub enum Lost {
    /// The connection ended before the answer did.
    Ended(io::Error),
    /// The answer took longer than it may.
    Late,
    /// The program is to end.
    Interrupted,
    /// What came is no answer of HTTP.
    Odd(&'static str),
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ended(error) => write!(f, "the connection ended: {error}"),
            Self::Late => f.write_str("nothing came in time"),
            Self::Interrupted => f.write_str("interrupted"),
            Self::Odd(expected) => write!(f, "expected {expected}, found something else"),
        }
    }
}

/// Until when an answer is waited for.
pub struct Patience<'a> {
    /// The end of it.
    pub until: Instant,
    /// What ends it earlier.
    pub interrupt: Option<&'a Interrupt>,
}

impl Patience<'_> {
    fn check(&self) -> Result<(), Lost> {
        if self.interrupt.is_some_and(Interrupt::asked) {
            return Err(Lost::Interrupted);
        }
        if Instant::now() >= self.until { Err(Lost::Late) } else { Ok(()) }
    }
}

/// How long a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Bytes(u64),
    Chunked,
    /// As long as the connection.
    Open,
}

/// The first part of an answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// The status.
    pub status: u16,
    /// Where the answer is instead.
    pub location: Option<String>,
    length: Length,
    closes: bool,
}

impl Head {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.split('\n').map(|line| line.trim_end_matches('\r'));
        let (version, rest) = lines.next()?.split_once(' ')?;
        let status = rest.get(..3).filter(|_| version.starts_with("HTTP/1."))?.parse().ok()?;
        let mut head = Self { status, location: None, length: Length::Open, closes: version == "HTTP/1.0" };
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            let value = value.trim();
            let is = |known: &str| name.eq_ignore_ascii_case(known);
            if is("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
                head.length = Length::Chunked;
            } else if is("content-length") && head.length != Length::Chunked {
                head.length = Length::Bytes(value.parse().ok()?);
            } else if is("connection") {
                head.closes |= value.eq_ignore_ascii_case("close");
            } else if is("location") {
                head.location = Some(value.to_owned());
            }
        }
        if matches!(status, 100..=199 | 204 | 304) {
            head.length = Length::Bytes(0);
        }
        head.closes |= head.length == Length::Open;
        Some(head)
    }
}

/// A connection that is kept from one request to the next.
pub struct Wire {
    stream: TcpStream,
    /// What was read and not yet used.
    bytes: Unread,
    /// Whether anything came of the answer that is waited for.
    begun: bool,
    answers: u64,
    open: bool,
}

impl Wire {
    /// A connection to the first of the addresses that takes one.
    ///
    /// # Errors
    /// None does.
    pub fn open(addresses: &[SocketAddr]) -> io::Result<Self> {
        let mut last = io::Error::from(ErrorKind::AddrNotAvailable);
        for address in addresses {
            match TcpStream::connect_timeout(address, CONNECT) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(LOOK))?;
                    stream.set_write_timeout(Some(LOOK))?;
                    return Ok(Self { stream, bytes: Unread::default(), begun: false, answers: 0, open: true });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Whether another request may be sent on it.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Whether it was kept too long, so that the server ended it before it saw the request that failed on it: such a request may be sent once more.
    pub fn was_stale(&self) -> bool {
        self.answers > 0 && !self.begun
    }

    /// Sends a request, and gives the parts of its answer's body to `part` as they come.
    ///
    /// # Errors
    /// There is no whole answer. The connection cannot be used any more.
    pub fn ask(&mut self, request: &[u8], patience: &Patience<'_>, part: &mut dyn FnMut(&[u8])) -> Result<Head, Lost> {
        self.open = false;
        self.begun = false;
        self.bytes.clear();
        self.send(request, patience)?;
        let head = loop {
            let head = self.head(patience)?;
            // What comes before an answer is none.
            if head.status >= 200 {
                break head;
            }
        };
        self.body(head.length, patience, part)?;
        self.answers += 1;
        self.open = !head.closes;
        Ok(head)
    }

    fn send(&mut self, mut bytes: &[u8], patience: &Patience<'_>) -> Result<(), Lost> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(0) => return Err(Lost::Ended(ErrorKind::WriteZero.into())),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if is_wait(&error) => patience.check()?,
                // A server that answers before it has read all may have ended the connection: the answer is read all the same.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Reads what there is; false at the end of the connection.
    fn fill(&mut self, patience: &Patience<'_>) -> Result<bool, Lost> {
        // An answer that comes byte by byte is late too.
        patience.check()?;
        let room = self.bytes.room();
        let read = loop {
            match self.stream.read(room) {
                Err(error) if is_wait(&error) => {
                    if let Err(lost) = patience.check() {
                        break Err(lost);
                    }
                }
                other => break other.map_err(Lost::Ended),
            }
        };
        let count = *read.as_ref().unwrap_or(&0);
        self.bytes.came(count);
        self.begun |= count > 0;
        read.map(|count| count > 0)
    }

    /// Reads more of an answer that is not whole.
    fn more(&mut self, patience: &Patience<'_>) -> Result<(), Lost> {
        if self.fill(patience)? { Ok(()) } else { Err(Lost::Ended(ErrorKind::UnexpectedEof.into())) }
    }

    fn head(&mut self, patience: &Patience<'_>) -> Result<Head, Lost> {
        let end = self.find(b"\r\n\r\n", patience)?;
        let head = Head::parse(&self.bytes.get()[..end]).ok_or(Lost::Odd("an answer of HTTP/1.1"))?;
        self.bytes.use_up(end + 4);
        Ok(head)
    }

    /// The place of `mark` in what is read.
    fn find(&mut self, mark: &[u8], patience: &Patience<'_>) -> Result<usize, Lost> {
        loop {
            if let Some(at) = self.bytes.place(mark) {
                return Ok(at);
            }
            if self.bytes.get().len() > MAX_HEAD {
                return Err(Lost::Odd("a head of at most 64 KiB"));
            }
            self.more(patience)?;
        }
    }

    fn line(&mut self, patience: &Patience<'_>) -> Result<String, Lost> {
        let end = self.find(b"\r\n", patience)?;
        let line = String::from_utf8_lossy(&self.bytes.get()[..end]).into_owned();
        self.bytes.use_up(end + 2);
        Ok(line)
    }

    fn body(&mut self, length: Length, patience: &Patience<'_>, part: &mut dyn FnMut(&[u8])) -> Result<(), Lost> {
        match length {
            Length::Bytes(count) => self.take(count, patience, part),
            Length::Chunked => {
                let mut all = 0u64;
                loop {
                    let line = self.line(patience)?;
                    let size = line.split(';').next().and_then(|size| u64::from_str_radix(size.trim(), 16).ok()).ok_or(Lost::Odd("the length of a chunk"))?;
                    if size == 0 {
                        while !self.line(patience)?.is_empty() {}
                        return Ok(());
                    }
                    all = all.saturating_add(size);
                    if all > MAX_BODY {
                        return Err(Lost::Odd("an answer of at most 256 MiB"));
                    }
                    self.take(size, patience, part)?;
                    if !self.line(patience)?.is_empty() {
                        return Err(Lost::Odd("the end of a chunk"));
                    }
                }
            }
            Length::Open => {
                let mut all = 0;
                loop {
                    part(self.bytes.get());
                    all += self.bytes.get().len() as u64;
                    self.bytes.clear();
                    if all > MAX_BODY {
                        return Err(Lost::Odd("an answer of at most 256 MiB"));
                    }
                    if !self.fill(patience)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Gives the next `count` bytes to `part`.
    fn take(&mut self, mut count: u64, patience: &Patience<'_>, part: &mut dyn FnMut(&[u8])) -> Result<(), Lost> {
        if count > MAX_BODY {
            return Err(Lost::Odd("an answer of at most 256 MiB"));
        }
        while count > 0 {
            if self.bytes.get().is_empty() {
                self.more(patience)?;
            }
            let own = self.bytes.get().len().min(usize::try_from(count).unwrap_or(usize::MAX));
            part(&self.bytes.get()[..own]);
            self.bytes.use_up(own);
            count -= own as u64;
        }
        Ok(())
    }
}

/// Whether there is nothing to read or no room to write yet.
fn is_wait(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// What is read where a server says `text` and ends the connection.
    fn heard(text: &'static [u8]) -> Result<(Head, Vec<u8>, bool), Lost> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 16];
            stream.read_exact(&mut request).unwrap();
            text.chunks(7).for_each(|part| stream.write_all(part).unwrap());
        });
        let interrupt = Interrupt::listen().unwrap();
        let mut wire = Wire::open(&[address]).unwrap();
        let mut body = Vec::new();
        let patience = Patience { until: Instant::now() + Duration::from_secs(20), interrupt: Some(&interrupt) };
        let head = wire.ask(b"GET / HTTP/1.1\r\n", &patience, &mut |part| body.extend_from_slice(part));
        server.join().unwrap();
        head.map(|head| (head, body, wire.is_open()))
    }

    #[test]
    fn bodies_end_by_length_by_chunks_or_with_the_connection() {
        for (text, status, body, open) in [
            (&b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"[..], 200, "hello", true),
            (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Busy\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno", 429, "no", false),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;x=1\r\nhello\r\n6\r\n world\r\n0\r\nx: y\r\n\r\n", 200, "hello world", true),
            (b"HTTP/1.0 200 OK\r\n\r\nall of it", 200, "all of it", false),
            (b"HTTP/1.1 204 None\r\ncontent-length: 9\r\n\r\n", 204, "", true),
        ] {
            let (head, found, open_then) = heard(text).unwrap();
            assert_eq!((head.status, String::from_utf8(found).unwrap().as_str(), open_then), (status, body, open));
        }
        let (head, ..) = heard(b"HTTP/1.1 307 Moved\r\nlocation: http://b\r\ncontent-length: 0\r\n\r\n").unwrap();
        assert_eq!(head.location.as_deref(), Some("http://b"));
    }

    #[test]
    fn what_is_not_whole_is_no_answer() {
        for text in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello"[..],
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
            b"HTTP/1.1 200",
            b"",
        ] {
            assert!(matches!(heard(text), Err(Lost::Ended(_))), "{text:?}");
        }
        for text in [&b"SSH-2.0-OpenSSH\r\n\r\n"[..], b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n"] {
            assert!(matches!(heard(text), Err(Lost::Odd(_))), "{text:?}");
        }
    }
}
