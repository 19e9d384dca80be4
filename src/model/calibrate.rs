//! The inputs of every projection of the base model on given text, with which the encoder is calibrated.

use std::collections::BTreeMap;

use super::forward::Encoder;
use super::laid_out::Row;
use crate::adapters::encode::calibration::{Calibration, MIN_ROWS};
use crate::adapters::encoded::Matrix;
use crate::backend::Backend;
use crate::error::{Result, ensure};

/// Rows of a projection's inputs where nothing else is asked: more than the widest projection of a small model has columns.
pub const DEFAULT_ROWS: usize = 2048;
/// Tokens of a batch.
const BATCH_TOKENS: usize = 8192;

/// Runs the base model over `sentences`, and keeps about `rows` tokens' inputs of every projection. They are spread evenly over the text in
/// its order, so that the held-out part comes from other text than the rest. `step` is called with the count of sentences done.
///
/// # Errors
/// Fewer `rows` or tokens than 8; a sentence that the model does not take; a device that fails.
pub fn calibrate<D: Backend>(encoder: &mut Encoder<D>, sentences: &[Vec<i32>], rows: usize, step: &dyn Fn(usize)) -> Result<Calibration> {
    let total: usize = sentences.iter().map(Vec::len).sum();
    ensure(rows >= MIN_ROWS, "rows of a calibration", format_args!("at least {MIN_ROWS}"), rows)?;
    ensure(total >= MIN_ROWS, "calibration", format_args!("text of at least {MIN_ROWS} tokens"), total)?;
    let kept = rows.min(total);
    // Token t is kept where the share of wanted rows up to it passes a whole number.
    let wanted = |token: usize| (token + 1) * kept / total > token * kept / total;
    let mut inputs: BTreeMap<String, (usize, Vec<f32>)> = BTreeMap::new();
    let mut first = 0;
    let mut at = 0;
    while at < sentences.len() {
        let mut tokens = 0;
        let count = sentences[at..].iter().take_while(|ids| {
            tokens += ids.len();
            tokens <= BATCH_TOKENS
        });
        let batch = &sentences[at..at + count.count().max(1)];
        let rows: Vec<Row<'_>> = batch.iter().map(|ids| Row { ids, adapter: None }).collect();
        encoder.embed_watched(&rows, &mut |path, columns, values| {
            let (_, data) = inputs.entry(path.to_owned()).or_insert_with(|| (columns, Vec::new()));
            for (row, values) in values.chunks_exact(columns).enumerate() {
                if wanted(first + row) {
                    data.extend(values.iter().map(|&value| value as f32));
                }
            }
            Ok(())
        })?;
        first += batch.iter().map(Vec::len).sum::<usize>();
        at += batch.len();
        step(batch.len());
    }
    let matrices = inputs.into_iter().map(|(path, (columns, data))| Ok((path, Matrix::new(data.len() / columns, columns, data)?)));
    Calibration::from_rows(matrices.collect::<Result<_>>()?)
}
