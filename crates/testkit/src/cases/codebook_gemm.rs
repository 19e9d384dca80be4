use super::case::{Case, EDGES, OpKind, Posed, dtype_in_turn};
use super::draw::Draw;
use crate::oracle::codebook_gemm::{FactorHost, Host, SliceHost};
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::ops::codebook_gemm::{CodebookGemm, CodebookSlice, Factor, ScaledBy};
use trifuse::ops::codes::{CODEBOOK_LEN, CodeWidth, pack};
use trifuse::ops::index::{AdapterCodes, BasisOf, Codes, TokenAdapters};

/// The adapter that each token uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assignment {
    /// Any, or none for one token in six, in no order.
    Mixed,
    /// Runs of tokens that share one, every adapter in use.
    Runs,
    /// All the same.
    One,
    /// None.
    BaseOnly,
}

/// A codebook GEMM still without data.
#[derive(Clone, Debug)]
pub struct Population {
    /// The descriptor.
    pub op: CodebookGemm,
    /// The adapter that each token uses.
    pub assignment: Assignment,
}

impl Population {
    /// `op`, tokens assigned at random.
    pub fn new(op: CodebookGemm) -> Self {
        Self { op, assignment: Assignment::Mixed }
    }

    /// Draws the operands.
    pub fn pose(&self, draw: &mut Draw) -> Result<Posed<CodebookGemm>> {
        let op = self.op.clone();
        let adapters = op.adapters;
        let ids: Vec<i32> = (0..op.tokens)
            .map(|t| match self.assignment {
                Assignment::BaseOnly => -1,
                Assignment::One => adapters as i32 - 1,
                Assignment::Runs => (t * u64::from(adapters) / op.tokens) as i32,
                // The first token always has an adapter, so that there is something to get wrong.
                Assignment::Mixed if adapters > 0 && (t == 0 || draw.below(6) > 0) => draw.below(adapters) as i32,
                Assignment::Mixed => -1,
            })
            .collect();
        let mut slices = Vec::new();
        for slice in &op.slices {
            slices.push(SliceHost {
                input: factor(slice.input, (op.dtype, adapters), op.d_in, slice.rank, 1.0 / (op.d_in as f64).sqrt(), draw)?,
                core: draw.optional(slice.core, DType::F32, u64::from(adapters) * slice.rank * slice.rank, 1.0 / (slice.rank as f64).sqrt()),
                output: factor(slice.output, (op.dtype, adapters), slice.d_out, slice.rank, 1.0 / (slice.rank as f64).sqrt(), draw)?,
                y: draw.pitched(op.dtype, [op.tokens, slice.d_out], slice.y_stride, 1.0),
            });
        }
        let host = Host {
            x: draw.pitched(op.dtype, [op.tokens, op.d_in], op.x_stride, 1.0),
            token_adapter: TokenAdapters::new(&ids, adapters)?,
            // The gates of neighbours differ: no two tokens of a run have the same.
            scaling: (0..op.scalings()).map(|at| 0.5 + (at % 4) as f64 * 0.5).collect(),
            slices,
        };
        Ok(Posed { op, host })
    }
}

/// An adapter's codebooks for a long chain of projections that keeps the size of what goes through it: each stage of mean
/// zero and of exact mean square, or what is left to chance multiplies from one projection to the next.
pub fn steady_codebook(width: CodeWidth, rank: u64, draw: &mut Draw) -> [f32; CODEBOOK_LEN] {
    let mut book = [0f32; CODEBOOK_LEN];
    // A product of random matrices of that rank shrinks what it is applied to by this factor a step, on average.
    let kept = 1.0 + 0.5 / rank as f64;
    // The second stage codes what the first left over: it is smaller.
    for (stage, spread) in [(width.stage1(), 1.0), (width.stage2(), 0.1)] {
        let drawn: Vec<f64> = stage.clone().map(|_| draw.gaussian()).collect();
        let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
        let deviation = (drawn.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / drawn.len() as f64).sqrt();
        let scale = kept * spread / (deviation * (rank as f64).sqrt());
        book[stage].iter_mut().zip(drawn).for_each(|(value, drawn)| *value = ((drawn - mean) * scale) as f32);
    }
    book
}

/// The widths of an adapter's columns: given, or every width in turn, begun elsewhere by each adapter.
fn widths(width: Option<CodeWidth>, adapter: u32, rank: u64) -> Vec<CodeWidth> {
    (0..rank as usize).map(|j| width.unwrap_or(CodeWidth::ALL[(j + 1 + adapter as usize) % CodeWidth::ALL.len()])).collect()
}

/// A factor `[d, rank]` of each of `adapters`, dense ones in `dtype`.
pub(super) fn factor(factor: Factor, (dtype, adapters): (DType, u32), d: u64, rank: u64, deviation: f64, draw: &mut Draw) -> Result<FactorHost> {
    let (bases, shape) = match (factor, factor.codes(adapters, d, rank)) {
        (Factor::Dense { bases }, _) => (bases, None),
        (_, shape) => (0, shape),
    };
    let Some(shape) = shape else {
        let values = draw.normal(dtype, u64::from(bases) * d * rank, deviation);
        let basis: Vec<i32> = (0..adapters).map(|a| ((a * 7 + 1) % bases) as i32).collect();
        return Ok(FactorHost::Dense { values, basis_of: if bases > 1 { Some(BasisOf::new(&basis, bases)?) } else { None } });
    };
    let mut coded = Vec::new();
    for adapter in 0..adapters {
        let mut columns = Vec::new();
        for width in widths(shape.width, adapter, rank) {
            let first = draw.codes(d, width.stage1().len() as u32);
            let second = draw.codes(d, width.stage2().len() as u32);
            columns.push((width, pack(width, &first, &second)?));
        }
        coded.push(AdapterCodes::new(d as u32, shape.width, &columns)?);
    }
    let mut codebooks = Vec::new();
    for _ in 0..adapters {
        let mut book = draw.normal(DType::F32, CODEBOOK_LEN as u64, deviation);
        // The second stage codes what the first left over: it is smaller.
        book[CodeWidth::FourThree.stage2()].iter_mut().for_each(|value| *value = DType::F32.round(*value * 0.25));
        codebooks.extend(book);
    }
    Ok(FactorHost::Coded { codes: Codes::new(shape, &coded)?, codebooks })
}

/// A coded factor of `rank` columns of `d` elements; `None` gives each column its own width.
pub(super) fn coded(width: Option<CodeWidth>, adapters: u32, d: u64, rank: u64) -> Factor {
    let columns = |adapter| widths(width, adapter, rank).iter().map(|width| width.column_words(d)).sum::<u64>();
    let header = if width.is_none() { rank } else { 0 };
    Factor::Coded { width, words_per_adapter: (header + (0..adapters).map(columns).max().unwrap_or(0)) as u32 }
}

/// A case of that name and dtype.
pub(super) fn case(name: impl std::fmt::Display, op: CodebookGemm, assignment: Assignment) -> Case {
    let population = Population { op, assignment };
    Case::new(OpKind::CodebookGemm, format!("{name}_{}", population.op.dtype), move |draw| population.pose(draw).map(Into::into))
}

/// S2LC's form for one projection, seven-bit codes, adapters mixed.
fn s2lc(dtype: DType, tokens: u64, dims: [u64; 3]) -> CodebookGemm {
    CodebookGemm::s2lc(dtype, tokens, dims, 6, CodeWidth::FourThree)
}

/// `op` with its one slice changed.
fn with_slice(mut op: CodebookGemm, change: impl Fn(&mut CodebookSlice)) -> CodebookGemm {
    op.slices.iter_mut().for_each(change);
    op
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = edges();
    cases.extend(segments());
    cases.extend(joint());
    let mixed = Assignment::Mixed;
    let gated = |op: CodebookGemm| op.with_scaled_by(ScaledBy::Token);
    for dtype in DType::ALL {
        cases.push(case("one_adapter", s2lc(dtype, 33, [64, 96, 16]), Assignment::One));
        cases.push(case("overwrite", s2lc(dtype, 21, [40, 56, 8]).with_accumulate(false), mixed));
        cases.push(case("core", with_slice(s2lc(dtype, 19, [48, 72, 20]), |slice| slice.core = true), mixed));
        let runs = |rank, d_out, change: fn(&mut CodebookSlice)| with_slice(s2lc(dtype, 200, [136, d_out, rank]), change);
        cases.push(case("runs200", runs(16, 392, |slice| slice.core = true), Assignment::Runs));
        cases.push(case("runs200_overwrite", runs(8, 391, |_| ()).with_accumulate(false), Assignment::Runs));
        let private = runs(20, 77, |slice| (slice.input, slice.output) = (coded(None, 6, 136, 20), coded(None, 6, 77, 20)));
        cases.push(case("mixed200_codes_both_sides", private, mixed));
        cases.push(case("three_slices", slices(dtype, 64, &[(64, 16), (24, 8), (17, 5)]), mixed));
        cases.push(case("three_even_slices", slices(dtype, 64, &[(64, 16), (24, 8), (520, 32)]), mixed));
        cases.push(case("many_slices", slices(dtype, 1104, &[(40, 8); 20]), mixed));
        cases.push(case("gates", gated(s2lc(dtype, 37, [64, 96, 16])), mixed));
        cases.push(case("column_widths", with_slice(s2lc(dtype, 17, [40, 77, 13]), |slice| slice.output = coded(None, 6, 77, 13)), mixed));
    }
    // More coefficients than any kernel takes at once.
    cases.push(case("rank130", s2lc(DType::F32, 9, [72, 90, 130]), mixed));
    cases.push(case("gates_odd", gated(with_slice(s2lc(DType::F16, 18, [41, 77, 13]), |slice| slice.core = true)), mixed));
    cases.push(case("gates200", gated(with_slice(s2lc(DType::F16, 200, [136, 392, 16]), |slice| slice.core = true)), Assignment::Runs));
    cases.push(case("gates_three_slices", gated(slices(DType::F16, 64, &[(64, 16), (24, 8), (520, 32)])), mixed));
    for (n, width) in CodeWidth::ALL.into_iter().enumerate() {
        // Of no bits, every delta is zero: written over y, so that writing nothing would show.
        let accumulate = width != CodeWidth::Zero;
        let op = CodebookGemm::s2lc(dtype_in_turn(n), 13, [33, 45, 12], 4, width).with_accumulate(accumulate);
        let made = case(format!("codes_{width:?}").to_lowercase(), op.clone(), mixed);
        let input = with_slice(op, |slice| {
            slice.input = coded(Some(width), 4, 33, 12);
            slice.output = Factor::Dense { bases: 1 };
        });
        let input = case(format!("input_codes_{width:?}").to_lowercase(), input, mixed);
        if width == CodeWidth::Zero {
            let reason = "codes of no bits: every factor, and so every delta, is zero";
            cases.extend([made.zero(reason), input.zero(reason)]);
        } else {
            cases.extend([made, input]);
        }
    }
    for (n, (input, output)) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().enumerate() {
        let factor = move |kind: i32, d: u64| if kind == 0 { Factor::Dense { bases: 3 } } else { coded(Some(CodeWidth::Four), 6, d, 18) };
        let op = with_slice(s2lc(dtype_in_turn(n), 23, [50, 61, 18]), move |slice| {
            (slice.input, slice.output) = (factor(input, 50), factor(output, 61));
        });
        let name = |kind| if kind == 0 { "clusters" } else { "codes" };
        cases.push(case(format!("{}_then_{}", name(input), name(output)), op, mixed));
    }
    let both = with_slice(s2lc(DType::F16, 15, [41, 39, 9]), |slice| {
        (slice.input, slice.core, slice.output) = (coded(None, 6, 41, 9), true, coded(None, 6, 39, 9));
    });
    cases.push(case("column_widths_both_sides_core", both, mixed));
    cases.push(case("runs", s2lc(DType::F16, 90, [64, 64, 16]), Assignment::Runs));
    cases.push(case("no_tokens", s2lc(DType::F16, 0, [32, 32, 8]), mixed).zero("zero tokens: nothing is written"));
    cases.push(case("base_only", s2lc(DType::F16, 9, [32, 32, 8]), Assignment::BaseOnly).zero("no token has an adapter: nothing is written"));
    let base_overwrite = s2lc(DType::F16, 9, [32, 32, 8]).with_accumulate(false);
    cases.push(case("base_only_overwrite", base_overwrite, Assignment::BaseOnly).zero("no token has an adapter: zeros are written"));
    let none = s2lc(DType::F16, 4, [32, 32, 8]).with_accumulate(false).with_adapters(0);
    cases.push(case("no_adapters_overwrite", none, mixed).zero("there is no adapter: zeros are written"));
    let strided = with_slice(s2lc(DType::F16, 11, [40, 33, 8]).with_x_stride(53), |slice| slice.y_stride = 47);
    cases.push(case("strided_rows", strided.clone(), mixed));
    cases.push(case("strided_rows_overwrite", strided.with_accumulate(false), mixed));
    cases.push(case("many_adapters", CodebookGemm::s2lc(DType::F16, 70, [32, 48, 16], 100, CodeWidth::Bytes), mixed));
    cases
}

/// Many tokens over many adapters: segments of one token and of many, some without a tile of their own.
fn segments() -> Vec<Case> {
    let (mixed, half) = (Assignment::Mixed, |n: usize| [DType::F16, DType::BF16][n % 2]);
    let many = |n, dims, width| CodebookGemm::s2lc(half(n), 150, dims, 100, width);
    let mut cases = Vec::new();
    for (n, width) in [CodeWidth::Two, CodeWidth::Three, CodeWidth::Four, CodeWidth::FourThree, CodeWidth::Bytes].into_iter().enumerate() {
        for (odd, dims) in [[72, 136, 16], [71, 133, 13]].into_iter().enumerate() {
            let name = format!("segments150_{}_{width:?}", ["even", "odd"][odd]).to_lowercase();
            cases.push(case(name, many(n + odd, dims, width).with_accumulate(n % 2 == odd), mixed));
        }
    }
    for rank in [17, 32, 64] {
        cases.push(case(format!("segments150_rank{rank}"), many(1, [40, 304, rank], CodeWidth::FourThree), mixed));
    }
    let each = with_slice(many(1, [40, 77, 16], CodeWidth::Four), |slice| slice.output = coded(None, 100, 77, 16));
    cases.push(case("segments150_column_widths", each, mixed));
    let bases = with_slice(many(1, [136, 80, 24], CodeWidth::FourThree), |slice| (slice.core, slice.input) = (true, Factor::Dense { bases: 3 }));
    cases.push(case("segments150_bases_core", bases.with_scaled_by(ScaledBy::Token), mixed));
    // Segments that go on past a block's share of tokens, from its start and from its middle.
    for assignment in [mixed, Assignment::Runs, Assignment::One] {
        let op = CodebookGemm::s2lc(half(0), 300, [32, 48, 8], 100, CodeWidth::FourThree).with_accumulate(false);
        cases.push(case(format!("segments300_{assignment:?}").to_lowercase(), op, assignment));
    }
    let slices = slices(DType::F16, 64, &[(64, 16), (24, 8), (520, 16)]).with_tokens(140).with_adapters(100);
    cases.push(case("segments140_three_slices", slices, mixed));
    // More columns than a warp takes at once, and more of d_in than a buffer.
    let wide = CodebookGemm::s2lc(DType::F16, 150, [40, 2056, 16], 140, CodeWidth::FourThree);
    cases.push(case("segments150_wide", wide, mixed));
    let prefetched = CodebookGemm::s2lc(DType::BF16, 520, [24, 40, 16], 100, CodeWidth::Three);
    cases.push(case("segments520", prefetched, mixed));
    let long = CodebookGemm::s2lc(DType::F16, 130, [4608, 40, 16], 100, CodeWidth::FourThree);
    cases.push(case("segments130_long", long, mixed));
    cases
}

/// Many tokens over many adapters, as few bits and columns as one launch takes: several tiles a block, shares of d_in that are not there, adapters of
/// more than 16 tokens and of more than 64, tokens without an adapter.
fn joint() -> Vec<Case> {
    let of = |dtype, tokens, dims, adapters| CodebookGemm::s2lc(dtype, tokens, dims, adapters, CodeWidth::FourThree).with_accumulate(false);
    let core = with_slice(of(DType::BF16, 250, [520, 256, 8], 40), |slice| slice.core = true);
    vec![
        case("joint260", of(DType::F16, 260, [136, 128, 16], 40), Assignment::Mixed),
        case("joint250_core", core, Assignment::Mixed),
        case("joint150_scaled", of(DType::BF16, 150, [520, 256, 8], 100).with_scaled_by(ScaledBy::Token), Assignment::Mixed),
        case("joint600", of(DType::F16, 600, [72, 384, 16], 33), Assignment::Runs),
        case("joint300_one", of(DType::BF16, 300, [264, 128, 16], 35), Assignment::One),
        case("joint250_base", of(DType::F16, 250, [64, 128, 16], 35), Assignment::BaseOnly).zero("no token has an adapter: zeros are written"),
    ]
}

fn edges() -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, edge) in EDGES.into_iter().enumerate() {
        cases.push(case(format!("tokens{edge}"), s2lc(dtype_in_turn(n), edge, [40, 56, 16]), Assignment::Mixed));
        cases.push(case(format!("d_in{edge}"), s2lc(dtype_in_turn(n + 1), 6, [edge, 56, 16]), Assignment::Mixed));
        cases.push(case(format!("d_out{edge}"), s2lc(dtype_in_turn(n + 2), 6, [40, edge, 16]), Assignment::Mixed));
    }
    for (n, rank) in [1, 3, 8, 15, 17, 31, 48, 64].into_iter().enumerate() {
        cases.push(case(format!("rank{rank}"), s2lc(dtype_in_turn(n), 10, [72, 80, rank]), Assignment::Mixed));
    }
    cases.push(case("d_in4096", s2lc(DType::F16, 5, [4096, 48, 16]), Assignment::Mixed));
    cases.push(case("d_out4096", s2lc(DType::F16, 5, [48, 4096, 16]), Assignment::Mixed));
    cases.push(case("tokens4096", s2lc(DType::F16, 4096, [16, 24, 8]), Assignment::Mixed));
    cases
}

/// Slices as query, key and value with grouped heads have them: widths and ranks, side by side in one matrix.
fn slices(dtype: DType, d_in: u64, slices: &[(u64, u64)]) -> CodebookGemm {
    let mut op = s2lc(dtype, 14, [d_in, 1, 1]);
    op.slices = slices
        .iter()
        .map(|&(d_out, rank)| {
            CodebookSlice::new(d_out, rank, Factor::Dense { bases: 1 }, coded(Some(CodeWidth::FourThree), 6, d_out, rank))
                .with_y_stride(slices.iter().map(|(d_out, _)| d_out).sum::<u64>().next_multiple_of(8))
                .with_core(rank == 8)
        })
        .collect();
    op
}
