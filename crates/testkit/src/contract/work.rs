//! Work to put to a device: small, and with answers that can be told by hand.

use trifuse::backend::{Backend, Kernel};
use trifuse::device::Slice;
use trifuse::ops::codebook_gemm::{CodebookSliceArgs, FactorArgs};
use trifuse::ops::index::{AdapterCodes, Codes, CodesShape, Index, TokenAdapters};
use trifuse::ops::pointwise::Kind;
use trifuse::ops::{CodeWidth, CodebookGemm, CodebookGemmArgs, Pointwise, PointwiseArgs};
use trifuse::session::{Plan, Session};
use trifuse::{DType, Error, Result};

/// `y = x + residual`, f32.
pub struct Sum<B: Backend> {
    pub plan: Plan<Pointwise, B>,
    pub args: PointwiseArgs<B>,
}

/// Elements of a [`Sum`].
pub const LEN: usize = 1000;

impl<B: Backend> Sum<B> {
    /// With x all `x` and the residual all `residual`.
    pub fn new(session: &mut Session<B>, x: f32, residual: f32) -> Result<Self> {
        let plan = session.plan(Self::op())?;
        let [x, residual, y] = [x, residual, f32::NAN].map(|value| session.upload(&[value; LEN]));
        Ok(Self { plan, args: PointwiseArgs::new(x?, y?).with_residual(Some(residual?)) })
    }

    pub fn op() -> Pointwise {
        Pointwise::new(DType::F32, 1, LEN as u64, Kind::Add)
    }

    pub fn run(&self, session: &mut Session<B>) -> Result<()> {
        session.run(&self.plan, &self.args)
    }

    pub fn set_x(&self, session: &mut Session<B>, value: f32) -> Result<()> {
        session.write(&self.args.x, bytemuck::cast_slice(&[value; LEN]))
    }

    /// Panics unless all of y is `want`.
    pub fn expect(&self, session: &mut Session<B>, want: f32) -> Result<()> {
        let y: Vec<f32> = session.download(&self.args.y)?;
        assert_eq!(y, [want; LEN]);
        Ok(())
    }
}

/// A codebook GEMM with six adapters over twelve tokens, y overwritten.
pub struct Adapted<B: Backend> {
    pub plan: Plan<CodebookGemm, B>,
    pub args: CodebookGemmArgs<B>,
    pub tokens: Index<TokenAdapters, B>,
    pub codes: Index<Codes, B>,
}

pub const TOKENS: usize = 12;
pub const ADAPTERS: u32 = 6;
const D_IN: usize = 48;
const D_OUT: usize = 70;
const RANK: usize = 20;
const WIDTH: CodeWidth = CodeWidth::FourThree;

impl<B: Backend> Adapted<B> {
    /// With the adapter of each token, and adapters drawn from `seeds`.
    pub fn new(session: &mut Session<B>, ids: &[i32; TOKENS], seeds: [u32; ADAPTERS as usize]) -> Result<Self> {
        let dims = [D_IN, D_OUT, RANK].map(|dim| dim as u64);
        let mut refused = None;
        let planned = DType::ALL.into_iter().find_map(|dtype| {
            let op = CodebookGemm::s2lc(dtype, TOKENS as u64, dims, ADAPTERS, WIDTH).with_accumulate(false);
            session.plan(op).map_err(|error| refused = Some(error)).ok()
        });
        let Some(plan) = planned else {
            return Err(refused.unwrap_or_else(|| Error::unsupported("codebook_gemm", "no element type")));
        };
        let dtype = plan.op().dtype;
        let drawn = |seed: u32, len: usize| dtype.encode(&(0..len).map(|i| f64::from(noise(seed, i)) / 256.0 - 0.5).collect::<Vec<_>>());
        let shape = CodesShape::uniform(ADAPTERS, D_OUT as u32, RANK as u32, WIDTH)?;
        let adapters = seeds.iter().map(|&seed| adapter(seed)).collect::<Result<Vec<_>>>()?;
        let tokens = session.index(&TokenAdapters::new(ids, ADAPTERS)?)?;
        let codes = session.index(&Codes::new(shape, &adapters)?)?;
        let codebooks: Vec<f32> = (0..ADAPTERS as usize * 52).map(|i| f32::from(noise(5, i)) / 512.0 - 0.25).collect();
        let slice = CodebookSliceArgs::new(
            FactorArgs::Dense { values: session.upload(&drawn(2, D_IN * RANK))?, basis_of: None },
            FactorArgs::Coded { codes: codes.clone(), codebooks: session.upload(&codebooks)? },
            session.upload(&dtype.encode(&[f64::NAN; TOKENS * D_OUT]))?,
        );
        let args =
            CodebookGemmArgs::new(session.upload(&drawn(1, TOKENS * D_IN))?, tokens.clone(), session.upload(&[0.5f32, 1.0, 2.0, 0.25, 1.0, 4.0])?, vec![slice]);
        Ok(Self { plan, args, tokens, codes })
    }

    pub fn y(&self) -> &Slice<B> {
        &self.args.slices[0].y
    }

    pub fn run(&self, session: &mut Session<B>) -> Result<()> {
        session.run(&self.plan, &self.args)
    }
}

/// The codes of an adapter.
pub fn adapter(seed: u32) -> Result<AdapterCodes> {
    let codes = |seed: u32, below: u8| (0..D_OUT * RANK).map(|i| noise(seed, i) % below).collect::<Vec<u8>>();
    AdapterCodes::from_indices(D_OUT as u32, RANK as u32, WIDTH, &codes(seed, 16), &codes(seed + 100, 8))
}

/// Bytes without a pattern that the kernels' tiles could hide.
pub fn noise(seed: u32, i: usize) -> u8 {
    let mixed = (i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed.wrapping_mul(40_503)) ^ seed;
    (mixed.wrapping_mul(mixed | 1) >> 24) as u8
}

/// The first element type in which `op` can be planned here.
pub fn plan_any<O: trifuse::ops::Op, B: Kernel<O>>(session: &Session<B>, op: impl Fn(DType) -> O) -> Result<Plan<O, B>> {
    session.plan(op(DType::F32)).or_else(|_| session.plan(op(DType::F16))).or_else(|_| session.plan(op(DType::BF16)))
}
