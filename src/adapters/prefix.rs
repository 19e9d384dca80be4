//! A prefix that was encoded as an adapter, on a device. [`PrefixAttention`] reads it in place of K and V.

use half::f16;

use super::encoded::{CodedColumns, EncodedFactor, EncodedProjection, Matrix, Population, SharedProjection};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result, ensure};
use crate::ops::codebook_gemm::{Factor, FactorArgs};
use crate::ops::codes::{CODEBOOK_LEN, CodeWidth, decode_column};
use crate::ops::index::{AdapterCodes, Codes, CodesShape};
use crate::ops::prefix_attention::{Factors, FactorsArgs};
use crate::ops::{PrefixAttention, PrefixAttentionArgs};
use crate::session::Session;

/// The name of the adapter that holds a prefix in its population.
pub const PREFIX: &str = "prefix";
/// The projection that holds the keys.
pub const KEY: &str = "key";
/// The projection that holds the values.
pub const VALUE: &str = "value";

/// K and V of one layer for the tokens of a prefix, as factors on a device. One side has codes. The other has dense values, which include
/// the core and the scale.
pub struct DevicePrefix<D: Device> {
    tokens: u64,
    width: u64,
    dtype: DType,
    key: (Factors, FactorsArgs<D>),
    value: (Factors, FactorsArgs<D>),
}

impl<D: Device> DevicePrefix<D> {
    /// Copies the result of [`encode_prefix`](super::encode::prefix::encode_prefix) to the device, with dense values in `dtype`.
    ///
    /// # Errors
    /// A population without the adapter [`PREFIX`], or in which it does not fit together; keys and values of different shapes; no device
    /// memory.
    pub fn new(session: &mut Session<D>, population: &Population, dtype: DType) -> Result<Self> {
        let find = |path: &str| {
            let projection = population.adapters.get(PREFIX).and_then(|adapter| adapter.projections.get(path));
            let both = projection.zip(population.projections.get(path));
            let both = both.ok_or_else(|| Error::invalid("prefix", format!("adapter {PREFIX:?} with projection {path:?}"), "a population without"))?;
            both.0.validate(&both.1.shape()?)?;
            Ok::<_, Error>(both)
        };
        let ((key, of_key), (value, of_value)) = (find(KEY)?, find(VALUE)?);
        let shape = |shared: &SharedProjection| [shared.d_in, shared.d_out];
        let same = shape(of_key) == shape(of_value);
        ensure(same, "prefix", "keys and values of one shape", format_args!("{:?} and {:?}", shape(of_key), shape(of_value)))?;
        let [tokens, width] = shape(of_key).map(|size| size as u64);
        let key = place(session, key, of_key, dtype)?;
        Ok(Self { tokens, width, dtype, key, value: place(session, value, of_value, dtype)? })
    }

    /// Tokens of the prefix.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Bytes of the prefix on the device.
    pub fn bytes(&self) -> u64 {
        [self.key.0, self.value.0].map(|factors| factors.bytes(self.dtype, self.tokens, self.width)).iter().sum()
    }

    /// Attention over the prefix, of `q_len` queries of each of `batch` sequences. q and o are packed `[b, s, h, d]`, as in
    /// [`PrefixAttention::new`]. Heads are `[heads, kv_heads]`.
    ///
    /// # Errors
    /// Heads of keys that do not divide the prefix's width.
    pub fn attention(&self, batch: u64, heads: [u64; 2], q_len: u64) -> Result<PrefixAttention> {
        let divides = heads[1] > 0 && self.width.is_multiple_of(heads[1]);
        ensure(divides, "prefix: kv_heads", format_args!("a divisor of {}", self.width), heads[1])?;
        Ok(PrefixAttention::new(self.dtype, batch, heads, [q_len, self.tokens], self.width / heads[1], [self.key.0, self.value.0]))
    }

    /// The operands of [`attention`](Self::attention).
    pub fn args(&self, q: crate::device::Slice<D>, o: crate::device::Slice<D>, lse: crate::device::Slice<D>) -> PrefixAttentionArgs<D> {
        PrefixAttentionArgs { q, key: self.key.1.clone(), value: self.value.1.clone(), o, lse }
    }
}

/// The columns of a factor, `[d, rank]`, widened.
fn widened(factor: &EncodedFactor, d: usize, bases: &[Matrix<f16>]) -> Result<Matrix<f32>> {
    match factor {
        EncodedFactor::Plain(values) => Ok(values.map(f16::to_f32)),
        EncodedFactor::Shared(basis) => {
            let found = bases.get(*basis).ok_or_else(|| Error::invalid("prefix", format!("a basis below {}", bases.len()), basis))?;
            Ok(found.map(f16::to_f32))
        }
        EncodedFactor::Coded(CodedColumns { columns, codebook, .. }) => {
            let mut turned = Matrix { rows: columns.len(), cols: d, data: vec![0.0; columns.len() * d] };
            for ((width, words), out) in columns.iter().zip(turned.data.chunks_exact_mut(d.max(1))) {
                decode_column(*width, words, codebook, out);
            }
            Ok(turned.transposed())
        }
    }
}

/// `left · right`, a row at a time.
fn product(left: &Matrix<f32>, right: &Matrix<f32>) -> Matrix<f32> {
    let mut out = Matrix { rows: left.rows, cols: right.cols, data: vec![0.0; left.rows * right.cols] };
    for (own, sums) in left.data.chunks_exact(left.cols.max(1)).zip(out.data.chunks_exact_mut(right.cols.max(1))) {
        for (value, row) in own.iter().zip(right.data.chunks_exact(right.cols.max(1))) {
            sums.iter_mut().zip(row).for_each(|(sum, other)| *sum += value * other);
        }
    }
    out
}

/// The factors of K or of V: `C = s · I·Q` over `B = O`, or `C = I` over `B = s · O·Qᵀ`. The side that then takes fewer bytes becomes
/// dense.
fn place<D: Device>(session: &mut Session<D>, projection: &EncodedProjection, shared: &SharedProjection, dtype: DType) -> Result<(Factors, FactorsArgs<D>)> {
    let sides = [(&projection.input, shared.d_in, &shared.input_bases), (&projection.output, shared.d_out, &shared.output_bases)];
    let dense = |side: usize| match (sides[side].0, sides[1 - side].0) {
        (EncodedFactor::Coded(_), EncodedFactor::Coded(_)) => sides[side].1 <= sides[1 - side].1,
        (EncodedFactor::Coded(_), _) => false,
        _ => true,
    };
    let side = usize::from(!dense(0));
    let (factor, d, bases) = sides[side];
    let own = widened(factor, d, bases)?;
    let core = match &projection.core {
        Some(core) if side == 0 => core.clone(),
        Some(core) => core.transposed(),
        None => Matrix { rows: own.cols, cols: own.cols, data: (0..own.cols * own.cols).map(|at| f32::from(at % (own.cols + 1) == 0)).collect() },
    };
    ensure(core.rows == own.cols, "prefix: core", format_args!("{} rows", own.cols), core.rows)?;
    let mut values = product(&own, &core.map(|value| value * projection.scaling));

    // A column of no bits adds nothing, so both sides leave it out.
    let (other, other_d, other_bases) = sides[1 - side];
    let live: Vec<usize> = (0..values.cols).filter(|&column| other.is_live(column)).collect();
    let live = if live.is_empty() { vec![0] } else { live };
    values = Matrix {
        rows: d,
        cols: live.len(),
        data: (0..d).flat_map(|row| live.iter().map(move |&column| (row, column))).map(|(r, c)| values.at(r, c)).collect(),
    };
    let wide = |values: &Matrix<f32>| dtype.encode(&values.data.iter().map(|&value| f64::from(value)).collect::<Vec<_>>());
    let dense = FactorArgs::Dense { values: session.upload(&wide(&values))?, basis_of: None };
    let (form, args) = match other {
        EncodedFactor::Coded(coded) => {
            let columns: Vec<(CodeWidth, Vec<u32>)> = live.iter().map(|&column| coded.columns[column].clone()).collect();
            // With one width for all, columns need no headers.
            let width = columns.first().map(|column| column.0).filter(|first| columns.iter().all(|column| column.0 == *first));
            let codes = AdapterCodes::new(other_d as u32, width, &columns)?;
            let words_per_adapter = codes.words().len() as u32;
            let shape = CodesShape { adapters: 1, d: other_d as u32, rank: live.len() as u32, width, words_per_adapter };
            let codebook: [f32; CODEBOOK_LEN] = coded.codebook;
            let args = FactorArgs::Coded { codes: session.index(&Codes::new(shape, &[codes])?)?, codebooks: session.upload(&codebook)? };
            (Factor::Coded { width, words_per_adapter }, args)
        }
        other => {
            let values = widened(other, other_d, other_bases)?;
            (Factor::Dense { bases: 1 }, FactorArgs::Dense { values: session.upload(&wide(&values))?, basis_of: None })
        }
    };
    let (rank, plain) = (live.len() as u64, Factor::Dense { bases: 1 });
    Ok(if side == 0 {
        (Factors { rank, coefficients: plain, basis: form }, FactorsArgs { coefficients: dense, basis: args })
    } else {
        (Factors { rank, coefficients: form, basis: plain }, FactorsArgs { coefficients: args, basis: dense })
    })
}
