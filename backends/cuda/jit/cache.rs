//! Compiled kernels on disk, named by the hash of everything that they depend on: in packs, which are read-only, and in a folder.
//!
//! An entry is written under a temporary name and renamed, so that no process ever sees half of one. It carries a checksum, so that a
//! damaged entry is compiled anew. A folder that cannot be read or written costs time, never an answer.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::built::Built;
use super::lock::Lock;
use super::pack::Packs;

/// The environment variable that names the folder for compiled kernels; empty for none.
pub const CACHE_DIR: &str = "TRIFUSE_CACHE_DIR";

/// The first line of an entry: its kind, and the version of its layout.
const MAGIC: &[u8] = b"trifuse kernel 1\n";

/// A folder of compiled kernels, or none; and packs that are searched before it.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Option<PathBuf>,
    packs: Arc<Packs>,
}

impl Cache {
    /// A cache in `folder`, which need not exist yet.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), packs: Arc::default() }
    }

    /// This cache, with `packs` searched before its folder.
    pub fn with_packs(self, packs: Packs) -> Self {
        Self { packs: Arc::new(packs), ..self }
    }

    /// The cache that the environment names: [`CACHE_DIR`], else `trifuse/kernels` in the user's cache folder, else no folder. The packs of
    /// [`KERNELS`](super::KERNELS) are searched before it.
    pub fn from_environment() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = match std::env::var_os(CACHE_DIR) {
            Some(folder) => Some(folder).filter(|folder| !folder.is_empty()).map(PathBuf::from),
            None => set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache"))).map(|cache| cache.join("trifuse")),
        };
        Self { folder: folder.map(|folder| folder.join("kernels")), packs: Arc::new(Packs::from_environment()) }
    }

    /// The folder, if there is one.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Whether the cache holds no kernel.
    pub fn is_empty(&self) -> bool {
        self.packs.is_empty() && !self.names().any(|name| name.ends_with(".cubin"))
    }

    /// Why packs, or kernels in them, were refused; empty where all is well.
    pub fn refused(&self) -> Vec<String> {
        self.packs.refused()
    }

    fn names(&self) -> impl Iterator<Item = String> {
        let entries = self.folder.as_ref().and_then(|folder| std::fs::read_dir(folder).ok());
        entries.into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok())
    }

    /// The entry of `hash`. A pack's counts whatever made it. Otherwise it is one made by `compiler`, or by any compiler where that is
    /// absent.
    pub fn get(&self, hash: &str, compiler: Option<(i32, i32)>) -> Option<Built> {
        self.packs.get(hash).or_else(|| self.kept(hash, compiler))
    }

    /// The folder's entry of `hash`.
    fn kept(&self, hash: &str, compiler: Option<(i32, i32)>) -> Option<Built> {
        let folder = self.folder.as_ref()?;
        match compiler {
            Some(version) => read(&folder.join(name(hash, version))),
            None => {
                let mut names: Vec<String> = self.names().filter(|name| name.starts_with(hash) && name.ends_with(".cubin")).collect();
                names.sort();
                names.iter().rev().find_map(|name| read(&folder.join(name)))
            }
        }
    }

    /// Holds every other process off `hash` until the lock is dropped. None where the folder, or the system, has no such lock.
    pub fn lock(&self, hash: &str, compiler: (i32, i32)) -> Option<Lock> {
        let folder = self.folder.as_ref()?;
        std::fs::create_dir_all(folder).ok()?;
        Lock::wait(&folder.join(format!("{}.lock", name(hash, compiler))))
    }

    /// Stores an entry. Failure is no error: the next process compiles again.
    pub fn put(&self, hash: &str, compiler: (i32, i32), built: &Built) {
        let Some(folder) = &self.folder else { return };
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(folder)?;
            let mut builder = tempfile::Builder::new();
            // The file has an ordinary file's permissions, less the umask: whoever runs kernels may read what was compiled ahead of time.
            #[cfg(unix)]
            builder.permissions(<std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o666));
            let mut file = builder.tempfile_in(folder)?;
            file.write_all(&encode(built))?;
            file.persist(folder.join(name(hash, compiler))).map_err(|error| error.error)?;
            Ok(())
        };
        // Nothing depends on the entry being there.
        write().unwrap_or_default();
    }
}

fn name(hash: &str, (major, minor): (i32, i32)) -> String {
    format!("{hash}-nvrtc{major:02}.{minor}.cubin")
}

/// The bytes of an entry: the magic line; the SHA-256 of the rest; the log's length, 8 bytes, little-endian; the log; the CUBIN.
fn encode(built: &Built) -> Vec<u8> {
    let mut body = (built.log.len() as u64).to_le_bytes().to_vec();
    body.extend_from_slice(built.log.as_bytes());
    body.extend_from_slice(&built.cubin);
    [MAGIC, Sha256::digest(&body).as_slice(), &body].concat()
}

fn read(path: &Path) -> Option<Built> {
    let bytes = std::fs::read(path).ok()?;
    let rest = bytes.strip_prefix(MAGIC)?;
    let (sum, body) = rest.split_at_checked(32)?;
    if Sha256::digest(body).as_slice() != sum {
        return None;
    }
    let (length, rest) = body.split_first_chunk::<8>()?;
    let (log, cubin) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    Some(Built { cubin: cubin.to_vec(), log: std::str::from_utf8(log).ok()?.to_owned() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn built() -> Built {
        Built { cubin: vec![0x7f, b'E', b'L', b'F', 0, 255], log: "ptxas info: fine\n".into() }
    }

    #[test]
    fn an_entry_comes_back_only_from_its_own_compiler() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("made on demand"));
        assert!(cache.is_empty());
        cache.put("aa", (13, 0), &built());
        assert_eq!(cache.get("aa", Some((13, 0))), Some(built()));
        assert_eq!(cache.get("aa", Some((12, 4))), None);
        assert_eq!(cache.get("ab", Some((13, 0))), None);
        assert_eq!(cache.get("aa", None), Some(built()));
        assert!(!cache.is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn an_entry_is_for_whoever_may_read_other_files() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        std::fs::write(folder.path().join("plain"), b"").unwrap();
        Cache::at(folder.path()).put("aa", (13, 0), &built());
        assert_eq!(mode(&name("aa", (13, 0))), mode("plain"));
    }

    #[test]
    fn a_damaged_entry_is_no_entry() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path());
        let path = folder.path().join(name("aa", (13, 0)));
        let whole = encode(&built());
        for damaged in [&whole[..0], &whole[..20], &whole[..whole.len() - 1], b"something else"] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(cache.get("aa", Some((13, 0))), None);
        }
        for byte in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[byte] ^= 4;
            std::fs::write(&path, &flipped).unwrap();
            assert_eq!(cache.get("aa", Some((13, 0))), None, "byte {byte}");
        }
        cache.put("aa", (13, 0), &built());
        assert_eq!(cache.get("aa", Some((13, 0))), Some(built()));
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_no_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for cache in [Cache::at(file.path().join("under a file")), Cache { folder: None, packs: Arc::default() }] {
            cache.put("aa", (13, 0), &built());
            assert_eq!(cache.get("aa", None), None);
            assert!(cache.lock("aa", (13, 0)).is_none());
        }
    }
}
