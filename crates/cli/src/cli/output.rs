//! What a command prints: the result on standard output, for people or as one JSON object; all else on standard error.

use std::fmt::{self, Display, Write as _};
use std::io::{ErrorKind, IsTerminal, Write};

use super::escape::{escaped, escaped_line};
use comfy_table::{Attribute, Cell, CellAlignment, ColumnConstraint, ContentArrangement, Table, TableComponent, Width, presets};
use serde::Serialize;
use trifuse::{Error, Result};
use trifuse_cli::bench::stored::SCHEMA_VERSION;

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
    /// What is as it should be.
    Good,
    /// Worth a look.
    Warning,
    /// Wrong.
    Bad,
    /// What has less weight than the rest.
    Faint,
    /// A heading.
    Strong,
}

impl Tone {
    const ALL: [Self; 5] = [Self::Good, Self::Warning, Self::Bad, Self::Faint, Self::Strong];

    fn code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Warning => "33",
            Self::Bad => "31",
            Self::Faint => "2",
            Self::Strong => "1",
        }
    }

    /// The text between the codes that [`Page::tone`] puts around it.
    fn stripped(self, text: &str) -> Option<&str> {
        text.strip_prefix("\x1b[")?.strip_prefix(self.code())?.strip_prefix('m')?.strip_suffix("\x1b[0m")
    }

    fn cell(self, text: &str) -> Cell {
        let cell = Cell::new(text);
        match self {
            Self::Good => cell.fg(comfy_table::Color::DarkGreen),
            Self::Warning => cell.fg(comfy_table::Color::DarkYellow),
            Self::Bad => cell.fg(comfy_table::Color::DarkRed),
            Self::Faint => cell.add_attribute(Attribute::Dim),
            Self::Strong => cell.add_attribute(Attribute::Bold),
        }
    }
}

/// A cell of a table, in the colour of its text. The table measures what it shows: codes among the letters would count as letters.
fn cell(text: &str) -> Cell {
    Tone::ALL.into_iter().find_map(|tone| Some(tone.cell(tone.stripped(text)?))).unwrap_or_else(|| Cell::new(text))
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
        self.raw(page.text().as_bytes())
    }

    fn object<T: Serialize>(&self, report: T) -> Result<()> {
        self.raw(&self.text(report)?)
    }

    /// The object as text.
    fn text<T: Serialize>(&self, report: T) -> Result<Vec<u8>> {
        let envelope = Envelope { schema_version: SCHEMA_VERSION, command: self.command, report };
        let mut text = serde_json::to_vec_pretty(&envelope).map_err(|error| Error::invalid("report", "values that JSON can hold", error))?;
        text.push(b'\n');
        Ok(text)
    }

    /// Writes the object to a file, whatever standard output is to hold.
    #[cfg(feature = "serve")]
    pub fn file<R: Report>(&self, path: &std::path::Path, report: &R) -> Result<()> {
        let text = self.text(report)?;
        trifuse::adapters::whole::write_file(path, |out| out.write_all(&text))
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
            let _ = writeln!(std::io::stderr(), "{}", escaped(&text.to_string(), false));
        }
    }

    /// Says what went wrong, with its causes, on standard error; with `--json` also as the object.
    pub fn error(&self, error: &Error) {
        self.failure(error.exit_status(), error.to_string());
    }

    /// Says why there is no result, and the exit status that it ends with.
    pub fn failure(&self, exit_status: u8, message: String) {
        let (on, off) = if self.color_errors { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
        let _ = writeln!(std::io::stderr(), "{on}error:{off} {}", escaped(&message, false));
        if self.json {
            // Nothing is left to tell a failure to.
            let _ = self.object(Failure { error: Reason { exit_status, message } });
        }
    }
}

/// The page that a person reads.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
    color: bool,
}

impl Page {
    /// What was written so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Adds a line.
    pub fn line(&mut self, text: impl Display) -> fmt::Result {
        writeln!(self.text, "{}", escaped(&text.to_string(), self.color))
    }

    /// `text` in the colour of its meaning.
    pub fn tone(&self, tone: Tone, text: impl Display) -> String {
        if self.color { format!("\x1b[{}m{text}\x1b[0m", tone.code()) } else { text.to_string() }
    }

    /// Adds a table. The columns named in `numbers` are set to the right, and stay on one line however narrow the terminal is; texts
    /// are broken where there is no room for them.
    pub fn table(&mut self, head: &[&str], numbers: &[usize], rows: impl IntoIterator<Item = Vec<String>>) -> fmt::Result {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        if self.color {
            table.enforce_styling().style_text_only();
        }
        // One line, below the head: rows stand close enough to be compared.
        for line in [TableComponent::HeaderLines, TableComponent::MiddleHeaderIntersections] {
            table.set_style(line, '─');
        }
        table.set_header(head.iter().map(|name| cell(&self.tone(Tone::Strong, name))));
        table.add_rows(rows.into_iter().map(|row| row.iter().map(|text| cell(&escaped_line(text, self.color))).collect::<Vec<_>>()));
        let widths = table.column_max_content_widths();
        for (number, (column, width)) in table.column_iter_mut().zip(widths).enumerate() {
            if numbers.contains(&number) {
                column.set_cell_alignment(CellAlignment::Right);
                column.set_constraint(ColumnConstraint::ContentWidth);
            } else {
                let padding = column.padding_width();
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(width.min(LEAST_WIDTH) + padding)));
            }
        }
        for line in table.lines() {
            writeln!(self.text, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Letters of a text in a table that stay together.
const LEAST_WIDTH: u16 = 24;

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
#[allow(clippy::unwrap_used)]
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
    fn colours_take_no_room_in_a_table() {
        let lines = |color: bool| {
            let mut page = Page { text: String::new(), color };
            let rows = [vec![page.tone(Tone::Good, "short"), "1".into()], vec!["much longer".into(), page.tone(Tone::Bad, "22")]];
            page.table(&["name", "number"], &[1], rows).unwrap();
            page.text
        };
        let mut plain = lines(true);
        assert!(plain.contains("\x1b["), "{plain:?}");
        while let Some(at) = plain.find("\x1b[") {
            let end = at + plain[at..].find('m').unwrap();
            plain.replace_range(at..=end, "");
        }
        let trimmed = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
        assert_eq!(trimmed(&plain), trimmed(&lines(false)));
    }

    #[test]
    fn colour_only_where_asked() {
        assert!(!Color::Auto.on(false));
        assert!(Color::Always.on(false));
        assert!(!Color::Never.on(true));
    }
}
