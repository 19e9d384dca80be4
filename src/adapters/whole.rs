//! Files and folders that appear whole or not at all, and the names that may become files.

use std::fs::{File, Permissions};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::error::{Error, Result, ensure};

/// The folder in which `path` lies.
fn parent(path: &Path) -> PathBuf {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).into()
}

/// Makes a temporary file or folder in `folder` that is to become `path`. It has the permissions of an ordinary one (`mode`, less the
/// umask).
fn temporary<T>(path: &Path, folder: &Path, mode: u32, make: impl FnOnce(&tempfile::Builder<'_, '_>, &Path) -> std::io::Result<T>) -> Result<T> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(TEMPORARY);
    #[cfg(unix)]
    builder.permissions(<Permissions as std::os::unix::fs::PermissionsExt>::from_mode(mode));
    #[cfg(not(unix))]
    let _ = mode;
    make(&builder, folder).map_err(|error| {
        // Only the kind of the system's error is kept. The rest names the temporary file, which nobody asked for.
        let told = match error.kind() {
            kind if !folder.is_dir() => std::io::Error::new(kind, format!("there is no folder {}", folder.display())),
            // File systems that hold what the system itself makes, such as /proc, refuse like this.
            kind @ ErrorKind::NotFound => std::io::Error::new(kind, format!("no file can be made in {}", folder.display())),
            kind => kind.into(),
        };
        Error::io(path, "write")(told)
    })
}

/// A temporary file beside `path`, which is to be renamed to it.
fn temporary_file(path: &Path) -> Result<NamedTempFile> {
    // `/dev/stdout` is such a path, where it is a file. The link would be replaced, and every other program that uses it would miss it.
    let open = path.read_link().is_ok_and(|target| parent(path).join(target).starts_with("/proc"));
    ensure(!open, path.display(), "the name of a file", "a link to one that is open")?;
    temporary(path, &parent(path), 0o666, |builder, folder| builder.tempfile_in(folder))
}

/// Makes a rename survive a loss of power. Only Unix can open a folder for that.
fn sync_folder(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(folder).and_then(|file| file.sync_all()).map_err(Error::io(folder, "write"))?;
    }
    Ok(())
}

/// Whether a device or a pipe is at `path`, itself or behind a link, such as `/dev/stdout`.
pub fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Whether [`write_file`] may write to `path`, to be asked before the work whose result goes there.
///
/// # Errors
/// A folder of that name; what the system refuses.
pub fn check_file(path: &Path) -> Result<()> {
    ensure(path != Path::new("-"), "-", "the name of a file, as ./- for one of that name", "what elsewhere stands for standard output")?;
    ensure(!path.is_dir(), path.display(), "the name of a file", "a folder")?;
    if is_special(path) {
        return Ok(());
    }
    temporary_file(path).map(drop)
}

/// Refuses an `output` that is one of the `inputs`, by this name or another. Writing it would replace what was read.
///
/// # Errors
/// [`Error::Invalid`], with the input's name.
pub fn check_apart<P: AsRef<Path>>(output: &Path, inputs: impl IntoIterator<Item = P>) -> Result<()> {
    let Ok(place) = output.canonicalize() else { return Ok(()) };
    let is_output = |input: &Path| !is_special(input) && input.canonicalize().is_ok_and(|input| input == place);
    inputs.into_iter().find(|input| is_output(input.as_ref())).map_or(Ok(()), |input| {
        let found = format!("the input {}, which would be lost", input.as_ref().display());
        Err(Error::invalid(output.display().to_string(), "an output other than the input", found))
    })
}

/// Fills `file` by `write`, to the last byte.
fn fill(file: &File, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> std::io::Result<()> {
    let mut out = BufWriter::new(file);
    write(&mut out)?;
    out.flush()
}

/// A temporary file beside `path` that holds everything that `write` writes, synced to disk.
fn filled(path: &Path, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<NamedTempFile> {
    let temporary = temporary_file(path)?;
    fill(temporary.as_file(), write).and_then(|()| temporary.as_file().sync_all()).map_err(Error::io(path, "write"))?;
    Ok(temporary)
}

/// Writes a file under a temporary name in its own folder, then renames it. It replaces what was there before. Where `write` or the system
/// fails, nothing is left behind and an old file stays. A device or a pipe is written to directly.
///
/// # Errors
/// What the system refused.
pub fn write_file(path: &Path, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    if is_special(path) {
        return File::options().write(true).open(path).and_then(|file| fill(&file, write)).map_err(Error::io(path, "write"));
    }
    filled(path, write)?.persist(path).map_err(|error| Error::io(path, "write")(error.error))?;
    sync_folder(&parent(path))
}

/// Writes a file as [`write_file`] does, under a name that must not be taken, even if it was free when it was checked.
///
/// # Errors
/// A file of that name, which stays; what the system refused.
pub fn write_new_file(path: &Path, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    filled(path, write)?.persist_noclobber(path).map_err(|error| Error::io(path, "write")(error.error))?;
    sync_folder(&parent(path))
}

/// Makes the folder `path`, and those above it, where they do not exist yet.
///
/// # Errors
/// A file of that name; what the system refuses.
pub fn make_folder(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).map_err(|error| {
        let file = matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotADirectory);
        Error::io(path, "create")(if file { std::io::Error::new(error.kind(), "a file is where a folder should be") } else { error })
    })
}

/// Fills a folder under a temporary name beside `path`, then renames it. An empty folder at `path` is kept, as it may be a link, a mounted
/// disk, or a shell's current folder. It is filled by a folder in it, whose contents are then moved up.
///
/// # Errors
/// A `path` that exists and is not an empty folder; what `fill` returns; what the system refused. Nothing is left behind.
pub fn write_folder(path: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let taken = match std::fs::read_dir(path) {
        Ok(entries) => holds_something(entries).then_some("one that holds something"),
        Err(_) => path.symlink_metadata().is_ok().then_some("something else of that name"),
    };
    if let Some(found) = taken {
        return Err(Error::invalid(path.display().to_string(), "a folder that does not exist yet, or an empty one", found));
    }
    let there = path.is_dir();
    let beside = if there { path.into() } else { parent(path) };
    let temporary = temporary(path, &beside, 0o777, |builder, folder| builder.tempdir_in(folder))?;
    fill(temporary.path())?;
    sync_folder(temporary.path())?;
    if there {
        // Another program may have filled it meanwhile.
        if holds_something(std::fs::read_dir(path).map_err(Error::io(path, "read"))?) {
            return Err(Error::invalid(path.display().to_string(), "a folder that stays empty until it is filled", "one that another program filled"));
        }
        move_all(temporary.path(), path).map_err(Error::io(path, "write"))?;
        return sync_folder(path);
    }
    std::fs::rename(temporary.path(), path).map_err(Error::io(path, "write"))?;
    // It has its final name now, so there is nothing left to remove.
    let _ = temporary.keep();
    sync_folder(&parent(path))
}

/// The beginning of temporary names.
const TEMPORARY: &str = ".trifuse-";
/// The age from which a temporary name is that of a program that was killed.
const LEFT_BEHIND: Duration = Duration::from_secs(24 * 60 * 60);

/// Whether a folder holds anything but what this program left behind when it was killed; what is old of that goes.
fn holds_something(entries: std::fs::ReadDir) -> bool {
    let mut others = false;
    for entry in entries {
        let Ok(entry) = entry else { return true };
        if !entry.file_name().as_encoded_bytes().starts_with(TEMPORARY.as_bytes()) {
            others = true;
            continue;
        }
        let old = entry.metadata().and_then(|found| found.modified()).is_ok_and(|at| at.elapsed().is_ok_and(|age| age > LEFT_BEHIND));
        if old {
            // One that cannot be removed is in nobody's way.
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
    others
}

/// Moves everything in `from` to `to`, or nothing.
fn move_all(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut moved = Vec::new();
    for entry in std::fs::read_dir(from)? {
        let name = entry?.file_name();
        if let Err(error) = std::fs::rename(from.join(&name), to.join(&name)) {
            // What cannot go back either stays. The first fault is the one to report.
            moved.iter().for_each(|name| drop(std::fs::rename(to.join(name), from.join(name))));
            return Err(error);
        }
        moved.push(name);
    }
    Ok(())
}

/// Names that Windows keeps for devices, whatever follows a dot.
const DEVICES: [&str; 22] = [
    "con", "prn", "aux", "nul", "com1", "com2", "com3", "com4", "com5", "com6", "com7", "com8", "com9", "lpt1", "lpt2", "lpt3", "lpt4", "lpt5", "lpt6", "lpt7",
    "lpt8", "lpt9",
];

/// Checks that `name` can be one folder below another on any system: bundles come from outside, and an adapter
/// called `../x` must not be written there.
///
/// # Errors
/// What is wrong with it, in words.
pub fn check_name(name: &str) -> Result<(), String> {
    let mut parts = Path::new(name).components();
    let single = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name);
    let odd = name.chars().find(|c| c.is_control() || "/\\:*?\"<>|".contains(*c));
    match odd {
        _ if name.is_empty() || name.len() > 200 => Err(format!("expected a name of 1 to 200 bytes, found {}", name.len())),
        Some(c) => Err(format!("expected a name that can be a folder's, found {name:?} with {c:?}")),
        None if name.ends_with(['.', ' ']) => Err(format!("expected a name that can be a folder's, found {name:?} with its last character")),
        None if DEVICES.contains(&name.split('.').next().unwrap_or_default().to_ascii_lowercase().as_str()) => {
            Err(format!("expected a name that can be a folder's, found {name:?}, which Windows takes for a device"))
        }
        None if !single || name.starts_with('.') => Err(format!("expected a name that can be a folder's, found {name:?}")),
        None => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        write_file(&path, |out| out.write_all(b"old")).unwrap();
        let fails = write_file(&path, |out| out.write_all(b"new").and(Err(std::io::Error::other("no room"))));
        assert!(fails.is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_name_that_was_taken_meanwhile_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        // Another program takes the name while this one fills its file.
        let taken = write_new_file(&path, |out| std::fs::write(&path, b"theirs").and(out.write_all(b"ours")));
        assert!(matches!(taken, Err(Error::Io { source, .. }) if source.kind() == ErrorKind::AlreadyExists));
        assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
        std::fs::remove_file(&path).unwrap();
        write_new_file(&path, |out| out.write_all(b"ours")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"ours");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_input_is_no_output() {
        let folder = tempfile::tempdir().unwrap();
        let (input, other) = (folder.path().join("input"), folder.path().join("other"));
        std::fs::write(&input, b"").unwrap();
        let inputs = [input.as_path()];
        check_apart(&other, inputs).unwrap();
        std::fs::write(&other, b"").unwrap();
        check_apart(&other, inputs).unwrap();
        for same in [input.clone(), folder.path().join("./input")] {
            let error = check_apart(&same, inputs).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("would be lost"), "{error}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("full");
        std::os::unix::fs::symlink("/dev/full", &link).unwrap();
        check_file(&link).unwrap();
        let error = write_file(&link, |out| out.write_all(b"x")).unwrap_err().to_string();
        assert!(error.contains("No space left"), "{error}");
        assert!(is_special(&link) && std::fs::read_dir(folder.path()).unwrap().count() == 1);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_link_to_an_open_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (File::create(folder.path().join("file")).unwrap(), folder.path().join("stdout"));
        let target = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        for refused in [check_file(&link), write_file(&link, |out| out.write_all(b"x"))] {
            assert!(matches!(&refused, Err(Error::Invalid { .. })), "{refused:?}");
        }
        assert_eq!(link.read_link().unwrap(), target);
    }

    #[test]
    fn a_place_is_checked_without_a_trace() {
        let folder = tempfile::tempdir().unwrap();
        check_file(&folder.path().join("file")).unwrap();
        assert!(matches!(check_file(folder.path()), Err(Error::Invalid { .. })));
        for (place, missing) in [("none/file", "none"), ("file/inside", "file")] {
            std::fs::write(folder.path().join("file"), b"").unwrap();
            let error = check_file(&folder.path().join(place)).unwrap_err();
            assert!(matches!(error, Error::Io { .. }) && error.to_string().contains("there is no folder"), "{error}");
            assert!(error.to_string().ends_with(missing) && !error.to_string().contains(".trifuse-"), "{error}");
            std::fs::remove_file(folder.path().join("file")).unwrap();
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        if cfg!(target_os = "linux") {
            let error = check_file(Path::new("/proc/file")).unwrap_err().to_string();
            assert!(!error.contains("there is no folder"), "{error}");
        }
    }

    #[test]
    fn a_folder_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let fill = |at: &Path| std::fs::write(at.join("x"), b"1").map_err(Error::io(at, "write"));
        let fails = write_folder(&path, |at| fill(at).and(Err(Error::input(at, "no"))));
        assert!(fails.is_err() && std::fs::read_dir(folder.path()).unwrap().next().is_none());
        write_folder(&path, fill).unwrap();
        assert_eq!(std::fs::read(path.join("x")).unwrap(), b"1");
        assert!(matches!(write_folder(&path, fill), Err(Error::Invalid { .. })));
        assert!(write_folder(&path.join("x"), fill).unwrap_err().to_string().contains("something else"));
        assert!(write_folder(&path.join("none/x"), fill).unwrap_err().to_string().contains("there is no folder"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_killed_run_left_behind_is_not_in_the_way() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        std::fs::create_dir_all(path.join(".trifuse-abcdef/one")).unwrap();
        let fill = |at: &Path| std::fs::write(at.join("x"), b"1").map_err(Error::io(at, "write"));
        write_folder(&path, fill).unwrap();
        assert!(path.join("x").is_file() && matches!(write_folder(&path, fill), Err(Error::Invalid { .. })));
        let file = File::open(path.join(".trifuse-abcdef")).unwrap();
        file.set_modified(std::time::SystemTime::now() - 2 * LEFT_BEHIND).unwrap();
        assert!(holds_something(std::fs::read_dir(&path).unwrap()));
        assert!(!path.join(".trifuse-abcdef").exists(), "what is a day old goes");
    }

    #[cfg(unix)]
    #[test]
    fn an_empty_folder_is_filled_and_not_replaced() {
        use std::os::unix::fs::{MetadataExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("out"), folder.path().join("link"));
        std::fs::create_dir(&path).unwrap();
        symlink(&path, &link).unwrap();
        let before = std::fs::metadata(&path).unwrap().ino();
        let fill = |at: &Path| ["x", "y"].iter().try_for_each(|name| std::fs::write(at.join(name), name)).map_err(Error::io(at, "write"));
        assert!(write_folder(&link, |at| fill(at).and(Err(Error::input(at, "no")))).is_err());
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
        write_folder(&link, fill).unwrap();
        assert_eq!((std::fs::metadata(&path).unwrap().ino(), link.read_link().unwrap()), (before, path.clone()));
        assert_eq!((std::fs::read(path.join("y")).unwrap(), std::fs::read_dir(&path).unwrap().count()), (b"y".to_vec(), 2));
        assert!(matches!(write_folder(&link, fill), Err(Error::Invalid { .. })));
    }

    #[test]
    fn what_cannot_be_moved_whole_is_not_moved_in_part() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        for place in [from.join("a"), from.join("b"), to.join("a/taken"), to.join("b/taken")] {
            std::fs::create_dir_all(place).unwrap();
        }
        std::fs::remove_dir_all(to.join("a")).unwrap();
        assert!(move_all(&from, &to).is_err());
        assert!(from.join("a").is_dir() && from.join("b").is_dir() && !to.join("a").exists());
    }

    #[test]
    fn a_folder_is_not_made_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        make_folder(&folder.path().join("a/b")).unwrap();
        make_folder(&folder.path().join("a/b")).unwrap();
        std::fs::write(folder.path().join("file"), b"").unwrap();
        for place in ["file", "file/below"] {
            let error = make_folder(&folder.path().join(place)).unwrap_err();
            assert!(matches!(error, Error::Io { .. }) && error.to_string().contains("a file is where"), "{error}");
        }
    }

    #[test]
    fn names_stay_below_their_folder() {
        for name in ["rust", "bible_kjv", "a b", "v1.2", "é"] {
            assert_eq!(check_name(name), Ok(()));
        }
        for name in
            ["", ".", "..", "../x", "a/b", "/a", "a\\b", "a/", "./a", "c:x", "a\0", "a\nb", ".hidden", "con", "NUL", "com1.txt", "a.", "a ", &"x".repeat(201)]
        {
            assert!(check_name(name).is_err(), "{name:?}");
        }
    }
}
