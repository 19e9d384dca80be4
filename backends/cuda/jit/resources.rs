//! The resources of a compiled kernel, read from the assembler's log.

use serde::Serialize;

/// The resources of one kernel of a compiled unit, as `ptxas -v` tells them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resources {
    /// The entry function.
    pub entry: String,
    /// Registers a thread.
    pub registers: u32,
    /// Static shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Local memory of a thread (its stack frame), in bytes. It lies in device memory.
    pub local_bytes: u32,
    /// Bytes stored and loaded to spill registers.
    pub spill_bytes: u32,
}

impl Resources {
    /// The resources of each entry function in the log.
    pub fn parse(log: &str) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        // A function that was not inlined has properties too; they count for the entry that was named last.
        for line in log.lines() {
            if let Some(rest) = line.split_once("Compiling entry function '").map(|(_, rest)| rest) {
                let entry = rest.split('\'').next().unwrap_or_default().to_owned();
                all.push(Self { entry, ..Self::default() });
            }
            let Some(last) = all.last_mut() else { continue };
            let before = |unit: &str| line.split_once(unit).and_then(|(head, _)| head.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
            let number = |unit: &str| before(unit).unwrap_or(0);
            last.registers = last.registers.max(number(" registers"));
            last.shared_bytes = last.shared_bytes.max(number(" bytes smem"));
            last.local_bytes = last.local_bytes.max(number(" bytes stack frame")).max(number(" bytes lmem")).max(number(" bytes cumulative stack size"));
            last.spill_bytes += number(" bytes spill stores") + number(" bytes spill loads");
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_two_kernels_is_read() {
        let log = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'one' for 'sm_90a'\n\
            ptxas info    : Function properties for one\n\
            \x20   0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
            ptxas info    : Used 104 registers, used 1 barriers, 1024 bytes smem\n\
            ptxas info    : Compiling entry function 'two' for 'sm_90a'\n\
            ptxas info    : Function properties for two\n\
            \x20   16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
            ptxas info    : Used 255 registers, used 0 barriers, 16 bytes cumulative stack size\n";
        let one = Resources { entry: "one".into(), registers: 104, shared_bytes: 1024, ..Resources::default() };
        let two = Resources { entry: "two".into(), registers: 255, local_bytes: 16, spill_bytes: 20, ..Resources::default() };
        assert_eq!(Resources::parse(log), [one, two]);
        assert_eq!(Resources::parse(""), []);
    }
}
