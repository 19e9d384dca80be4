//! The device memory of all adapters that have one form in one projection: an array with a slot for each.

use half::f16;

use super::super::encoded::{CodedColumns, EncodedFactor, EncodedProjection, Matrix, SharedProjection};
use super::unpacked;
use crate::backend::Kernel;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result, ensure};
use crate::ops::CodebookGemm;
use crate::ops::codebook_gemm::{CodebookSlice, CodebookSliceArgs, Factor, FactorArgs, MAX_RANK};
use crate::ops::codes::CODEBOOK_LEN;
use crate::ops::index::{AdapterCodes, BasisOf, Codes, CodesShape, Index};
use crate::session::Session;

/// One factor of a form: shared, coded or plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Shared,
    /// The most words of an adapter, with column headers.
    Coded(u32),
    Plain,
}

/// What two adapters must have in common, in a projection, to share a launch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Form {
    path: String,
    rank: usize,
    /// Whether a core stands between the factors, if only to carry the scale where no codebook can.
    core: bool,
    input: Side,
    output: Side,
    d: [usize; 2],
    /// Whether adapters are unpacked to dense factors, whatever they are encoded as.
    unpacked: bool,
}

impl Side {
    fn of(factor: &EncodedFactor) -> Self {
        match factor {
            EncodedFactor::Shared(_) => Self::Shared,
            EncodedFactor::Plain(_) => Self::Plain,
            EncodedFactor::Coded(coded) => Self::Coded((coded.columns.len() + coded.columns.iter().map(|column| column.1.len()).sum::<usize>()) as u32),
        }
    }

    fn same(self, other: Self) -> bool {
        self == other || matches!((self, other), (Self::Coded(_), Self::Coded(_)))
    }

    fn bytes(self, d: usize, rank: usize, dtype: DType) -> u64 {
        match self {
            Self::Shared => 4,
            Self::Coded(words) => 4 * (u64::from(words) + CODEBOOK_LEN as u64),
            Self::Plain => (d * rank) as u64 * dtype.size(),
        }
    }
}

/// The columns of the factors; 0 where the input is a basis that the population does not have.
fn rank_of(projection: &EncodedProjection, shared: &SharedProjection) -> usize {
    let bases = [shared.input_bases.len(), shared.input_bases.first().map_or(0, |basis| basis.cols)];
    projection.input.rank(bases).unwrap_or(0)
}

fn rows_of(factor: &EncodedFactor) -> usize {
    match factor {
        EncodedFactor::Shared(_) => 0,
        EncodedFactor::Coded(coded) => coded.d,
        EncodedFactor::Plain(plain) => plain.rows,
    }
}

impl Form {
    /// The form of one adapter's projection, which [`check`] let pass.
    pub fn of(path: &str, projection: &EncodedProjection, shared: &SharedProjection) -> Self {
        let (input, output) = (Side::of(&projection.input), Side::of(&projection.output));
        let coded = |side| matches!(side, Side::Coded(_));
        let core = projection.core.is_some() || !(coded(input) || coded(output));
        let d = [rows_of(&projection.input), rows_of(&projection.output)];
        Self { path: path.into(), rank: rank_of(projection, shared), core, input, output, d, unpacked: false }
    }

    /// The form of one adapter's projection unpacked, which [`check`] let pass; `None` where it has more columns than unpacked adapters may have.
    pub fn unpacked(path: &str, projection: &EncodedProjection, shared: &SharedProjection) -> Option<Self> {
        let rank = projection.live_rank(shared);
        unpacked::bucket(rank)?;
        let d = [shared.d_in, shared.d_out];
        Some(Self { path: path.into(), rank: unpacked::padded(rank), core: false, input: Side::Plain, output: Side::Plain, d, unpacked: true })
    }

    /// Whether launches are at least as fast with it as it is encoded: it is the form that S2LC published, codes over shared input bases, whose rows
    /// are whole in 16 bytes.
    pub fn is_fast(&self) -> bool {
        !self.unpacked && self.input == Side::Shared && matches!(self.output, Side::Coded(_)) && self.rank.is_multiple_of(8)
    }

    /// The module path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether two forms may share a class: they are alike except for the room their codes take.
    pub fn same_class(&self, other: &Self) -> bool {
        let rank = |form: &Self| if form.unpacked { unpacked::bucket(form.rank) } else { Some(form.rank) };
        let alike = |form: &Self| (rank(form), form.core, form.unpacked);
        self.path == other.path && alike(self) == alike(other) && self.input.same(other.input) && self.output.same(other.output)
    }

    /// This form with room for the codes of both, and for the columns of both where they are unpacked.
    pub fn widened(&self, other: &Self) -> Self {
        Self { rank: self.rank.max(other.rank), input: self.input.max(other.input), output: self.output.max(other.output), ..self.clone() }
    }

    /// Bytes of device memory for one adapter.
    pub fn slot_bytes(&self, dtype: DType) -> u64 {
        let core = if self.core { 4 * (self.rank * self.rank) as u64 } else { 0 };
        core + self.input.bytes(self.d[0], self.rank, dtype) + self.output.bytes(self.d[1], self.rank, dtype)
    }
}

/// Checks the sizes of an adapter against what the population shares. Codes are checked when they go to the device.
pub fn check(adapter: &str, path: &str, projection: &EncodedProjection, shared: &SharedProjection) -> Result<()> {
    let rank = rank_of(projection, shared);
    let most = format_args!("at most {MAX_RANK}, the most that is served; encode it anew with a rank in that");
    ensure(rank as u64 <= MAX_RANK, format_args!("adapter {adapter}: {path}: rank"), most, rank)?;
    let sides = [("input", &projection.input, shared.d_in, &shared.input_bases), ("output", &projection.output, shared.d_out, &shared.output_bases)];
    for (side, factor, d, bases) in sides {
        let subject = format!("adapter {adapter}: {path}: {side} factor");
        let (rows, cols, whole) = match factor {
            EncodedFactor::Shared(basis) => {
                let found = bases.get(*basis).ok_or_else(|| Error::invalid(&subject, format!("a basis below {}", bases.len()), basis))?;
                (found.rows, found.cols, true)
            }
            EncodedFactor::Coded(coded) => (coded.d, coded.columns.len(), true),
            EncodedFactor::Plain(plain) => (plain.rows, plain.cols, plain.is_whole()),
        };
        ensure((rows, cols, whole) == (d, rank, true), &subject, format_args!("[{d}, {rank}]"), format_args!("[{rows}, {cols}]"))?;
    }
    if let Some(core) = &projection.core {
        let fits = (core.rows, core.cols, core.is_whole()) == (rank, rank, true);
        ensure(fits, format_args!("adapter {adapter}: {path}: core"), format_args!("[{rank}, {rank}]"), format_args!("[{}, {}]", core.rows, core.cols))?;
    }
    Ok(())
}

/// The arrays of one side.
enum Store<D: Device> {
    Shared { bases: u32, values: Slice<D>, basis_of: Index<BasisOf, D>, host: Vec<i32> },
    Coded { codes: Index<Codes, D>, codebooks: Slice<D> },
    Plain { values: Slice<D>, own: Index<BasisOf, D> },
}

/// All adapters of one form in one projection, on the device.
pub struct Class<D: Device> {
    form: Form,
    map: usize,
    capacity: u32,
    dtype: DType,
    d: [usize; 2],
    input: Store<D>,
    core: Option<Slice<D>>,
    output: Store<D>,
    scaling: Slice<D>,
}

impl<D: Kernel<CodebookGemm>> Class<D> {
    /// Allocates memory for `capacity` adapters, all zero, and copies the bases.
    pub fn new(session: &mut Session<D>, form: Form, map: usize, capacity: u32, shared: &SharedProjection, dtype: DType) -> Result<Self> {
        let d = [shared.d_in, shared.d_out];
        let rank = form.rank;
        let mut store = |side: Side, d: usize, bases: &[Matrix<f16>]| -> Result<Store<D>> {
            let slots = vec![0i32; capacity as usize];
            Ok(match side {
                Side::Shared => {
                    ensure(!bases.is_empty(), &form.path, "a shared basis", "none")?;
                    let values: Vec<f64> = bases.iter().flat_map(|basis| basis.data.iter().map(|v| v.to_f64())).collect();
                    let basis_of = session.index(&BasisOf::new(&slots, bases.len() as u32)?)?;
                    Store::Shared { bases: bases.len() as u32, values: session.upload(&dtype.encode(&values))?, basis_of, host: slots }
                }
                Side::Coded(words) => {
                    let shape = CodesShape { adapters: capacity, d: d as u32, rank: rank as u32, width: None, words_per_adapter: words };
                    let codes = session.index(&Codes::empty(shape)?)?;
                    Store::Coded { codes, codebooks: session.upload(&vec![0f32; capacity as usize * CODEBOOK_LEN])? }
                }
                Side::Plain => {
                    let identity: Vec<i32> = (0..capacity as i32).collect();
                    let zeros = vec![0u8; capacity as usize * d * rank * dtype.size() as usize];
                    Store::Plain { values: session.upload(&zeros)?, own: session.index(&BasisOf::new(&identity, capacity)?)? }
                }
            })
        };
        let input = store(form.input, d[0], &shared.input_bases)?;
        let output = store(form.output, d[1], &shared.output_bases)?;
        let core = if form.core { Some(session.upload(&vec![0f32; capacity as usize * rank * rank])?) } else { None };
        let scaling = session.upload(&vec![1f32; capacity as usize])?;
        Ok(Self { form, map, capacity, dtype, d, input, core, output, scaling })
    }

    /// Form of the class.
    pub fn form(&self) -> &Form {
        &self.form
    }

    /// The number of the map from adapters to the class's slots.
    pub fn map(&self) -> usize {
        self.map
    }

    /// Slots of the class.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Columns of x.
    pub fn d_in(&self) -> u64 {
        self.d[0] as u64
    }

    /// Columns of y.
    pub fn d_out(&self) -> u64 {
        self.d[1] as u64
    }

    /// The scalings, all ones. Each projection's own scale is folded into its core or codebook.
    pub fn scaling(&self) -> &Slice<D> {
        &self.scaling
    }

    /// Bytes of one adapter.
    pub fn slot_bytes(&self) -> u64 {
        self.form.slot_bytes(self.dtype)
    }

    /// Bytes of the bases.
    pub fn basis_bytes(&self) -> u64 {
        [&self.input, &self.output].into_iter().map(|store| if let Store::Shared { values, .. } = store { values.len } else { 0 }).sum()
    }

    /// The slice of a launch that applies this class.
    pub fn slice(&self, y_stride: u64) -> CodebookSlice {
        let factor = |store: &Store<D>| match store {
            Store::Shared { bases, .. } => Factor::Dense { bases: *bases },
            Store::Coded { codes, .. } => Factor::Coded { width: None, words_per_adapter: codes.shape().words_per_adapter },
            Store::Plain { .. } => Factor::Dense { bases: self.capacity },
        };
        let (input, output) = (factor(&self.input), factor(&self.output));
        CodebookSlice { d_out: self.d[1] as u64, y_stride, rank: self.form.rank as u64, input, core: self.core.is_some(), output }
    }

    /// The operands of [`slice`](Self::slice).
    pub fn args(&self, y: &Slice<D>) -> CodebookSliceArgs<D> {
        let factor = |store: &Store<D>| match store {
            Store::Shared { values, basis_of, .. } => FactorArgs::Dense { values: values.clone(), basis_of: Some(basis_of.clone()) },
            Store::Coded { codes, codebooks } => FactorArgs::Coded { codes: codes.clone(), codebooks: codebooks.clone() },
            Store::Plain { values, own } => FactorArgs::Dense { values: values.clone(), basis_of: Some(own.clone()) },
        };
        CodebookSliceArgs { input: factor(&self.input), core: self.core.clone(), output: factor(&self.output), y: y.clone() }
    }

    /// The columns and the type of the factors to which adapters are unpacked, where they are.
    pub fn unpacks(&self) -> Option<(usize, DType)> {
        self.form.unpacked.then_some((self.form.rank, self.dtype))
    }

    /// Copies an adapter into a slot, its factors where it was unpacked. An adapter that does not touch this projection in this form gets zeros.
    pub fn put(&mut self, session: &mut Session<D>, slot: u32, projection: Option<&EncodedProjection>, factors: Option<[Vec<u8>; 2]>) -> Result<()> {
        if let Some([input, output]) = factors {
            for (store, factor) in [(&self.input, input), (&self.output, output)] {
                if let Store::Plain { values, .. } = store {
                    put_row(session, values, slot, &factor)?;
                }
            }
            return Ok(());
        }
        let scale = projection.map_or(0.0, |p| p.scaling);
        // The scale goes where it costs no rounding: into the core, else into a codebook.
        let (core_scale, output_scale, input_scale) = match (&self.core, &self.output) {
            (Some(_), _) => (scale, 1.0, 1.0),
            (None, Store::Coded { .. }) => (1.0, scale, 1.0),
            (None, _) => (1.0, 1.0, scale),
        };
        let dtype = self.dtype;
        put_factor(session, &mut self.input, dtype, slot, projection.map(|p| &p.input), input_scale)?;
        put_factor(session, &mut self.output, dtype, slot, projection.map(|p| &p.output), output_scale)?;
        if let Some(core) = &self.core {
            let rank = self.form.rank;
            let values: Vec<f32> = match projection.map(|p| &p.core) {
                Some(Some(own)) => own.data.iter().map(|v| v * core_scale).collect(),
                _ => (0..rank * rank).map(|at| if at % (rank + 1) == 0 { core_scale } else { 0.0 }).collect(),
            };
            put_row(session, core, slot, bytemuck::cast_slice(&values))?;
        }
        Ok(())
    }
}

fn put_factor<D: Device>(session: &mut Session<D>, store: &mut Store<D>, dtype: DType, slot: u32, factor: Option<&EncodedFactor>, scale: f32) -> Result<()> {
    match (store, factor) {
        (Store::Shared { basis_of, bases, host, .. }, Some(EncodedFactor::Shared(basis))) => {
            let (own, before) = (*basis as i32, host[slot as usize]);
            if own == before {
                return Ok(());
            }
            host[slot as usize] = own;
            // What did not get to the device must not be taken for what is there.
            BasisOf::new(host, *bases).and_then(|index| session.update_index(basis_of, &index)).inspect_err(|_| host[slot as usize] = before)
        }
        (Store::Coded { codes, codebooks }, Some(EncodedFactor::Coded(CodedColumns { d, columns, codebook }))) => {
            session.update_adapter(codes, slot, &AdapterCodes::new(*d as u32, None, columns)?)?;
            put_row(session, codebooks, slot, bytemuck::cast_slice(&codebook.map(|v| v * scale)))
        }
        (Store::Coded { codebooks, .. }, None) => put_row(session, codebooks, slot, &[0; CODEBOOK_LEN * 4]),
        (Store::Plain { values, .. }, Some(EncodedFactor::Plain(plain))) => {
            let wide: Vec<f64> = plain.data.iter().map(|v| v.to_f64() * f64::from(scale)).collect();
            put_row(session, values, slot, &dtype.encode(&wide))
        }
        (Store::Plain { values, own }, None) => {
            let row = values.len / u64::from(own.shape().adapters.max(1));
            put_row(session, values, slot, &vec![0; row as usize])
        }
        // A shared basis needs no zeros: the other side, or the core, has them.
        (Store::Shared { .. }, None) => Ok(()),
        (_, Some(other)) => Err(Error::invalid("factor", "one of the class's form", format!("{:?}", Side::of(other)))),
    }
}

fn put_row<D: Device>(session: &mut Session<D>, array: &Slice<D>, slot: u32, row: &[u8]) -> Result<()> {
    let bytes = row.len() as u64;
    let part = array.sub_slice(u64::from(slot) * bytes, bytes).ok_or_else(|| Error::invalid("slot", format!("inside {} bytes", array.len), slot))?;
    session.write(&part, row)
}
