use super::Stage;
use crate::oracle::attention::{HostForm, output_rows, span};
use crate::oracle::codebook_gemm::{FactorHost, Host as CodebookHost};
use crate::oracle::{Define, attention, checksum, fused_mlp, grouped_linear, linear, pointwise, prefix_attention, sample};
use trifuse::backend::Backend;
use trifuse::device::{Device, Slice};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::ops::attention::{Attention, AttentionArgs, AttentionIndex};
use trifuse::ops::codebook_gemm::{CodebookGemm, CodebookGemmArgs, CodebookSliceArgs, FactorArgs};
use trifuse::ops::prefix_attention::FactorsArgs;
use trifuse::ops::{
    Checksum, ChecksumArgs, FusedMlp, FusedMlpArgs, GroupedLinear, GroupedLinearArgs, Linear, LinearArgs, NormArgs, Pointwise, PointwiseArgs, PrefixAttention,
    PrefixAttentionArgs, Sample, SampleArgs,
};
use trifuse::session::Session;

/// An operation whose operands can be put on a device.
pub trait Upload: Define {
    /// Puts `host` on the device, outputs in the order of [`Define::evaluate`].
    ///
    /// # Errors
    /// The device has no room.
    fn upload<D: Device>(&self, host: &Self::Host, session: &mut Session<D>, stage: &mut Stage<D>) -> Result<Self::Args<D>>;

    /// Prepares what a launch may take ready-made (see [`Session::prepare`]), and tells whether there was any. Outputs are the same then, bit
    /// for bit.
    ///
    /// # Errors
    /// The device has no room.
    fn prepare<D: Backend>(&self, _args: &mut Self::Args<D>, _session: &mut Session<D>) -> Result<bool> {
        Ok(false)
    }
}

impl Upload for Linear {
    fn upload<D: Device>(&self, host: &linear::Host, session: &mut Session<D>, stage: &mut Stage<D>) -> Result<LinearArgs<D>> {
        let x = stage.rows(session, "x", self.dtype, &host.x, [self.d_in, self.x_stride])?;
        let y = stage.output(session, "y", self.y_dtype(), (self.tokens * self.d_out) as usize)?;
        let delta = match (&self.delta, &host.delta) {
            (Some(op), Some(delta)) => {
                let mut parts = Vec::new();
                let mut first = 0;
                for slice in &op.slices {
                    let offset = first * self.dtype.size();
                    let part = y.len().checked_sub(offset).and_then(|rest| y.sub_slice(offset, rest));
                    parts.push(part.ok_or_else(|| Error::invalid("y", format!("more than {offset} bytes"), y.len()))?);
                    first += slice.d_out;
                }
                Some(codebook_args(op, delta, x.clone(), parts, session, stage)?)
            }
            _ => None,
        };
        Ok(LinearArgs::new(x, stage.rows(session, "w", self.dtype, &host.w, [self.d_in, self.w_stride])?, y)
            .with_bias(stage.optional(session, "bias", self.dtype, host.bias.as_deref())?)
            .with_residual(stage.optional(session, "residual", self.dtype, host.residual.as_deref())?)
            .with_input_norm(stage.optional(session, "input norm", self.dtype, host.input_norm.as_deref())?)
            .with_norm(match &host.norm {
                Some([weight, bias]) => {
                    Some(NormArgs::new(stage.input(session, "norm weight", self.dtype, weight)?, stage.input(session, "norm bias", self.dtype, bias)?))
                }
                None => None,
            })
            .with_delta(delta))
    }

    fn prepare<D: Backend>(&self, args: &mut LinearArgs<D>, session: &mut Session<D>) -> Result<bool> {
        let (Some(op), Some(own)) = (&self.delta, &mut args.delta) else { return Ok(false) };
        let plan = session.plan(op.clone())?;
        let Some(prepared) = session.alloc_prepared(&plan)? else { return Ok(false) };
        session.prepare(&plan, &prepared, own)?;
        own.prepared = Some(prepared);
        Ok(true)
    }
}

impl Upload for GroupedLinear {
    fn upload<D: Device>(&self, host: &grouped_linear::Host, session: &mut Session<D>, stage: &mut Stage<D>) -> Result<GroupedLinearArgs<D>> {
        let mut problems: Vec<LinearArgs<D>> = Vec::new();
        for (number, (problem, own)) in self.problems.iter().zip(&host.problems).enumerate() {
            let mut args = match problems.first().filter(|_| self.gate.is_some()) {
                // With a gate there is one y.
                Some(first) => {
                    let x = stage.rows(session, "x", problem.dtype, &own.x, [problem.d_in, problem.x_stride])?;
                    LinearArgs::new(x, stage.rows(session, "w", problem.dtype, &own.w, [problem.d_in, problem.w_stride])?, first.y.clone())
                }
                None => problem.upload(own, session, stage)?,
            };
            // Products of one x share it, as they do in a model.
            let mut before = self.problems.iter().zip(&host.problems).zip(&problems).take(number);
            let same = before.find(|((other, of), _)| of.x == own.x && (other.d_in, other.x_stride) == (problem.d_in, problem.x_stride));
            if let Some((_, there)) = same {
                args.x = there.x.clone();
            }
            problems.push(args);
        }
        Ok(GroupedLinearArgs::new(problems))
    }
}

impl Upload for FusedMlp {
    fn upload<D: Device>(&self, host: &fused_mlp::Host, session: &mut Session<D>, stage: &mut Stage<D>) -> Result<FusedMlpArgs<D>> {
        Ok(FusedMlpArgs::new(
            stage.rows(session, "x", self.dtype, &host.x, [self.d_model, self.x_stride])?,
            stage.rows(session, "w1", self.dtype, &host.w1, [self.d_model, self.w1_stride])?,
            stage.rows(session, "w2", self.dtype, &host.w2, [self.d_ff, self.w2_stride])?,
            stage.output(session, "y", self.dtype, (self.tokens * self.d_out) as usize)?,
        )
        .with_wg(host.wg.as_deref().map(|wg| stage.rows(session, "wg", self.dtype, wg, [self.d_model, self.w1_stride])).transpose()?)
        .with_b1(stage.optional(session, "b1", self.dtype, host.b1.as_deref())?)
        .with_b2(stage.optional(session, "b2", self.dtype, host.b2.as_deref())?)
        .with_residual(stage.optional(session, "residual", self.dtype, host.residual.as_deref())?))
    }
}

impl Upload for Pointwise {
    fn upload<D: Device>(&self, host: &pointwise::Host, session: &mut Session<D>, stage: &mut Stage<D>) -> Result<PointwiseArgs<D>> {
        let (x, y) = if self.in_place() {
            let both = stage.updated(session, "y", self.dtype, &host.x)?;
            (both.clone(), both)
        } else {
            let x = stage.input(session, "x", self.dtype, &host.x)?;
            (x, stage.output(session, "y", self.dtype, (self.y_rows() * self.columns) as usize)?)
        };
        Ok(PointwiseArgs::new(x, y)
            .with_weight(stage.optional(session, "weight", self.dtype, host.weight.as_deref())?)
            .with_bias(stage.optional(session, "bias", self.dtype, host.bias.as_deref())?)
            .with_residual(stage.optional(session, "residual", self.dtype, host.residual.as_deref())?)
            .with_positions(host.positions.as_deref().map(|positions| stage.integers(session, "positions", positions)).transpose()?)
            .with_frequencies(stage.optional(session, "frequencies", DType::F32, host.frequencies.as_deref())?)
            .with_ids(host.ids.as_ref().map(|ids| session.index(ids)).transpose()?)
            .with_places(host.places.as_ref().map(|places| session.index(places)).transpose()?)
            .with_sequences(host.sequences.as_ref().map(|sequences| session.index(sequences)).transpose()?)
            .with_pages(host.pages.as_ref().map(|pages| session.index(pages)).transpose()?)
            .with_slots(host.slots.as_deref().map(|slots| stage.integers(session, "slots", slots)).transpose()?)
            .with_pool(self.heads().map(|heads| stage.output(session, "pool", self.dtype, (heads.pool_rows() * heads.kept) as usize)).transpose()?))
    }
}

impl Upload for Attention {
    fn upload<D: Device>(&self, host: &attention::Host, session: &mut Session<D>, stage: &mut Stage<D>) -> Result<AttentionArgs<D>> {
        let index = match &host.index {
            HostForm::None => AttentionIndex::None,
            HostForm::Varlen(index) => AttentionIndex::Varlen(session.index(index)?),
            HostForm::Blocks(index) => AttentionIndex::Blocks(session.index(index)?),
            HostForm::BlockMap(index) => AttentionIndex::BlockMap(session.index(index)?),
            HostForm::Paged(index) => AttentionIndex::Paged(session.index(index)?),
            HostForm::RaggedPaged(index) => AttentionIndex::RaggedPaged(session.index(index)?),
        };
        let o_len = span(self.o, output_rows(self), self.head_dim) as usize;
        let mut read = |name, values: &[f64]| match self.slots {
            // They start at multiples of 16 bytes then.
            Some(_) => stage.bytes_by(session, name, &self.dtype.encode(values), 16),
            None => stage.input(session, name, self.dtype, values),
        };
        let (q, k, v) = (read("q", &host.q)?, read("k", &host.k)?, read("v", &host.v)?);
        let args = AttentionArgs::new(q, k, v, stage.output(session, "o", self.dtype, o_len)?).with_index(index);
        Ok(args.with_slots(host.slots.as_ref().map(|slots| session.index(slots)).transpose()?).with_lse(if self.lse {
            Some(stage.output(session, "lse", DType::F32, self.lse_len() as usize)?)
        } else {
            None
        }))
    }
}

impl Upload for CodebookGemm {
    fn upload<D: Device>(&self, host: &CodebookHost, session: &mut Session<D>, stage: &mut Stage<D>) -> Result<CodebookGemmArgs<D>> {
        let x = stage.input(session, "x", self.dtype, &host.x)?;
        let ys = outputs(self, host, session, stage)?;
        codebook_args(self, host, x, ys, session, stage)
    }
}

/// Places the y of every slice: side by side in one matrix where their rows leave room for that, as a server lays out
/// query, key and value; else each by itself.
fn outputs<D: Device>(op: &CodebookGemm, host: &CodebookHost, session: &mut Session<D>, stage: &mut Stage<D>) -> Result<Vec<Slice<D>>> {
    let stride = op.slices[0].y_stride;
    let side_by_side =
        op.slices.len() > 1 && op.slices.iter().all(|slice| slice.y_stride == stride) && op.slices.iter().map(|slice| slice.d_out).sum::<u64>() <= stride;
    if !side_by_side {
        let each = op.slices.iter().zip(&host.slices).map(|(_, operands)| {
            if op.accumulate { stage.updated(session, "y", op.dtype, &operands.y) } else { stage.output(session, "y", op.dtype, operands.y.len()) }
        });
        return each.collect();
    }
    let mut matrix = vec![f64::NAN; (op.tokens * stride) as usize];
    let (mut column, mut parts) = (0, Vec::new());
    for (slice, operands) in op.slices.iter().zip(&host.slices) {
        if op.accumulate {
            let written = operands.y.iter().enumerate().filter(|(place, _)| (*place as u64 % stride) < slice.d_out);
            written.for_each(|(place, &value)| matrix[column + place] = value);
        }
        let size = op.dtype.size() as usize;
        parts.push((column * size, operands.y.len() * size));
        column += slice.d_out as usize;
    }
    stage.shared(session, "the matrix of every y", &op.dtype.encode(&matrix), op.dtype.size() as usize, &parts)
}

/// Places everything but x and the outputs.
fn codebook_args<D: Device>(
    op: &CodebookGemm,
    host: &CodebookHost,
    x: Slice<D>,
    ys: Vec<Slice<D>>,
    session: &mut Session<D>,
    stage: &mut Stage<D>,
) -> Result<CodebookGemmArgs<D>> {
    let mut slices = Vec::new();
    for (operands, y) in host.slices.iter().zip(ys) {
        slices.push(
            CodebookSliceArgs::new(factor(op.dtype, &operands.input, session, stage)?, factor(op.dtype, &operands.output, session, stage)?, y)
                .with_core(stage.optional(session, "core", DType::F32, operands.core.as_deref())?),
        );
    }
    let (token_adapter, scaling) = (session.index(&host.token_adapter)?, stage.input(session, "scaling", DType::F32, &host.scaling)?);
    Ok(CodebookGemmArgs::new(x, token_adapter, scaling, slices))
}

/// Places one factor.
fn factor<D: Device>(dtype: DType, factor: &FactorHost, session: &mut Session<D>, stage: &mut Stage<D>) -> Result<FactorArgs<D>> {
    Ok(match factor {
        FactorHost::Dense { values, basis_of } => FactorArgs::Dense {
            values: stage.input(session, "dense factor", dtype, values)?,
            basis_of: basis_of.as_ref().map(|index| session.index(index)).transpose()?,
        },
        FactorHost::Coded { codes, codebooks } => {
            FactorArgs::Coded { codes: session.index(codes)?, codebooks: stage.input(session, "codebooks", DType::F32, codebooks)? }
        }
    })
}

impl Upload for PrefixAttention {
    fn upload<D: Device>(&self, host: &prefix_attention::Host, session: &mut Session<D>, stage: &mut Stage<D>) -> Result<PrefixAttentionArgs<D>> {
        let mut factors = |of: &prefix_attention::FactorsHost| -> Result<FactorsArgs<D>> {
            let coefficients = factor(self.dtype, &of.coefficients, session, stage)?;
            Ok(FactorsArgs::new(coefficients, factor(self.dtype, &of.basis, session, stage)?))
        };
        let (key, value) = (factors(&host.key)?, factors(&host.value)?);
        let q = stage.input(session, "q", self.dtype, &host.q)?;
        let (o, lse) = match &host.before {
            Some((o, lse)) => (stage.updated(session, "o", self.dtype, o)?, stage.updated(session, "lse", DType::F32, lse)?),
            None => {
                let o_len = span(self.o, [self.batch, self.q_len, self.heads], self.head_dim) as usize;
                (stage.output(session, "o", self.dtype, o_len)?, stage.output(session, "lse", DType::F32, self.rows() as usize)?)
            }
        };
        Ok(PrefixAttentionArgs::new(q, key, value, o, lse))
    }
}

impl Upload for Sample {
    fn upload<D: Device>(&self, host: &sample::Host, session: &mut Session<D>, stage: &mut Stage<D>) -> Result<SampleArgs<D>> {
        let logits = stage.input(session, "logits", self.dtype, &host.logits)?;
        let params = stage.integers(session, "params", bytemuck::cast_slice(&host.params))?;
        let mask = host.mask.as_deref().map(|mask| stage.integers(session, "mask", bytemuck::cast_slice(mask))).transpose()?;
        let ids = stage.output(session, "ids", DType::F32, self.rows as usize)?;
        let log_probability = stage.output(session, "log_probability", DType::F32, self.rows as usize)?;
        Ok(SampleArgs::new(logits, params, ids, log_probability).with_mask(mask))
    }
}

impl Upload for Checksum {
    fn upload<D: Device>(&self, host: &checksum::Host, session: &mut Session<D>, stage: &mut Stage<D>) -> Result<ChecksumArgs<D>> {
        let x = stage.bytes(session, "x", &host.x)?;
        Ok(ChecksumArgs::new(x, stage.output(session, "sums", DType::F32, 2 * self.ranges as usize)?))
    }
}
