//! A server that begins anew where its devices are lost.

use std::time::Duration;

use trifuse::{Error, Result};

/// What becomes of the process whose devices are all lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OnLoss {
    /// It ends with status 1, for whoever started it to start it again.
    Exit,
    /// It begins anew by itself.
    Reopen,
}

/// The least that a server has to have served for. Devices that are lost sooner are lost again, and whoever started it should know.
const LEAST: Duration = Duration::from_secs(60);

impl OnLoss {
    /// Refuses what this platform does not have.
    ///
    /// # Errors
    /// A process cannot begin anew here.
    pub fn check(self) -> Result<()> {
        if self == Self::Reopen && !cfg!(unix) { Err(Error::unsupported("--on-device-loss reopen", "a process cannot begin anew here")) } else { Ok(()) }
    }

    /// Whether a server that has served for so long begins anew.
    pub fn reopens(self, served: Duration) -> bool {
        self == Self::Reopen && served >= LEAST
    }
}

/// Begins this program anew with the same arguments, as the same process: a driver whose context is lost gives a process no other. It comes back only where
/// that fails.
#[cfg(unix)]
pub fn begin() -> Error {
    use std::os::unix::process::CommandExt as _;
    let anew = |error| Error::io("the server", "begin anew")(error);
    match std::env::current_exe() {
        Ok(program) => anew(std::process::Command::new(program).args(std::env::args_os().skip(1)).exec()),
        Err(error) => anew(error),
    }
}

/// Says that there is no such thing here.
#[cfg(not(unix))]
pub fn begin() -> Error {
    Error::unsupported("--on-device-loss reopen", "a process cannot begin anew here")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_lost_its_devices_at_once_ends() {
        assert!(OnLoss::Reopen.reopens(LEAST) && !OnLoss::Reopen.reopens(LEAST / 2));
        assert!(!OnLoss::Exit.reopens(LEAST));
    }
}
