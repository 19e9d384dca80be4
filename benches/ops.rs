//! How fast the operations are on each backend of this build: `cargo bench --bench ops -- linear`.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use trifuse::backend::{Backend, Kernel};
use trifuse::backends::{Choice, NAMES, Visit};
use trifuse::device::Slice;
use trifuse::ops::attention::AttentionIndex;
use trifuse::ops::codebook_gemm::{CodebookSliceArgs, FactorArgs};
use trifuse::ops::index::{AdapterCodes, Codes, CodesShape, TokenAdapters};
use trifuse::ops::{Activation, Attention, AttentionArgs, CodeWidth, CodebookGemm, CodebookGemmArgs, FusedMlp, FusedMlpArgs, Linear, LinearArgs, Op};
use trifuse::session::Session;
use trifuse::{DType, Error, Result};

fn main() {
    let mut criterion = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(3)).configure_from_args();
    for name in NAMES {
        if let Err(error) = Choice::Named(name, 0).open(Suite(&mut criterion)) {
            eprintln!("{name}: not measured: {error}");
        }
    }
    criterion.final_summary();
}

struct Suite<'a>(&'a mut Criterion);

impl Visit for Suite<'_> {
    type Out = ();

    fn visit<B: Backend>(self, backend: B) -> Result<()> {
        let mut bench = Bench { session: Session::new(Arc::new(backend))?, criterion: self.0 };
        for dtype in DType::ALL {
            for shape in [[512, 4096, 4096], [64, 4096, 4096], [8, 4096, 4096], [1, 4096, 4096]] {
                bench.linear(dtype, shape)?;
            }
            bench.attention("prefill", Attention { causal: true, ..Attention::dense(dtype, 1, [16, 4], [1024, 1024], 128) })?;
            bench.attention("decode", Attention::dense(dtype, 4, [32, 8], [1, 4096], 128))?;
            for tokens in [1, 64] {
                bench.codebook_gemm(CodebookGemm::s2lc(dtype, tokens, [4096, 4096, 128], 16, CodeWidth::FourThree))?;
                bench.fused_mlp(dtype, tokens)?;
            }
        }
        Ok(())
    }
}

struct Bench<'a, B: Backend> {
    session: Session<B>,
    criterion: &'a mut Criterion,
}

impl<B: Backend> Bench<'_, B> {
    fn linear(&mut self, dtype: DType, [m, n, k]: [u64; 3]) -> Result<()> {
        let (x, w, y) = (self.draw(dtype, m * k)?, self.draw(dtype, n * k)?, self.draw(dtype, m * n)?);
        let args = LinearArgs { x, w, bias: None, residual: None, delta: None, y };
        self.time(format!("{dtype} {m}×{n}×{k}"), Linear::new(dtype, [m, n, k]), &args)
    }

    fn attention(&mut self, name: &str, op: Attention) -> Result<()> {
        let elements = |tokens: u64, heads: u64| op.batch * tokens * heads * op.head_dim;
        let (queries, keys) = (elements(op.q_len, op.heads), elements(op.kv_len, op.kv_heads));
        let [q, k, v, o] = [queries, keys, keys, queries].map(|len| self.draw(op.dtype, len));
        let args = AttentionArgs { q: q?, k: k?, v: v?, index: AttentionIndex::None, o: o?, lse: None };
        self.time(format!("{} {name}", op.dtype), op, &args)
    }

    fn codebook_gemm(&mut self, op: CodebookGemm) -> Result<()> {
        let (slice, width) = (op.slices[0].clone(), CodeWidth::FourThree);
        let (d_out, rank, adapters) = (slice.d_out as u32, slice.rank as u32, op.adapters);
        let indices = |below: usize| (0..d_out as usize * rank as usize).map(|i| (i * 7 % below) as u8).collect::<Vec<_>>();
        let adapter = AdapterCodes::from_indices(d_out, rank, width, &indices(16), &indices(8))?;
        let codes = Codes::new(CodesShape::uniform(adapters, d_out, rank, width)?, &vec![adapter; adapters as usize])?;
        let ids: Vec<i32> = (0..op.tokens as i32).map(|token| token * 5 % adapters as i32).collect();
        let slices = vec![CodebookSliceArgs {
            input: FactorArgs::Dense { values: self.draw(op.dtype, op.d_in * slice.rank)?, basis_of: None },
            core: None,
            output: FactorArgs::Coded { codes: self.session.index(&codes)?, codebooks: self.draw(DType::F32, u64::from(adapters) * 52)? },
            y: self.draw(op.dtype, op.tokens * slice.d_out)?,
        }];
        let token_adapter = self.session.index(&TokenAdapters::new(&ids, adapters)?)?;
        let args = CodebookGemmArgs { x: self.draw(op.dtype, op.tokens * op.d_in)?, token_adapter, scaling: self.draw(DType::F32, 16)?, slices };
        self.time(format!("{} {} tokens, 16 adapters", op.dtype, op.tokens), op, &args)
    }

    fn fused_mlp(&mut self, dtype: DType, tokens: u64) -> Result<()> {
        let (d_model, d_ff) = (2048, 5632);
        let (x, w1, wg) = (self.draw(dtype, tokens * d_model)?, self.draw(dtype, d_ff * d_model)?, self.draw(dtype, d_ff * d_model)?);
        let (w2, y) = (self.draw(dtype, d_ff * d_model)?, self.draw(dtype, tokens * d_model)?);
        let args = FusedMlpArgs { x, w1, wg: Some(wg), b1: None, w2, b2: None, residual: None, y };
        let flags = (Activation::Silu, true, false, false, false);
        let (activation, gated, bias1, bias2, residual) = flags;
        let op = FusedMlp { dtype, tokens, d_model, d_ff, d_out: d_model, activation, gated, bias1, bias2, residual };
        self.time(format!("{dtype} {tokens} tokens, 2048 × 5632, gated"), op, &args)
    }

    /// Small values that are neither equal nor zero.
    fn draw(&mut self, dtype: DType, len: u64) -> Result<Slice<B>> {
        let values: Vec<f64> = (0..len).map(|i| (i * 2_654_435_761 % 1009) as f64 / 4096.0 - 0.12).collect();
        self.session.upload(&dtype.encode(&values))
    }

    /// Times `op`, queue and all, unless this backend does not do it.
    fn time<O: Op>(&mut self, name: String, op: O, args: &O::Args<B>) -> Result<()>
    where
        B: Kernel<O>,
    {
        let cost = op.cost();
        let plan = match self.session.plan(op) {
            Err(Error::Unsupported { reason, .. }) => {
                eprintln!("{} {} {name}: not measured: {reason}", B::NAME, O::NAME);
                return Ok(());
            }
            plan => plan?,
        };
        let mut group = self.criterion.benchmark_group(format!("{} {}", B::NAME, O::NAME));
        // Shown as elements a second: one element is one floating-point operation.
        group.throughput(Throughput::Elements(cost.executed_flops as u64));
        let session = &mut self.session;
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                session.run(&plan, args).unwrap();
                session.wait().unwrap();
            });
        });
        group.finish();
        Ok(())
    }
}
