//! A matrix product with everything in its epilogue, of which `linear` and both halves of `fused_mlp` are made. See `shaders/linear.wgsl`.

use std::sync::Arc;

use super::compiled::Pipeline;
use super::queue::{MAX_WORK, part};
use super::source::{Constant, Element, File, Operand, Source, shader};
use super::{Queue, Wgpu};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::Activation;

/// The names of the product's variants: tiles staged in f16, or in f32.
pub(super) const VARIANTS: &[&str] = &["f16", "portable"];
const FILES: &[File] = &[shader!("activation.wgsl"), shader!("linear.wgsl")];
/// Rows and columns of a workgroup's tile, as in the shader.
const TILE: u64 = 64;

/// What a product's epilogue does, `act(x·wᵀ + bias + delta) ⊙ gate + residual`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Epilogue {
    pub activation: Option<Activation>,
    pub bias: bool,
    /// Whether a delta is added: f32, `[rows, d_out]`.
    pub delta: bool,
    /// Whether a gate is multiplied by: `[rows, d_out]`.
    pub gate: bool,
    /// Whether a residual is added: `[rows, d_out]`.
    pub residual: bool,
    /// Whether y is f32 where operands are not.
    pub wide: bool,
}

/// The operands of a product: x `[rows, d_in]` and w `[d_out, d_in]` with the strides of [`Sizes`], y `[rows, d_out]`, and those that
/// [`Epilogue`] names.
pub(super) struct Operands<'a> {
    pub x: &'a Slice<Wgpu>,
    pub w: &'a Slice<Wgpu>,
    pub bias: Option<&'a Slice<Wgpu>>,
    pub delta: Option<&'a Slice<Wgpu>>,
    pub gate: Option<&'a Slice<Wgpu>>,
    pub residual: Option<&'a Slice<Wgpu>>,
    pub y: &'a Slice<Wgpu>,
}

/// The sizes of a product: columns of y and of x, and elements from row to row of x and of w.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub d_out: u64,
    pub d_in: u64,
    pub x_stride: u64,
    pub w_stride: u64,
}

/// A compiled product of fixed inner and outer size.
pub(super) struct Product {
    pipeline: Arc<Pipeline>,
    dtype: DType,
    /// Element type of y.
    y_dtype: DType,
    sizes: Sizes,
    /// Rows of x and y that one dispatch can reach.
    pub rows: u64,
    /// Rows of w that one dispatch can reach.
    pub columns: u64,
}

/// The shader's `Params`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    tokens: u32,
    columns: u32,
    d_in: u32,
    d_out: u32,
    x_stride: u32,
    w_stride: u32,
}

/// The value of the constant ACTIVATION of `activation.wgsl`.
pub(super) const fn activation_constant(activation: Option<Activation>) -> Constant {
    Constant::U32(match activation {
        None => 0,
        Some(Activation::GeluTanh) => 1,
        Some(Activation::GeluErf) => 2,
        Some(Activation::Silu) => 3,
        Some(Activation::Relu) => 4,
    })
}

impl Epilogue {
    /// Element type of y, for operands of `dtype`.
    const fn y_dtype(&self, dtype: DType) -> DType {
        if self.wide { DType::F32 } else { dtype }
    }
}

fn source(variant: &'static str, dtype: DType, epilogue: Epilogue) -> Source {
    let float = Element::Float(dtype);
    let f16 = variant == "f16";
    Source {
        kernel: format!("linear {variant} {dtype}"),
        files: FILES,
        operands: vec![
            Operand::read("x", float),
            Operand::read("w", float),
            Operand::write("y", Element::Float(epilogue.y_dtype(dtype))),
            Operand::read("bias", float).when(epilogue.bias),
            Operand::read("residual", float).when(epilogue.residual),
            Operand::read("delta", Element::Float(DType::F32)).when(epilogue.delta),
            Operand::read("gate", float).when(epilogue.gate),
        ],
        constants: vec![
            ("ACTIVATION", activation_constant(epilogue.activation)),
            ("GATED", Constant::Bool(epilogue.gate)),
            ("Staged", Constant::Type(if f16 { "f16" } else { "f32" })),
        ],
        f16,
    }
}

/// Every specialisation.
pub(super) fn sources() -> Vec<Source> {
    let activations = std::iter::once(None).chain(Activation::ALL.map(Some));
    let mut all = Vec::new();
    for activation in activations {
        for flags in 0..8 {
            let [bias, residual, other] = [flags & 1 != 0, flags & 2 != 0, flags & 4 != 0];
            let plain = Epilogue { activation, bias, residual, ..Epilogue::default() };
            // A gate and a delta never occur together, and neither with wide outputs, which f32 has at any rate.
            for epilogue in [Epilogue { delta: other, ..plain }, Epilogue { activation: None, gate: other, ..plain }] {
                all.push(source("f16", DType::F16, epilogue));
                all.extend(DType::ALL.map(|dtype| source("portable", dtype, epilogue)));
            }
            if other && activation.is_none() {
                let wide = Epilogue { wide: true, ..plain };
                all.push(source("f16", DType::F16, wide));
                all.extend([DType::F16, DType::BF16].map(|dtype| source("portable", dtype, wide)));
            }
        }
    }
    all
}

impl Wgpu {
    /// The product that `variant` computes, or why it cannot here.
    pub(super) fn product(&self, variant: &'static str, dtype: DType, sizes: Sizes, epilogue: Epilogue) -> Result<std::result::Result<Product, String>> {
        let size = dtype.size();
        let window = self.window_bytes();
        let Sizes { d_out, d_in, x_stride, w_stride } = sizes;
        // The widest row, which is of x, of y, or of a delta in f32.
        let row_bytes = (x_stride.max(d_out) * size).max(if epilogue.delta || epilogue.wide { d_out * 4 } else { 0 });
        let (rows, columns) = (window / row_bytes, window / (w_stride * size));
        let obstacle = match variant {
            _ if self.narrow().is_some() => self.narrow(),
            "f16" if dtype != DType::F16 => Some("is for f16 operands".into()),
            "f16" if !self.caps.f16 => Some("the adapter has no f16 in shaders".into()),
            _ if rows == 0 || columns == 0 => {
                Some(format!("a row of {} elements, the device binds {window} bytes at a time", x_stride.max(d_out).max(w_stride)))
            }
            _ => None,
        };
        if let Some(reason) = obstacle {
            return Ok(Err(reason));
        }
        let pipeline = self.pipeline(&source(variant, dtype, epilogue))?;
        // Tiles are whole, where there is room for one, and there is no more work than one dispatch may have.
        let whole = |count: u64| if count > TILE { count - count % TILE } else { count };
        let within = |count: u64, other: u64| whole(count.min((MAX_WORK / 2 / d_in.max(1) / other.max(1)).max(TILE)));
        let columns = within(columns, TILE);
        Ok(Ok(Product { pipeline, dtype, y_dtype: epilogue.y_dtype(dtype), sizes, rows: within(rows, columns.min(d_out)), columns }))
    }
}

impl Product {
    /// Enqueues the product of `rows` rows, at most [`Product::rows`].
    pub(super) fn run(&self, device: &Wgpu, queue: &mut Queue, rows: u64, operands: &Operands<'_>) -> Result<()> {
        let (size, Sizes { d_out, d_in, x_stride, w_stride }) = (self.dtype.size(), self.sizes);
        let mut column = 0;
        while column < d_out && rows > 0 {
            let columns = self.columns.min(d_out - column);
            // The block reaches from the part's first element to its last. Rows are d_out long, and `columns` of them are used.
            let block = |slice: &Slice<Wgpu>, size: u64| part(slice, column * size, ((rows - 1) * d_out + columns) * size);
            let x = part(operands.x, 0, ((rows - 1) * x_stride + d_in) * size);
            let w = part(operands.w, column * w_stride * size, ((columns - 1) * w_stride + d_in) * size);
            let y = block(operands.y, self.y_dtype.size());
            let bias = operands.bias.map(|bias| part(bias, column * size, columns * size));
            let residual = operands.residual.map(|slice| block(slice, size));
            let delta = operands.delta.map(|slice| block(slice, 4));
            let gate = operands.gate.map(|slice| block(slice, size));
            let [d_in, d_out, x_stride, w_stride] = [d_in, d_out, x_stride, w_stride].map(|size| size as u32);
            let params = Params { tokens: rows as u32, columns: columns as u32, d_in, d_out, x_stride, w_stride };
            let bound = [Some(&x), Some(&w), Some(&y), bias.as_ref(), residual.as_ref(), delta.as_ref(), gate.as_ref()];
            queue.dispatch(device, &self.pipeline, &bound, &params, rows.div_ceil(TILE) * columns.div_ceil(TILE))?;
            column += columns;
        }
        Ok(())
    }
}
