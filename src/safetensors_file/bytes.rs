//! The bytes of a file from outside, in memory or on disk.

use std::fs::File;
use std::ops::Range;

/// A file's bytes, read when asked for. They are not mapped: when another program cuts a mapped file short, the process that reads it is
/// killed. A tensor is copied before it is checked, so that no decision rests twice on bytes that may change.
#[derive(Debug)]
pub enum Bytes {
    /// A file on disk, and its length when it was opened.
    File(Places, u64),
    Memory(Vec<u8>),
}

impl Bytes {
    /// The bytes of an open file of that length.
    pub fn of(file: File, len: u64) -> Self {
        Self::File(Places::of(file), len)
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        match self {
            Self::File(_, len) => *len,
            Self::Memory(bytes) => bytes.len() as u64,
        }
    }

    /// Copies the bytes from `start` on over all of `to`.
    pub fn read_into(&self, start: u64, to: &mut [u8]) -> std::io::Result<()> {
        match self {
            Self::File(file, _) => file.read(start, to),
            Self::Memory(bytes) => {
                let from = usize::try_from(start).ok().and_then(|start| bytes.get(start..start.checked_add(to.len())?));
                to.copy_from_slice(from.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::UnexpectedEof))?);
                Ok(())
            }
        }
    }

    /// A copy of the bytes of `range`.
    pub fn read(&self, range: Range<u64>) -> std::io::Result<Vec<u8>> {
        let outside = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        if range.start > range.end || range.end > self.len() {
            return Err(outside());
        }
        match self {
            Self::File(file, _) => {
                let len = usize::try_from(range.end - range.start).map_err(|_| outside())?;
                let mut bytes = Vec::new();
                // A sparse file may be of any length.
                bytes.try_reserve_exact(len).map_err(|_| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
                bytes.resize(len, 0);
                file.read(range.start, &mut bytes)?;
                Ok(bytes)
            }
            Self::Memory(bytes) => Ok(bytes[range.start as usize..range.end as usize].to_vec()),
        }
    }
}

/// A file that is read at places, where the system can by several threads at once.
#[derive(Debug)]
pub struct Places(#[cfg(unix)] File, #[cfg(not(unix))] std::sync::Mutex<File>);

impl Places {
    #[cfg(unix)]
    fn of(file: File) -> Self {
        Self(file)
    }

    #[cfg(unix)]
    fn read(&self, start: u64, to: &mut [u8]) -> std::io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, to, start)
    }

    #[cfg(not(unix))]
    fn of(file: File) -> Self {
        Self(file.into())
    }

    #[cfg(not(unix))]
    fn read(&self, start: u64, to: &mut [u8]) -> std::io::Result<()> {
        use std::io::{Read, Seek, SeekFrom};
        // A place to read from is all that the lock guards, and every reader sets its own first.
        let mut file = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(to)
    }
}
