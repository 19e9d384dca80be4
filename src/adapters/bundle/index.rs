//! An adapter's index: the JSON that says how the adapter's streams of numbers make projections.

use std::collections::BTreeMap;

use half::f16;
use serde::{Deserialize, Serialize};

use super::stored::{Precision, Streams, used_entries};
use crate::adapters::certificate::Certificate;
use crate::adapters::encoded::{CodedColumns, EncodedAdapter, EncodedFactor, EncodedProjection, Matrix, Rung, SharedShape};
use crate::adapters::peft::MAX_CONFIG_BYTES;
use crate::ops::codes::{CODEBOOK_LEN, CodeWidth};

/// The most columns of a factor in a file: what [`crate::ops::codebook_gemm`] takes, and for plain LoRA what PEFT files may have.
const MAX_COLUMNS: usize = crate::adapters::peft::MAX_RANK as usize;

/// Every rung, by its number in the file.
const RUNGS: [Rung; 5] = [Rung::SharedInput, Rung::ClusteredInput, Rung::SharedOutput, Rung::PrivateCoded, Rung::Plain];

/// The JSON of an index.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdapterIndex {
    config: serde_json::Value,
    projections: Vec<Record>,
}

/// One projection: its number in the header's order, the scale, input factor, core, output factor, certificate. It is a list and not an
/// object, since there are thousands, and their bytes count.
#[derive(Serialize, Deserialize)]
struct Record(usize, f32, FactorRecord, Option<(Precision, usize, usize)>, FactorRecord, CertificateRecord);

/// A factor: the number of a shared basis, or the columns of a plain factor, or the precision of the codebook and runs of columns, each as
/// bits and count.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum FactorRecord {
    Shared(usize),
    Plain { plain: usize },
    Coded(Precision, Vec<(u32, usize)>),
}

/// A certificate: rung, rank, basis energy, cosine of the factor and of ΔW, output error on Gaussian and on held-out inputs, 1 where
/// calibrated or 0, bits an element, bytes, bytes before.
#[derive(Serialize, Deserialize)]
struct CertificateRecord(usize, usize, f64, f64, f64, f64, Option<f64>, u8, f64, u64, u64);

impl CertificateRecord {
    fn new(c: &Certificate) -> Self {
        let rung = RUNGS.iter().position(|&rung| rung == c.rung).unwrap_or(RUNGS.len());
        let (gaussian, held_out, calibrated) = (c.output_error_gaussian, c.output_error_held_out, u8::from(c.calibrated));
        Self(rung, c.rank, c.basis_energy, c.cos_factor, c.cos_delta, gaussian, held_out, calibrated, c.bits_per_element, c.bytes, c.bytes_before)
    }

    fn certificate(self) -> Result<Certificate, String> {
        let Self(rung, rank, basis_energy, cos_factor, cos_delta, output_error_gaussian, output_error_held_out, calibrated, ..) = self;
        let Self(.., bits_per_element, bytes, bytes_before) = self;
        let rung = *RUNGS.get(rung).ok_or_else(|| format!("expected a rung below {}, found {rung}", RUNGS.len()))?;
        let calibrated = match calibrated {
            0 | 1 => calibrated == 1,
            other => return Err(format!("expected 0 or 1 for calibrated, found {other}")),
        };
        Ok(Certificate {
            rung,
            rank,
            basis_energy,
            cos_factor,
            cos_delta,
            output_error_gaussian,
            output_error_held_out,
            calibrated,
            bits_per_element,
            bytes,
            bytes_before,
        })
    }
}

impl FactorRecord {
    fn new(factor: &EncodedFactor, streams: &mut Streams) -> Self {
        let precision = streams.factor(factor).unwrap_or(Precision::Half);
        match factor {
            EncodedFactor::Shared(basis) => Self::Shared(*basis),
            EncodedFactor::Plain(values) => Self::Plain { plain: values.cols },
            EncodedFactor::Coded(coded) => {
                let mut runs: Vec<(u32, usize)> = Vec::new();
                for (width, _) in &coded.columns {
                    match runs.last_mut() {
                        Some((bits, count)) if *bits == width.bits() => *count += 1,
                        _ => runs.push((width.bits(), 1)),
                    }
                }
                Self::Coded(precision, runs)
            }
        }
    }

    fn factor(self, d: usize, streams: &mut Reader<'_>) -> Result<EncodedFactor, String> {
        match self {
            Self::Shared(basis) => Ok(EncodedFactor::Shared(basis)),
            Self::Plain { plain: cols } => {
                let elements = d.checked_mul(cols).ok_or_else(|| format!("expected a plain factor that fits, found [{d}, {cols}]"))?;
                Ok(EncodedFactor::Plain(Matrix { rows: d, cols, data: streams.halves(elements)?.to_vec() }))
            }
            Self::Coded(precision, runs) => {
                let count = runs.iter().fold(0usize, |sum, &(_, count)| sum.saturating_add(count));
                if count > MAX_COLUMNS {
                    return Err(format!("expected at most {MAX_COLUMNS} columns, found {count}"));
                }
                streams.spend(count.saturating_mul(COLUMN_ELEMENTS))?;
                let mut columns = Vec::new();
                for (bits, count) in runs {
                    let width = CodeWidth::from_bits(bits).ok_or_else(|| format!("expected a width of 0, 2, 3, 4, 7 or 16 bits, found {bits}"))?;
                    for _ in 0..count {
                        columns.push((width, streams.codes(width.column_words(d as u64))?.to_vec()));
                    }
                }
                let used = used_entries(columns.iter().map(|(width, _)| *width));
                let entries = streams.numbers(precision, used.iter().filter(|used| **used).count())?;
                let mut entries = entries.into_iter();
                let mut codebook = [0.0; CODEBOOK_LEN];
                for (value, _) in codebook.iter_mut().zip(used).filter(|(_, used)| *used) {
                    *value = entries.next().unwrap_or_default();
                }
                Ok(EncodedFactor::Coded(CodedColumns { d, columns, codebook }))
            }
        }
    }
}

/// An adapter's index, in JSON, and its numbers. `numbers` is each projection's place in the header.
pub(super) fn encode(adapter: &EncodedAdapter, numbers: &BTreeMap<&str, usize>) -> serde_json::Result<(Vec<u8>, Streams)> {
    let mut streams = Streams::default();
    let mut projections = Vec::new();
    for (name, projection) in &adapter.projections {
        let number = numbers.get(name.as_str()).copied().unwrap_or(usize::MAX);
        let input = FactorRecord::new(&projection.input, &mut streams);
        let core = projection.core.as_ref().map(|core| streams.core(core));
        let output = FactorRecord::new(&projection.output, &mut streams);
        projections.push(Record(number, projection.scaling, input, core, output, CertificateRecord::new(&projection.certificate)));
    }
    let index = AdapterIndex { config: adapter.config.clone(), projections };
    Ok((serde_json::to_vec(&index)?, streams))
}

/// The adapter of an index, with everything checked. `shapes` are the projections in the header's order.
///
/// # Errors
/// What is wrong, in words that name the projection.
pub(super) fn decode(index: &[u8], streams: &Streams, shapes: &[(&str, SharedShape)]) -> Result<EncodedAdapter, String> {
    let index: AdapterIndex = serde_json::from_slice(index).map_err(|error| format!("the index is not sound: {error}"))?;
    let config = serde_json::to_vec(&index.config).map_or(usize::MAX, |text| text.len()) as u64;
    if config > MAX_CONFIG_BYTES {
        return Err(format!("expected a configuration of at most {MAX_CONFIG_BYTES} bytes, found {config}"));
    }
    let allowance = (streams.bytes() as usize).saturating_mul(ALLOWANCE[1]).saturating_add(ALLOWANCE[0]).min(MAX_ALLOWANCE);
    let mut reader = Reader { singles: &streams.singles, codes: &streams.codes, halves: &streams.halves, allowance };
    let mut projections = BTreeMap::new();
    for record in index.projections {
        let (name, shape) = *shapes.get(record.0).ok_or_else(|| format!("expected a projection below {}, found {}", shapes.len(), record.0))?;
        let named = |problem: String| format!("{name}: {problem}");
        let projection = reader.projection(record, &shape).map_err(named)?;
        projection.validate(&shape).and_then(|()| projection.certificate.validate()).map_err(|error| named(error.to_string()))?;
        if projections.insert(name.to_owned(), projection).is_some() {
            return Err(named("expected it once, found it twice".into()));
        }
    }
    let left = reader.singles.len() + reader.codes.len() + reader.halves.len();
    if left > 0 {
        return Err(format!("expected no numbers after the last projection's, found {left}"));
    }
    Ok(EncodedAdapter { config: index.config, projections })
}

/// The rest of an adapter's streams, as they are read.
struct Reader<'a> {
    singles: &'a [f32],
    codes: &'a [u32],
    halves: &'a [f16],
    /// Elements that may yet be made without bytes: columns of no bits, and zeros of cores.
    allowance: usize,
}

/// Elements without bytes that any adapter may have, and that each byte of it adds.
const ALLOWANCE: [usize; 2] = [1 << 20, 512];
/// The most that all columns may take, in elements of 4 bytes: 128 MB.
const MAX_ALLOWANCE: usize = 1 << 25;
/// What a column of no bits takes in memory, in elements.
const COLUMN_ELEMENTS: usize = 8;

fn take<'a, T>(stream: &mut &'a [T], count: usize, what: &str) -> Result<&'a [T], String> {
    let Some((taken, rest)) = stream.split_at_checked(count) else {
        return Err(format!("expected {count} {what}, found {}", stream.len()));
    };
    *stream = rest;
    Ok(taken)
}

impl<'a> Reader<'a> {
    /// Takes elements from the allowance. A few bytes can describe long runs of nothing, so this keeps memory in proportion to the file.
    fn spend(&mut self, elements: usize) -> Result<(), String> {
        self.allowance = self.allowance.checked_sub(elements).ok_or_else(|| format!("expected less that is empty, found {elements} elements more"))?;
        Ok(())
    }

    fn codes(&mut self, words: u64) -> Result<&'a [u32], String> {
        take(&mut self.codes, usize::try_from(words).unwrap_or(usize::MAX), "words of codes")
    }

    fn halves(&mut self, count: usize) -> Result<&'a [f16], String> {
        take(&mut self.halves, count, "f16 numbers")
    }

    fn numbers(&mut self, precision: Precision, count: usize) -> Result<Vec<f32>, String> {
        match precision {
            Precision::Half => Ok(self.halves(count)?.iter().map(|value| value.to_f32()).collect()),
            Precision::Single => Ok(take(&mut self.singles, count, "f32 numbers")?.to_vec()),
        }
    }

    fn projection(&mut self, record: Record, shape: &SharedShape) -> Result<EncodedProjection, String> {
        let Record(_, scaling, input, core, output, certificate) = record;
        let input = input.factor(shape.d_in, self)?;
        let core = match core {
            None => None,
            Some((precision, rows, cols)) => {
                let rank = input.rank(shape.input).filter(|&rank| rank <= MAX_COLUMNS && rows <= rank && cols <= rank);
                let rank = rank.ok_or_else(|| format!("expected a core within the rank, found [{rows}, {cols}]"))?;
                self.spend(rank * rank - rows * cols)?;
                let block = self.numbers(precision, rows * cols)?;
                let mut data = vec![0.0; rank * rank];
                for (row, line) in block.chunks_exact(cols.max(1)).enumerate() {
                    data[row * rank..][..cols].copy_from_slice(line);
                }
                Some(Matrix { rows: rank, cols: rank, data })
            }
        };
        let output = output.factor(shape.d_out, self)?;
        Ok(EncodedProjection { input, core, output, scaling, certificate: certificate.certificate()? })
    }
}
