//! The weights on the device, from `model.safetensors`.

use std::path::Path;

use super::config::Config;
use super::upload::upload;
use crate::backend::Backend;
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::safetensors_file::TensorFile;
use crate::session::Session;

/// Prefixes that may stand before every name: of a bare encoder, and of one inside a larger model.
const PREFIXES: [&str; 2] = ["", "bert."];

/// Everything the forward pass reads.
pub struct Weights<D: Device> {
    /// The token table, `[vocabulary, hidden]`.
    pub words: Slice<D>,
    /// The table of positions, `[positions, hidden]`, with the row of token type 0 added to each row. Every token here has that type.
    pub positions: Slice<D>,
    pub norm: Affine<D>,
    pub blocks: Vec<Block<D>>,
}

/// A weight and a bias.
pub struct Affine<D: Device> {
    pub weight: Slice<D>,
    pub bias: Slice<D>,
}

/// The weights of one transformer block.
pub struct Block<D: Device> {
    /// The module paths of q, k, v, the output, and both layers of the MLP.
    pub paths: [String; 6],
    /// The weights of q, k and v, one below the other: `[3 · hidden, hidden]`. Rows of this and of every weight of a product lie
    /// [`DType::row_stride`] apart.
    pub qkv: Affine<D>,
    pub output: Affine<D>,
    pub attention_norm: Affine<D>,
    /// The MLP's first product, `[intermediate, hidden]`.
    pub up: Affine<D>,
    /// The MLP's second product, `[hidden, intermediate]`.
    pub down: Affine<D>,
    pub mlp_norm: Affine<D>,
}

struct Reader<'a> {
    file: TensorFile,
    prefix: &'static str,
    dtype: DType,
    path: &'a Path,
}

impl Reader<'_> {
    fn values(&self, name: &str, shape: &[u64]) -> Result<Vec<f32>> {
        let full = format!("{}{name}", self.prefix);
        let (_, found, values) = self.file.floats(&full)?;
        let found: Vec<u64> = found.into_iter().map(|size| size as u64).collect();
        if found != shape {
            return Err(Error::input_item(self.path, full, format!("expected the shape {shape:?}, as config.json says, found {found:?}")));
        }
        Ok(values)
    }

    /// Uploads rows of `columns` values, a row every `stride` values.
    fn upload<D: Backend>(&self, session: &mut Session<D>, name: &str, values: &[f64], [columns, stride]: [u64; 2]) -> Result<Slice<D>> {
        upload(session, name, self.dtype, &self.dtype.encode(values), [columns, stride])
    }

    /// Uploads the tensors with these names, one below the other, a row every `stride` values.
    fn stacked<D: Backend>(&self, session: &mut Session<D>, names: &[String], shape: &[u64], stride: u64) -> Result<Slice<D>> {
        let mut all = Vec::new();
        for name in names {
            all.extend(self.values(name, shape)?.into_iter().map(f64::from));
        }
        self.upload(session, &names[0], &all, [shape.last().copied().unwrap_or(1), stride])
    }

    /// Uploads a weight with padded rows, as products need them, and a bias.
    fn affine<D: Backend>(&self, session: &mut Session<D>, names: &[&str], shape: &[u64]) -> Result<Affine<D>> {
        let with = |end: &str| names.iter().map(|name| format!("{name}.{end}")).collect::<Vec<_>>();
        let packed = |shape: &[u64]| shape.last().copied().unwrap_or(1);
        let stride = if shape.len() > 1 { self.dtype.row_stride(packed(shape)) } else { packed(shape) };
        let weight = self.stacked(session, &with("weight"), shape, stride)?;
        Ok(Affine { weight, bias: self.stacked(session, &with("bias"), &shape[..1], packed(&shape[..1]))? })
    }
}

impl<D: Backend> Weights<D> {
    /// Reads the weights in a model's folder, each rounded once to `dtype`.
    ///
    /// # Errors
    /// A file that is missing or not sound; a tensor that is missing, of another shape, or with values that are not finite.
    pub fn open(session: &mut Session<D>, folder: &Path, config: &Config, dtype: DType) -> Result<Self> {
        let path = folder.join("model.safetensors");
        if !path.is_file() {
            let other = if folder.join("pytorch_model.bin").is_file() {
                "only pytorch_model.bin, which can run code when it is read: convert it"
            } else {
                "no such file"
            };
            return Err(Error::input(&path, format!("expected the model's weights, found {other}")));
        }
        let file = TensorFile::open(&path)?;
        let table = "embeddings.word_embeddings.weight";
        let prefix = PREFIXES.into_iter().find(|prefix| file.info(&format!("{prefix}{table}")).is_some());
        let prefix = prefix.ok_or_else(|| Error::input_item(&path, table, "expected the table of a BERT encoder, found no tensor of that name"))?;
        let reader = Reader { file, prefix, dtype, path: &path };
        let (hidden, wide) = (config.hidden, config.intermediate);
        let words = reader.stacked(session, &[table.into()], &[u64::from(config.vocabulary), hidden], hidden)?;
        let kinds = reader.values("embeddings.token_type_embeddings.weight", &[config.token_types, hidden])?;
        let positions = reader.values("embeddings.position_embeddings.weight", &[u64::from(config.positions), hidden])?;
        let sums: Vec<f64> =
            positions.chunks_exact(hidden as usize).flat_map(|row| row.iter().zip(&kinds).map(|(a, b)| f64::from(*a) + f64::from(*b))).collect();
        if sums.iter().any(|sum| !(*sum as f32).is_finite()) {
            let problem = "expected rows that f32 holds with those of token type 0 added, found a sum past its range";
            return Err(Error::input_item(&path, "embeddings.position_embeddings.weight", problem));
        }
        let positions = reader.upload(session, "position_embeddings", &sums, [hidden; 2])?;
        let norm = reader.affine(session, &["embeddings.LayerNorm"], &[hidden])?;
        let blocks = (0..config.layers).map(|layer| {
            let of = |name: &str| format!("encoder.layer.{layer}.{name}");
            let paths = config.projections(layer).map(|(path, _)| path);
            let [q, k, v, output, up, down] = paths.each_ref().map(String::as_str);
            Ok(Block {
                qkv: reader.affine(session, &[q, k, v], &[hidden, hidden])?,
                output: reader.affine(session, &[output], &[hidden, hidden])?,
                attention_norm: reader.affine(session, &[&of("attention.output.LayerNorm")], &[hidden])?,
                up: reader.affine(session, &[up], &[wide, hidden])?,
                down: reader.affine(session, &[down], &[hidden, wide])?,
                mlp_norm: reader.affine(session, &[&of("output.LayerNorm")], &[hidden])?,
                paths,
            })
        });
        let blocks = blocks.collect::<Result<Vec<_>>>()?;
        Ok(Self { words, positions, norm, blocks })
    }
}
