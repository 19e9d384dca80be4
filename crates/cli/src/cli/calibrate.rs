//! Calibration inputs straight from text: the base model runs over it.

use std::path::Path;
use std::sync::Arc;

use trifuse::adapters::encode::calibration::Calibration;
use trifuse::backends::{AnyDevice, Choice};
use trifuse::model::calibrate::calibrate;
use trifuse::model::{Encoder, EncoderOptions, Text, find};
use trifuse::read::read_file;
use trifuse::{Error, Result};

use super::output::Output;
use super::progress::Progress;

/// What every projection of `model` reads on the text of a file, `rows` tokens of it.
///
/// # Errors
/// A file that cannot be read or holds no text; a model that cannot be opened; a backend that is not there.
pub fn from_text(text: &Path, model: &Path, rows: usize, backend: &Choice, output: &Output) -> Result<Calibration> {
    Job { text, model, rows, output }.on(backend.open_any()?)
}

struct Job<'a> {
    text: &'a Path,
    model: &'a Path,
    rows: usize,
    output: &'a Output,
}

impl Job<'_> {
    fn on(self, device: AnyDevice) -> Result<Calibration> {
        let texts = texts(self.text)?;
        let folder = find(self.model)?;
        let mut encoder = Encoder::open(Arc::new(device), &folder, EncoderOptions::default())?;
        let text = Text::open(&folder, encoder.config())?;
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        // A long text counts as far as the model reads it.
        let sentences: Vec<Vec<i32>> = text.tokens(&texts)?.into_iter().map(|tokens| tokens.ids).filter(|ids| !ids.is_empty()).collect();
        let progress = Progress::new(self.output, "calibrating", sentences.len() as u64);
        calibrate(&mut encoder, &sentences, self.rows, &|done| (0..done).for_each(|_| progress.step()))
    }
}

/// Longest file of text, in bytes: all of it is in memory, and a sample of it is kept.
const MAX_TEXT_BYTES: u64 = 1 << 30;

/// The texts of a file: JSON objects with `text`, one a line, or else the lines as they are. Empty lines are passed over.
pub fn texts(path: &Path) -> Result<Vec<String>> {
    let bytes = read_file(path, MAX_TEXT_BYTES)?;
    let all = String::from_utf8(bytes)
        .map_err(|error| Error::input(path, format!("expected UTF-8, found another byte at place {}", error.utf8_error().valid_up_to())))?;
    // Some editors begin a file with a mark of its byte order.
    let all = all.strip_prefix('\u{feff}').unwrap_or(&all);
    let mut texts = Vec::new();
    for (number, line) in all.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        if !line.trim_start().starts_with('{') {
            texts.push(line.to_owned());
            continue;
        }
        let fault = |problem: String| Error::input_item(path, format!("line {}", number + 1), problem);
        let object: serde_json::Value = serde_json::from_str(line).map_err(|error| fault(error.to_string()))?;
        match object.get("text").and_then(serde_json::Value::as_str) {
            Some(text) if !text.trim().is_empty() => texts.push(text.to_owned()),
            _ => return Err(fault("expected a \"text\" that is not empty, found none".into())),
        }
    }
    if texts.is_empty() { Err(Error::input(path, "expected lines of text, found none")) } else { Ok(texts) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_text_or_objects_that_hold_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        let of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            texts(&path)
        };
        assert_eq!(of(b"one\n\n{\"text\": \"two\", \"d\": 1}\n").unwrap(), ["one", "two"]);
        assert_eq!(of("\u{feff}{\"text\": \"one\"}\ntwo".as_bytes()).unwrap(), ["one", "two"]);
        for bad in [&b""[..], b"\n \n", b"{\"text\": 1}", b"{\"text\": \" \"}", b"{not json", b"\xff"] {
            assert!(of(bad).is_err());
        }
        assert!(texts(folder.path()).is_err());
    }
}
