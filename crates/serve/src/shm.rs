//! Shared memory of this machine that callers have given names, as POSIX has it: files below `/dev/shm`. It is read and written as files are, so that one
//! that shrinks is an error and no signal.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trifuse::{Error, Result};

/// Where shared memory lies.
const FOLDER: &str = "/dev/shm";
/// Names of all tenants together, at most: each holds a descriptor.
const MOST: usize = 1024;

/// Shared memory that has a name.
#[derive(Debug)]
pub struct Registered {
    /// The name of the shared memory itself.
    pub key: String,
    /// Bytes from its start to the part that is used.
    pub offset: u64,
    /// Bytes of that part.
    pub bytes: u64,
    file: File,
}

/// Why shared memory gets no name.
#[derive(Debug)]
pub enum Refused {
    /// The name is taken.
    Taken,
    /// There are as many as may be.
    Many(usize),
    /// What was asked for is not there, or is not sound.
    Unsound(Error),
}

/// The shared memory of a server. Each tenant has names of its own.
#[derive(Debug, Default)]
pub struct Shm(Mutex<BTreeMap<(u32, String), Arc<Registered>>>);

impl Shm {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u32, String), Arc<Registered>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives `bytes` bytes of the shared memory `key` a name, from `offset` on.
    ///
    /// # Errors
    /// The name is taken; there is no such memory, or less of it.
    pub fn register(&self, tenant: u32, name: &str, key: &str, offset: u64, bytes: u64) -> std::result::Result<(), Refused> {
        let file = open(key).map_err(Refused::Unsound)?;
        let registered = Registered { key: key.into(), offset, bytes, file };
        registered.inside(0, bytes).map_err(Refused::Unsound)?;
        let mut named = self.lock();
        if named.len() >= MOST {
            return Err(Refused::Many(MOST));
        }
        match named.entry((tenant, name.into())) {
            std::collections::btree_map::Entry::Occupied(_) => Err(Refused::Taken),
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(Arc::new(registered));
                Ok(())
            }
        }
    }

    /// The memory of that name.
    pub fn get(&self, tenant: u32, name: &str) -> Option<Arc<Registered>> {
        self.lock().get(&(tenant, name.to_owned())).map(Arc::clone)
    }

    /// A tenant's names, or the one that is asked for.
    pub fn list(&self, tenant: u32, only: Option<&str>) -> Vec<(String, Arc<Registered>)> {
        let named = self.lock();
        let is = |(whose, name): &(u32, String)| *whose == tenant && only.is_none_or(|only| only == name);
        named.iter().filter(|(key, _)| is(key)).map(|((_, name), registered)| (name.clone(), Arc::clone(registered))).collect()
    }

    /// Takes a tenant's names away, or the one that is asked for; how many there were.
    pub fn unregister(&self, tenant: u32, only: Option<&str>) -> usize {
        let mut named = self.lock();
        let before = named.len();
        named.retain(|(whose, name), _| *whose != tenant || only.is_some_and(|only| only != name));
        before - named.len()
    }
}

impl Registered {
    /// Where a part begins in the file, if it lies inside.
    fn inside(&self, offset: u64, bytes: u64) -> Result<u64> {
        let fault = |expected: String| Error::invalid(format!("shared memory {:?}", self.key), expected, format_args!("{bytes} bytes from {offset}"));
        let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes);
        let end = end.and_then(|end| self.offset.checked_add(end)).ok_or_else(|| fault(format!("a part of the {} bytes that have a name", self.bytes)))?;
        let found = self.file.metadata().map_err(Error::io(Path::new(FOLDER).join(&self.key), "read"))?.len();
        match end <= found {
            true => Ok(self.offset + offset),
            false => Err(fault(format!("a part of the {found} bytes that it has"))),
        }
    }

    /// The bytes of a part.
    ///
    /// # Errors
    /// A part that lies outside; memory that has shrunk.
    pub fn read(&self, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let at = self.inside(offset, bytes)?;
        let mut read = vec![0; usize::try_from(bytes).map_err(|_| Error::invalid("shared memory", "fewer bytes", bytes))?];
        system::read(&self.file, &mut read, at).map_err(Error::io(Path::new(FOLDER).join(&self.key), "read"))?;
        Ok(read)
    }

    /// Writes bytes to a part.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = self.inside(offset, bytes.len() as u64)?;
        system::write(&self.file, bytes, at).map_err(Error::io(Path::new(FOLDER).join(&self.key), "write"))
    }
}

/// Opens shared memory by its name, which begins with one `/` or with none.
fn open(key: &str) -> Result<File> {
    let name = key.strip_prefix('/').unwrap_or(key);
    let plain = (1..=255).contains(&name.len()) && name != "." && name != ".." && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
    if !plain {
        return Err(Error::invalid("key", "the name of shared memory, without a folder", format_args!("{:?}", key.chars().take(80).collect::<String>())));
    }
    system::open(&Path::new(FOLDER).join(name))
}

#[cfg(unix)]
mod system {
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::path::Path;

    use trifuse::{Error, Result};

    /// Opens a regular file that is no link to another place.
    pub fn open(path: &Path) -> Result<File> {
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(Error::io(path, "open"))?;
        let (found, named) = (file.metadata().map_err(Error::io(path, "read"))?, path.symlink_metadata().map_err(Error::io(path, "read"))?);
        // What was opened is what has the name itself: no link, whatever becomes of the name meanwhile.
        match found.is_file() && named.is_file() && (found.dev(), found.ino()) == (named.dev(), named.ino()) {
            true => Ok(file),
            false => Err(Error::input(path, "expected shared memory, found a link, a folder or a device")),
        }
    }

    pub fn read(file: &File, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
        file.read_exact_at(bytes, at)
    }

    pub fn write(file: &File, bytes: &[u8], at: u64) -> std::io::Result<()> {
        file.write_all_at(bytes, at)
    }
}

#[cfg(not(unix))]
mod system {
    use std::fs::File;
    use std::io::{Error as Fault, ErrorKind};
    use std::path::Path;

    use trifuse::{Error, Result};

    pub fn open(path: &Path) -> Result<File> {
        Err(Error::unsupported(format!("shared memory {}", path.display()), "this system has none that is a file"))
    }

    pub fn read(_: &File, _: &mut [u8], _: u64) -> std::io::Result<()> {
        Err(Fault::from(ErrorKind::Unsupported))
    }

    pub fn write(_: &File, _: &[u8], _: u64) -> std::io::Result<()> {
        Err(Fault::from(ErrorKind::Unsupported))
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Shared memory that goes at the end of the test.
    struct Own(String);

    impl Own {
        fn new(what: &str, bytes: &[u8]) -> Self {
            let name = format!("trifuse-test-{what}-{}", std::process::id());
            std::fs::write(Path::new(FOLDER).join(&name), bytes).unwrap();
            Self(name)
        }
    }

    impl Drop for Own {
        fn drop(&mut self) {
            drop(std::fs::remove_file(Path::new(FOLDER).join(&self.0)));
        }
    }

    #[test]
    fn a_part_is_read_and_written_and_no_other() {
        let (shm, own) = (Shm::default(), Own::new("part", b"0123456789"));
        shm.register(1, "a", &format!("/{}", own.0), 2, 6).unwrap();
        let named = shm.get(1, "a").unwrap();
        assert_eq!(named.read(1, 3).unwrap(), b"345");
        named.write(4, b"xy").unwrap();
        assert_eq!(named.read(0, 6).unwrap(), b"2345xy");
        for (offset, bytes) in [(0, 7), (6, 1), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(named.read(offset, bytes).is_err(), "{bytes} from {offset}");
        }
        std::fs::OpenOptions::new().write(true).open(Path::new(FOLDER).join(&own.0)).unwrap().set_len(4).unwrap();
        assert!(named.read(1, 3).is_err() && named.write(4, b"xy").is_err());
        assert!(matches!(shm.register(1, "a", &own.0, 0, 1), Err(Refused::Taken)));
        assert!(shm.get(2, "a").is_none());
        assert_eq!((shm.list(1, None).len(), shm.unregister(2, None), shm.unregister(1, Some("b")), shm.unregister(1, Some("a"))), (1, 0, 0, 1));
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let (shm, own) = (Shm::default(), Own::new("names", b"0123"));
        let link = format!("{}-link", own.0);
        std::os::unix::fs::symlink("/etc/passwd", Path::new(FOLDER).join(&link)).unwrap();
        let refused = [link.as_str(), "", "/", ".", "..", "../etc/passwd", "a/b", "//etc/passwd", "a\0b", "no-such-memory-here"]
            .map(|key| matches!(shm.register(1, "a", key, 0, 1), Err(Refused::Unsound(_))));
        std::fs::remove_file(Path::new(FOLDER).join(&link)).unwrap();
        assert_eq!(refused, [true; 10]);
        for (offset, bytes) in [(0, 5), (4, 1), (u64::MAX, 1), (u64::MAX, u64::MAX)] {
            assert!(matches!(shm.register(1, "a", &own.0, offset, bytes), Err(Refused::Unsound(_))));
        }
    }
}
