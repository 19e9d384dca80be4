//! One error type, split by whose fault it is: the caller's, the file's, the machine's or the driver's.

use std::path::{Path, PathBuf};

/// The result of every fallible function of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The cause that a driver or library gave, kept as [`std::error::Error::source`].
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Everything that can go wrong. Each message says what was expected and what was found. Where that is not plain, it says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The caller asked for something that has no meaning: a wrong shape, an index out of range.
    #[error("{subject}: expected {expected}, found {found}")]
    Invalid {
        /// The operation and operand, or the option.
        subject: String,
        /// The rule that was broken.
        expected: String,
        /// The value that broke it.
        found: String,
    },

    /// A legal request that this backend, on this machine, cannot serve. The reason has every variant's reason.
    #[error("{subject} is not supported: {reason}")]
    Unsupported {
        /// What was asked for.
        subject: String,
        /// Why not, for each way that was tried, and what to install where that would help.
        reason: String,
    },

    /// No backend of that name works on this machine.
    #[error("backend {name} is not available: {reason}")]
    NoBackend {
        /// The name asked for, as on the command line.
        name: String,
        /// Why not, and what to install.
        reason: String,
    },

    /// A file from outside holds something that this crate refuses.
    #[error("{}: {}{problem}", path.display(), item.as_deref().map(|name| format!("{name}: ")).unwrap_or_default())]
    Input {
        /// The file or folder.
        path: PathBuf,
        /// The tensor or key inside it.
        item: Option<String>,
        /// What was expected and what was found.
        problem: String,
    },

    /// A result misses what was asked for, so nothing was written.
    #[error("{subject}: asked for {asked}, reached {reached}")]
    Missed {
        /// The adapter and projection, or the file.
        subject: String,
        /// The requirement.
        asked: String,
        /// The best that could be had, and how to get closer.
        reached: String,
    },

    /// The operating system refused to read or write a file.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// `open`, `read`, `write` …
        action: &'static str,
        /// The system's own words.
        source: std::io::Error,
    },

    /// A kernel or shader did not compile: a fault of this crate or of the driver's compiler.
    #[error("{kernel} did not compile: {log}")]
    Compile {
        /// The kernel's variant.
        kernel: String,
        /// The compiler's log.
        log: String,
    },

    /// The device has no room; what was allocated before stays usable.
    #[error("out of memory{}{purpose}", if *requested == 0 { " for ".to_owned() } else { format!(": {requested} bytes asked for ") })]
    OutOfMemory {
        /// Bytes asked for; 0 where the driver does not tell.
        requested: u64,
        /// What they were for.
        purpose: String,
    },

    /// The driver reported a fault.
    #[error("the device failed during {during}: {source}")]
    Device {
        /// The call or launch that met it.
        during: String,
        /// The driver's own words.
        source: Cause,
    },
}

impl Error {
    /// The caller's mistake: `subject` should have been `expected` but was `found`.
    pub fn invalid(subject: impl Into<String>, expected: impl Into<String>, found: impl std::fmt::Display) -> Self {
        Self::Invalid { subject: subject.into(), expected: expected.into(), found: found.to_string() }
    }

    /// A legal request that cannot be served on this device.
    pub fn unsupported(subject: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Unsupported { subject: subject.into(), reason: reason.into() }
    }

    /// A fault in the file as a whole.
    pub fn input(path: impl AsRef<Path>, problem: impl Into<String>) -> Self {
        Self::Input { path: path.as_ref().into(), item: None, problem: problem.into() }
    }

    /// A fault in one tensor or key of a file.
    pub fn input_item(path: impl AsRef<Path>, item: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Input { path: path.as_ref().into(), item: Some(item.into()), problem: problem.into() }
    }

    /// The system's refusal to `action` the file at `path`, for use in `map_err`.
    pub fn io(path: impl AsRef<Path>, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |source| Self::Io { path, action, source }
    }

    /// A driver's fault, reported during `during`.
    pub fn device(during: impl Into<String>, source: impl Into<Cause>) -> Self {
        Self::Device { during: during.into(), source: source.into() }
    }

    /// The process exit status that the command line documents for this error.
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Missed { .. } | Self::Compile { .. } | Self::OutOfMemory { .. } | Self::Device { .. } => 1,
            Self::Invalid { .. } => 2,
            Self::Unsupported { .. } | Self::NoBackend { .. } => 3,
            Self::Input { .. } | Self::Io { .. } => 4,
        }
    }
}

/// Returns `Err(Error::Invalid)` unless `condition` holds. Checks run before every launch: pass `format_args!`, which is formatted only
/// where there is an error.
pub fn ensure(condition: bool, subject: impl std::fmt::Display, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> Result<()> {
    if condition { Ok(()) } else { Err(Error::invalid(subject.to_string(), expected.to_string(), found)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_is_not_put_into_words() {
        struct Dear;
        impl std::fmt::Display for Dear {
            fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                unreachable!("nobody asks")
            }
        }
        assert!(ensure(true, Dear, Dear, Dear).is_ok());
        let told = ensure(false, "rows", format_args!("at most {}", 3), 4).map_err(|error| error.to_string());
        assert_eq!(told, Err("rows: expected at most 3, found 4".into()));
    }
}
