//! What the tests of whole models share: trials that are left out, and why.

use libtest_mimic::Trial;
use trifuse::backend::Backend;
use trifuse::device::Kind;

/// Why a trial is left to real devices.
pub const SLOW: &str = "skipped: minutes on a software driver; TRIFUSE_ALL_ROWS=1 runs it";

/// Whether the device is a graphics driver written in software, where a trial takes up to a minute.
pub fn slow<D: Backend>(device: &D) -> bool {
    D::NAME == "wgpu" && device.caps().kind == Kind::Cpu && std::env::var_os("TRIFUSE_ALL_ROWS").is_none()
}

/// A trial that shows as ignored, with the reason in its name.
pub fn ignored(name: String) -> Trial {
    Trial::test(name, || Err("what it needs is not there".into())).with_ignored_flag(true)
}
