//! Lines of the input: JSON objects, or plain text; bytes that may be anything.

use std::io::BufRead;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use trifuse::{Error, Result};

/// The longest line that is kept; a longer one is refused, not held in memory.
const MAX_LINE: usize = 16 << 20;

/// Bytes of the lines that are taken together, about: they are in memory until their embeddings are written.
const MAX_WINDOW: usize = 4 * MAX_LINE;

/// The lines of a stream.
pub struct Lines {
    reader: Box<dyn BufRead>,
    path: PathBuf,
}

/// What a line asks for.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub struct Request {
    pub text: String,
    #[serde(default)]
    pub adapter: Option<String>,
}

impl Lines {
    pub fn new(reader: Box<dyn BufRead>, path: &Path) -> Self {
        Self { reader, path: path.into() }
    }

    /// The next `count` lines, fewer where they are long, or as many as there are; each as it is meant, or why it cannot be used.
    pub fn take(&mut self, count: usize) -> Result<Vec<Result<Request, String>>> {
        let (mut lines, mut bytes) = (Vec::new(), 0);
        while lines.len() < count && bytes < MAX_WINDOW {
            let Some(line) = self.line().map_err(Error::io(&self.path, "read"))? else { break };
            bytes += line.as_ref().map_or(0, Vec::len);
            lines.push(line.and_then(|line| request(&line)));
        }
        Ok(lines)
    }

    /// One line without its end, or why it is not kept; nothing at the end of the stream.
    fn line(&mut self) -> std::io::Result<Option<Result<Vec<u8>, String>>> {
        let (mut line, mut length, mut any) = (Vec::new(), 0usize, false);
        loop {
            let buffer = self.reader.fill_buf()?;
            if buffer.is_empty() {
                break;
            }
            any = true;
            let end = buffer.iter().position(|&byte| byte == b'\n');
            let part = &buffer[..end.unwrap_or(buffer.len())];
            length += part.len();
            if length <= MAX_LINE {
                line.extend_from_slice(part);
            }
            let used = end.map_or(buffer.len(), |end| end + 1);
            self.reader.consume(used);
            if end.is_some() {
                break;
            }
        }
        let kept = if length <= MAX_LINE { Ok(line) } else { Err(format!("expected a line of at most {MAX_LINE} bytes, found {length}")) };
        Ok(any.then_some(kept))
    }
}

fn request(line: &[u8]) -> Result<Request, String> {
    let line = std::str::from_utf8(line).map_err(|error| format!("expected UTF-8, found another byte at place {}", error.valid_up_to()))?;
    // Some editors begin a file with a mark of its byte order.
    let line = line.strip_prefix('\u{feff}').unwrap_or(line);
    if line.trim().is_empty() {
        return Err("expected text, or a JSON object with \"text\", found an empty line".into());
    }
    if !line.trim_start().starts_with(['{', '[']) {
        return Ok(Request { text: line.trim_end().into(), adapter: None });
    }
    let fault = |found: &dyn std::fmt::Display| format!("expected a JSON object with \"text\": {found}");
    // Else an array would do as well, its elements taken for the fields in their order.
    if line.trim_start().starts_with('[') {
        return Err(fault(&"found an array"));
    }
    let request: Request = serde_json::from_str(line).map_err(|error| fault(&error))?;
    if request.text.trim().is_empty() {
        return Err("text: expected at least one word, found none".into());
    }
    Ok(request)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_taken_or_refused_by_itself() {
        let bytes = b"\xef\xbb\xbf{\"text\": \"a b\"}\n{\"text\": \"c\", \"adapter\": \"x\", \"more\": 1}\r\n\n{not json\n{\"text\": \"\xff\"}\n{\"text\": \" \"}\n{\"text\": 7}\n[\"a\", \"x\"]\nplain text\r\n{\"text\": \"last\"}";
        let mut lines = Lines::new(Box::new(&bytes[..]), Path::new("-"));
        let first = lines.take(2).unwrap();
        assert_eq!(first[0], Ok(Request { text: "a b".into(), adapter: None }));
        assert_eq!(first[1], Ok(Request { text: "c".into(), adapter: Some("x".into()) }));
        let rest = lines.take(100).unwrap();
        let faults: Vec<&str> = rest[..6].iter().map(|line| line.as_ref().unwrap_err().as_str()).collect();
        for (fault, word) in faults.iter().zip(["empty line", "JSON", "UTF-8", "found none", "string", "array"]) {
            assert!(fault.contains(word), "{fault}");
        }
        assert_eq!(rest[6], Ok(Request { text: "plain text".into(), adapter: None }));
        assert_eq!(rest[7].as_ref().unwrap().text, "last");
        assert!(lines.take(1).unwrap().is_empty());
    }

    #[test]
    fn few_long_lines_are_held_at_once() {
        let line = [vec![b'x'; MAX_LINE], vec![b'\n']].concat();
        let mut lines = Lines::new(Box::new(std::io::Cursor::new(line.repeat(5))), Path::new("-"));
        assert_eq!([4, 1, 0].map(|_| lines.take(100).unwrap().len()), [4, 1, 0]);
    }

    #[test]
    fn a_line_without_end_is_not_held() {
        let long = vec![b'x'; MAX_LINE + 1];
        let mut lines = Lines::new(Box::new(std::io::Cursor::new(long)), Path::new("-"));
        assert!(lines.take(1).unwrap()[0].as_ref().unwrap_err().contains("at most"));
    }
}
