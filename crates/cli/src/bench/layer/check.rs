//! Samples of what each launch of a layer gives, from what the device left for it to read.

use super::operands::{Numbers, Operands};
use crate::bench::operand::{Values, spread};
use crate::bench::sample::{Checked, Sample, check_output, places, poison};
use trifuse::backend::Backend;
use trifuse::device::{Device, Slice};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::layer::{Launch, Step};
use trifuse::ops::layer::Layer;
use trifuse::ops::{Attention, AttentionArgs, FusedMlp, FusedMlpArgs, Linear, LinearArgs, Pointwise, PointwiseArgs};
use trifuse::session::Session;
use trifuse_testkit::cases::{Draw, Posed};
use trifuse_testkit::oracle::attention::{Host as AttentionHost, HostForm};
use trifuse_testkit::oracle::{fused_mlp, linear, pointwise};

/// Rows of a product or norm, columns of a product, and queries that are compared.
const ROWS: u64 = 16;
const COLUMNS: u64 = 256;
const QUERIES: u64 = 24;
/// Products of two numbers that the oracle does for a sample of the MLP in about a second; at least one row.
const PRODUCTS: u64 = 1 << 28;

/// Runs one launch after the other and compares each; the inner error says what is wrong.
///
/// # Errors
/// What the device or the oracle reports.
pub fn steps<D: Backend>(session: &mut Session<D>, layer: &Layer, operands: &Operands, steps: &[Step<'_, D>]) -> Result<Result<Checked, String>> {
    let mut all = Checked::default();
    let mut draw = Draw::seeded("sample");
    for Step { name, launch } in steps {
        let output = launch.output();
        // Before it runs: rotary positions write over what they read.
        let samples = match launch {
            Launch::Pointwise(plan, args) if plan.op().rope().is_some() => rotated(session, plan.op(), args, operands, &mut draw)?,
            launch => {
                poison(session, output)?;
                let by = |first: &'static str| if *name == first { &operands.attention_norm } else { &operands.mlp_norm };
                match launch {
                    Launch::Pointwise(plan, args) => vec![normed(session, plan.op(), args, by("attention_norm"), &mut draw)?],
                    Launch::Linear(plan, args) => product(session, plan.op(), args, operands.of(name), &mut draw)?,
                    Launch::Attention(plan, args) => attended(session, plan.op(), args, &mut draw)?,
                    Launch::FusedMlp(plan, args) => transformed(session, plan.op(), args, operands, &mut draw)?,
                }
            }
        };
        launch.run(session)?;
        match check_output(session, layer.dtype, output, &samples)? {
            Ok(checked) => all.add(&checked),
            Err(why) => return Ok(Err(format!("{name}: {why}"))),
        }
    }
    Ok(Ok(all))
}

/// Rows of a matrix on the device, one after another, `columns` of each; a row every `stride` elements.
fn rows_of<D: Device>(session: &mut Session<D>, matrix: &Slice<D>, dtype: DType, rows: &[u64], [columns, stride]: [u64; 2]) -> Result<Vec<f64>> {
    let mut values = Vec::with_capacity(rows.len() * columns as usize);
    for row in rows {
        let part = matrix.sub_slice(row * stride * dtype.size(), columns * dtype.size());
        let part = part.ok_or_else(|| Error::invalid("sample", "a row of the matrix", row))?;
        values.extend(dtype.decode(&session.read(&part)?));
    }
    Ok(values)
}

/// The elements of those columns of each row.
fn at(rows: &[f64], columns: &[u64], stride: u64) -> Vec<f64> {
    rows.chunks_exact(stride as usize).flat_map(|row| columns.iter().map(|&column| row[column as usize])).collect()
}

fn bias_at(numbers: &Numbers, columns: &[u64]) -> Option<Vec<f64>> {
    numbers.bias.as_ref().map(|bias| bias.rows(columns, 1))
}

fn normed<D: Device>(session: &mut Session<D>, op: &Pointwise, args: &PointwiseArgs<D>, by: &Numbers, draw: &mut Draw) -> Result<Sample> {
    let rows = spread(draw, ROWS, op.rows);
    let x = rows_of(session, &args.x, op.dtype, &rows, [op.columns; 2])?;
    let host = pointwise::Host { weight: Some(by.weight.all()), bias: by.bias.as_ref().map(Values::all), ..pointwise::Host::new(x) };
    let small = op.clone().with_rows(rows.len() as u64);
    let places = places(&rows, &(0..op.columns).collect::<Vec<_>>(), op.columns);
    Ok(Sample::new(Posed { op: small, host }, places))
}

/// A sample a row: one row has no gap behind it.
fn rotated<D: Device>(session: &mut Session<D>, op: &Pointwise, args: &PointwiseArgs<D>, operands: &Operands, draw: &mut Draw) -> Result<Vec<Sample>> {
    let columns: Vec<u64> = (0..op.columns).collect();
    let positions = operands.positions.as_deref().unwrap_or_default();
    let sample = |row: u64| {
        let x = rows_of(session, &args.y, op.dtype, &[row], [op.columns, op.stride()])?;
        let position = positions.get(row as usize).copied().ok_or_else(|| Error::invalid("sample", "a position for each row", row))?;
        let host = pointwise::Host { positions: Some(vec![position]), ..pointwise::Host::new(x) };
        Ok(Sample::new(Posed { op: op.clone().with_rows(1), host }, places(&[row], &columns, op.stride())))
    };
    spread(draw, ROWS, op.rows).into_iter().map(sample).collect()
}

fn product<D: Device>(session: &mut Session<D>, op: &Linear, args: &LinearArgs<D>, by: &Numbers, draw: &mut Draw) -> Result<Vec<Sample>> {
    let columns = spread(draw, COLUMNS, op.d_out);
    let weight = by.weight.rows(&columns, op.d_in);
    let rows = spread(draw, ROWS, op.tokens);
    let sample = |rows: &[u64]| {
        let residual = match &args.residual {
            Some(residual) => Some(at(&rows_of(session, residual, op.dtype, rows, [op.d_out; 2])?, &columns, op.d_out)),
            None => None,
        };
        let x = rows_of(session, &args.x, op.dtype, rows, [op.d_in; 2])?;
        let small = op.clone().with_tokens(rows.len() as u64).with_d_out(columns.len() as u64);
        let host = linear::Host { x, w: weight.clone(), bias: bias_at(by, &columns), residual, delta: None, norm: None, input_norm: None };
        Ok(Sample::new(Posed { op: small, host }, places(rows, &columns, op.d_out)))
    };
    rows.chunks(4).map(sample).collect()
}

/// Queries of heads of sequences, each with the keys that it sees.
fn attended<D: Device>(session: &mut Session<D>, op: &Attention, args: &AttentionArgs<D>, draw: &mut Draw) -> Result<Vec<Sample>> {
    let sample = |place: u64| {
        // The order of the output: `[b, s, h, d]`.
        let (head, token, batch) = (place % op.heads, place / op.heads % op.q_len, place / op.heads / op.q_len);
        let keys = if op.causal { token + 1 } else { op.kv_len };
        let size = op.dtype.size();
        let mut rows = |operand: &Slice<D>, strides: trifuse::ops::attention::Strides, first: u64, head: u64, count: u64| {
            let from = (batch * strides.batch + first * strides.token + head * strides.head) * size;
            let span = ((count - 1) * strides.token + op.head_dim) * size;
            let part = operand.sub_slice(from, span).ok_or_else(|| Error::invalid("sample", "rows inside their operand", from))?;
            let bytes = session.read(&part)?;
            let of_row = |row: u64| &bytes[(row * strides.token * size) as usize..][..(op.head_dim * size) as usize];
            Ok::<_, Error>((0..count).flat_map(|row| op.dtype.decode(of_row(row))).collect::<Vec<f64>>())
        };
        let kv_head = head * op.kv_heads / op.heads;
        let host = AttentionHost {
            q: rows(&args.q, op.q, token, head, 1)?,
            k: rows(&args.k, op.k, 0, kv_head, keys)?,
            v: rows(&args.v, op.v, 0, kv_head, keys)?,
            index: HostForm::None,
            slots: None,
        };
        let small = Attention::dense(op.dtype, 1, [1, 1], [1, keys], op.head_dim).with_scale(op.scale);
        let places = places(&[place], &(0..op.head_dim).collect::<Vec<_>>(), op.head_dim);
        Ok(Sample::new(Posed { op: small, host }, places))
    };
    spread(draw, QUERIES, op.batch * op.heads * op.q_len).into_iter().map(sample).collect()
}

/// Rows with all of their intermediate, and columns of y.
fn transformed<D: Device>(session: &mut Session<D>, op: &FusedMlp, args: &FusedMlpArgs<D>, operands: &Operands, draw: &mut Draw) -> Result<Vec<Sample>> {
    let columns = spread(draw, COLUMNS, op.d_out);
    let per_row = op.d_ff * (op.d_model * if op.gated { 2 } else { 1 } + COLUMNS);
    let rows = spread(draw, (PRODUCTS / per_row).clamp(1, 4), op.tokens);
    let residual = args.residual.as_ref().ok_or_else(|| Error::invalid("sample", "a residual", "none"))?;
    let residual = at(&rows_of(session, residual, op.dtype, &rows, [op.d_out; 2])?, &columns, op.d_out);
    let host = fused_mlp::Host {
        x: rows_of(session, &args.x, op.dtype, &rows, [op.d_model; 2])?,
        w1: operands.up.weight.all(),
        wg: operands.gate.as_ref().map(Values::all),
        b1: operands.up.bias.as_ref().map(Values::all),
        w2: operands.down.weight.rows(&columns, op.d_ff),
        b2: bias_at(&operands.down, &columns),
        residual: Some(residual),
    };
    // One sample: the weights of a wide model are a few gigabytes in float64.
    let small = op.clone().with_tokens(rows.len() as u64).with_d_out(columns.len() as u64);
    Ok(vec![Sample::new(Posed { op: small, host }, places(&rows, &columns, op.d_out))])
}
