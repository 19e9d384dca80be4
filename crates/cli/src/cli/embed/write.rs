//! Embeddings as JSON lines, as a NumPy array, or as safetensors.

use std::io::Write;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde::Serialize;
use trifuse::{Error, Result};

use super::rows::Embedding;

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// An object a line, in the order of the input, as soon as they are there
    Jsonl,
    /// A NumPy array [lines, dimensions] of f32; NaN where a line was refused
    Npy,
    /// A safetensors file with that array as the tensor `embeddings`
    Safetensors,
}

impl Format {
    /// The format that the end of a file's name says.
    pub fn of(path: &Path) -> Self {
        match path.extension().and_then(|end| end.to_str()) {
            Some("npy") => Self::Npy,
            Some("safetensors") => Self::Safetensors,
            _ => Self::Jsonl,
        }
    }
}

/// Where embeddings go, one after another.
pub struct Sink<'a> {
    format: Format,
    out: &'a mut dyn Write,
    /// What `out` is called in an error.
    place: &'a Path,
    dimensions: usize,
    lines: usize,
    /// The embeddings so far, for the formats that hold all in one array.
    values: Vec<u8>,
}

/// One line.
#[derive(Serialize)]
struct Line<'a> {
    line: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<usize>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    embedding: Option<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

impl<'a> Sink<'a> {
    pub fn new(format: Format, out: &'a mut dyn Write, place: &'a Path, dimensions: usize) -> Self {
        Self { format, out, place, dimensions, lines: 0, values: Vec::new() }
    }

    /// Writes one line's embedding, or why it has none.
    pub fn put(&mut self, row: &Embedding) -> Result<()> {
        self.lines += 1;
        if self.format != Format::Jsonl {
            match &row.result {
                Ok(vector) => self.values.extend(vector.iter().flat_map(|value| value.to_le_bytes())),
                Err(_) => self.values.extend(std::iter::repeat_n(f32::NAN.to_le_bytes(), self.dimensions).flatten()),
            }
            return Ok(());
        }
        let used = row.result.is_ok();
        let line = Line {
            line: self.lines,
            adapter: row.adapter.as_deref(),
            tokens: used.then_some(row.tokens),
            truncated: used && row.cut,
            embedding: row.result.as_deref().ok(),
            error: row.result.as_ref().err().map(String::as_str),
        };
        serde_json::to_writer(&mut *self.out, &line)
            .map_err(std::io::Error::from)
            .and_then(|()| self.out.write_all(b"\n"))
            .map_err(Error::io(self.place, "write"))
    }

    /// Writes what was held back.
    pub fn finish(self, model: &Path) -> Result<()> {
        let shape = [self.lines, self.dimensions];
        let held = match self.format {
            Format::Jsonl => Vec::new(),
            Format::Npy => [npy_header(shape), self.values].concat(),
            Format::Safetensors => {
                let fault = |error: safetensors::SafeTensorError| Error::invalid("embeddings", "an array that safetensors holds", error);
                let view = TensorView::new(Dtype::F32, shape.to_vec(), &self.values).map_err(fault)?;
                let metadata = [("model".to_owned(), model.display().to_string())].into();
                safetensors::serialize([("embeddings", view)], Some(metadata)).map_err(fault)?
            }
        };
        self.out.write_all(&held).and_then(|()| self.out.flush()).map_err(Error::io(self.place, "write"))
    }
}

/// The header of a NumPy file, version 1.0: padded so that the values start on a multiple of 64 bytes.
fn npy_header([rows, columns]: [usize; 2]) -> Vec<u8> {
    let mut text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    // Magic, version and length take ten bytes, the line's end one.
    let padding = (text.len() + 11).next_multiple_of(64) - text.len() - 11;
    text.extend(std::iter::repeat_n(' ', padding));
    text.push('\n');
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend((text.len() as u16).to_le_bytes());
    header.extend(text.bytes());
    header
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_format_keeps_the_order_and_says_what_is_missing() {
        let row = |result: Result<Vec<f32>, String>| Embedding { adapter: Some("x".into()), tokens: 3, cut: false, result };
        let rows = [row(Ok(vec![1.0, -2.5])), row(Err("why".into()))];
        let written = |format| {
            let mut out = Vec::new();
            let mut sink = Sink::new(format, &mut out, Path::new("out"), 2);
            rows.iter().for_each(|row| sink.put(row).unwrap());
            sink.finish(Path::new("m")).unwrap();
            out
        };
        let lines = String::from_utf8(written(Format::Jsonl)).unwrap();
        assert_eq!(lines, "{\"line\":1,\"adapter\":\"x\",\"tokens\":3,\"embedding\":[1.0,-2.5]}\n{\"line\":2,\"adapter\":\"x\",\"error\":\"why\"}\n");
        let npy = written(Format::Npy);
        let start = npy.len() - 16;
        assert!(start.is_multiple_of(64) && npy.starts_with(b"\x93NUMPY\x01\x00") && String::from_utf8_lossy(&npy[..start]).contains("'shape': (2, 2)"));
        assert_eq!(npy[start..start + 8], [1f32.to_le_bytes(), (-2.5f32).to_le_bytes()].concat()[..]);
        assert!(f32::from_le_bytes(npy[start + 8..start + 12].try_into().unwrap()).is_nan());
        let file = written(Format::Safetensors);
        let file = safetensors::SafeTensors::deserialize(&file).unwrap();
        assert_eq!(file.tensor("embeddings").unwrap().data()[..8], npy[start..start + 8]);
    }
}
