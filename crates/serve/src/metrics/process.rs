//! What the process takes of the machine, by the names that monitoring has for it everywhere.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Ticks of a second in which Linux tells the time of its processors, on every architecture.
const TICKS: f64 = 100.0;

/// The process, as Linux knows it; elsewhere it tells the cores alone.
#[derive(Debug)]
pub struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default();
        if let Some(seconds) = cpu_seconds(&read("stat")) {
            let seconds = ConstCounter::new(seconds);
            let help = "Time of processors that the process has taken, of the system and its own";
            let metric = encoder.encode_descriptor("process_cpu_seconds", help, None, seconds.metric_type())?;
            seconds.encode(metric)?;
        }
        let open = std::fs::read_dir("/proc/self/fd").ok().and_then(|entries| i64::try_from(entries.count()).ok());
        let cores = std::thread::available_parallelism().ok().and_then(|cores| i64::try_from(cores.get()).ok());
        let gauges = [
            ("process_resident_memory_bytes", "Memory of the process that lies in the machine's", resident_bytes(&read("status"))),
            ("process_open_fds", "Descriptors that are open", open),
            ("trifuse_cores", "Cores that the process may use", cores),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value else { continue };
            let gauge = ConstGauge::new(value);
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        Ok(())
    }
}

/// The time of processors that a process has taken, in seconds, by its `/proc/PID/stat` of Linux; `None` where that is something else.
pub fn cpu_seconds(stat: &str) -> Option<f64> {
    // The second field is the program's name, which may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    let (own, system) = (times.next()?.ok()?, times.next()?.ok()?);
    Some((own + system) as f64 / TICKS)
}

/// The memory in `/proc/PID/status`.
fn resident_bytes(status: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<i64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linux_tells_is_read_and_all_else_is_nothing() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 150 9 9 20 0 4 0 100 1000 10";
        assert_eq!(cpu_seconds(stat), Some(4.0));
        assert_eq!(["", "7 (a) S 1 2", "7 (a) S 1 7 7 0 -1 4194560 100 0 0 0 x 150"].map(cpu_seconds), [None; 3]);
        assert_eq!(resident_bytes("VmPeak:\t9 kB\nVmRSS:\t    12 kB\n"), Some(12 << 10));
        assert_eq!(["", "VmRSS:", "VmRSS: x kB"].map(resident_bytes), [None; 3]);
    }
}
