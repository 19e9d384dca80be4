//! Checks an answer before it is timed: a part of it, drawn, against the oracle.
//!
//! Whatever an operation computes in one place of its output depends on little of its operands: a row of x and the
//! weights, a query and the keys that it sees. So a part of a large problem's answer is the whole answer of a small
//! problem, which the oracle computes and from which the tolerance takes its bound.

use serde::{Deserialize, Serialize};

use super::operand::{Values, fill, spread};
use super::pattern::Pattern;
use trifuse::device::{Device, Slice};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::{Attention, CodebookGemm, FusedMlp, Linear, Op};
use trifuse::session::Session;
use trifuse_testkit::cases::{Draw, Posed, Problem};
use trifuse_testkit::oracle::attention::{Host as AttentionHost, HostForm};
use trifuse_testkit::oracle::{fused_mlp, linear};
use trifuse_testkit::tolerance::{Metrics, Tolerance, expect};

/// A small problem, and the places of the large one's output that hold its answer.
pub struct Sample {
    /// The small problem; one output, of which every element is written.
    pub problem: Problem,
    /// Elements of the large output, in the order of the small one's.
    pub places: Vec<u64>,
    /// What an element may be off already by the launches before, whose answers the small problem starts from.
    pub carried: f64,
}

impl Sample {
    /// A sample of a problem that starts from what the device was given.
    pub fn new(problem: impl Into<Problem>, places: Vec<u64>) -> Self {
        Self { problem: problem.into(), places, carried: 0.0 }
    }
}

/// What is compared with the oracle after a run.
pub struct Probe<D: Device> {
    /// The output.
    pub output: Slice<D>,
    /// Makes the samples; may read what the device holds.
    pub samples: Box<Sampler<D>>,
    /// A copy of what the output holds before the first run, where it is added to; else it holds NaN, so that what is not written shows.
    pub before: Option<Slice<D>>,
}

/// Makes samples of an output.
pub type Sampler<D> = dyn Fn(&mut Session<D>) -> Result<Vec<Sample>>;

/// The operands of an operation's launches, and what to check of their outputs.
pub struct Placed<O: Op, D: Device> {
    /// One for each launch.
    pub launches: Vec<O::Args<D>>,
    /// What is checked of the outputs: at least one probe.
    pub probes: Vec<Probe<D>>,
    /// What the host copies in before each launch; empty where it copies nothing.
    pub copies: Vec<Box<Copies<D>>>,
    /// What it copies in before all of them; may stand before a captured graph.
    pub before: Option<Box<Copies<D>>>,
    /// What adapters take, where there are any.
    pub memory: Option<Memory>,
}

/// Puts copies from the host into the queue.
pub type Copies<D> = dyn Fn(&mut Session<D>) -> Result<()>;

impl<O: Op, D: Device> Default for Placed<O, D> {
    /// No launch.
    fn default() -> Self {
        Self { launches: Vec::new(), probes: Vec::new(), copies: Vec::new(), before: None, memory: None }
    }
}

impl<O: Op, D: Device> Placed<O, D> {
    /// One launch with one output.
    pub fn one(args: O::Args<D>, output: Slice<D>, samples: Box<Sampler<D>>) -> Self {
        let mut placed = Self::default();
        placed.push(args, output, samples);
        placed
    }

    /// One more launch, with an output of its own.
    pub fn push(&mut self, args: O::Args<D>, output: Slice<D>, samples: Box<Sampler<D>>) {
        self.launches.push(args);
        self.probes.push(Probe { output, samples, before: None });
    }
}

/// Bytes of adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Bytes on the device: the buffers of bases, codes and codebooks, counted as they were allocated.
    pub device_bytes: u64,
    /// Bytes on the host, for each projection those that the batch uses.
    pub host_bytes: u64,
    /// What as many adapters of the same rank take uncompressed in f16: two factors each.
    pub lora_f16_bytes: u64,
    /// How many times `device_bytes` that is; nothing where the host holds the adapters.
    pub lora_f16_ratio: Option<f64>,
    /// The registered population, where one was registered that is far larger than a batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<Registered>,
}

/// What was registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Registered {
    /// Adapters, all of them on the device.
    pub adapters: u64,
    /// Projections of which the device holds them.
    pub projections: u64,
    /// Projections that were asked for.
    pub projections_asked: u64,
    /// Until the device held all: memory asked for and filled.
    pub seconds: f64,
    /// What one adapter takes of all projections that were asked for: codes and codebooks, as allocated.
    pub adapter_bytes: u64,
    /// Adapters of all those projections, with their bases, that 80·10⁹ bytes hold.
    pub fit_80_gb: u64,
    /// … that 141·10⁹ bytes hold.
    pub fit_141_gb: u64,
}

/// Record that an answer was compared, and how it came out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Checked {
    /// Elements that were compared with the oracle.
    pub elements: u64,
    /// Elements of the outputs, all of which were written and are finite.
    pub of: u64,
    /// The greatest error, as a share of what is allowed.
    pub error_of_allowed: f64,
    /// The greatest ‖out − ref‖₂ / ‖ref‖₂ of a sample.
    pub relative_l2: f64,
}

impl Checked {
    /// Both together.
    pub fn add(&mut self, other: &Self) {
        self.elements += other.elements;
        self.of += other.of;
        self.error_of_allowed = self.error_of_allowed.max(other.error_of_allowed);
        self.relative_l2 = self.relative_l2.max(other.relative_l2);
    }
}

/// Bytes of NaN that the host writes; the device copies them on.
const NANS: u64 = 4 << 20;

/// Fills an output with NaN.
pub fn poison<D: Device>(session: &mut Session<D>, output: &Slice<D>) -> Result<()> {
    fill(session, output, &vec![u8::MAX; output.len().min(NANS) as usize])
}

/// Fills the outputs with NaN, or with what is added to.
pub fn poison_all<D: Device>(session: &mut Session<D>, probes: &[Probe<D>]) -> Result<()> {
    probes.iter().try_for_each(|probe| match &probe.before {
        Some(values) => session.copy(values, &probe.output),
        None => poison(session, &probe.output),
    })
}

/// Compares every output; the inner error says what is wrong.
///
/// # Errors
/// What the device or the oracle reports.
pub fn check<D: Device>(session: &mut Session<D>, dtype: DType, probes: &[Probe<D>]) -> Result<Result<Checked, String>> {
    let mut all = Checked::default();
    for probe in probes {
        let samples = (probe.samples)(session)?;
        match check_output(session, dtype, &probe.output, &samples)? {
            Ok(checked) => all.add(&checked),
            Err(why) => return Ok(Err(why)),
        }
    }
    Ok(Ok(all))
}

/// What the greatest element of an output's samples is to reach: a chain that has become zeros, or nearly, is right whatever a kernel does.
const ALIVE: f64 = 1.0 / 1024.0;

/// Bytes of an output that the host reads at once: less than what makes an allocator ask the system for fresh pages each time.
const PART: u64 = 16 << 20;

/// Compares one output with its samples; the inner error says what is wrong.
///
/// # Errors
/// What the device or the oracle reports.
pub fn check_output<D: Device>(session: &mut Session<D>, dtype: DType, output: &Slice<D>, samples: &[Sample]) -> Result<Result<Checked, String>> {
    let (size, count) = (dtype.size(), output.len() / dtype.size());
    let mut found: Vec<Vec<f64>> = samples.iter().map(|sample| vec![f64::NAN; sample.places.len()]).collect();
    if let Some(place) = samples.iter().flat_map(|sample| &sample.places).find(|place| **place >= count) {
        return Err(Error::invalid("sample", "a place inside the output", place));
    }
    for first in (0..output.len()).step_by(PART as usize) {
        let part = output.sub_slice(first, PART.min(output.len() - first)).ok_or_else(|| Error::invalid("sample", "a part of the output", first))?;
        let bytes = session.read(&part)?;
        if let Some(place) = first_not_finite(dtype, &bytes) {
            return Ok(Err(format!("element {} of {count} was not written, or is not finite", first / size + place as u64)));
        }
        for (sample, values) in samples.iter().zip(&mut found) {
            for (place, value) in sample.places.iter().zip(values) {
                let at = (place * size).wrapping_sub(first) as usize;
                if let Some(element) = bytes.get(at..at.saturating_add(size as usize)) {
                    *value = dtype.decode(element).first().copied().unwrap_or(f64::NAN);
                }
            }
        }
    }
    let mut all = Checked { of: count, ..Checked::default() };
    let mut greatest = 0f64;
    for (sample, (metrics, expected)) in samples.iter().zip(compare(samples, &found)?) {
        greatest = greatest.max(expected);
        let error_of_allowed = if metrics.max_abs == 0.0 { 0.0 } else { metrics.max_abs / metrics.tolerance.max_abs };
        all.add(&Checked { elements: sample.places.len() as u64, of: 0, error_of_allowed, relative_l2: metrics.relative_l2 });
        if !metrics.accepted() {
            let place = sample.places.get(metrics.worst).copied().unwrap_or_default();
            return Ok(Err(format!("element {place}: {metrics}")));
        }
    }
    if greatest < ALIVE {
        return Ok(Err(format!("of what the device was given the oracle makes {greatest:e} at most, below {ALIVE:e}: too little to tell right from wrong")));
    }
    Ok(Ok(all))
}

/// The first element whose exponent is all ones.
fn first_not_finite(dtype: DType, bytes: &[u8]) -> Option<usize> {
    // A piece at a time without a branch inside, which the compiler makes wide: outputs are hundreds of megabytes.
    const PIECE: usize = 8192;
    let narrow = |b: &[u8], mask: u16| u16::from_le_bytes([b[0], b[1]]) & mask == mask;
    let bad = |element: &[u8]| match dtype {
        DType::F16 => narrow(element, 0x7c00),
        DType::BF16 => narrow(element, 0x7f80),
        DType::F32 => element[3] & 0x7f == 0x7f && element[2] & 0x80 == 0x80,
    };
    let size = dtype.size() as usize;
    let any = |piece: &[u8]| match dtype {
        DType::F32 => piece.chunks_exact(4).fold(false, |found, b| found | (u32::from_le_bytes([b[0], b[1], b[2], b[3]]) & 0x7f80_0000 == 0x7f80_0000)),
        DType::F16 => piece.chunks_exact(2).fold(false, |found, b| found | narrow(b, 0x7c00)),
        DType::BF16 => piece.chunks_exact(2).fold(false, |found, b| found | narrow(b, 0x7f80)),
    };
    let (number, piece) = bytes.chunks(PIECE).enumerate().find(|(_, piece)| any(piece))?;
    Some(number * PIECE / size + piece.chunks_exact(size).position(bad)?)
}

/// The errors of each sample, and the greatest magnitude that is expected of it. The oracle takes a good part of a second for a row of a large
/// MLP: samples are spread over the cores.
fn compare(samples: &[Sample], found: &[Vec<f64>]) -> Result<Vec<(Metrics, f64)>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(16);
    let share = samples.len().div_ceil(threads).max(1);
    let one = |(sample, values): (&Sample, &Vec<f64>)| -> Result<(Metrics, f64)> {
        let expected = expect(&sample.problem)?;
        let expected = expected.first().ok_or_else(|| Error::invalid("sample", "one output", expected.len()))?;
        let greatest = expected.elements.iter().flatten().fold(0f64, |greatest, element| greatest.max(element.abs()));
        let allowed = Tolerance { max_abs: expected.tolerance.max_abs + sample.carried, ..expected.tolerance };
        Ok((allowed.compare(&expected.elements, values)?, greatest))
    };
    std::thread::scope(|scope| {
        let parts = samples.chunks(share).zip(found.chunks(share));
        let workers: Vec<_> = parts.map(|(part, values)| scope.spawn(move || part.iter().zip(values).map(one).collect::<Result<Vec<_>>>())).collect();
        let mut all = Vec::new();
        for worker in workers {
            all.extend(worker.join().map_err(|_| Error::invalid("sample", "an oracle that ends", "a panic"))??);
        }
        Ok(all)
    })
}

/// Rows of `Y = X·Wᵀ` with adapters on top, each with all of its columns; `delta` gives those of a row.
pub fn adapted(op: &Linear, x: &Values, w: &Values, delta: impl Fn(u64) -> Result<Posed<CodebookGemm>>, draw: &mut Draw) -> Result<Vec<Sample>> {
    let weight = w.all();
    let columns: Vec<u64> = (0..op.d_out).collect();
    let sample = |&row: &u64| {
        let Posed { op: delta, host: adapters } = delta(row)?;
        let small = op.clone().with_tokens(1).with_delta(Some(delta));
        let host =
            linear::Host { x: x.rows(&[row], op.d_in), w: weight.clone(), bias: None, residual: None, delta: Some(adapters), norm: None, input_norm: None };
        Ok(Sample::new(Posed { op: small, host }, places(&[row], &columns, op.d_out)))
    };
    spread(draw, 4, op.tokens).iter().map(sample).collect()
}

/// Rows and columns of `Y = X·Wᵀ`, at most as many as said.
pub fn linear(op: &Linear, x: &Values, w: &Values, [rows, columns]: [u64; 2], draw: &mut Draw) -> Vec<Sample> {
    let columns = spread(draw, columns, op.d_out);
    let weight = w.rows(&columns, op.d_in);
    let rows = spread(draw, rows, op.tokens);
    let sample = |rows: &[u64]| {
        let small = op.clone().with_tokens(rows.len() as u64).with_d_out(columns.len() as u64);
        let host = linear::Host { x: x.rows(rows, op.d_in), w: weight.clone(), bias: None, residual: None, delta: None, norm: None, input_norm: None };
        Sample::new(Posed { op: small, host }, places(rows, &columns, op.d_out))
    };
    rows.chunks(4).map(sample).collect()
}

/// The input of one of several launches in a row: drawn, or what the launch before has left.
pub enum Input<D: Device> {
    /// Input of the first launch, drawn.
    Drawn(Values),
    /// Input of those that follow: what the launch before has left.
    Left(Slice<D>),
}

impl<D: Device> Input<D> {
    /// What the launch was given.
    ///
    /// # Errors
    /// What the device reports.
    pub fn values(&self, session: &mut Session<D>, dtype: DType) -> Result<Values> {
        match self {
            Self::Drawn(values) => Ok(values.clone()),
            Self::Left(slice) => Values::read(session, dtype, slice),
        }
    }
}

/// The weights and biases of an MLP.
pub struct MlpValues {
    /// `[d_ff, d_model]`.
    pub w1: Values,
    /// `[d_ff, d_model]`, of a gated one.
    pub wg: Option<Values>,
    /// `[d_ff]`.
    pub b1: Option<Values>,
    /// `[d_out, d_ff]`.
    pub w2: Values,
    /// `[d_out]`.
    pub b2: Option<Values>,
}

/// Rows of the MLP, at most `most`, each with all of its intermediate, and columns of y.
pub fn fused_mlp(op: &FusedMlp, x: &Values, values: &MlpValues, most: u64, draw: &mut Draw) -> Vec<Sample> {
    let columns = spread(draw, 256, op.d_out);
    let rows = spread(draw, most, op.tokens);
    // One sample: the weights are a good part of a gigabyte in float64, and the oracle goes over all cores for each row.
    let small = op.clone().with_tokens(rows.len() as u64).with_d_out(columns.len() as u64);
    let host = fused_mlp::Host {
        x: x.rows(&rows, op.d_model),
        w1: values.w1.all(),
        wg: values.wg.as_ref().map(Values::all),
        b1: values.b1.as_ref().map(Values::all),
        w2: values.w2.rows(&columns, op.d_ff),
        b2: values.b2.as_ref().map(|values| values.rows(&columns, 1)),
        residual: None,
    };
    vec![Sample::new(Posed { op: small, host }, places(&rows, &columns, op.d_out))]
}

/// Queries of heads of sequences, at most `most`, each with the keys that it sees: the mask is applied here, by its definition.
pub fn attention(op: &Attention, [q, k, v]: [&Values; 3], pattern: Option<&Pattern>, most: u64, draw: &mut Draw) -> Vec<Sample> {
    let queries = spread(draw, most, op.batch * op.heads * op.q_len);
    let sample = |&place: &u64| {
        // The order that heads vary in fastest is that of the output: `[b, s, h, d]`.
        let (head, token, batch) = (place % op.heads, place / op.heads % op.q_len, place / op.heads / op.q_len);
        let kv_head = head * op.kv_heads / op.heads;
        let position = token as i128 + op.kv_len as i128 - op.q_len as i128;
        let listed: Vec<std::ops::Range<u64>> = match pattern {
            None => std::iter::once(0..op.kv_len).collect(),
            Some(pattern) => {
                let block = u64::from(pattern.block);
                let columns = pattern.mask.row(0, (token / block) as usize).map(|(column, _)| column as u64);
                columns.map(|column| column * block..((column + 1) * block).min(op.kv_len)).collect()
            }
        };
        let seen = |key: &u64| !op.causal || i128::from(*key) <= position;
        let keys: Vec<u64> = listed.into_iter().flatten().filter(seen).map(|key| (batch * op.kv_len + key) * op.kv_heads + kv_head).collect();
        let small = Attention::dense(op.dtype, 1, [1, 1], [1, keys.len() as u64], op.head_dim).with_scale(op.scale);
        let host = AttentionHost {
            q: q.rows(&[place], op.head_dim),
            k: k.rows(&keys, op.head_dim),
            v: v.rows(&keys, op.head_dim),
            index: HostForm::None,
            slots: None,
        };
        Sample::new(Posed { op: small, host }, places(&[place], &(0..op.head_dim).collect::<Vec<_>>(), op.head_dim))
    };
    queries.iter().map(sample).collect()
}

/// The places of those rows and columns in a packed matrix.
pub fn places(rows: &[u64], columns: &[u64], stride: u64) -> Vec<u64> {
    rows.iter().flat_map(|row| columns.iter().map(move |column| row * stride + column)).collect()
}
