//! `y[t] += s_a · ((x[t]·I_a)·Q_a)·O_aᵀ` for each slice, `a` the adapter of token `t`.

use std::collections::BTreeMap;

use super::{Define, Output, Rounding, dots, expect_len, expect_optional, pitched_len, reversed, transposed};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result, ensure};
use trifuse::ops::codebook_gemm::{CodebookSlice, Factor, ScaledBy};
use trifuse::ops::codes::{CODEBOOK_LEN, field};
use trifuse::ops::index::{BasisOf, Codes, HostIndex, TokenAdapters};
use trifuse::ops::{CodebookGemm, Op};

/// The operands on the host; see [`trifuse::ops::CodebookGemmArgs`].
#[derive(Clone, Debug)]
pub struct Host {
    /// `[tokens, d_in]`, rows `x_stride` apart, from the first element to the last.
    pub x: Vec<f64>,
    /// The adapter of each token.
    pub token_adapter: TokenAdapters,
    /// `[adapters]`, or `[tokens]` where the descriptor says so. The operation has them in f32.
    pub scaling: Vec<f64>,
    /// One for each slice of the descriptor.
    pub slices: Vec<SliceHost>,
}

/// The operands of one slice.
#[derive(Clone, Debug)]
pub struct SliceHost {
    /// `I_a`.
    pub input: FactorHost,
    /// `[adapters, R, R]`.
    pub core: Option<Vec<f64>>,
    /// `O_a`.
    pub output: FactorHost,
    /// What y holds before, `[tokens, d_out]`, rows `y_stride` apart, from the first element to the last.
    pub y: Vec<f64>,
}

/// The operands of one factor.
#[derive(Clone, Debug)]
pub enum FactorHost {
    /// Shared.
    Dense {
        /// `[bases, d, R]`.
        values: Vec<f64>,
        /// The basis of each adapter.
        basis_of: Option<BasisOf>,
    },
    /// Private.
    Coded {
        /// The packed codes.
        codes: Codes,
        /// `[adapters, 52]`.
        codebooks: Vec<f64>,
    },
}

impl FactorHost {
    pub(super) fn check(&self, name: &str, factor: Factor, adapters: u32, d: u64, rank: u64) -> Result<()> {
        match (self, factor) {
            (Self::Dense { values, basis_of }, Factor::Dense { bases }) => {
                expect_len(name, values, u64::from(bases) * d * rank)?;
                let shape = basis_of.as_ref().map(HostIndex::shape);
                let fits = shape.map_or(bases == 1, |shape| (shape.adapters, shape.bases) == (adapters, bases));
                ensure(fits, name, format_args!("a basis of {bases} for each of {adapters} adapters"), format_args!("{shape:?}"))
            }
            (Self::Coded { codes, codebooks }, Factor::Coded { .. }) => {
                let wanted = factor.codes(adapters, d, rank);
                ensure(Some(codes.shape()) == wanted, name, format_args!("{wanted:?}"), format_args!("{:?}", codes.shape()))?;
                expect_len(name, codebooks, u64::from(adapters) * CODEBOOK_LEN as u64)
            }
            _ => Err(Error::invalid(name, format!("{factor:?}"), "the other kind of factor")),
        }
    }

    /// The factor of `adapter`, `[d, rank]`.
    pub(super) fn of<R: Rounding>(&self, adapter: usize, d: usize, rank: usize, rounding: R) -> Result<Vec<f64>> {
        match self {
            Self::Dense { values, basis_of } => {
                let basis = basis_of.as_ref().map_or(0, |index| index.basis()[adapter] as usize);
                Ok(values[basis * d * rank..][..d * rank].to_vec())
            }
            Self::Coded { codes, codebooks } => {
                let (shape, words) = (codes.shape(), codes.words());
                let per_adapter = shape.words_per_adapter as usize;
                let region: Vec<u32> = words[adapter * per_adapter..][..per_adapter].iter().map(|&word| word as u32).collect();
                let book = &codebooks[adapter * CODEBOOK_LEN..][..CODEBOOK_LEN];
                let mut factor = vec![0.0; d * rank];
                for j in 0..rank {
                    let missing = || Error::invalid("codes", "a column inside the adapter's region", format!("none at {j}"));
                    let (width, column) = shape.column(&region, j).ok_or_else(missing)?;
                    for o in 0..d {
                        let (i1, i2) = width.split(field(width, column, o));
                        let first = book[width.stage1()].get(usize::from(i1)).copied().unwrap_or(0.0);
                        let second = book[width.stage2()].get(usize::from(i2)).copied().unwrap_or(0.0);
                        factor[o * rank + j] = rounding.keep(first + second);
                    }
                }
                Ok(factor)
            }
        }
    }
}

/// `x · matrix`, with `matrix [x.len(), columns]`.
fn row_times<R: Rounding>(x: &[f64], matrix: &[f64], columns: usize, rounding: R) -> Vec<f64> {
    let mut out = vec![0.0; columns];
    for (x, row) in x.iter().zip(matrix.chunks_exact(columns)) {
        for (sum, value) in out.iter_mut().zip(row) {
            *sum = rounding.step(*sum + x * value);
        }
    }
    out
}

/// What slice number `which` adds to each token's row, before it is added; `None` for a token without an adapter.
/// `x` is the operation's, or that of the [`trifuse::ops::Linear`] that it is part of.
pub(super) fn deltas<R: Rounding>(op: &CodebookGemm, host: &Host, x: &[f64], which: usize, rounding: R) -> Result<Vec<Option<Vec<f64>>>> {
    op.validate()?;
    expect_len("codebook_gemm: x", x, pitched_len(op.tokens, op.d_in, op.x_stride))?;
    expect_len("codebook_gemm: scaling", &host.scaling, op.scalings())?;
    ensure(host.slices.len() == op.slices.len(), "codebook_gemm: slices", format_args!("{}", op.slices.len()), host.slices.len())?;
    let shape = host.token_adapter.shape();
    let fits = (shape.tokens, shape.adapters) == (op.tokens, op.adapters);
    ensure(fits, "codebook_gemm: token_adapter", format_args!("{} tokens over {} adapters", op.tokens, op.adapters), format_args!("{shape:?}"))?;

    let (slice, operands): (&CodebookSlice, &SliceHost) = (&op.slices[which], &host.slices[which]);
    operands.input.check("codebook_gemm: input factor", slice.input, op.adapters, op.d_in, slice.rank)?;
    operands.output.check("codebook_gemm: output factor", slice.output, op.adapters, slice.d_out, slice.rank)?;
    expect_optional("codebook_gemm: core", operands.core.as_deref(), slice.core, u64::from(op.adapters) * slice.rank * slice.rank)?;

    let (d_in, d_out, rank) = (op.d_in as usize, slice.d_out as usize, slice.rank as usize);
    let mut factors = BTreeMap::new();
    let mut rows = Vec::with_capacity(op.tokens as usize);
    for (t, &adapter) in host.token_adapter.ids().iter().enumerate() {
        let Ok(adapter) = usize::try_from(adapter) else {
            rows.push(None);
            continue;
        };
        if let std::collections::btree_map::Entry::Vacant(entry) = factors.entry(adapter) {
            entry.insert((operands.input.of(adapter, d_in, rank, rounding)?, operands.output.of(adapter, d_out, rank, rounding)?));
        }
        let (input, output) = &factors[&adapter];
        let x = &x[t * op.x_stride as usize..][..d_in];
        let mut g: Vec<f64> = row_times(x, input, rank, rounding).into_iter().map(|h| rounding.keep(h)).collect();
        if let Some(core) = &operands.core {
            let core = &core[adapter * rank * rank..][..rank * rank];
            g = row_times(&g, core, rank, rounding).into_iter().map(|g| rounding.keep(g)).collect();
        }
        let scaling = rounding.step(host.scaling[if op.scaled_by == ScaledBy::Token { t } else { adapter }]);
        let sums = dots(&g, |n| &output[n * rank..][..rank], d_out, rounding);
        rows.push(Some(sums.into_iter().map(|sum| rounding.step(scaling * sum)).collect()));
    }
    Ok(rows)
}

impl Define for CodebookGemm {
    type Host = Host;

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn evaluate<R: Rounding>(&self, host: &Host, rounding: R) -> Result<Vec<Output>> {
        let mut outputs = Vec::new();
        for (which, slice) in self.slices.iter().enumerate() {
            let deltas = deltas(self, host, &host.x, which, rounding)?;
            let before = &host.slices[which].y;
            let length = pitched_len(self.tokens, slice.d_out, slice.y_stride);
            expect_len("codebook_gemm: y", before, length)?;
            let mut elements = vec![None; length as usize];
            for (t, delta) in deltas.iter().enumerate() {
                for o in 0..slice.d_out as usize {
                    let at = t * slice.y_stride as usize + o;
                    elements[at] = match (delta, self.accumulate) {
                        (Some(delta), true) => Some(rounding.keep(before[at] + delta[o])),
                        (Some(delta), false) => Some(rounding.keep(delta[o])),
                        (None, true) => None,
                        (None, false) => Some(0.0),
                    };
                }
            }
            outputs.push(Output { name: format!("y of slice {which}"), dtype: self.dtype, rounded: self.dtype, elements, least: 0.0, cut: 0, integers: false });
        }
        Ok(outputs)
    }

    fn disordered(&self, host: &Host) -> Vec<(&'static str, Host)> {
        let mut wrong = Vec::new();
        let mut turn = |name, change: &dyn Fn(&CodebookSlice, &mut SliceHost) -> Option<()>| {
            let mut host = host.clone();
            // Every slice at once, as a wrong kernel would: one that cannot change does not hide the others.
            let changed: Vec<_> = self.slices.iter().zip(&mut host.slices).map(|(slice, operands)| change(slice, operands)).collect();
            if changed.iter().all(Option::is_some) {
                wrong.push((name, host));
            }
        };
        turn("input factor", &|slice, operands| turn_factor(&mut operands.input, self.d_in as usize, slice.rank as usize));
        turn("output factor", &|slice, operands| turn_factor(&mut operands.output, slice.d_out as usize, slice.rank as usize));
        turn("core", &|slice, operands| {
            let core = operands.core.as_mut()?;
            for matrix in core.chunks_exact_mut((slice.rank * slice.rank) as usize) {
                matrix.copy_from_slice(&transposed(matrix, slice.rank as usize, slice.rank as usize)?);
            }
            Some(())
        });
        wrong.push(("no delta", Host { scaling: vec![0.0; host.scaling.len()], ..host.clone() }));
        wrong
    }
}

/// Turns a dense factor, or the codebooks of a coded one.
pub(super) fn turn_factor(factor: &mut FactorHost, d: usize, rank: usize) -> Option<()> {
    match factor {
        FactorHost::Dense { values, .. } => {
            for basis in values.chunks_exact_mut(d * rank) {
                basis.copy_from_slice(&transposed(basis, d, rank)?);
            }
        }
        FactorHost::Coded { codebooks, .. } => *codebooks = reversed(codebooks)?,
    }
    Some(())
}
