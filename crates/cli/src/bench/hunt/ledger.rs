//! The ledger of a hunt: a line of JSON for each measurement, which the next run continues.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::bench::shape::Point;
use trifuse::error::{Error, Result};
use trifuse::read::{is_there, read_file};

/// What every line says that it is.
pub const FORMAT: &str = "trifuse.hunt/1";
/// How every line begins: what was cut off in the middle of one is told by that from another file.
const BEGINS: &str = r#"{"ledger":"trifuse.hunt/1","#;
/// The longest ledger, in bytes: some hundred thousand lines.
const MAX_BYTES: u64 = 256 << 20;

/// What a time is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Against {
    /// The fastest of another program's.
    Peers,
    /// The fastest configuration of any variant.
    Configs,
}

/// Where a measurement belongs: what is to be compared has all of it in common, but for the revision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scope {
    /// The backend.
    pub backend: String,
    /// The device's name.
    pub device: String,
    /// The git revision that was built.
    pub revision: String,
    /// What the time is held against.
    pub against: Against,
}

/// What was drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drawn {
    /// What all shapes of it were drawn from.
    pub seed: u64,
    /// Which of them.
    pub number: u64,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// The format.
    pub ledger: String,
    /// The shape's name.
    pub name: String,
    /// Where it was measured.
    #[serde(flatten)]
    pub scope: Scope,
    /// The shape.
    #[serde(flatten)]
    pub point: Point,
    /// Which of the shapes that were drawn, where it is one.
    #[serde(default)]
    pub drawn: Option<Drawn>,
    /// The shape near whose sizes an edge was looked for, where it is for that.
    #[serde(default)]
    pub near: Option<String>,
    /// Seconds of ours: the median with cold caches.
    #[serde(default)]
    pub ours: Option<f64>,
    /// The variant of ours, and its configuration.
    #[serde(default)]
    pub variant: Option<String>,
    /// The fastest of what ours is held against.
    #[serde(default)]
    pub peer: Option<String>,
    /// Its seconds.
    #[serde(default)]
    pub theirs: Option<f64>,
    /// Ours over theirs: above 1 we lose.
    #[serde(default)]
    pub ratio: Option<f64>,
    /// Seconds of ours as the operation's cost and the device's ceilings foretell them.
    #[serde(default)]
    pub predicted: Option<f64>,
    /// Why there is no time, or nothing to hold it against.
    #[serde(default)]
    pub why: Option<String>,
    /// Whether that is a fault of ours, or a peer that failed; no shape has to be supported.
    #[serde(default)]
    pub fault: bool,
}

impl Line {
    /// A line of a shape without any time.
    pub fn of(point: Point, scope: Scope) -> Self {
        Self {
            ledger: FORMAT.into(),
            name: point.name(),
            scope,
            point,
            drawn: None,
            near: None,
            ours: None,
            variant: None,
            peer: None,
            theirs: None,
            ratio: None,
            predicted: None,
            why: None,
            fault: false,
        }
    }

    /// The measured time over the predicted one.
    pub fn off(&self) -> Option<f64> {
        Some(self.ours? / self.predicted?)
    }
}

/// All measurements, and the file that each new one is added to.
#[derive(Debug, Default)]
pub struct Ledger {
    file: Option<(PathBuf, File)>,
    lines: Vec<Line>,
    /// Whether the last line was cut off, and dropped.
    pub cut: bool,
}

impl Ledger {
    /// One in memory alone.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens a ledger to add to it, or begins one. A last line that was cut off in the middle is taken away.
    ///
    /// # Errors
    /// A file that cannot be read or written, or that is no ledger: it is left as it is.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = if is_there(path)? { read_file(path, MAX_BYTES)? } else { Vec::new() };
        let (mut ledger, keep) = Self::parse(path, &bytes)?;
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(Error::io(path, "write"))?;
        if ledger.cut {
            file.set_len(keep as u64).map_err(Error::io(path, "write"))?;
        }
        ledger.file = Some((path.into(), file));
        if bytes[..keep].last().is_some_and(|&last| last != b'\n') {
            ledger.write(b"\n")?;
        }
        Ok(ledger)
    }

    /// Reads a ledger, which is left as it is.
    ///
    /// # Errors
    /// A file that cannot be read, or that is no ledger.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(path, &read_file(path, MAX_BYTES)?).map(|(ledger, _)| ledger)
    }

    /// The lines, and how many bytes hold them: without a last line that was cut off.
    fn parse(path: &Path, bytes: &[u8]) -> Result<(Self, usize)> {
        let (mut ledger, mut keep) = (Self::new(), bytes.len());
        for (number, text) in bytes.split_inclusive(|&byte| byte == b'\n').enumerate() {
            let cut = text.last() != Some(&b'\n') && (text.starts_with(BEGINS.as_bytes()) || BEGINS.as_bytes().starts_with(text));
            match parsed(text) {
                Ok(line) => ledger.lines.push(line),
                // It is the last one.
                Err(_) if cut => (keep, ledger.cut) = (bytes.len() - text.len(), true),
                Err(why) => return Err(Error::input_item(path, format!("line {}", number + 1), why)),
            }
        }
        Ok((ledger, keep))
    }

    /// Every line, the oldest first.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Adds a line, in the file too.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn add(&mut self, line: Line) -> Result<()> {
        let mut text = serde_json::to_vec(&line).map_err(|error| Error::invalid("ledger", "values that JSON can hold", error))?;
        text.push(b'\n');
        self.write(&text)?;
        self.lines.push(line);
        Ok(())
    }

    /// In one piece, so that two runs of one ledger do not mix their lines.
    fn write(&mut self, text: &[u8]) -> Result<()> {
        match &mut self.file {
            Some((path, file)) => file.write_all(text).map_err(Error::io(&*path, "write")),
            None => Ok(()),
        }
    }
}

fn parsed(text: &[u8]) -> std::result::Result<Line, String> {
    let found = |why: &dyn std::fmt::Display| format!("expected a line of a ledger of `trifuse bench hunt` ({FORMAT}): {why}; name another file, or mend it");
    let line: Line = serde_json::from_slice(text).map_err(|error| found(&error))?;
    let times = [line.ours, line.theirs, line.ratio, line.predicted];
    if line.ledger != FORMAT {
        Err(found(&format!("found {:?}", line.ledger)))
    } else if let Some(odd) = times.into_iter().flatten().find(|time| !(time.is_finite() && *time > 0.0)) {
        Err(found(&format!("expected times above 0, found {odd:e}")))
    } else {
        Ok(line)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bench::regret::draw;
    use crate::bench::shape::Suite;
    use trifuse::DType;
    use trifuse::device::Kind;

    fn line(number: u64) -> Line {
        let scope = Scope { backend: "cpu".into(), device: "A \"processor\"".into(), revision: "abc".into(), against: Against::Configs };
        let point = draw::point([Suite::Linear, Suite::Attention, Suite::Adapters][number as usize % 3], DType::F32, Kind::Cpu, 1, number);
        Line { drawn: Some(Drawn { seed: 1, number }), ours: Some(0.125), ratio: Some(1.5), ..Line::of(point, scope) }
    }

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_ledger_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let mut ledger = Ledger::open(&path).unwrap();
        (0..9).for_each(|number| ledger.add(line(number)).unwrap());
        assert!(text(&path).lines().all(|text| text.starts_with(BEGINS)) && text(&path).lines().count() == 9);
        let mut again = Ledger::open(&path).unwrap();
        assert_eq!((again.lines(), again.cut), (ledger.lines(), false));
        again.add(line(9)).unwrap();
        assert_eq!(Ledger::open(&path).unwrap().lines().len(), 10);
    }

    #[test]
    fn a_line_that_was_cut_off_anywhere_is_dropped_and_the_rest_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger.jsonl");
        let mut ledger = Ledger::open(&path).unwrap();
        (0..2).for_each(|number| ledger.add(line(number)).unwrap());
        let whole = text(&path);
        let first = whole.find('\n').unwrap() + 1;
        for end in first..whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            let mut ledger = Ledger::open(&path).unwrap();
            // A line that lacks no more than its end is whole.
            let expected = if end == whole.len() - 1 { 2 } else { 1 };
            assert_eq!((ledger.lines().len(), ledger.cut), (expected, expected == 1 && end > first), "{end}");
            ledger.add(line(5)).unwrap();
            assert_eq!(Ledger::open(&path).unwrap().lines().len(), expected + 1, "{end}");
        }
    }

    #[test]
    fn another_file_is_refused_and_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("other");
        let written = serde_json::to_string(&line(0)).unwrap();
        for other in
            ["Dear diary", "{}\n", "{}", "{\"ledger\":\"trifuse.hunt/2\"", &format!("{written}\nand more\n"), &(written.replace("0.125", "-1.0") + "\n")]
        {
            std::fs::write(&path, other).unwrap();
            let refused = Ledger::open(&path).unwrap_err().to_string();
            assert!(refused.contains("line ") && refused.contains("expected a line of a ledger"), "{refused}");
            assert_eq!(text(&path), *other);
        }
    }
}
