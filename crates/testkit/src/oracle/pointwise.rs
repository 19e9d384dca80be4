//! Norms, rotary positions, embedding, pooling, appending: row by row.

use super::activation::activate;
use super::{Define, Output, Rounding, expect_len, expect_optional, pitched_len, reversed};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::Op;
use trifuse::ops::index::{HostIndex, PageTable, TokenAdapters, Varlen};
use trifuse::ops::pointwise::{Heads, Kind, Places, Pointwise, Turn};

/// The operands on the host, row-major; see [`trifuse::ops::PointwiseArgs`].
#[derive(Clone, Debug)]
pub struct Host {
    /// Rows, or the table of an embedding. In place: what y holds before, from its first element to its last.
    pub x: Vec<f64>,
    /// `[columns]`.
    pub weight: Option<Vec<f64>>,
    /// `[columns]`.
    pub bias: Option<Vec<f64>>,
    /// `[rows, columns]`.
    pub residual: Option<Vec<f64>>,
    /// Positions for both forms of Rope and for Heads, places for Store.
    pub positions: Option<Vec<i32>>,
    /// Frequencies for both forms of Rope and for Heads, where a table has them.
    pub frequencies: Option<Vec<f64>>,
    /// Ids for Embedding and EmbeddingNorm.
    pub ids: Option<TokenAdapters>,
    /// Rows of the second table for EmbeddingNorm.
    pub places: Option<TokenAdapters>,
    /// Starts of the sequences for MeanPool.
    pub sequences: Option<Varlen>,
    /// The page table for Append and Heads.
    pub pages: Option<PageTable>,
    /// Slots for Heads.
    pub slots: Option<Vec<i32>>,
}

impl Host {
    /// `x`, nothing else.
    pub fn new(x: Vec<f64>) -> Self {
        let [weight, bias, residual, frequencies] = [const { None }; 4];
        Self { x, weight, bias, residual, positions: None, frequencies, ids: None, places: None, sequences: None, pages: None, slots: None }
    }
}

/// The mean of `values`, summed in order.
fn mean<R: Rounding>(values: impl ExactSizeIterator<Item = f64>, rounding: R) -> f64 {
    let count = values.len() as f64;
    rounding.step(values.fold(0.0, |sum, value| rounding.step(sum + value)) / count)
}

/// `(z − mean) / √(variance + eps) · weight + bias`; `eps` are the bits of an f32.
pub(super) fn layer_norm<R: Rounding>(z: &[f64], eps: u32, weight: &[f64], bias: &[f64], rounding: R) -> Vec<f64> {
    let eps = f64::from(f32::from_bits(eps));
    let centre = mean(z.iter().copied(), rounding);
    let variance = mean(z.iter().map(|z| rounding.step(z - centre).powi(2)), rounding);
    let factor = rounding.step(1.0 / rounding.step(rounding.step(variance + eps).sqrt()));
    let scaled = z.iter().map(|z| rounding.step(rounding.step(z - centre) * factor));
    scaled.zip(weight.iter().zip(bias)).map(|(z, (w, b))| rounding.step(z * w) + b).collect()
}

/// `z / √(mean(z²) + eps) · weight`; `eps` are the bits of an f32.
pub(super) fn rms_norm<R: Rounding>(z: &[f64], eps: u32, weight: &[f64], rounding: R) -> Vec<f64> {
    let square = mean(z.iter().map(|z| z * z), rounding);
    let factor = rounding.step(1.0 / rounding.step(rounding.step(square + f64::from(f32::from_bits(eps))).sqrt()));
    z.iter().zip(weight).map(|(z, w)| rounding.step(z * factor) * w).collect()
}

/// The heads of `x` turned by the position of row `r`.
fn turned<R: Rounding>((d, turn): (usize, Turn), host: &Host, (x, r): (&[f64], usize), rounding: R) -> Result<Vec<f64>> {
    let absent = |name: &str| Error::invalid(format!("pointwise: {name}"), "present", "absent");
    let frequency = |j: usize| match turn {
        Turn::Base(bits) => Ok(rounding.step(f64::from(f32::from_bits(bits)).powf(rounding.step(-2.0 * j as f64 / d as f64)))),
        Turn::Table => Ok(host.frequencies.as_ref().ok_or_else(|| absent("frequencies"))?[j]),
    };
    let frequencies = (0..d / 2).map(frequency).collect::<Result<Vec<f64>>>()?;
    let position = f64::from(host.positions.as_ref().ok_or_else(|| absent("positions"))?[r]);
    let mut y = x.to_vec();
    for (head, x) in y.chunks_exact_mut(d).zip(x.chunks_exact(d)) {
        for j in 0..d / 2 {
            let angle = rounding.step(position * frequencies[j]);
            let (sin, cos) = (rounding.step(angle.sin()), rounding.step(angle.cos()));
            head[j] = rounding.step(x[j] * cos) - x[j + d / 2] * sin;
            head[j + d / 2] = rounding.step(x[j + d / 2] * cos) + x[j] * sin;
        }
    }
    Ok(y)
}

/// Row `r` of the result.
fn row_of<R: Rounding>(op: &Pointwise, host: &Host, r: usize, rounding: R) -> Result<Vec<f64>> {
    let columns = op.columns as usize;
    let absent = |name: &str| Error::invalid(format!("pointwise: {name}"), "present", "absent");
    let stride = op.stride() as usize;
    let part = |values: &[f64], row: usize| values[row * stride..][..columns].to_vec();
    // x, with the residual where there is one.
    let sum = || {
        let mut z = part(&host.x, r);
        if let Some(residual) = &host.residual {
            z.iter_mut().zip(&residual[r * columns..]).for_each(|(z, residual)| *z = rounding.step(*z + residual));
        }
        z
    };
    Ok(match op.kind {
        Kind::Add => sum(),
        Kind::Append { .. } | Kind::Store { .. } => part(&host.x, r),
        Kind::Glu(activation) => {
            let up = &host.x[r * stride + columns..][..columns];
            part(&host.x, r).into_iter().zip(up).map(|(gate, up)| activate(activation, gate, rounding) * up).collect()
        }
        Kind::Activation(activation) => part(&host.x, r).into_iter().map(|x| activate(activation, x, rounding)).collect(),
        Kind::RmsNorm { eps, .. } => rms_norm(&sum(), eps, host.weight.as_ref().ok_or_else(|| absent("weight"))?, rounding),
        Kind::LayerNorm { eps, .. } => {
            let z = sum();
            let weight = host.weight.as_ref().ok_or_else(|| absent("weight"))?;
            let bias = host.bias.as_ref().ok_or_else(|| absent("bias"))?;
            layer_norm(&z, eps, weight, bias, rounding)
        }
        Kind::Rope { head_dim, turn } | Kind::RopeInPlace { head_dim, turn, .. } => turned((head_dim as usize, turn), host, (&part(&host.x, r), r), rounding)?,
        Kind::Heads(Heads { head_dim, turn, norm, .. }) => {
            let (d, mut x) = (head_dim as usize, part(&host.x, r));
            if let Some(eps) = norm {
                let weight = host.weight.as_ref().ok_or_else(|| absent("weight"))?;
                // Normed rows are what a norm of its own would give: rounded.
                let normed = x.chunks_exact(d).zip(weight.chunks_exact(d)).flat_map(|(head, weight)| rms_norm(head, eps, weight, rounding));
                x = normed.map(|value| rounding.keep(value)).collect();
            }
            turned((d, turn), host, (&x, r), rounding)?
        }
        Kind::Embedding { .. } => match usize::try_from(host.ids.as_ref().ok_or_else(|| absent("ids"))?.ids()[r]) {
            Ok(id) => part(&host.x, id),
            Err(_) => vec![0.0; columns],
        },
        Kind::EmbeddingNorm { eps, .. } => {
            let row = |table: &[f64], ids: &Option<TokenAdapters>, name| {
                let id = ids.as_ref().ok_or_else(|| absent(name))?.ids()[r];
                Ok::<_, Error>(usize::try_from(id).map_or_else(|_| vec![0.0; columns], |id| part(table, id)))
            };
            let residual = host.residual.as_ref().ok_or_else(|| absent("residual"))?;
            let (x, other) = (row(&host.x, &host.ids, "ids")?, row(residual, &host.places, "places")?);
            let z: Vec<f64> = x.iter().zip(&other).map(|(x, other)| rounding.step(x + other)).collect();
            let weight = host.weight.as_ref().ok_or_else(|| absent("weight"))?;
            layer_norm(&z, eps, weight, host.bias.as_ref().ok_or_else(|| absent("bias"))?, rounding)
        }
        Kind::MeanPool(_) => {
            let starts = host.sequences.as_ref().ok_or_else(|| absent("sequences"))?.cu_q();
            let rows = starts[r] as usize..starts[r + 1] as usize;
            if rows.is_empty() {
                return Ok(vec![0.0; columns]);
            }
            (0..columns).map(|c| mean(rows.clone().map(|row| host.x[row * columns + c]), rounding)).collect()
        }
        Kind::L2Normalise => {
            let x = part(&host.x, r);
            let norm = rounding.step(x.iter().fold(0.0, |sum, x| rounding.step(sum + x * x)).sqrt());
            // Not by `max`, which hides what is not a number.
            let norm = if norm < 1e-12 { 1e-12 } else { norm };
            x.iter().map(|x| x / norm).collect()
        }
    })
}

/// Elements of a row of x that are read.
pub(crate) fn x_columns(op: &Pointwise) -> u64 {
    match op.kind {
        Kind::Glu(_) => 2 * op.columns,
        Kind::Heads(heads) => heads.reach(op.columns),
        _ => op.columns,
    }
}

/// The element of y where row `r` of the result starts; nothing where it is not written.
fn place(op: &Pointwise, host: &Host, r: usize) -> Option<usize> {
    let row = match (op.kind, &host.pages, &host.positions) {
        (Kind::Append { .. }, Some(pages), _) => appended(pages, op.rows as usize, r)?,
        (Kind::Store { slots, .. }, _, Some(places)) => u32::try_from(places[r]).ok().filter(|&slot| slot < slots)? as usize,
        (Kind::RopeInPlace { .. } | Kind::Heads(_), ..) => return Some(r * op.stride() as usize),
        _ => r,
    };
    Some(row * op.columns as usize)
}

/// The row of the pool for row `r` of `rows` new ones; nothing where its sequence is too short.
fn appended(table: &PageTable, rows: usize, r: usize) -> Option<usize> {
    let shape = table.shape();
    let (each, page) = (rows / shape.batch as usize, shape.page as usize);
    let sequence = r / each;
    let position = (table.kv_len()[sequence] as usize).checked_sub(each - r % each)?;
    Some(table.table()[sequence * shape.pages as usize + position / page] as usize * page + position % page)
}

/// The pool of Heads, whose row `r` in y is `rows(r)`, turned columns in front.
fn pool<R: Rounding>(op: &Pointwise, heads: &Heads, host: &Host, rows: &[Vec<f64>], rounding: R) -> Output {
    let (first, kept) = (heads.first as usize, heads.kept as usize);
    let mut elements = Vec::new();
    for (r, turned) in rows.iter().enumerate() {
        let to = match (heads.to, &host.pages, &host.slots) {
            (Places::Pages(_), Some(pages), _) => appended(pages, op.rows as usize, r),
            (Places::Slots(slots), _, Some(own)) => u32::try_from(own[r]).ok().filter(|&slot| slot < slots).map(|slot| slot as usize),
            _ => None,
        };
        let Some(to) = to.map(|row| row * kept) else { continue };
        elements.resize(elements.len().max(to + kept), None);
        for (c, element) in elements[to..to + kept].iter_mut().enumerate() {
            let unturned = || host.x[r * heads.stride as usize + first + c];
            *element = Some(rounding.keep(turned.get(first + c).copied().unwrap_or_else(unturned)));
        }
    }
    Output { name: "pool".into(), dtype: op.dtype, rounded: op.dtype, elements, least: 0.0, cut: 0, integers: false }
}

/// Heads of rows that lie apart: those of rows side by side, in another order.
fn apart<R: Rounding>(op: &Pointwise, heads: Heads, host: &Host, rounding: R) -> Result<Vec<Output>> {
    expect_len("pointwise: x", &host.x, op.rows * heads.stride)?;
    let (rows, all) = (op.rows as usize, heads.stride as usize);
    let mut order = Vec::new();
    for columns in [0..heads.first as usize, heads.first as usize..op.columns as usize, op.columns as usize..all] {
        order.extend((0..rows).flat_map(|row| columns.clone().map(move |column| row * all + column)));
    }
    let mut x = vec![0.0; order.len()];
    order.iter().zip(&host.x).for_each(|(&to, value)| x[to] = *value);
    let mut outputs = op.clone().with_kind(Kind::Heads(heads.with_apart(false))).evaluate(&Host { x, ..host.clone() }, rounding)?;
    if let Some(y) = outputs.iter_mut().find(|output| output.name == "y") {
        y.elements = order.iter().map(|&from| y.elements.get(from).copied().flatten()).collect();
    }
    Ok(outputs)
}

impl Define for Pointwise {
    type Host = Host;

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn evaluate<R: Rounding>(&self, host: &Host, rounding: R) -> Result<Vec<Output>> {
        self.validate()?;
        if let Some(heads) = self.heads().filter(|heads| heads.apart) {
            return apart(self, heads, host, rounding);
        }
        expect_len("pointwise: x", &host.x, pitched_len(self.x_rows(), x_columns(self), self.stride()))?;
        expect_optional("pointwise: weight", host.weight.as_deref(), self.has_weight(), self.columns)?;
        expect_optional("pointwise: bias", host.bias.as_deref(), self.is_layer_norm(), self.columns)?;
        expect_optional("pointwise: frequencies", host.frequencies.as_deref(), self.frequencies().is_some(), self.frequencies().unwrap_or(0))?;
        expect_optional("pointwise: residual", host.residual.as_deref(), self.residual_rows().is_some(), self.residual_rows().unwrap_or(0) * self.columns)?;
        let below = |ids: &Option<TokenAdapters>, table| ids.as_ref().is_some_and(|ids| (ids.shape().tokens, ids.shape().adapters) == (self.rows, table));
        let each = |words: &Option<Vec<i32>>| words.as_ref().is_some_and(|words| words.len() as u64 == self.rows);
        let index_fits = match self.kind {
            Kind::Rope { .. } | Kind::RopeInPlace { .. } | Kind::Store { .. } => each(&host.positions),
            Kind::Heads(Heads { to: Places::Slots(_), .. }) => each(&host.positions) && each(&host.slots),
            Kind::Heads(Heads { to: Places::Pages(cache), .. }) => each(&host.positions) && host.pages.as_ref().is_some_and(|pages| pages.shape() == cache),
            Kind::Embedding { vocabulary } => below(&host.ids, vocabulary),
            Kind::EmbeddingNorm { vocabulary, places, .. } => below(&host.ids, vocabulary) && below(&host.places, places),
            Kind::MeanPool(shape) => host.sequences.as_ref().is_some_and(|sequences| sequences.shape() == shape),
            Kind::Append { cache, .. } => host.pages.as_ref().is_some_and(|pages| pages.shape() == cache),
            _ => true,
        };
        trifuse::error::ensure(index_fits, "pointwise: index", format_args!("that of {:?} for {} rows", self.kind, self.rows), "another")?;
        let (mut elements, mut rows) = (Vec::new(), Vec::new());
        for r in 0..self.rows as usize {
            let Some(to) = place(self, host, r) else { continue };
            let row = row_of(self, host, r, rounding)?;
            // Between rows nothing is written.
            elements.resize(elements.len().max(to + row.len()), None);
            elements[to..to + row.len()].iter_mut().zip(&row).for_each(|(element, value)| *element = Some(rounding.keep(*value)));
            rows.push(row);
        }
        let pool = self.heads().map(|heads| pool(self, &heads, host, &rows, rounding));
        let y = Output { name: "y".into(), dtype: self.dtype, rounded: self.dtype, elements, least: 0.0, cut: 0, integers: false };
        Ok(std::iter::once(y).chain(pool).collect())
    }

    fn disordered(&self, host: &Host) -> Vec<(&'static str, Host)> {
        reversed(&host.x).map(|x| ("x", Host { x, ..host.clone() })).into_iter().collect()
    }
}
