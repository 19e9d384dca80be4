//! The machine's description, as far as the system tells it.

use crate::device::{Caps, Kind};

/// The capabilities of the one device of this backend.
pub fn caps() -> Caps {
    let memory = read_field("/proc/meminfo", "MemTotal").and_then(|text| kibibytes(&text));
    let name = read_field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.into());
    let vectors = match pulp::Arch::new() {
        pulp::Arch::Scalar => "no vector instructions".into(),
        other => format!("{other:?}").chars().take_while(|&c| c.is_alphanumeric()).collect::<String>(),
    };
    Caps {
        name,
        driver: format!("{} {}, vectors: {vectors}", env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION")),
        kind: Kind::Cpu,
        memory_bytes: memory,
        // Where the system does not tell, the limit is what can be addressed. The allocator has the last word.
        max_buffer_bytes: memory.unwrap_or(isize::MAX as u64),
        multiprocessors: rayon::current_num_threads() as u32,
        shared_bytes: 0,
        f16: false,
        subgroup: None,
        cuda_arch: None,
        clock_hz: None,
        memory_bytes_per_second: None,
    }
}

/// The value of the first line `key : value` of a file.
fn read_field(path: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let (_, value) = text.lines().filter_map(|line| line.split_once(':')).find(|(name, _)| name.trim() == key)?;
    Some(value.trim().to_owned())
}

fn kibibytes(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
