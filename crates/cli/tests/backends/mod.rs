//! What the tests of whole models share: trials that are left out, and why.

use libtest_mimic::Trial;
use trifuse::backends::AnyDevice;
use trifuse::device::{Device, Kind};

/// Why a trial is left to real devices.
pub const SLOW: &str = "skipped: minutes on a software driver; TRIFUSE_ALL_ROWS=1 runs it";

/// Whether the device is a graphics driver written in software, where a trial takes up to a minute.
pub fn slow(device: &AnyDevice) -> bool {
    device.backend() == "wgpu" && device.caps().kind == Kind::Cpu && std::env::var_os("TRIFUSE_ALL_ROWS").is_none()
}

/// The most trials of which a software driver runs one.
const SHARE: usize = 16;

/// The trials of a device. Of those that [`slow`] tells of, as `TRIFUSE_SAMPLE` asks, every one in [`SHARE`] at most, from number `TRIFUSE_TURN` on; the
/// others show as ignored. `./check` draws by the revision, and `./check full` runs all.
pub fn in_turn(device: &AnyDevice, trials: Vec<Trial>) -> Vec<Trial> {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<usize>().ok());
    let share = setting("TRIFUSE_SAMPLE").unwrap_or(1).clamp(1, SHARE);
    let turn = setting("TRIFUSE_TURN").unwrap_or(0);
    let one = |(number, trial): (usize, Trial)| {
        let runs = !slow(device) || (number + turn).is_multiple_of(share);
        if runs { trial } else { ignored(format!("{} (another revision's turn on a software driver)", trial.name())) }.with_kind(device.backend())
    };
    trials.into_iter().enumerate().map(one).collect()
}

/// A trial that shows as ignored, with the reason in its name.
pub fn ignored(name: String) -> Trial {
    Trial::test(name, || Err("what it needs is not there".into())).with_ignored_flag(true)
}
