//! The small operations of a transformer layer: norms, rotary positions, embedding, pooling.

mod args;
mod heads;
mod turn;

pub use args::PointwiseArgs;
pub use heads::{Block, Heads, Places};
pub use turn::Turn;

use super::index::{PageShape, VarlenShape};
use super::setters::setters;
use super::{Access, Activation, Cost, Op, Operand, Translate, expect_present, expect_size};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Result, ensure};

/// The descriptor of a small operation: rows of `columns` elements, and what is done to each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Pointwise {
    /// Element type of x, weight, bias, residual and y. Arithmetic is in f32.
    pub dtype: DType,
    /// Rows of y (of x where [`Kind`] does not say otherwise).
    pub rows: u64,
    /// Elements of a row.
    pub columns: u64,
    /// What is done to a row.
    pub kind: Kind,
}

/// What a [`Pointwise`] operation does to a row. `eps` are the bits of an f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `y = (x + residual) / √(mean((x + residual)²) + eps) · weight` (arXiv:1910.07467); the residual is optional.
    RmsNorm {
        /// The number that is added to the mean square: the bits of an f32.
        eps: u32,
        /// Whether there is a residual.
        residual: bool,
    },
    /// `y = (z − mean(z)) / √(var(z) + eps) · weight + bias`, `z = x + residual` (arXiv:1607.06450).
    LayerNorm {
        /// The number that is added to the variance: the bits of an f32.
        eps: u32,
        /// Whether there is a residual.
        residual: bool,
    },
    /// Rotary positions (arXiv:2104.09864), with the two halves of a head paired. A row is `heads · head_dim` elements, and its position an
    /// entry of `positions`. `y[j] = x[j]·cos − x[j + d/2]·sin`, `y[j + d/2] = x[j + d/2]·cos + x[j]·sin`, with the angle `position ·
    /// frequency[j]`.
    Rope {
        /// Elements of a head: even, divides `columns`.
        head_dim: u64,
        /// How far each pair turns.
        turn: Turn,
    },
    /// Rotary positions as in [`Rope`](Self::Rope), written over x: x is y's own memory. They apply to the first `columns` elements of rows
    /// that lie `stride` elements apart. In rows `[q | k | v]` these are the heads of q and of k.
    RopeInPlace {
        /// Elements of a head: even, divides `columns`.
        head_dim: u64,
        /// How far each pair turns.
        turn: Turn,
        /// Elements from a row to the next, `columns` at least.
        stride: u64,
    },
    /// Rows of a table: `y[r] = x[ids[r]]`, where x has `vocabulary` rows. An id of −1 gives a row of zeros.
    Embedding {
        /// Rows of the table.
        vocabulary: u32,
    },
    /// LayerNorm of the sum of two tables' rows, `z = x[ids[r]] + residual[places[r]]`: how an encoder begins. An id of −1 stands for
    /// zeros. Some backends do not take it: two embeddings and a norm do the same in three operations.
    EmbeddingNorm {
        /// Rows of x.
        vocabulary: u32,
        /// Rows of the residual.
        places: u32,
        /// The number that is added to the variance: the bits of an f32.
        eps: u32,
    },
    /// Means: `y[b]` is the mean of the rows of sequence `b`; x has `total_q` rows, y `batch`. No rows give zeros.
    MeanPool(VarlenShape),
    /// `y = x / max(‖x‖₂, 1e-12)`.
    L2Normalise,
    /// `y = x + residual`.
    Add,
    /// An activation alone, `y = act(x)`, for sums that must be added to a product before its activation and do not fit into its epilogue.
    Activation(Activation),
    /// `y[r, j] = act(x[r, j]) · x[r, columns + j]`: the product of a gate and what it lets through, from rows `[gate | up]` of `2 · columns`
    /// elements (GLU variants, arXiv:2002.05202).
    Glu(Activation),
    /// Rows to places of a pool: row `r` of x goes to row `positions[r]` of y, which has `slots` rows. A place outside the pool takes nothing. Of
    /// several rows for one place, one is there afterwards. What [`Append`](Self::Append) says of rows `[q | k | v]` and of later launches holds here
    /// too.
    Store {
        /// Rows of y.
        slots: u32,
        /// Elements from a row of x to the next, `columns` at least.
        stride: u64,
    },
    /// Appends the new tokens of each sequence to a cache, where the sequence's last positions lie. x has `rows / cache.batch` rows a
    /// sequence, one after another, and the sequence's length in the page table counts them. Rows for which a sequence is too short are
    /// dropped. Of several rows for one place, one is there afterwards. A cache that holds keys and values together, `columns` of them a
    /// token, takes both from rows `[q | k | v]` at once.
    ///
    /// A later launch that reads a written place as another position of a sequence, and does not wait, may find there what was before. So a
    /// page that is shared is not appended to.
    Append {
        /// Shape of the page table and of the pool, which is y.
        cache: PageShape,
        /// Elements from a row of x to the next, `columns` at least.
        stride: u64,
    },
    /// Rotary positions in place as in [`RopeInPlace`](Self::RopeInPlace), of heads that may be normed before, and rows to places of a pool as in
    /// [`Append`](Self::Append) or [`Store`](Self::Store), at once: some columns of each row, as they are when they are turned. In rows `[q | k | v]` the
    /// heads of q and of k turn, and k and v are kept; q, k and v may lie apart. What the two say of later launches holds here too.
    Heads(Heads),
}

impl Pointwise {
    /// Rows of x.
    pub fn x_rows(&self) -> u64 {
        match self.kind {
            Kind::Embedding { vocabulary } | Kind::EmbeddingNorm { vocabulary, .. } => u64::from(vocabulary),
            Kind::MeanPool(shape) => shape.total_q,
            _ => self.rows,
        }
    }

    /// Elements from a row of x to the next, and of y where it has such rows.
    pub fn stride(&self) -> u64 {
        match self.kind {
            Kind::RopeInPlace { stride, .. } | Kind::Append { stride, .. } | Kind::Store { stride, .. } | Kind::Heads(Heads { stride, .. }) => stride,
            Kind::Glu(_) => self.columns.saturating_mul(2),
            _ => self.columns,
        }
    }

    /// Rows of y, `columns` each.
    pub fn y_rows(&self) -> u64 {
        match self.kind {
            Kind::Append { cache, .. } => cache.pool_pages.saturating_mul(cache.page),
            Kind::Store { slots, .. } => slots.into(),
            _ => self.rows,
        }
    }

    /// The elements of a head and how far it turns, where the operation turns rows by their positions.
    pub fn rope(&self) -> Option<(u64, Turn)> {
        match self.kind {
            Kind::Rope { head_dim, turn } | Kind::RopeInPlace { head_dim, turn, .. } | Kind::Heads(Heads { head_dim, turn, .. }) => Some((head_dim, turn)),
            _ => None,
        }
    }

    /// Frequencies that the operation takes as an operand, where it does.
    pub fn frequencies(&self) -> Option<u64> {
        self.rope().and_then(|(head_dim, turn)| (turn == Turn::Table).then_some(head_dim / 2))
    }

    /// Whether the operation changes its rows where they are.
    pub fn in_place(&self) -> bool {
        matches!(self.kind, Kind::RopeInPlace { .. } | Kind::Heads(_))
    }

    /// What is done to heads of new tokens, where the operation is that.
    pub fn heads(&self) -> Option<Heads> {
        if let Kind::Heads(heads) = self.kind { Some(heads) } else { None }
    }

    /// The page table's shape, where the operation appends to pages.
    pub fn cache(&self) -> Option<PageShape> {
        match self.kind {
            Kind::Append { cache, .. } | Kind::Heads(Heads { to: Places::Pages(cache), .. }) => Some(cache),
            _ => None,
        }
    }

    /// Whether there is the weight of a norm.
    pub fn has_weight(&self) -> bool {
        self.is_layer_norm() || matches!(self.kind, Kind::RmsNorm { .. } | Kind::Heads(Heads { norm: Some(_), .. }))
    }

    /// Whether the operation takes positions, or places.
    pub fn has_positions(&self) -> bool {
        self.rope().is_some() || matches!(self.kind, Kind::Store { .. })
    }

    /// Rows of the residual, if there is one.
    pub fn residual_rows(&self) -> Option<u64> {
        match self.kind {
            Kind::RmsNorm { residual: true, .. } | Kind::LayerNorm { residual: true, .. } | Kind::Add => Some(self.rows),
            Kind::EmbeddingNorm { places, .. } => Some(places.into()),
            _ => None,
        }
    }

    /// Whether the operation is a LayerNorm, of x or of sums of table rows.
    pub fn is_layer_norm(&self) -> bool {
        matches!(self.kind, Kind::LayerNorm { .. } | Kind::EmbeddingNorm { .. })
    }

    /// The bound of the ids, where there are ids.
    fn vocabulary(&self) -> Option<u32> {
        match self.kind {
            Kind::Embedding { vocabulary } | Kind::EmbeddingNorm { vocabulary, .. } => Some(vocabulary),
            _ => None,
        }
    }

    /// An operation on `rows` rows of `columns` elements.
    pub const fn new(dtype: DType, rows: u64, columns: u64, kind: Kind) -> Self {
        Self { dtype, rows, columns, kind }
    }

    setters! {
        with_dtype: dtype = DType;
        with_rows: rows = u64;
        with_columns: columns = u64;
        with_kind: kind = Kind;
    }
}

impl Op for Pointwise {
    const NAME: &'static str = "pointwise";
    type Args<D: Device> = PointwiseArgs<D>;

    fn validate(&self) -> Result<()> {
        ensure(self.columns > 0, "pointwise: columns", "at least 1", self.columns)?;
        expect_size("pointwise: x", &[self.x_rows(), self.stride().max(self.columns), self.dtype.size()])?;
        expect_size("pointwise: y", &[self.y_rows(), self.stride().max(self.columns), self.dtype.size()])?;
        expect_size("pointwise: residual", &[self.residual_rows().unwrap_or(0), self.columns, self.dtype.size()])?;
        ensure(self.stride() >= self.columns, "pointwise: stride", format_args!("at least {} columns", self.columns), self.stride())?;
        if let Some((head_dim, turn)) = self.rope() {
            let whole = head_dim > 0 && head_dim % 2 == 0 && self.columns.is_multiple_of(head_dim);
            ensure(whole, "pointwise: head_dim", format_args!("even, a divisor of {}", self.columns), head_dim)?;
            let base = if let Turn::Base(bits) = turn { f32::from_bits(bits) } else { 1.0 };
            ensure(base.is_finite() && base > 0.0, "pointwise: base", "a finite number above 0", base)?;
        }
        if let Some(cache) = self.cache() {
            let whole = if cache.batch == 0 { self.rows == 0 } else { self.rows.is_multiple_of(cache.batch) };
            ensure(whole, "pointwise: rows", format_args!("as many for each of {} sequences", cache.batch), self.rows)?;
        }
        match self.kind {
            Kind::RmsNorm { eps, .. } | Kind::LayerNorm { eps, .. } | Kind::EmbeddingNorm { eps, .. } => {
                let eps = f32::from_bits(eps);
                ensure(eps.is_finite() && eps >= 0.0, "pointwise: eps", "a finite number of at least 0", eps)
            }
            Kind::MeanPool(shape) => ensure(shape.batch == self.rows, "pointwise: rows", format_args!("one a sequence, {}", shape.batch), self.rows),
            Kind::Heads(heads) => heads.validate(self.columns, self.dtype.size()),
            _ => Ok(()),
        }
    }

    fn sizes(&self) -> [u64; 3] {
        [self.rows, self.columns, 1]
    }

    fn cost(&self) -> Cost {
        let read = if self.vocabulary().is_some() { self.rows } else { self.x_rows() } as f64;
        let residual = if self.residual_rows().is_some() { self.rows as f64 } else { 0.0 };
        let kept = self.heads().map_or(0.0, |heads| self.rows as f64 * heads.kept as f64);
        let columns = self.columns as f64;
        let flops = 4.0 * read * columns;
        let bytes = ((read + residual + self.rows as f64) * columns + kept) * self.dtype.size() as f64;
        Cost { executed_flops: flops, useful_flops: flops, dense_flops: flops, bytes }
    }

    fn translate<A: Device, B: Device>(args: &PointwiseArgs<A>, to: &Translate<'_, A, B>) -> Result<PointwiseArgs<B>> {
        Ok(PointwiseArgs {
            x: to.slice(&args.x)?,
            weight: to.if_any(&args.weight)?,
            bias: to.if_any(&args.bias)?,
            residual: to.if_any(&args.residual)?,
            positions: to.if_any(&args.positions)?,
            frequencies: to.if_any(&args.frequencies)?,
            ids: to.index_if_any(&args.ids)?,
            places: to.index_if_any(&args.places)?,
            sequences: to.index_if_any(&args.sequences)?,
            pages: to.index_if_any(&args.pages)?,
            slots: to.if_any(&args.slots)?,
            pool: to.if_any(&args.pool)?,
            y: to.slice(&args.y)?,
        })
    }

    fn operands<'a, D: Device>(&self, args: &'a PointwiseArgs<D>, see: &mut dyn FnMut(Operand<'a, D>)) -> Result<()> {
        let heads = self.heads();
        if self.in_place() {
            let own = (D::buffer_id(&args.x.buffer), args.x.offset) == (D::buffer_id(&args.y.buffer), args.y.offset);
            ensure(own, "pointwise: x", "y's own memory", "other memory")?;
            let reach = heads.map_or(self.columns, |heads| heads.reach(self.columns));
            see(Operand::pitched("y", Access::ReadWrite, &args.y, [self.rows, reach], self.stride(), self.dtype));
        } else {
            let part = matches!(self.kind, Kind::Append { .. } | Kind::Store { .. });
            let read = if matches!(self.kind, Kind::Glu(_)) { self.stride() } else { self.columns };
            see(Operand::pitched("x", Access::Read, &args.x, [self.x_rows(), read], self.stride(), self.dtype));
            see(Operand::packed("y", if part { Access::ReadWrite } else { Access::Write }, &args.y, self.y_rows() * self.columns, self.dtype));
        }
        let one = |wanted: bool| wanted.then_some(1);
        for (name, slice, rows) in [
            ("weight", &args.weight, one(self.has_weight())),
            ("bias", &args.bias, one(self.is_layer_norm())),
            ("residual", &args.residual, self.residual_rows()),
        ] {
            expect_present(Self::NAME, name, rows.is_some(), slice.is_some())?;
            if let (Some(slice), Some(rows)) = (slice, rows) {
                see(Operand::packed(name, Access::Read, slice, rows * self.columns, self.dtype));
            }
        }
        expect_present(Self::NAME, "positions", self.has_positions(), args.positions.is_some())?;
        if let Some(positions) = &args.positions {
            see(Operand::packed("positions", Access::Read, positions, self.rows, 4u64));
        }
        expect_present(Self::NAME, "frequencies", self.frequencies().is_some(), args.frequencies.is_some())?;
        if let (Some(frequencies), Some(pairs)) = (&args.frequencies, self.frequencies()) {
            see(Operand::packed("frequencies", Access::Read, frequencies, pairs, DType::F32));
        }
        let places = if let Kind::EmbeddingNorm { places, .. } = self.kind { Some(places) } else { None };
        for (name, ids, table) in [("ids", &args.ids, self.vocabulary()), ("places", &args.places, places)] {
            expect_present(Self::NAME, name, table.is_some(), ids.is_some())?;
            if let (Some(ids), Some(table)) = (ids, table) {
                let fits = ids.shape().tokens == self.rows && ids.shape().adapters == table;
                ensure(fits, format_args!("pointwise: {name}"), format_args!("{} ids below {table}", self.rows), format_args!("{:?}", ids.shape()))?;
                see(Operand::packed(name, Access::Read, ids.slice(), ids.slice().len / 4, 4u64));
            }
        }
        let slots = matches!(heads, Some(Heads { to: Places::Slots(_), .. }));
        expect_present(Self::NAME, "slots", slots, args.slots.is_some())?;
        if let Some(slots) = &args.slots {
            see(Operand::packed("slots", Access::Read, slots, self.rows, 4u64));
        }
        expect_present(Self::NAME, "pool", heads.is_some(), args.pool.is_some())?;
        if let (Some(pool), Some(heads)) = (&args.pool, heads) {
            see(Operand::packed("pool", Access::ReadWrite, pool, heads.pool_rows() * heads.kept, self.dtype));
        }
        let cache = self.cache();
        expect_present(Self::NAME, "pages", cache.is_some(), args.pages.is_some())?;
        if let (Some(pages), Some(cache)) = (&args.pages, cache) {
            ensure(*pages.shape() == cache, "pointwise: pages", format_args!("{cache:?}"), format_args!("{:?}", pages.shape()))?;
            see(Operand::packed("pages", Access::Read, pages.slice(), pages.slice().len / 4, 4u64));
        }
        expect_present(Self::NAME, "sequences", matches!(self.kind, Kind::MeanPool(_)), args.sequences.is_some())?;
        if let (Some(sequences), Kind::MeanPool(shape)) = (&args.sequences, self.kind) {
            ensure(*sequences.shape() == shape, "pointwise: sequences", format_args!("{shape:?}"), format_args!("{:?}", sequences.shape()))?;
            see(Operand::packed("sequences", Access::Read, sequences.slice(), sequences.slice().len / 4, 4u64));
        }
        Ok(())
    }
}
