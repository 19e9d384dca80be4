//! Files from outside, opened and read with a bound: a pipe that nobody writes to would hang the program, and a device that never ends
//! would fill its memory.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};

/// Opens a regular file for reading.
///
/// # Errors
/// [`Error::Io`] where the system refuses; [`Error::Input`] for a folder, a device or a pipe.
pub fn open_file(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    // A pipe opens at once by this, and is then seen to be one; a look before opening could be of another file.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, rustix::fs::OFlags::NONBLOCK.bits() as i32);
    let file = match options.open(path) {
        Ok(file) => file,
        // A socket cannot be opened at all.
        Err(error) => return Err(odd(path).unwrap_or_else(|| Error::io(path, "read")(error))),
    };
    let found = file.metadata().map_err(Error::io(path, "read"))?;
    if found.is_file() { Ok(file) } else { Err(odd(path).unwrap_or_else(|| Error::input(path, "expected a file, found something else"))) }
}

/// The error for what is there and is no file.
fn odd(path: &Path) -> Option<Error> {
    let found = std::fs::metadata(path).ok().filter(|found| !found.is_file())?;
    Some(Error::input(path, format!("expected a file, found {}", if found.is_dir() { "a folder" } else { "a device or a pipe" })))
}

/// The bytes of a regular file of at most `most` bytes.
///
/// # Errors
/// Those of [`open_file`]; [`Error::Input`] for a longer file, also one that grows while it is read.
pub fn read_file(path: &Path, most: u64) -> Result<Vec<u8>> {
    let file = open_file(path)?;
    let len = file.metadata().map_err(Error::io(path, "read"))?.len();
    let refuse = |found: String| Error::input(path, format!("expected a file of at most {most} bytes, found {found}"));
    if len > most {
        return Err(refuse(format!("{len}")));
    }
    let mut bytes = Vec::new();
    // Files that the system makes up, as those of /proc, say 0 bytes.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(Error::io(path, "read"))?;
    if bytes.len() as u64 > most { Err(refuse("more".into())) } else { Ok(bytes) }
}

/// Whether anything is at `path`: a link that leads nowhere is something, and not a file that may be left out.
///
/// # Errors
/// What the system refuses, as to look into the folder.
pub fn is_there(path: &Path) -> Result<bool> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(Error::io(path, "read")(error)),
    }
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_the_bound() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, b"12345").unwrap();
        assert_eq!(read_file(&path, 5).unwrap(), b"12345");
        assert!(read_file(&path, 4).unwrap_err().to_string().contains("at most 4 bytes, found 5"));
        assert!(matches!(read_file(&folder.path().join("none"), 4), Err(Error::Io { .. })));
    }

    #[test]
    fn what_never_ends_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let [pipe, socket, link] = ["pipe", "socket", "link"].map(|name| folder.path().join(name));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let _listening = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        for path in [&pipe, &socket, &link] {
            let error = read_file(path, u64::MAX).unwrap_err();
            assert!(matches!(error, Error::Input { .. }) && error.to_string().contains("a device or a pipe"), "{error}");
        }
        assert!(read_file(folder.path(), 9).unwrap_err().to_string().contains("a folder"));
    }

    #[test]
    fn a_link_that_leads_nowhere_is_there() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("link")).unwrap();
        assert!(is_there(&folder.path().join("link")).unwrap());
        assert!(!is_there(&folder.path().join("none")).unwrap());
    }
}
