//! What a run of a suite tells.

use serde::{Deserialize, Serialize};

use super::pattern::Pattern;
use super::rates::{Ceilings, Rates};
use super::sample::{Checked, Memory};
use super::shape::{Point, Suite};
use super::statistics::Statistics;
use super::timing::{Schedule, Times};
use trifuse::device::{Caps, Clock, Clocks};
use trifuse::ops::Cost;

/// A suite on one device.
#[derive(Clone, Debug, Serialize)]
pub struct SuiteReport {
    /// The suite.
    pub suite: Suite,
    /// The backend.
    pub backend: &'static str,
    /// The device.
    pub device: Caps,
    /// The program.
    pub environment: Environment,
    /// How it was timed.
    pub timing: Timing,
    /// The device's clocks after the ceilings were measured, while it copied; nothing where its driver does not tell.
    pub clocks: Option<Clocks>,
    /// What the device reaches.
    pub ceilings: Ceilings,
    /// Whether every shape was measured: a run that is interrupted tells what it has.
    pub complete: bool,
    /// How often, by the field names of the reference harness.
    pub config: Config,
    /// One entry a shape, in the suite's order.
    pub results: Vec<Entry>,
}

/// The program that measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Environment {
    /// The crate's version.
    pub version: String,
    /// The git revision that was built, or `unknown`.
    pub revision: String,
    /// Built with optimisation.
    pub optimised: bool,
    /// The profile that it was built with, where the build told it.
    #[serde(default)]
    pub profile: Option<String>,
    /// Operating system and processor.
    pub platform: String,
    /// The version of the compiler of the CUDA kernels, where this is the CUDA backend.
    pub nvrtc: Option<String>,
    /// The release of NVIDIA's driver, where its kernel module tells it; the device names the version of CUDA that it offers.
    #[serde(default)]
    pub driver_release: Option<String>,
    /// The name that Linux gives a machine each time it starts: reports that share it are of one machine.
    #[serde(default)]
    pub boot: Option<String>,
}

/// How often a suite ran, by the field names of the reference harness.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Config {
    /// Runs before the first that is timed.
    pub warmup_iterations: u32,
    /// Timed runs.
    pub benchmark_iterations: u32,
}

impl From<Schedule> for Config {
    fn from(schedule: Schedule) -> Self {
        Self { warmup_iterations: schedule.warmup, benchmark_iterations: schedule.iterations }
    }
}

/// How a suite was timed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Timing {
    /// How often.
    #[serde(flatten)]
    pub schedule: Schedule,
    /// Whose clock.
    pub clock: Clock,
    /// Bytes that are moved to empty the caches.
    pub flush_bytes: u64,
    /// Seconds that one such move takes.
    pub flush_seconds: f64,
    /// What operands are drawn from: seeded by the shape's name and type, so the same for every run.
    pub seed: &'static str,
}

/// One shape.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// The shape's name.
    pub name: String,
    /// The shape.
    #[serde(flatten)]
    pub point: Point,
    /// The blocks that are there, where not all are.
    pub pattern: Option<Pattern>,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The shape against the next aligned size, in the suite that is about them.
    pub aligned: Option<Aligned>,
}

/// A size against its aligned neighbour.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Aligned {
    /// The neighbour's name.
    pub neighbour: String,
    /// The time over the neighbour's, both with cold caches, in the middle: above 1 the odd size is slower, though it is
    /// less work.
    pub slowdown: f64,
    /// The time over the neighbour's, both with warm caches, in the middle.
    pub slowdown_warm: f64,
}

/// What came of a shape.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "status")]
pub enum Outcome {
    /// Right, and timed.
    Measured(Box<Measured>),
    /// Right, but the time cannot be true.
    Refused {
        /// What it would have been.
        why: String,
    },
    /// The answer is wrong; it was not timed.
    Wrong {
        /// Where the answer is wrong, and by how much.
        why: String,
    },
    /// This backend, or the variant that was asked for, does not do it.
    Unsupported {
        /// Each variant's reason.
        why: String,
    },
    /// The device failed, or has no room.
    Failed {
        /// The device's own words.
        why: String,
    },
}

/// A shape's times and rates.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The variant that ran.
    pub variant: &'static str,
    /// The configuration of it, where it has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// Launches of one run.
    pub launches: usize,
    /// Seconds of one launch: the cold median over their number.
    pub launch_seconds: f64,
    /// Seconds that the host took to put one launch into the queue, in the middle.
    pub launch_host_seconds: f64,
    /// What was compared before.
    pub checked: Checked,
    /// Work and least traffic of one run.
    pub cost: Cost,
    /// What adapters take, where there are any.
    pub memory: Option<Memory>,
    /// Launches of a layer, one by one; nothing for other shapes.
    pub parts: Option<Parts>,
    /// The cold times by the field names of the reference harness.
    #[serde(flatten)]
    pub milliseconds: Milliseconds,
    /// Times with other data in the caches.
    pub cold: Times,
    /// Times with the same work's data in the caches, as far as it fits.
    pub warm: Times,
    /// Rates of the median with cold caches.
    pub rates: Rates,
    /// What a reader must know.
    pub flags: Vec<Flag>,
}

/// A layer's launches, each timed by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    /// The medians of all of them with cold caches, together.
    pub cold_seconds: f64,
    /// The medians of all of them with warm caches, together.
    pub warm_seconds: f64,
    /// The launches, in the layer's order.
    pub each: Vec<Part>,
}

/// One launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// What it does in the layer.
    pub name: String,
    /// The operation.
    pub op: String,
    /// The variant that ran.
    pub variant: String,
    /// The configuration of it, where it has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    /// The median with cold caches.
    pub cold_seconds: f64,
    /// The median with warm ones.
    pub warm_seconds: f64,
    /// Work of this launch by itself: what is between two launches counts for both.
    pub cost: Cost,
    /// Rates of the cold median.
    pub rates: Rates,
}

/// Times in milliseconds, by the field names of the reference harness. Percentiles are by nearest rank and the standard
/// deviation is of the sample, as in [`Statistics`]; that harness interpolates, and divides by the number of times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "each is what it is called")]
pub struct Milliseconds {
    pub mean_ms: f64,
    pub median_ms: f64,
    pub std_ms: f64,
    pub min_ms: f64,
    pub max_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    /// Runs a second, of the mean.
    pub throughput_per_sec: f64,
    pub iterations: usize,
}

impl Milliseconds {
    /// Milliseconds of `times`, which are in seconds.
    pub fn of(times: &Statistics) -> Self {
        let [mean_ms, median_ms, std_ms, min_ms, max_ms, p95_ms, p99_ms] =
            [times.mean, times.median, times.std, times.min, times.max, times.p95, times.p99].map(|seconds| seconds * 1e3);
        Self { mean_ms, median_ms, std_ms, min_ms, max_ms, p95_ms, p99_ms, throughput_per_sec: 1.0 / times.mean, iterations: times.count }
    }
}

/// What makes a time less than it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Flag {
    /// Timed by the host's clock: putting the work into the queue is counted.
    HostClock,
    /// The host took longer to put the work into the queue than the device had other work.
    LaunchBound,
    /// The 95 % interval of the median is wider than a tenth of it.
    Noisy,
    /// Fewer runs than were asked for: the time ran out.
    Cut,
    /// More than a tenth above the ceilings of its own run: other work disturbed those, or a cache held what was counted as moved.
    AboveCeiling,
    /// The program was built without optimisation: host work is slow, and all of the `cpu` backend.
    NotOptimised,
}

impl Outcome {
    /// Whether it is as it should be: not doing a shape is legal, doing it wrong is not.
    pub fn sound(&self) -> bool {
        matches!(self, Self::Measured(_) | Self::Unsupported { .. })
    }

    /// Why there is no time, where there is none.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Measured(_) => None,
            Self::Refused { why } | Self::Wrong { why } | Self::Unsupported { why } | Self::Failed { why } => Some(why),
        }
    }
}

impl Environment {
    /// Environment of this program, on the named backend.
    pub fn here(backend: &str) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            revision: option_env!("TRIFUSE_REVISION").map_or_else(|| source_revision().unwrap_or_else(|| "unknown".into()), str::to_owned),
            optimised: !cfg!(debug_assertions) && env!("TRIFUSE_OPT_LEVEL") != "0",
            profile: option_env!("TRIFUSE_PROFILE").map(str::to_owned),
            platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            nvrtc: nvrtc(backend),
            driver_release: std::fs::read_to_string("/proc/driver/nvidia/version").ok().and_then(|text| driver_release(&text)),
            boot: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|text| text.trim().to_owned()),
        }
    }
}

/// The first word of the module's first line that is a version: numbers with dots between them.
fn driver_release(text: &str) -> Option<String> {
    let version = |word: &&str| word.contains('.') && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    text.lines().next()?.split_whitespace().find(version).map(str::to_owned)
}

#[cfg(feature = "cuda")]
fn nvrtc(backend: &str) -> Option<String> {
    let found = (backend == "cuda").then(trifuse::backends::cuda::nvrtc_version)?.ok()?;
    Some(format!("{}.{}", found.0, found.1))
}

#[cfg(not(feature = "cuda"))]
fn nvrtc(_: &str) -> Option<String> {
    None
}

/// The revision of the folder that this program was built from, where that is still there: what a build by hand has.
fn source_revision() -> Option<String> {
    let root = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let read = |path: &std::path::Path| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let link = root.join(".git");
    // A worktree has a file there, which names the folder.
    let folder = if link.is_dir() { link } else { root.join(read(&link)?.strip_prefix("gitdir: ")?) };
    let head = read(&folder.join("HEAD"))?;
    let Some(name) = head.strip_prefix("ref: ") else { return Some(head) };
    let common = read(&folder.join("commondir")).map_or_else(|| folder.clone(), |path| folder.join(path));
    let packed = || {
        let text = read(&common.join("packed-refs"))?;
        text.lines().find_map(|line| line.strip_suffix(name)?.strip_suffix(' ').map(str::to_owned))
    };
    read(&common.join(name)).or_else(packed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_tells_its_release() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: gcc version 12.2.0\n";
        assert_eq!(driver_release(text).as_deref(), Some("580.159.04"));
        assert_eq!(driver_release("NVRM version: x86.64 unknown\n"), None);
    }
}
