//! What was read of a connection and not yet used.

/// Bytes that are read at once.
const CHUNK: usize = 16 << 10;

/// Bytes in memory that is kept: it is filled with zeros where it grows, and not for each answer.
#[derive(Default)]
pub struct Unread {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Unread {
    /// The bytes.
    pub fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }

    /// Room for more behind them.
    pub fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.bytes.len() < self.end + CHUNK {
            self.bytes.resize(self.end + CHUNK, 0);
        }
        &mut self.bytes[self.end..self.end + CHUNK]
    }

    /// So many bytes of the room hold something now.
    pub fn came(&mut self, count: usize) {
        self.end += count;
    }

    /// The first of them are used.
    pub fn use_up(&mut self, count: usize) {
        self.start += count;
    }

    /// Where `mark`, which begins by `\r`, is first.
    pub fn place(&self, mark: &[u8]) -> Option<usize> {
        let (bytes, mut from) = (self.get(), 0);
        while let Some(at) = bytes[from..].iter().position(|byte| *byte == b'\r') {
            if bytes[from + at..].starts_with(mark) {
                return Some(from + at);
            }
            from += at + 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_until_they_are_used_wherever_they_lie() {
        let mut unread = Unread::default();
        let read = |unread: &mut Unread, bytes: &[u8]| {
            unread.room()[..bytes.len()].copy_from_slice(bytes);
            unread.came(bytes.len());
        };
        read(&mut unread, b"one\r\ntwo\r");
        assert_eq!((unread.place(b"\r\n"), unread.place(b"\r\n\r\n")), (Some(3), None));
        unread.use_up(5);
        read(&mut unread, b"\n\r\nrest");
        assert_eq!((unread.get(), unread.place(b"\r\n\r\n")), (&b"two\r\n\r\nrest"[..], Some(3)));
        let long = vec![7; CHUNK];
        read(&mut unread, &long);
        assert_eq!((unread.get().len(), &unread.get()[11..]), (CHUNK + 11, &long[..]));
        unread.clear();
        assert!(unread.get().is_empty() && unread.room().len() == CHUNK);
    }
}
