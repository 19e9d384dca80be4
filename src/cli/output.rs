//! What a command prints: the result on standard output, for people or as one JSON object; all else on standard error.

use std::fmt::{self, Display, Write as _};
use std::io::{ErrorKind, IsTerminal, Write};

use comfy_table::{ContentArrangement, Table, TableComponent, presets};
use serde::Serialize;
use trifuse::{Error, Result};

/// Raised when a field of a JSON object changes its meaning or goes; new fields do not raise it.
pub const SCHEMA_VERSION: u32 = 1;

/// When to colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl Color {
    /// Whether to colour a stream.
    fn on(self, terminal: bool) -> bool {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        match self {
            Self::Auto => terminal && !set("NO_COLOR") && !dumb,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// What a word means, and so its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// As it should be.
    Good,
    /// Worth a look.
    Warning,
    /// Wrong.
    Bad,
    /// Of less weight than the rest.
    Faint,
    /// A heading.
    Strong,
}

impl Tone {
    fn code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Warning => "33",
            Self::Bad => "31",
            Self::Faint => "2",
            Self::Strong => "1",
        }
    }
}

/// A command's result: serialised for programs, written out for people.
pub trait Report: Serialize {
    /// Writes the page that a person reads.
    fn page(&self, page: &mut Page) -> fmt::Result;
}

/// Where a command's words go.
#[derive(Debug)]
pub struct Output {
    command: &'static str,
    json: bool,
    quiet: bool,
    color: bool,
    color_errors: bool,
}

/// The one object on standard output.
#[derive(Serialize)]
struct Envelope<'a, T: Serialize> {
    schema_version: u32,
    command: &'a str,
    #[serde(flatten)]
    report: T,
}

/// What the object holds where the command failed.
#[derive(Serialize)]
struct Failure {
    error: Reason,
}

#[derive(Serialize)]
struct Reason {
    exit_status: u8,
    message: String,
}

impl Output {
    /// The words of one run of `command`.
    pub fn new(command: &'static str, json: bool, quiet: bool, color: Color) -> Self {
        let color_errors = color.on(std::io::stderr().is_terminal());
        Self { command, json, quiet, color: color.on(std::io::stdout().is_terminal()), color_errors }
    }

    /// Whether the result is one JSON object.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Whether progress is drawn: not into a file, not when told to be quiet.
    pub fn shows_progress(&self) -> bool {
        !self.quiet && std::io::stderr().is_terminal()
    }

    /// Prints the result.
    pub fn report<R: Report>(&self, report: &R) -> Result<()> {
        if self.json {
            return self.object(report);
        }
        let mut page = Page { text: String::new(), color: self.color };
        report.page(&mut page).map_err(|_| Error::invalid("report", "a page that can be written out", "a value that cannot"))?;
        self.raw(page.text.as_bytes())
    }

    fn object<T: Serialize>(&self, report: T) -> Result<()> {
        let envelope = Envelope { schema_version: SCHEMA_VERSION, command: self.command, report };
        let mut text = serde_json::to_vec_pretty(&envelope).map_err(|error| Error::invalid("report", "values that JSON can hold", error))?;
        text.push(b'\n');
        self.raw(&text)
    }

    /// Writes to standard output. A reader that went away (`| head`) is no fault.
    pub fn raw(&self, bytes: &[u8]) -> Result<()> {
        let mut out = std::io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Error::io("standard output", "write")(error)),
            _ => Ok(()),
        }
    }

    /// Says something beside the result, on standard error.
    pub fn note(&self, text: impl Display) {
        if !self.quiet {
            // A closed standard error is no reason to stop.
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    /// Says what went wrong, with its causes, on standard error; with `--json` also as the object.
    pub fn error(&self, error: &Error) {
        let (on, off) = if self.color_errors { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
        let _ = writeln!(std::io::stderr(), "{on}error:{off} {error}");
        if self.json {
            let reason = Reason { exit_status: error.exit_status(), message: error.to_string() };
            // Nothing is left to tell a failure to.
            let _ = self.object(Failure { error: reason });
        }
    }
}

/// The page that a person reads.
#[derive(Debug)]
pub struct Page {
    text: String,
    color: bool,
}

impl Page {
    /// Adds a line.
    pub fn line(&mut self, text: impl Display) -> fmt::Result {
        writeln!(self.text, "{text}")
    }

    /// `text` in the colour of its meaning.
    pub fn tone(&self, tone: Tone, text: impl Display) -> String {
        if self.color { format!("\x1b[{}m{text}\x1b[0m", tone.code()) } else { text.to_string() }
    }

    /// Adds a table. The columns named in `numbers` are set to the right.
    pub fn table(&mut self, head: &[&str], numbers: &[usize], rows: impl IntoIterator<Item = Vec<String>>) -> fmt::Result {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        // One line, below the head: rows stand close enough to be compared.
        for line in [TableComponent::HeaderLines, TableComponent::MiddleHeaderIntersections] {
            table.set_style(line, '─');
        }
        table.set_header(head.iter().map(|name| self.tone(Tone::Strong, name)));
        table.add_rows(rows);
        for column in numbers {
            if let Some(column) = table.column_mut(*column) {
                column.set_cell_alignment(comfy_table::CellAlignment::Right);
            }
        }
        for line in table.lines() {
            writeln!(self.text, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Bytes in the unit that reads best, powers of 1024.
pub fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(5 << 40), "5.0 TiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn colour_only_where_asked() {
        assert!(!Color::Auto.on(false));
        assert!(Color::Always.on(false));
        assert!(!Color::Never.on(true));
    }
}
