//! The weights on the device.

use std::collections::BTreeSet;

use super::config::Config;
use super::part::part;
use super::rope::Scaling;
use super::weights::WeightSource;
use crate::backend::Backend;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::layer::{Affine, Weights as LayerWeights};
use crate::model::upload;
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
    pub layer: LayerWeights<D>,
    /// Gate and up, one below the other: the layer's own are its halves.
    pub gate_up: Slice<D>,
    /// The norms of a head of q and of k, where the family has them.
    pub head_norms: Option<[Slice<D>; 2]>,
}

struct Reader<'a> {
    source: &'a dyn WeightSource,
    dtype: DType,
    /// Tensors that were read.
    read: BTreeSet<String>,
}

impl Reader<'_> {
    /// Uploads the tensors with these names, one below the other, a row every `stride` elements.
    fn stacked<D: Backend>(&mut self, session: &mut Session<D>, names: &[(String, u64)], columns: Option<u64>, stride: u64) -> Result<Slice<D>> {
        let mut bytes = Vec::new();
        for (name, rows) in names {
            let shape: Vec<u64> = std::iter::once(*rows).chain(columns).collect();
            bytes.extend(self.dtype.encode_f32(&self.source.values(name, &shape)?));
            self.read.insert(name.clone());
        }
        let name = names.first().map_or("weight", |(name, _)| name);
        upload(session, name, self.dtype, &bytes, [columns.unwrap_or(stride), stride])
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
}

impl<D: Backend> Placed<D> {
    /// Reads a model's weights, each rounded once to `dtype`.
    ///
    /// # Errors
    /// A tensor that is missing, of another shape, with values that are not finite, or that nothing here reads; no device memory.
    pub fn new(session: &mut Session<D>, source: &dyn WeightSource, config: &Config, dtype: DType) -> Result<Self> {
        let mut reader = Reader { source, dtype, read: BTreeSet::new() };
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
            let [q, k, v, output, gate, up, down] = &config.projections(layer);
            let of = |name: &str| format!("model.layers.{layer}.{name}.weight");
            let mut normed = |name: &str| Ok(Affine { weight: reader.vector(session, of(name), hidden)?, bias: None });
            let (attention_norm, mlp_norm) = (normed("input_layernorm")?, normed("post_attention_layernorm")?);
            let gate_up = reader.affine(session, &[gate, up], false)?.weight;
            let half = gate_up.len / 2;
            let mut head_norm = |name: &str| reader.vector(session, of(name), config.head_dim);
            let head_norms = if config.head_norm { Some([head_norm("self_attn.q_norm")?, head_norm("self_attn.k_norm")?]) } else { None };
            let layer = LayerWeights {
                attention_norm,
                qkv: reader.affine(session, &[q, k, v], config.qkv_bias)?,
                output: reader.affine(session, &[output], config.output_bias)?,
                mlp_norm,
                gate: Some(part(&gate_up, 0, half)?),
                up: Affine { weight: part(&gate_up, half, half)?, bias: None },
                down: reader.affine(session, &[down], false)?,
            };
            Ok(Block { layer, gate_up, head_norms })
        });
        let blocks = blocks.collect::<Result<Vec<_>>>()?;
        let known = |name: &str| reader.read.contains(name) || name.ends_with("rotary_emb.inv_freq") || (config.tied && name == "lm_head.weight");
        match source.names().into_iter().find(|name| !known(name)) {
            Some(name) => Err(Error::input_item(source.path(), name, "expected the weights that the configuration tells of, found this one besides")),
            None => Ok(Self { table, norm, head, frequencies, blocks }),
        }
    }
}
