//! Nsight Compute, from outside: started on this program, its table read.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use trifuse::error::{Error, Result};

/// How to start this program again so that it does no more than [`launch`](super::launch).
#[derive(Clone, Debug)]
pub struct Relaunch {
    /// The program.
    pub program: PathBuf,
    /// Arguments of the program, after which the variant and the case follow as one, `variant/case`.
    pub arguments: Vec<OsString>,
}

/// What is counted of every kernel: sectors that SMs write to the L2, atomics and reductions there, sectors of
/// local memory, bytes written to DRAM.
pub const METRICS: [&str; 6] = [
    "lts__t_sectors_srcunit_tex_op_write.sum",
    "lts__t_sectors_op_atom.sum",
    "lts__t_sectors_op_red.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "dram__bytes_write.sum",
];

/// What became of profiling.
pub enum Profiled {
    Counted(Counted),
    /// The profiler runs, but not for this user or on this machine.
    Refused(String),
}

/// The metrics of every kernel that was launched.
#[derive(Debug, PartialEq)]
pub struct Counted(Vec<Vec<f64>>);

impl Counted {
    /// One row a kernel, its values in the order of [`METRICS`].
    #[cfg(test)]
    pub fn of(rows: Vec<Vec<f64>>) -> Self {
        Self(rows)
    }

    pub fn kernels(&self) -> usize {
        self.0.len()
    }

    /// Over all kernels; NaN for what is none of the metrics, or was not counted.
    pub fn sum(&self, metric: &str) -> f64 {
        let Some(column) = METRICS.iter().position(|name| *name == metric) else { return f64::NAN };
        self.0.iter().map(|row| row[column]).sum()
    }
}

/// The profiler on the PATH.
pub fn find() -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join("ncu")).find(|file| file.is_file())
}

/// Runs `what` under the profiler.
pub fn profile(profiler: &Path, relaunch: &Relaunch, what: &str) -> Result<Profiled> {
    let log = tempfile::NamedTempFile::new().map_err(Error::io("a temporary file", "create"))?;
    let output = Command::new(profiler)
        // Clocks are others' business, and counts do not depend on them.
        .args(["--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base", "--metrics"])
        .arg(METRICS.join(","))
        .arg("--log-file")
        .arg(log.path())
        .arg(&relaunch.program)
        .args(&relaunch.arguments)
        .arg(what)
        .output()
        .map_err(Error::io(profiler, "run"))?;
    let text = std::fs::read_to_string(log.path()).map_err(Error::io(log.path(), "read"))?;
    let errors = text.lines().filter(|line| line.starts_with("==ERROR==")).collect::<Vec<_>>().join(" ");
    // The profiler passes on the program's own failure, which is no fault of the profiler's.
    if errors.contains("returned an error code") {
        let own = String::from_utf8_lossy(&output.stderr);
        return Err(Error::device(format!("{what} under {}", profiler.display()), own.trim().to_owned()));
    }
    match parse(&text) {
        Some(counted) if counted.kernels() > 0 => Ok(Profiled::Counted(counted)),
        _ if errors.is_empty() => Ok(Profiled::Refused(format!("{}: it told of no kernel", output.status))),
        _ => Ok(Profiled::Refused(errors)),
    }
}

/// Reads the table: a line of names, a line of units, a line a kernel.
fn parse(text: &str) -> Option<Counted> {
    let mut lines = text.lines().filter(|line| line.starts_with('"')).map(fields);
    let head = lines.next()?;
    let columns: Vec<usize> = METRICS.iter().map(|metric| head.iter().position(|name| name == metric)).collect::<Option<_>>()?;
    let kernels = lines.skip(1).map(|row| {
        // Thousands are set apart by commas; what was not counted says so in letters.
        let value = |column: &usize| row.get(*column).and_then(|text| text.replace(',', "").parse().ok()).unwrap_or(f64::NAN);
        columns.iter().map(value).collect()
    });
    Some(Counted(kernels.collect()))
}

/// The fields of a line, each in quotes, a quote inside doubled.
fn fields(line: &str) -> Vec<String> {
    let mut all = Vec::new();
    let (mut field, mut inside) = (String::new(), false);
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' if inside && characters.peek() == Some(&'"') => {
                characters.next();
                field.push('"');
            }
            '"' => inside = !inside,
            ',' if !inside => all.push(std::mem::take(&mut field)),
            other => field.push(other),
        }
    }
    all.push(field);
    all
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn table(rows: &[&str]) -> String {
        let names: Vec<String> = METRICS.iter().rev().map(|metric| format!("\"{metric}\"")).collect();
        let mut lines = vec!["==PROF== Connected to process 7".to_owned(), format!("\"ID\",\"Kernel Name\",{}", names.join(","))];
        lines.push(r#""","","byte","sector","sector","sector","sector","sector""#.into());
        lines.extend(rows.iter().map(|row| row.to_string()));
        lines.join("\n")
    }

    #[test]
    fn the_table_is_read_by_the_names_of_its_columns() {
        let text = table(&[r#""0","run<a, ""b"">","131,072","0","0","0","1","4,096""#, r#""1","run","0","2","0","0","0","4""#]);
        let counted = parse(&text).unwrap();
        assert_eq!(counted.kernels(), 2);
        assert_eq!(METRICS.map(|metric| counted.sum(metric)), [4100.0, 1.0, 0.0, 0.0, 2.0, 131072.0]);
        assert!(counted.sum("another").is_nan());
    }

    #[test]
    fn what_was_not_counted_is_no_number() {
        assert!(parse(&table(&[r#""0","run","1","0","0","0","0","n/a""#])).unwrap().sum(METRICS[0]).is_nan());
        assert!(parse(&table(&[])).unwrap().kernels() == 0);
        assert!(parse("==ERROR== ERR_NVGPUCTRPERM").is_none());
        assert!(parse("\"ID\",\"Kernel Name\"\n").is_none(), "a metric that this profiler does not know");
    }
}
