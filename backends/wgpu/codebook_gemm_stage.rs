//! One dispatch of `codebook_gemm`: it applies a factor of each tile's adapter to the tile's rows. See `shaders/codebook/`.

use std::sync::Arc;

use super::compiled::Pipeline;
use super::queue::part;
use super::source::{Constant, Element, File, Operand, Source, shader};
use super::{Queue, Wgpu};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::CodebookGemm;
use crate::ops::codebook_gemm::{Factor, FactorArgs, ScaledBy};
use crate::ops::codes::{CODEBOOK_LEN, CodeWidth};

/// The layout and type of y, besides its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub dtype: DType,
    /// Elements from a row of y to the next.
    pub stride: u64,
    pub accumulate: bool,
}

/// Rows of x and of y that are next to each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub first: u64,
    pub count: u64,
}

/// Tokens of a tile, and columns of h and of y that a workgroup computes, as in the shaders.
const TILE: u64 = 16;
const PROJECTED: u64 = 16;
const EXPANDED: u64 = 64;
/// The number, as in the shader, that stands for a width where each column names its own.
pub(super) const MIXED: u32 = 255;
/// Bytes of an adapter's codebook record.
const CODEBOOK_BYTES: u64 = CODEBOOK_LEN as u64 * 4;

const F32: Element = Element::Float(DType::F32);

/// How a shader reads its factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// A dense factor in this type: one for all adapters, one by `basis_of`, or one an adapter (a core).
    Dense(DType, Bases),
    /// A coded factor, of one width or of each column's own.
    Coded(Option<CodeWidth>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bases {
    One,
    Several,
    Own,
}

/// A compiled stage.
pub(super) struct Stage {
    pipeline: Arc<Pipeline>,
    reader: Reader,
    expands: bool,
    /// Whether tokens without an adapter get zeros.
    clears: bool,
    tokens: u64,
    d: u64,
    rank: u64,
    words: u64,
    /// Elements from a row of x or y to the next.
    stride: u64,
    /// The most tiles that there can be. The last segment's last number bounds them: see `tile.wgsl`.
    tiles: u64,
    /// The number of factors, the bytes of each, and how many one dispatch can reach.
    factors: u64,
    factor_bytes: u64,
    reach: u64,
}

/// The operands of a dispatch.
#[derive(Clone, Copy)]
pub(super) struct Launch<'a> {
    pub token_adapter: &'a Slice<Wgpu>,
    /// The operand x, h or g, from the first of the rows.
    pub input: &'a Slice<Wgpu>,
    pub factor: &'a FactorArgs<Wgpu>,
    /// The scaling factors, which only an expansion has.
    pub scaling: Option<&'a Slice<Wgpu>>,
    pub scaled_by: ScaledBy,
    /// The result h, g or y, from the first of the rows.
    pub output: &'a Slice<Wgpu>,
    pub rows: Rows,
}

/// The shaders' `Params`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    total: u32,
    row0: u32,
    rows: u32,
    tiles: u32,
    factor0: u32,
    factors: u32,
    d: u32,
    rank: u32,
    words: u32,
    stride: u32,
    scaled_by_token: u32,
}

const TILE_FILE: File = shader!("codebook/tile.wgsl");
const DENSE_FILE: File = shader!("codebook/dense.wgsl");
const CODED_FILE: File = shader!("codebook/coded.wgsl");
const PROJECT_FILE: File = shader!("codebook/project.wgsl");
const EXPAND_FILE: File = shader!("codebook/expand.wgsl");

impl Reader {
    fn new(factor: Factor, dtype: DType, own: bool) -> Self {
        match factor {
            Factor::Coded { width, .. } => Self::Coded(width),
            Factor::Dense { .. } if own => Self::Dense(dtype, Bases::Own),
            Factor::Dense { bases: 1 } => Self::Dense(dtype, Bases::One),
            Factor::Dense { .. } => Self::Dense(dtype, Bases::Several),
        }
    }

    /// Every reader of a factor of an operation in `dtype`.
    fn all(dtype: DType) -> Vec<Self> {
        let dense = [Bases::One, Bases::Several].map(|bases| Self::Dense(dtype, bases));
        let coded = CodeWidth::ALL.map(Some).into_iter().chain([None]).map(Self::Coded);
        dense.into_iter().chain(coded).collect()
    }

    const fn coded(self) -> bool {
        matches!(self, Self::Coded(_))
    }

    fn name(self) -> String {
        match self {
            Self::Dense(dtype, Bases::One) => format!("dense {dtype}"),
            Self::Dense(dtype, Bases::Several) => format!("bases {dtype}"),
            Self::Dense(..) => "core".into(),
            Self::Coded(Some(width)) => format!("{} bits", width.bits()),
            Self::Coded(None) => "bits by column".into(),
        }
    }

    /// The operands `values`, `basis_of`, `codes` and `codebooks`.
    fn operands(self) -> [Operand; 4] {
        let (values, basis_of) = match self {
            Self::Dense(dtype, bases) => (Some(dtype), bases == Bases::Several),
            Self::Coded(_) => (None, false),
        };
        [
            Operand::read("values", Element::Float(values.unwrap_or(DType::F32))).when(values.is_some()),
            Operand::read("basis_of", Element::I32).when(basis_of),
            Operand::read("codes", Element::U32).when(self.coded()),
            Operand::read("codebooks", F32).when(self.coded()),
        ]
    }

    fn constants(self) -> Vec<(&'static str, Constant)> {
        let own = self.coded() || matches!(self, Self::Dense(_, Bases::Own));
        let mut constants = vec![("OWN_FACTOR", Constant::Bool(own))];
        if let Self::Coded(width) = self {
            constants.push(("BITS", Constant::U32(width.map_or(MIXED, CodeWidth::bits))));
        }
        constants
    }
}

fn project_source(reader: Reader, dtype: DType) -> Source {
    let mut operands = vec![Operand::read("token_adapter", Element::I32), Operand::read("x", Element::Float(dtype))];
    operands.extend(reader.operands());
    operands.push(Operand::write("h", F32));
    Source {
        kernel: format!("codebook_gemm: projection, {dtype}, {}", reader.name()),
        files: if reader.coded() { &[TILE_FILE, CODED_FILE, PROJECT_FILE] } else { &[TILE_FILE, DENSE_FILE, PROJECT_FILE] },
        operands,
        constants: reader.constants(),
        f16: false,
    }
}

fn expand_source(reader: Reader, dtype: DType, accumulate: bool) -> Source {
    let mut operands = vec![Operand::read("token_adapter", Element::I32), Operand::read("h", F32)];
    operands.extend(reader.operands());
    operands.extend([Operand::read("scaling", F32), Operand::write("y", Element::Float(dtype))]);
    let mut constants = reader.constants();
    constants.push(("ACCUMULATE", Constant::Bool(accumulate)));
    Source {
        kernel: format!("codebook_gemm: expansion, {dtype}, {}", reader.name()),
        files: if reader.coded() { &[TILE_FILE, CODED_FILE, EXPAND_FILE] } else { &[TILE_FILE, DENSE_FILE, EXPAND_FILE] },
        operands,
        constants,
        f16: false,
    }
}

/// Every specialisation.
pub(super) fn sources() -> Vec<Source> {
    let mut all = vec![project_source(Reader::Dense(DType::F32, Bases::Own), DType::F32)];
    for dtype in DType::ALL {
        for reader in Reader::all(dtype) {
            all.push(project_source(reader, dtype));
            all.extend([true, false].map(|accumulate| expand_source(reader, dtype, accumulate)));
            // The delta of `linear` is kept in f32.
            if dtype != DType::F32 && !reader.coded() {
                all.push(expand_source(reader, DType::F32, false));
            }
        }
    }
    all
}

impl Wgpu {
    /// The stage `x·F` with x in `dtype`, or why there is none here. With `own` each adapter has a factor, dense in f32.
    pub(super) fn project_stage(
        &self,
        op: &CodebookGemm,
        factor: Factor,
        [d, rank]: [u64; 2],
        dtype: DType,
        own: bool,
    ) -> Result<std::result::Result<Stage, String>> {
        let reader = Reader::new(factor, dtype, own);
        let stride = if own { rank } else { op.x_stride };
        self.stage(op, factor, reader, [d, rank, stride], project_source(reader, dtype), None)
    }

    /// The stage `h·Fᵀ`, or why there is none here.
    pub(super) fn expand_stage(&self, op: &CodebookGemm, factor: Factor, [d, rank]: [u64; 2], target: Target) -> Result<std::result::Result<Stage, String>> {
        let reader = Reader::new(factor, op.dtype, false);
        self.stage(op, factor, reader, [d, rank, target.stride], expand_source(reader, target.dtype, target.accumulate), Some(target))
    }

    fn stage(
        &self,
        op: &CodebookGemm,
        factor: Factor,
        reader: Reader,
        [d, rank, stride]: [u64; 3],
        source: Source,
        expansion: Option<Target>,
    ) -> Result<std::result::Result<Stage, String>> {
        let (window, adapters) = (self.window_bytes(), u64::from(op.adapters));
        let (factors, words, factor_bytes) = match (factor, reader) {
            (Factor::Dense { bases }, Reader::Dense(dtype, _)) => (u64::from(bases), 0, d * rank * dtype.size()),
            (Factor::Coded { words_per_adapter, .. }, _) => (adapters, u64::from(words_per_adapter), u64::from(words_per_adapter) * 4),
            (Factor::Dense { .. }, Reader::Coded(_)) => return Ok(Err("a dense factor read as codes".into())),
        };
        let reach = window / factor_bytes.max(if reader.coded() { CODEBOOK_BYTES } else { 1 });
        let index_bytes = op.tokens.saturating_mul(4).saturating_add(3).max(adapters).saturating_mul(4);
        let obstacle = if self.narrow().is_some() {
            self.narrow()
        } else if reach == 0 {
            Some(format!("a factor of {factor_bytes} bytes, the device binds {window} at a time"))
        } else if index_bytes > window {
            Some(format!("{index_bytes} bytes about tokens and adapters, the device binds {window} at a time"))
        } else {
            None
        };
        if let Some(reason) = obstacle {
            return Ok(Err(reason));
        }
        Ok(Ok(Stage {
            pipeline: self.pipeline(&source)?,
            reader,
            expands: expansion.is_some(),
            clears: expansion.is_some_and(|target| !target.accumulate),
            tokens: op.tokens,
            d,
            rank,
            words,
            stride,
            tiles: op.tokens / TILE + op.tokens.min(adapters),
            factors,
            factor_bytes,
            reach,
        }))
    }
}

impl Stage {
    /// Enqueues the work: one dispatch, or one for each part of the factors that the device can reach.
    pub(super) fn run(&self, device: &Wgpu, queue: &mut Queue, launch: &Launch<'_>) -> Result<()> {
        let column_tiles = if self.expands { self.d.div_ceil(EXPANDED) } else { self.rank.div_ceil(PROJECTED) };
        let mut first = 0;
        // The loop runs at least once: rows without an adapter may have to be cleared where there are no adapters at all.
        loop {
            let count = self.reach.min(self.factors - first);
            let of = |slice: &Slice<Wgpu>, bytes: u64| part(slice, first * bytes, count * bytes);
            let (values, basis_of, codes, codebooks) = match launch.factor {
                FactorArgs::Dense { values, basis_of } => {
                    // With one basis, an index that is still given means nothing.
                    let index = basis_of.as_ref().filter(|_| matches!(self.reader, Reader::Dense(_, Bases::Several)));
                    (Some(of(values, self.factor_bytes)), index.map(|index| index.slice()), None, None)
                }
                FactorArgs::Coded { codes, codebooks } => (None, None, Some(of(codes.slice(), self.factor_bytes)), Some(of(codebooks, CODEBOOK_BYTES))),
            };
            let params = Params {
                total: self.tokens as u32,
                row0: launch.rows.first as u32,
                rows: launch.rows.count as u32,
                tiles: self.tiles as u32,
                factor0: first as u32,
                factors: count as u32,
                d: self.d as u32,
                rank: self.rank as u32,
                words: self.words as u32,
                stride: self.stride as u32,
                scaled_by_token: u32::from(launch.scaled_by == ScaledBy::Token),
            };
            let mut operands = vec![Some(launch.token_adapter), Some(launch.input), values.as_ref(), basis_of, codes.as_ref(), codebooks.as_ref()];
            if self.expands {
                operands.push(launch.scaling);
            }
            operands.push(Some(launch.output));
            let cleared = if self.clears && first == 0 { launch.rows.count.div_ceil(TILE) } else { 0 };
            queue.dispatch(device, &self.pipeline, &operands, &params, (self.tiles + cleared) * column_tiles)?;
            first += count;
            if first >= self.factors {
                return Ok(());
            }
        }
    }
}
