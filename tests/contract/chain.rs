//! Launches that each read what the one before wrote: a device may begin one before the last has ended.

use std::sync::Arc;

use trifuse::backend::Backend;
use trifuse::ops::codebook_gemm::{CodebookSliceArgs, FactorArgs};
use trifuse::ops::index::{AdapterCodes, Codes, CodesShape, TokenAdapters};
use trifuse::ops::{CodeWidth, CodebookGemm, CodebookGemmArgs};
use trifuse::session::Session;
use trifuse::{DType, Result};

use super::Test;
use super::work::noise;

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![("adapters on what the launch before wrote give the bits of launches that are waited for", chained)]
}

const TOKENS: u64 = 16;
const D: u64 = 2048;
const RANK: u64 = 16;
const LAUNCHES: u32 = 3;
const WIDTH: CodeWidth = CodeWidth::FourThree;

fn chained<B: Backend>(device: &Arc<B>) -> Result<()> {
    for (adapters, accumulate) in [(1, true), (16, false)] {
        let [waited_for, at_once] = [results(device, adapters, accumulate, true)?, results(device, adapters, accumulate, false)?];
        for (launch, (expected, found)) in waited_for.iter().zip(&at_once).enumerate() {
            assert!(expected == found && found.iter().any(|&byte| byte != 0), "{adapters} adapters, launch {launch}");
        }
    }
    Ok(())
}

/// What each launch writes, the next one's x.
fn results<B: Backend>(device: &Arc<B>, adapters: u32, accumulate: bool, wait: bool) -> Result<Vec<Vec<u8>>> {
    let mut session = Session::new(device.clone())?;
    let op = |dtype| CodebookGemm { accumulate, ..CodebookGemm::s2lc(dtype, TOKENS, [D, D, RANK], adapters, WIDTH) };
    let plan = session.plan(op(DType::F16)).or_else(|_| session.plan(op(DType::F32)))?;
    let dtype = plan.op().dtype;
    let drawn = |seed: u32, len: u64| dtype.encode(&(0..len as usize).map(|i| f64::from(noise(seed, i)) / 256.0 - 0.5).collect::<Vec<_>>());
    let indices = |seed: u32, below: u8| (0..(D * RANK) as usize).map(|i| noise(seed, i) % below).collect::<Vec<u8>>();
    let adapter = |seed: u32| AdapterCodes::from_indices(D as u32, RANK as u32, WIDTH, &indices(seed, 16), &indices(seed + 100, 8));
    let ids: Vec<i32> = (0..TOKENS as i32).map(|token| token % adapters as i32).collect();
    let token_adapter = session.index(&TokenAdapters::new(&ids, adapters)?)?;
    let codes = Codes::new(CodesShape::uniform(adapters, D as u32, RANK as u32, WIDTH)?, &(0..adapters).map(adapter).collect::<Result<Vec<_>>>()?)?;
    let (codes, scaling) = (session.index(&codes)?, session.upload(&vec![0.0625f32; adapters as usize])?);
    let codebooks: Vec<f32> = (0..adapters as usize * 52).map(|i| f32::from(noise(5, i)) / 512.0 - 0.25).collect();
    let (codebooks, values) = (session.upload(&codebooks)?, session.upload(&drawn(2, D * RANK))?);
    let mut x = session.upload(&drawn(1, TOKENS * D))?;
    let mut launches = Vec::new();
    for launch in 0..LAUNCHES {
        let y = session.upload(&drawn(10 + launch, TOKENS * D))?;
        let input = FactorArgs::Dense { values: values.clone(), basis_of: None };
        let output = FactorArgs::Coded { codes: codes.clone(), codebooks: codebooks.clone() };
        let slices = vec![CodebookSliceArgs { input, core: None, output, y: y.clone() }];
        launches.push(CodebookGemmArgs { x, token_adapter: token_adapter.clone(), scaling: scaling.clone(), slices, prepared: None });
        x = y;
    }
    for args in &launches {
        session.run(&plan, args)?;
        if wait {
            session.wait()?;
        }
    }
    launches.iter().map(|args| session.read(&args.slices[0].y)).collect()
}
