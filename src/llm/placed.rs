//! The weights on the device.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::config::Config;
use super::form::{DOWN, Form, GATE_UP, OUTPUT, Part, QKV};
use super::loading::{Loading, straight};
use super::products::Group;
use super::rope::Scaling;
use super::rows::Rows;
use super::weights::WeightSource;
use crate::backend::Backend;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layer::Affine;
use crate::session::Session;

/// Everything the forward pass reads.
pub struct Placed<D: Device> {
    /// The token table, `[vocabulary, hidden]`, packed.
    pub table: Slice<D>,
    /// The norm after the last layer.
    pub norm: Slice<D>,
    /// The head, `[vocabulary, hidden]`, with padded rows; where it is tied and rows need no padding, the table itself.
    pub head: Slice<D>,
    /// How far each pair of a head turns from a position to the next, `[head_dim / 2]` f32, where that is no power of a base.
    pub frequencies: Option<Slice<D>>,
    pub blocks: Vec<Block<D>>,
}

/// The weights of one layer.
pub struct Block<D: Device> {
    /// The norms before attention and before the MLP.
    pub norms: [Slice<D>; 2],
    /// The weights of q, k and v: one below the other, or apart.
    pub qkv: Group<D>,
    /// The output projection of attention.
    pub output: Group<D>,
    /// Gate and up, one below the other; apart where either is two factors.
    pub gate_up: Group<D>,
    /// The last product of the MLP.
    pub down: Group<D>,
    /// The norms of the heads of q and then of k, one after another, where the family has them.
    pub head_norms: Option<Slice<D>>,
}

struct Reader<'a> {
    source: &'a dyn WeightSource,
    dtype: DType,
    /// Tensors that were read.
    read: BTreeSet<String>,
    /// Memory for the values of a tensor, for the rows of a weight, and for those of first factors.
    values: Vec<f32>,
    elements: Vec<u8>,
    rows: Rows,
    gathered: Rows,
    /// The time in which the host waited for copies.
    copied: Duration,
}

impl<'a> Reader<'a> {
    fn new(source: &'a dyn WeightSource, dtype: DType) -> Self {
        let (rows, gathered) = (Rows::new(dtype), Rows::new(dtype));
        Self { source, dtype, read: BTreeSet::new(), values: Vec::new(), elements: Vec::new(), rows, gathered, copied: Duration::ZERO }
    }

    /// Reads the values of a tensor into their memory.
    fn read(&mut self, name: String, shape: &[u64]) -> Result<()> {
        self.source.values_into(&name, shape, &mut self.values)?;
        self.read.insert(name);
        Ok(())
    }

    /// Adds the first `count` rows of a tensor to `rows`: `columns` of every `pitch` elements, a row every `stride`. They are rounded, where the source does
    /// not have them as they are to be.
    fn add(&mut self, rows: &mut Rows, (name, shape): (String, &[u64]), count: u64, [pitch, columns, stride]: [u64; 3]) -> Result<()> {
        let (source, dtype, size) = (self.source, self.dtype, self.dtype.size());
        let all: u64 = shape.iter().product();
        // No memory is asked for that no file fills.
        let there = source.shape(&name).as_deref() == Some(shape);
        if let Some(write) = source.elements(&name, shape, dtype).filter(|_| there) {
            if count * pitch == all && [columns, stride] == [pitch; 2] {
                rows.add_written(all, |to| write(0, to))?;
            } else {
                let bytes = (count * pitch * size) as usize;
                self.elements.resize(self.elements.len().max(bytes), 0);
                write(0, &mut self.elements[..bytes])?;
                rows.add_elements(&self.elements[..bytes], [pitch, columns, stride]);
            }
            self.read.insert(name);
            return Ok(());
        }
        self.read(name, shape)?;
        rows.add(&self.values[..(count * pitch) as usize], [pitch, columns, stride]);
        Ok(())
    }

    /// Uploads the tensors with these names, one below the other, a row every `stride` elements.
    fn stacked<D: Backend>(&mut self, session: &mut Session<D>, names: &[(String, u64)], columns: Option<u64>, stride: u64) -> Result<Slice<D>> {
        if columns.is_none_or(|columns| columns == stride) {
            let tensors: Vec<_> = names.iter().map(|(name, rows)| (name.as_str(), [Some(*rows), columns].into_iter().flatten().collect())).collect();
            if let Some(slice) = straight(session, (self.source, self.dtype), &tensors, &mut self.copied)? {
                self.read.extend(names.iter().map(|(name, _)| name.clone()));
                return Ok(slice);
            }
        }
        let mut all = std::mem::replace(&mut self.rows, Rows::new(self.dtype));
        all.clear();
        for (name, rows) in names {
            match columns {
                Some(columns) => self.add(&mut all, (name.clone(), &[*rows, columns]), *rows, [columns, columns, stride])?,
                None => self.add(&mut all, (name.clone(), &[*rows]), 1, [*rows; 3])?,
            }
        }
        let placed = self.place(session, &all, names.first().map_or("weight", |(name, _)| name));
        self.rows = all;
        placed
    }

    /// Uploads the rows of a weight.
    fn place<D: Backend>(&mut self, session: &mut Session<D>, rows: &Rows, name: &str) -> Result<Slice<D>> {
        let (began, before) = (Instant::now(), session.counters());
        let placed = rows.place(session, name);
        self.copied += began.elapsed().saturating_sub((session.counters() - before).alloc_time);
        placed
    }

    fn vector<D: Backend>(&mut self, session: &mut Session<D>, name: String, len: u64) -> Result<Slice<D>> {
        self.stacked(session, &[(name, len)], None, len)
    }

    /// Uploads a weight with padded rows, as products need them, and a bias where there is to be one.
    fn affine<D: Backend>(&mut self, session: &mut Session<D>, parts: &[&(String, [u64; 2])], bias: bool) -> Result<Affine<D>> {
        let columns = parts.first().map_or(1, |(_, [_, columns])| *columns);
        let with = |end: &str| parts.iter().map(|(path, [rows, _])| (format!("{path}.{end}"), *rows)).collect::<Vec<_>>();
        let weight = self.stacked(session, &with("weight"), Some(columns), self.dtype.row_stride(columns))?;
        let rows = parts.iter().map(|(_, [rows, _])| rows).sum();
        let bias = if bias { Some(self.stacked(session, &with("bias"), None, rows)?) } else { None };
        Ok(Affine { weight, bias })
    }

    /// The weights of some projections of a layer, as the products of `form` take them.
    fn group<D: Backend>(&mut self, session: &mut Session<D>, config: &Config, projections: &[(String, [u64; 2])], form: &Form) -> Result<Group<D>> {
        if form.parts.len() < projections.len() {
            let parts: Vec<_> = projections.iter().collect();
            return Ok(Group { first: None, parts: vec![self.affine(session, &parts, form.bias)?] });
        }
        let stride = self.dtype.row_stride(form.d_in);
        // First factors are gathered while second ones go to the device.
        let (mut first, mut parts, mut bases) = (std::mem::replace(&mut self.gathered, Rows::new(self.dtype)), Vec::new(), Vec::new());
        first.clear();
        for (projection, part) in projections.iter().zip(&form.parts) {
            let (path, [d_out, d_in]) = projection;
            let (Part { rank: Some(_), room, .. }, Some(rank)) = (part, config.ranks.get(path)) else {
                parts.push(self.affine(session, &[projection], form.bias)?);
                continue;
            };
            let inner = config.inner_rank(path).unwrap_or(rank);
            let v = format!("{path}.v.weight");
            if let Some(fill) = config.fill(path) {
                self.read(v.clone(), &[rank, *d_in])?;
                bases.extend_from_slice(&self.values[(fill.at * d_in) as usize..((fill.at + fill.rows()) * d_in) as usize]);
            }
            self.add(&mut first, (v, &[rank, *d_in]), inner, [*d_in, *d_in, stride])?;
            // Rows of zeros below the first factor give columns of zeros, which meet the zeros between rows of the second.
            first.add_zeros(room - inner, stride);
            let mut second = std::mem::replace(&mut self.rows, Rows::new(self.dtype));
            second.clear();
            self.add(&mut second, (format!("{path}.u.weight"), &[*d_out, rank]), *d_out, [rank, inner, *room])?;
            let weight = self.place(session, &second, path)?;
            self.rows = second;
            let bias = if form.bias { Some(self.vector(session, format!("{path}.bias"), *d_out)?) } else { None };
            parts.push(Affine { weight, bias });
        }
        first.add(&bases, [form.d_in, form.d_in, stride]);
        first.add_zeros(form.fill - bases.len() as u64 / form.d_in, stride);
        let path = projections.first().map_or("weight", |(path, _)| path);
        let placed = if first.is_empty() { None } else { Some(self.place(session, &first, path)?) };
        self.gathered = first;
        Ok(Group { first: placed, parts })
    }
}

impl<D: Backend> Placed<D> {
    /// Reads a model's weights, each rounded once to `dtype`, and tells what their way took.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape, with values that are not finite, or that nothing here reads; no device memory.
    pub fn new(session: &mut Session<D>, source: &dyn WeightSource, config: &Config, dtype: DType) -> Result<(Self, Loading)> {
        let (began, before) = (Instant::now(), session.counters());
        let mut reader = Reader::new(source, dtype);
        let (hidden, vocabulary) = (config.hidden, u64::from(config.vocabulary));
        let table_name = || vec![("model.embed_tokens.weight".to_owned(), vocabulary)];
        let table = reader.stacked(session, &table_name(), Some(hidden), hidden)?;
        let stride = dtype.row_stride(hidden);
        let head = match (config.tied, stride == hidden) {
            (true, true) => table.clone(),
            (true, false) => reader.stacked(session, &table_name(), Some(hidden), stride)?,
            (false, _) => reader.stacked(session, &[("lm_head.weight".into(), vocabulary)], Some(hidden), stride)?,
        };
        let norm = reader.vector(session, "model.norm.weight".into(), hidden)?;
        let table_of = |base: f32| config.scaling.frequencies(base.into(), config.head_dim);
        let frequencies = if config.scaling == Scaling::None { None } else { Some(session.upload(&table_of(config.rope_base))?) };
        let blocks = (0..config.layers).map(|layer| {
            let of = |name: &str| format!("model.layers.{layer}.{name}.weight");
            let norms = [reader.vector(session, of("input_layernorm"), hidden)?, reader.vector(session, of("post_attention_layernorm"), hidden)?];
            let projections = config.projections(layer);
            let [qkv, output, gate_up, down] = [QKV, OUTPUT, GATE_UP, DOWN].map(|group| {
                let form = Form::of(config, dtype, layer, group.clone());
                reader.group(session, config, &projections[group], &form)
            });
            let head = |name: &str, count: u64| std::iter::repeat_n((of(name), config.head_dim), count as usize);
            let heads: Vec<_> = head("self_attn.q_norm", config.heads).chain(head("self_attn.k_norm", config.kv_heads)).collect();
            let columns = config.query() + config.key();
            let head_norms = if config.head_norm { Some(reader.stacked(session, &heads, None, columns)?) } else { None };
            Ok(Block { norms, qkv: qkv?, output: output?, gate_up: gate_up?, down: down?, head_norms })
        });
        let blocks = blocks.collect::<Result<Vec<_>>>()?;
        let known = |name: &str| reader.read.contains(name) || name.ends_with("rotary_emb.inv_freq") || (config.tied && name == "lm_head.weight");
        match source.names().into_iter().find(|name| !known(name)) {
            Some(name) => Err(Error::input_item(source.path(), name, "expected the weights that the configuration tells of, found this one besides")),
            None => {
                let (copied, allocated) = (reader.copied, (session.counters() - before).alloc_time);
                let read = began.elapsed().saturating_sub(copied + allocated);
                Ok((Self { table, norm, head, frequencies, blocks }, Loading { read, copied }))
            }
        }
    }
}
