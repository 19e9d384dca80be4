//! The choice of a token from each row of logits.

use derive_where::derive_where;

use super::setters::setters;
use super::{Access, Cost, Op, Operand, Translate, expect_present, expect_size, expect_stride};
use crate::device::{Device, Slice};
use crate::dtype::DType;
use crate::error::{Result, ensure};

/// Words of a row of [`SampleArgs::params`].
pub const PARAMS: u64 = 8;

/// The descriptor of a sampler: one token for each row of logits.
///
/// A token's score is `logit / temperature + g`, with Gumbel noise `g = −ln(−ln(1 − u))` and `u = (w + ½) / 2³²`. The word `w` is word `id mod 4`
/// of [`philox4x32`] with the row's seed as the key and `[id / 4, position, 0, 0]` as the counter. The highest score wins, of equal ones the lowest
/// id: each token is drawn with the probability that softmax gives it, and neither other rows nor the order of any sum matter.
///
/// Thresholds cut first: `top_k` keeps the highest logits, `min_p` those that reach its part of the highest probability, and `top_p` the first of what
/// is left, in falling order, that reach its part of the probability of what is left. Equal logits go by the lowest id, and at least one token
/// stays. At temperature 0 the highest logit wins. A logit of minus infinity or NaN, or one that the mask rules out, is never drawn; where all
/// are, the id is −1 and the log-probability minus infinity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Sample {
    /// Element type of the logits. They are compared and summed in f32.
    pub dtype: DType,
    /// Rows of logits.
    pub rows: u64,
    /// Logits of a row: at least 1, at most `i32::MAX`.
    pub vocabulary: u64,
    /// Elements from a row of logits to the next, `vocabulary` at least.
    pub stride: u64,
    /// Whether there is a mask.
    pub mask: bool,
}

/// A row of [`SampleArgs::params`], as it lies in memory. Any value has a meaning.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct RowParams {
    /// Divides the logits. The highest logit wins where it is not above 0.
    pub temperature: f32,
    /// The probability that the kept tokens reach together; all are kept where it is not below 1.
    pub top_p: f32,
    /// The least probability of a kept token, as a part of the highest; 0 keeps all.
    pub min_p: f32,
    /// The most tokens to keep; 0 keeps all.
    pub top_k: u32,
    /// The key of the random numbers, low word first.
    pub seed: [u32; 2],
    /// The place of the new token in its sequence.
    pub position: u32,
    /// Not read.
    pub reserved: u32,
}

/// The operands of a sampler.
#[derive_where(Clone, Debug)]
#[non_exhaustive]
pub struct SampleArgs<D: Device> {
    /// `[rows, vocabulary]`, read.
    pub logits: Slice<D>,
    /// `[rows]` of [`RowParams`], read.
    pub params: Slice<D>,
    /// Bits of the tokens that may be drawn, `[rows, vocabulary / 32 rounded up]` words, read: id `i` is bit `i mod 32` of word `i / 32`.
    pub mask: Option<Slice<D>>,
    /// The tokens, `[rows]` as i32, written.
    pub ids: Slice<D>,
    /// The logarithms of their probabilities, `[rows]` as f32, written: of softmax of the logits as they are, whatever the parameters.
    pub log_probability: Slice<D>,
}

impl RowParams {
    /// The highest logit wins.
    pub const fn greedy() -> Self {
        Self { temperature: 0.0, top_p: 1.0, min_p: 0.0, top_k: 0, seed: [0; 2], position: 0, reserved: 0 }
    }
}

impl<D: Device> SampleArgs<D> {
    /// Operands without a mask.
    pub fn new(logits: Slice<D>, params: Slice<D>, ids: Slice<D>, log_probability: Slice<D>) -> Self {
        Self { logits, params, mask: None, ids, log_probability }
    }

    setters! {
        with_logits: logits = Slice<D>;
        with_params: params = Slice<D>;
        with_mask: mask <- Option<Slice<D>>;
        with_ids: ids = Slice<D>;
        with_log_probability: log_probability = Slice<D>;
    }
}

impl Sample {
    /// A sampler of packed rows of f32, without a mask.
    pub const fn new(rows: u64, vocabulary: u64) -> Self {
        Self { dtype: DType::F32, rows, vocabulary, stride: vocabulary, mask: false }
    }

    /// Words of a row of the mask.
    pub const fn mask_words(&self) -> u64 {
        self.vocabulary.div_ceil(32)
    }

    setters! {
        with_dtype: dtype = DType;
        with_rows: rows = u64;
        with_vocabulary: vocabulary = u64;
        with_stride: stride = u64;
        with_mask: mask = bool;
    }
}

impl Op for Sample {
    const NAME: &'static str = "sample";
    type Args<D: Device> = SampleArgs<D>;

    fn validate(&self) -> Result<()> {
        ensure((1..=i32::MAX as u64).contains(&self.vocabulary), "sample: vocabulary", "1 to 2147483647", self.vocabulary)?;
        expect_stride("sample: stride", self.stride, self.vocabulary)?;
        expect_size("sample: logits", &[self.rows, self.stride, self.dtype.size()])?;
        expect_size("sample: params", &[self.rows, PARAMS, 4])
    }

    fn sizes(&self) -> [u64; 3] {
        [self.rows, 1, self.vocabulary]
    }

    fn cost(&self) -> Cost {
        let logits = self.rows as f64 * self.vocabulary as f64;
        // Softmax of the logits, and the noise of each: ten rounds and two logarithms, of which four tokens share the rounds.
        let flops = 40.0 * logits;
        let bytes = self.dtype.size() as f64 * logits + if self.mask { logits / 8.0 } else { 0.0 } + (4 * PARAMS + 8) as f64 * self.rows as f64;
        Cost { executed_flops: flops, useful_flops: flops, dense_flops: flops, bytes }
    }

    fn translate<A: Device, B: Device>(args: &SampleArgs<A>, to: &Translate<'_, A, B>) -> Result<SampleArgs<B>> {
        Ok(SampleArgs {
            logits: to.slice(&args.logits)?,
            params: to.slice(&args.params)?,
            mask: to.if_any(&args.mask)?,
            ids: to.slice(&args.ids)?,
            log_probability: to.slice(&args.log_probability)?,
        })
    }

    fn operands<'a, D: Device>(&self, args: &'a SampleArgs<D>, see: &mut dyn FnMut(Operand<'a, D>)) -> Result<()> {
        expect_present(Self::NAME, "mask", self.mask, args.mask.is_some())?;
        see(Operand::pitched("logits", Access::Read, &args.logits, [self.rows, self.vocabulary], self.stride, self.dtype));
        see(Operand::packed("params", Access::Read, &args.params, self.rows * PARAMS, 4u64));
        if let Some(mask) = &args.mask {
            see(Operand::packed("mask", Access::Read, mask, self.rows * self.mask_words(), 4u64));
        }
        see(Operand::packed("ids", Access::Write, &args.ids, self.rows, 4u64));
        see(Operand::packed("log_probability", Access::Write, &args.log_probability, self.rows, DType::F32));
        Ok(())
    }
}

/// The multipliers of a round of Philox, and what its key grows by.
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Philox 4x32 with 10 rounds (Salmon and others, 2011): four random words of a counter and a key, without a state.
pub fn philox4x32(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut a, mut b, mut c, mut d], [mut left, mut right]) = (counter, key);
    for _ in 0..10 {
        let [first, second] = [u64::from(a) * u64::from(MULTIPLIERS[0]), u64::from(c) * u64::from(MULTIPLIERS[1])];
        [a, b, c, d] = [(second >> 32) as u32 ^ b ^ left, second as u32, (first >> 32) as u32 ^ d ^ right, first as u32];
        (left, right) = (left.wrapping_add(WEYL[0]), right.wrapping_add(WEYL[1]));
    }
    [a, b, c, d]
}
