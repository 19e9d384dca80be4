//! What a layer reads, drawn at random.

use crate::bench::operand::Values;
use trifuse::device::Device;
use trifuse::error::Result;
use trifuse::layer::{Affine, States, Weights};
use trifuse::ops::layer::{Layer, Style};
use trifuse::session::Session;
use trifuse_testkit::cases::Draw;

/// The numbers of a weight and its bias.
pub struct Numbers {
    pub weight: Values,
    pub bias: Option<Values>,
}

impl Numbers {
    /// Uploads the weight in rows of `columns` values, a row every `stride`, and the bias.
    pub fn upload<D: Device>(&self, session: &mut Session<D>, [columns, stride]: [u64; 2]) -> Result<Affine<D>> {
        Ok(Affine { weight: self.weight.upload_rows(session, columns, stride)?, bias: self.bias.as_ref().map(|bias| bias.upload(session)).transpose()? })
    }
}

/// All that a layer reads, as the host knows it.
pub struct Operands {
    pub attention_norm: Numbers,
    pub qkv: Numbers,
    pub output: Numbers,
    pub mlp_norm: Numbers,
    pub gate: Option<Values>,
    pub up: Numbers,
    pub down: Numbers,
    pub x: Values,
    pub positions: Option<Vec<i32>>,
}

impl Operands {
    /// Random numbers of such a size that states stay of order one.
    pub fn draw(layer: &Layer, draw: &mut Draw) -> Self {
        let (dtype, sizes, biases, llama) = (layer.dtype, layer.sizes, layer.biases(), layer.style == Style::Llama);
        let mut numbers = |[rows, columns]: [u64; 2], deviation: f64, bias: Option<f64>| Numbers {
            weight: Values::normal(draw, dtype, rows * columns, deviation),
            bias: bias.filter(|_| biases).map(|deviation| Values::normal(draw, dtype, rows, deviation)),
        };
        let [hidden, wide, query] = [sizes.hidden, sizes.intermediate, sizes.query()];
        let root = |columns: u64| 1.0 / (columns as f64).sqrt();
        let attention_norm = numbers([hidden, 1], 1.0, Some(0.5));
        let qkv = numbers([sizes.qkv(), hidden], root(hidden), Some(0.5));
        let output = numbers([hidden, query], root(query), Some(0.5));
        let mlp_norm = numbers([hidden, 1], 1.0, Some(0.5));
        let gate = llama.then(|| numbers([wide, hidden], root(hidden), None).weight);
        let up = numbers([wide, hidden], root(hidden), Some(0.5));
        let down = numbers([hidden, wide], 2.0 * root(wide), Some(0.5));
        let x = numbers([layer.rows(), hidden], 1.0, None).weight;
        // Every sequence begins at position 0.
        let positions = llama.then(|| (0..layer.rows()).map(|row| (row % layer.tokens) as i32).collect());
        Self { attention_norm, qkv, output, mlp_norm, gate, up, down, x, positions }
    }

    /// The numbers of the product that a step of that name is.
    pub fn of(&self, step: &str) -> &Numbers {
        match step {
            "qkv" => &self.qkv,
            "output" => &self.output,
            "up" => &self.up,
            _ => &self.down,
        }
    }

    pub fn upload<D: Device>(&self, layer: &Layer, session: &mut Session<D>) -> Result<(Weights<D>, States<D>)> {
        let parts = layer.parts()?;
        let [qkv, output] = [&parts.qkv, &parts.output].map(|product| [product.d_in, product.w_stride]);
        let (up, down) = ([parts.mlp.d_model, parts.mlp.w1_stride], [parts.mlp.d_ff, parts.mlp.w2_stride]);
        let weights = Weights {
            attention_norm: self.attention_norm.upload(session, [1; 2])?,
            qkv: self.qkv.upload(session, qkv)?,
            output: self.output.upload(session, output)?,
            mlp_norm: self.mlp_norm.upload(session, [1; 2])?,
            gate: self.gate.as_ref().map(|gate| gate.upload_rows(session, up[0], up[1])).transpose()?,
            up: self.up.upload(session, up)?,
            down: self.down.upload(session, down)?,
        };
        let positions = self.positions.as_ref().map(|positions| session.upload(positions)).transpose()?;
        let y = session.alloc(layer.rows() * layer.sizes.hidden * layer.dtype.size())?;
        Ok((weights, States { x: self.x.upload(session)?, positions, y }))
    }
}
