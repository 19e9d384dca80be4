//! The backends: the only list of them, and how to find and open one.

mod any;
#[cfg(feature = "cpu")]
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "wgpu")]
pub mod wgpu;

pub use any::{AnyBuffer, AnyDevice, AnyPart, AnyPlan};

use crate::backend::Backend;
use crate::device::{Caps, Kind};
use crate::error::{Error, Result};

/// Work that is generic over the backend it runs on.
pub trait Visit {
    /// The result of the work.
    type Out;
    /// Does the work on `backend`.
    fn visit<B: Backend>(self, backend: B) -> Result<Self::Out>;
}

/// What a search found of one backend of this build: its devices, or why it has none.
#[derive(Debug)]
pub struct Found {
    /// The backend's name.
    pub backend: &'static str,
    /// The backend's devices, best first, or what is missing and what to install.
    pub devices: Result<Vec<Caps>>,
}

macro_rules! backends {
    ($($name:literal if $feature:literal => $backend:path;)*) => {
        /// The names of every backend of the crate, best first, with those that this build leaves out.
        pub const NAMES: &[&str] = &[$($name),*];

        /// Looks for the devices of every backend.
        pub fn find() -> Vec<Found> {
            vec![$(
                Found {
                    backend: $name,
                    #[cfg(feature = $feature)]
                    devices: <$backend as crate::device::Open>::list(),
                    #[cfg(not(feature = $feature))]
                    devices: Err(left_out($name, $feature)),
                },
            )*]
        }

        #[allow(unused_variables, reason = "unused where no backend is built in")]
        fn open_named<V: Visit>(name: &str, index: usize, work: V) -> Result<V::Out> {
            match name {
                $(
                    #[cfg(feature = $feature)]
                    $name => work.visit(<$backend as crate::device::Open>::open(index)?),
                    #[cfg(not(feature = $feature))]
                    $name => Err(left_out($name, $feature)),
                )*
                _ => Err(unknown(name)),
            }
        }
    };
}

backends! {
    "cuda" if "cuda" => cuda::Cuda;
    "wgpu" if "wgpu" => wgpu::Wgpu;
    "cpu" if "cpu" => cpu::Cpu;
}

#[allow(dead_code, reason = "unused only where every backend is built in")]
fn left_out(name: &str, feature: &str) -> Error {
    Error::NoBackend { name: name.into(), reason: format!("this build leaves it out; build with --features {feature}") }
}

fn unknown(text: &str) -> Error {
    Error::invalid("backend", format!("auto, {}, or one device of these by its number, as wgpu:1", NAMES.join(", ")), format!("{text:?}"))
}

/// A choice of backend and device, as on the command line: `auto`, `cpu`, `wgpu`, `wgpu:1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The best device that works; see [`Choice::resolve`].
    Auto,
    /// A backend by its name, and the number of its device.
    Named(&'static str, usize),
}

impl std::str::FromStr for Choice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let (name, index) = text.split_once(':').unwrap_or((text, "0"));
        let bad = || unknown(text);
        let name = NAMES.iter().find(|known| **known == name).ok_or_else(bad)?;
        Ok(Self::Named(name, index.parse().map_err(|_| bad())?))
    }
}

impl Choice {
    /// The backend and device that this choice means on this machine, and why. `Auto` takes the first backend with a GPU, else `cpu`. It
    /// never takes a GPU driver written in software, since `cpu` is faster.
    pub fn resolve(&self) -> Result<(&'static str, usize, String)> {
        let found = match self {
            Self::Named(name, index) => return Ok((name, *index, "as asked".into())),
            Self::Auto => find(),
        };
        let mut passed = Vec::new();
        for Found { backend, devices } in found {
            match devices {
                Ok(devices) => {
                    let best = devices.iter().position(|caps| caps.kind != Kind::Cpu || backend == "cpu");
                    if let Some(index) = best {
                        let why = if passed.is_empty() { "the fastest there is".into() } else { format!("the best that works ({})", passed.join("; ")) };
                        return Ok((backend, index, why));
                    }
                    passed.push(format!("{backend}: only a software driver"));
                }
                Err(Error::NoBackend { reason, .. }) => passed.push(format!("{backend}: {reason}")),
                Err(error) => passed.push(format!("{backend}: {error}")),
            }
        }
        Err(Error::NoBackend { name: "auto".into(), reason: passed.join("; ") })
    }

    /// Opens the device as an [`AnyDevice`], whose type says nothing of its backend.
    ///
    /// # Errors
    /// The errors of [`resolve`](Self::resolve) and of opening the device.
    pub fn open_any(&self) -> Result<AnyDevice> {
        struct Stand;
        impl Visit for Stand {
            type Out = AnyDevice;

            fn visit<B: Backend>(self, backend: B) -> Result<AnyDevice> {
                Ok(AnyDevice::new(backend))
            }
        }
        self.open(Stand)
    }

    /// Opens the device and does `work` on it.
    pub fn open<V: Visit>(&self, work: V) -> Result<V::Out> {
        let (name, index, _) = self.resolve()?;
        open_named(name, index, work)
    }
}
