//! Test 4: 128 projections, each waiting for the one before, 16 tokens of one adapter, D = 4096, R = 16.
//!
//! As the reference measured it: 5 runs to warm up, 100 timed, with and without a captured graph. A time says
//! something about a GPU only where there is one.

use std::time::Instant;

use super::{Check, Findings, Verdict};
use crate::backend::Backend;
use crate::cases::Draw;
use crate::device::{Kind, Slice};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::codebook_gemm::{CodebookSliceArgs, FactorArgs};
use crate::ops::codes::CODEBOOK_LEN;
use crate::ops::index::{AdapterCodes, Codes, CodesShape, TokenAdapters};
use crate::ops::{CodeWidth, CodebookGemm, CodebookGemmArgs};
use crate::session::Session;

const PROJECTIONS: usize = 128;
const TOKENS: u64 = 16;
const D: u64 = 4096;
const RANK: u64 = 16;
const WARM_UPS: usize = 5;
const RUNS: usize = 100;

pub fn check<B: Backend>(session: &mut Session<B>, name: &'static str) -> Result<Check> {
    if session.caps().kind == Kind::Cpu {
        let why = format!("{} is no GPU: its times say nothing about one", session.caps().name);
        return Ok(Check { number: 4, name, verdict: Verdict::Skipped(why), figures: Vec::new() });
    }
    let mut found = Findings::default();
    let op = CodebookGemm { accumulate: false, ..CodebookGemm::s2lc(DType::F16, TOKENS, [D, D, RANK], 1, CodeWidth::FourThree) };
    let plan = session.plan(op)?;
    let chain = operands(session)?;
    let graph = session.capture(|session| chain.iter().try_for_each(|args| session.run(&plan, args)))?;
    let captured = median(session, |session| session.replay(&graph))?;
    let direct = median(session, |session| chain.iter().try_for_each(|args| session.run(&plan, args)))?;
    let mut finite = 0usize;
    for args in &chain[PROJECTIONS - 1..] {
        let y = DType::F16.decode(&session.read(&args.slices[0].y)?);
        finite += y.iter().filter(|value| value.is_finite() && **value != 0.0).count();
    }
    found.at_least("outputs of the last projection that are finite and not zero", finite as f64, (TOKENS * D * 9 / 10) as f64);
    if B::NAME == "cuda" {
        found.at_most("milliseconds, captured", captured, 5.0);
        found.at_least("times faster than without a graph", direct / captured, 2.0);
    } else {
        found.tell("milliseconds, captured", captured);
        found.tell("times faster than without a graph", direct / captured);
    }
    found.tell("milliseconds, launch by launch", direct);
    Ok(found.check(4, name))
}

/// Milliseconds of a run, in the middle of [`RUNS`].
fn median<B: Backend>(session: &mut Session<B>, mut run: impl FnMut(&mut Session<B>) -> Result<()>) -> Result<f64> {
    let mut times = Vec::with_capacity(RUNS);
    for number in 0..WARM_UPS + RUNS {
        session.wait()?;
        let start = Instant::now();
        run(session)?;
        session.wait()?;
        if number >= WARM_UPS {
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    times.sort_by(f64::total_cmp);
    Ok(times[RUNS / 2])
}

/// A chain in which every projection reads what the one before wrote; weights scaled so that values keep their size.
fn operands<B: Backend>(session: &mut Session<B>) -> Result<Vec<CodebookGemmArgs<B>>> {
    let mut draw = Draw::seeded("latency");
    let token_adapter = session.index(&TokenAdapters::new(&[0; TOKENS as usize], 1)?)?;
    let scaling = session.upload(&[1f32])?;
    let shape = CodesShape::uniform(1, D as u32, RANK as u32, CodeWidth::FourThree)?;
    let mut x: Slice<B> = session.upload(&DType::F16.encode(&draw.normal(DType::F16, TOKENS * D, 1.0)))?;
    let mut chain = Vec::with_capacity(PROJECTIONS);
    for _ in 0..PROJECTIONS {
        let basis = draw.normal(DType::F16, D * RANK, 1.0 / (D as f64).sqrt());
        let codes = AdapterCodes::from_indices(D as u32, RANK as u32, CodeWidth::FourThree, &draw.codes(D * RANK, 16), &draw.codes(D * RANK, 8))?;
        let mut codebook = [0f32; CODEBOOK_LEN];
        for (stage, spread) in [(CodeWidth::FourThree.stage1(), 1.0), (CodeWidth::FourThree.stage2(), 0.1)] {
            codebook[stage].iter_mut().for_each(|value| *value = (draw.gaussian() * spread / (RANK as f64).sqrt()) as f32);
        }
        let y = session.alloc(TOKENS * D * 2)?;
        let input = FactorArgs::Dense { values: session.upload(&DType::F16.encode(&basis))?, basis_of: None };
        let output = FactorArgs::Coded { codes: session.index(&Codes::new(shape, &[codes])?)?, codebooks: session.upload(&codebook)? };
        let slices = vec![CodebookSliceArgs { input, core: None, output, y: y.clone() }];
        chain.push(CodebookGemmArgs { x, token_adapter: token_adapter.clone(), scaling: scaling.clone(), slices });
        x = y;
    }
    Ok(chain)
}
