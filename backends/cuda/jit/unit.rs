//! Run-time compilation of CUDA C++: NVRTC, with all headers in memory, to CUBIN for one architecture.
//!
//! PTX is not an option. NVRTC passes inline PTX through unchecked, and PTX of a newer toolkit does not load on an older driver.

use std::ffi::{CString, c_char, c_int};
use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::nvrtc::sys::{self, nvrtcProgram, nvrtcResult};

use super::built::{Built, hash};
use super::resources::Resources;
use super::sources::{Follow, Source, included};
use crate::error::{Error, Result};

/// The environment variable that, set to 1, keeps source lines in kernels, for a profiler.
pub const KERNEL_LINES: &str = "TRIFUSE_KERNEL_LINES";

/// The environment variable that, set to 1, makes waits in kernels end with a trap rather than hang the device.
pub const KERNEL_DEBUG: &str = "TRIFUSE_KERNEL_DEBUG";

/// The architecture that code is compiled for, by its compute capability, major × 10 + minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arch(pub u32);

impl Arch {
    /// The architectures that every variant is checked on.
    pub const CHECKED: [Self; 4] = [Self(80), Self(86), Self(89), Self(90)];

    /// The architecture that code for this one is compiled for.
    ///
    /// Machine code runs on later minor revisions of its compute capability as well (CUDA C++ Programming Guide, "Binary Compatibility"), and the
    /// compiler makes the same of every kernel for 8.6 and for 8.9 (lab/compile-units.md).
    pub fn compiled(self) -> Self {
        if self == Self(89) { Self(86) } else { self }
    }

    /// Shared memory that one block may use, in bytes, where that is known.
    pub fn shared_bytes(self) -> Option<u32> {
        match self.0 {
            80 | 87 => Some(163 << 10),
            86 | 89 | 120 => Some(99 << 10),
            90 | 100 | 103 => Some(227 << 10),
            _ => None,
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // wgmma and the rest of Hopper's own instructions exist only with the suffix.
        write!(f, "sm_{}{}", self.0, if self.0 == 90 { "a" } else { "" })
    }
}

impl FromStr for Arch {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = text.strip_prefix("sm_").unwrap_or(text);
        let number = digits.strip_suffix('a').unwrap_or(digits).parse().ok().filter(|number| (80..1000).contains(number));
        number.map(Self).ok_or_else(|| Error::invalid("arch", "an architecture from sm_80 on, as sm_90a", format!("{text:?}")))
    }
}

/// Everything that one compilation depends on.
#[derive(Clone, Debug)]
pub struct Unit {
    /// The unit's name in errors and listings.
    pub name: String,
    /// The source under `kernels/`.
    pub source: Source,
    /// Headers that the host writes: the structs of parameters.
    pub headers: Vec<(&'static str, String)>,
    /// Constants: the tile configuration and the dtype.
    pub defines: Vec<(&'static str, String)>,
    /// The entry points of the unit.
    pub entries: &'static [&'static str],
    /// The most dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Units of other kernels that the same plans launch: a fallback, a repack, a kernel that makes lists.
    pub also: Vec<Unit>,
}

impl Unit {
    /// A unit of a source alone, with nothing else set.
    pub fn new(name: impl Into<String>, source: Source) -> Self {
        Self { name: name.into(), source, headers: Vec::new(), defines: Vec::new(), entries: &[], shared_bytes: 0, also: Vec::new() }
    }

    /// This unit, and those beside it, at any depth.
    pub fn all(&self) -> Vec<&Self> {
        std::iter::once(self).chain(self.also.iter().flat_map(Self::all)).collect()
    }

    fn options(&self, arch: Arch) -> Vec<String> {
        static SWITCHES: OnceLock<[bool; 2]> = OnceLock::new();
        let [lines, debug] = *SWITCHES.get_or_init(|| [KERNEL_LINES, KERNEL_DEBUG].map(|name| std::env::var_os(name).is_some_and(|value| value == "1")));
        let mut options = vec![format!("--gpu-architecture={}", arch.compiled()), "--std=c++17".into(), "--ptxas-options=-v".into()];
        options.extend(lines.then(|| "--generate-line-info".into()));
        options.extend(self.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        options.extend(debug.then(|| "-DTRIFUSE_DEBUG=1".into()));
        options
    }

    /// The hash of everything that the machine code depends on except the compiler: the source, the headers that it includes, the options.
    pub fn hash(&self, arch: Arch) -> String {
        let (all, options) = (included(&self.source, &self.headers, Follow::All), self.options(arch));
        let headers = all.headers.iter().flat_map(|header| [header.name.as_bytes(), &header.digest]);
        let source = [self.source.path.as_bytes(), &all.digest];
        hash(source.into_iter().chain(headers).chain(options.iter().map(String::as_bytes)))
    }

    /// Compiles the unit, whatever the cache holds. `version` is NVRTC's, and proves that NVRTC is there.
    pub fn compile(&self, arch: Arch, version: (i32, i32)) -> Result<Built> {
        let failed = |log: String| Error::Compile { kernel: format!("{} for {arch}", self.name), log };
        if let Some((name, by)) = included(&self.source, &self.headers, Follow::Certain).missing.first() {
            let found = "neither a file of kernels/ nor a header that the host writes";
            return Err(failed(format!("{by} includes {name}, which is {found}; includes are quoted, by their path from kernels/")));
        }
        let (major, minor) = version;
        if !supported().contains(&(arch.compiled().0 as i32)) {
            return Err(failed(format!("NVRTC {major}.{minor} does not know this architecture; install a newer NVRTC")));
        }
        let all = included(&self.source, &self.headers, Follow::All);
        let text = |text: &str| CString::new(text).map_err(|_| failed("a source holds a zero byte".into()));
        let (source, path) = (text(self.source.text)?, text(self.source.path)?);
        let headers = all.headers.iter().map(|header| Ok((text(header.name)?, text(header.text)?))).collect::<Result<Vec<_>>>()?;
        let options = self.options(arch).iter().map(|option| text(option)).collect::<Result<Vec<_>>>()?;
        let names: Vec<*const c_char> = headers.iter().map(|(name, _)| name.as_ptr()).collect();
        let bodies: Vec<*const c_char> = headers.iter().map(|(_, body)| body.as_ptr()).collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();

        let mut program = Program(std::ptr::null_mut());
        // SAFETY: NVRTC is there; every pointer is to a terminated text that outlives the program.
        let created = unsafe { sys::nvrtcCreateProgram(&mut program.0, source.as_ptr(), path.as_ptr(), names.len() as c_int, bodies.as_ptr(), names.as_ptr()) };
        if created != nvrtcResult::NVRTC_SUCCESS {
            return Err(failed(format!("NVRTC {major}.{minor}: {created:?}")));
        }
        COMPILED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the program was created; the options are terminated texts.
        let status = unsafe { sys::nvrtcCompileProgram(program.0, options.len() as c_int, options.as_ptr()) };
        let log = program.log();
        if status != nvrtcResult::NVRTC_SUCCESS {
            return Err(failed(format!("NVRTC {major}.{minor}: {status:?}\n{log}")));
        }
        let cubin = program.cubin().ok_or_else(|| failed(format!("NVRTC {major}.{minor} gave no machine code\n{log}")))?;
        Ok(Built { cubin, log })
    }
}

/// The count of compilations in this process.
static COMPILED: AtomicUsize = AtomicUsize::new(0);

/// How many units this process has compiled, with or without success.
pub fn compilations() -> usize {
    COMPILED.load(Ordering::Relaxed)
}

/// The architectures that NVRTC knows. NVRTC must be there.
fn supported() -> Vec<c_int> {
    let mut count = 0;
    // SAFETY: stores one number.
    if unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) } != nvrtcResult::NVRTC_SUCCESS {
        return Vec::new();
    }
    let mut list = vec![0; count.max(0) as usize];
    // SAFETY: the list has room for as many as were counted.
    if unsafe { sys::nvrtcGetSupportedArchs(list.as_mut_ptr()) } != nvrtcResult::NVRTC_SUCCESS {
        return Vec::new();
    }
    list
}

/// The resources of each kernel of a compiled unit.
pub fn resources(built: &Built) -> Vec<Resources> {
    Resources::parse(&built.log)
}

struct Program(nvrtcProgram);

impl Program {
    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program was created; stores one number.
        if unsafe { sys::nvrtcGetProgramLogSize(self.0, &mut size) } != nvrtcResult::NVRTC_SUCCESS {
            return String::new();
        }
        let mut log = vec![0u8; size];
        // SAFETY: the log has room for the size that was told.
        unsafe { sys::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast()) };
        String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned()
    }

    fn cubin(&self) -> Option<Vec<u8>> {
        let mut size = 0;
        // SAFETY: the program was compiled; stores one number.
        let told = unsafe { sys::nvrtcGetCUBINSize(self.0, &mut size) };
        let mut cubin = vec![0u8; size];
        // SAFETY: room for the size that was told.
        let got = unsafe { sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()) };
        (told == nvrtcResult::NVRTC_SUCCESS && got == nvrtcResult::NVRTC_SUCCESS && size > 0).then_some(cubin)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: created once, destroyed once.
            unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_read_and_written_as_nvrtc_names_them() {
        for (text, name) in [("sm_80", "sm_80"), ("90", "sm_90a"), ("90a", "sm_90a"), ("sm_90a", "sm_90a"), ("120", "sm_120")] {
            assert_eq!(text.parse::<Arch>().unwrap().to_string(), name);
        }
        for text in ["", "sm_", "75", "compute_80", "sm_90b"] {
            assert!(text.parse::<Arch>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_hash_depends_on_everything_that_is_compiled() {
        let unit = |defines: &str, params: &str, unused: &str| Unit {
            headers: vec![("params.cuh", params.to_owned()), ("unused.cuh", unused.to_owned())],
            defines: vec![("TILE", defines.to_owned())],
            ..Unit::new("probe", Source { path: "probe.cu", text: "#include \"params.cuh\"" })
        };
        let one = unit("1", "struct P {};", "").hash(Arch(80));
        assert_eq!(one, unit("1", "struct P {};", "").hash(Arch(80)));
        assert_ne!(one, unit("2", "struct P {};", "").hash(Arch(80)));
        assert_ne!(one, unit("1", "struct Q {};", "").hash(Arch(80)));
        assert_ne!(one, unit("1", "struct P {};", "").hash(Arch(90)));
        assert_eq!(one, unit("1", "struct P {};", "struct U {};").hash(Arch(80)), "a header that nothing includes");
    }

    #[test]
    fn an_include_that_leads_nowhere_is_named() {
        let unit = Unit::new("probe", Source { path: "probe.cu", text: "#include \"ptx/none.cuh\"" });
        let error = unit.compile(Arch(80), (13, 0)).unwrap_err();
        assert!(matches!(&error, Error::Compile { log, .. } if log.contains("probe.cu includes ptx/none.cuh")), "{error}");
    }
}
