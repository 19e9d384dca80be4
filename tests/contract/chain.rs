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
    vec![
        ("adapters on what the launch before wrote give the bits of launches that are waited for", chained),
        ("a token of many adapters gets the same bits in a batch of any size", beside_others),
    ]
}

const RANK: u64 = 16;
const LAUNCHES: u32 = 3;
const WIDTH: CodeWidth = CodeWidth::FourThree;

fn chained<B: Backend>(device: &Arc<B>) -> Result<()> {
    for ([tokens, d], adapters, accumulate) in [([16, 2048], 1, true), ([16, 2048], 16, false), ([140, 4096], 40, false)] {
        let of = |wait| results(device, [tokens, d], adapters, accumulate, wait);
        let [waited_for, at_once] = [of(true)?, of(false)?];
        for (launch, (expected, found)) in waited_for.iter().zip(&at_once).enumerate() {
            assert!(expected == found && found.iter().any(|&byte| byte != 0), "{tokens} tokens over {adapters} adapters, launch {launch}");
        }
    }
    Ok(())
}

/// Other kernels take other sizes.
fn beside_others<B: Backend>(device: &Arc<B>) -> Result<()> {
    for adapters in [40, 100] {
        let [few, many] = [140, 600].map(|tokens| results(device, [tokens, 256], adapters, false, true));
        for (few, many) in few?.iter().zip(&many?) {
            assert!(many.starts_with(few) && few.iter().any(|&byte| byte != 0), "{adapters} adapters");
        }
    }
    Ok(())
}

/// What each launch writes, the next one's x.
fn results<B: Backend>(device: &Arc<B>, [tokens, d]: [u64; 2], adapters: u32, accumulate: bool, wait: bool) -> Result<Vec<Vec<u8>>> {
    let mut session = Session::new(device.clone())?;
    let op = |dtype| CodebookGemm { accumulate, ..CodebookGemm::s2lc(dtype, tokens, [d, d, RANK], adapters, WIDTH) };
    let plan = session.plan(op(DType::F16)).or_else(|_| session.plan(op(DType::F32)))?;
    let dtype = plan.op().dtype;
    let drawn = |seed: u32, len: u64| dtype.encode(&(0..len as usize).map(|i| f64::from(noise(seed, i)) / 256.0 - 0.5).collect::<Vec<_>>());
    let indices = |seed: u32, below: u8| (0..(d * RANK) as usize).map(|i| noise(seed, i) % below).collect::<Vec<u8>>();
    let adapter = |seed: u32| AdapterCodes::from_indices(d as u32, RANK as u32, WIDTH, &indices(seed, 16), &indices(seed + 100, 8));
    let ids: Vec<i32> = (0..tokens as i32).map(|token| token % adapters as i32).collect();
    let token_adapter = session.index(&TokenAdapters::new(&ids, adapters)?)?;
    let codes = Codes::new(CodesShape::uniform(adapters, d as u32, RANK as u32, WIDTH)?, &(0..adapters).map(adapter).collect::<Result<Vec<_>>>()?)?;
    let (codes, scaling) = (session.index(&codes)?, session.upload(&vec![0.0625f32; adapters as usize])?);
    let codebooks: Vec<f32> = (0..adapters as usize * 52).map(|i| f32::from(noise(5, i)) / 512.0 - 0.25).collect();
    let (codebooks, values) = (session.upload(&codebooks)?, session.upload(&drawn(2, d * RANK))?);
    let mut x = session.upload(&drawn(1, tokens * d))?;
    let mut launches = Vec::new();
    for launch in 0..LAUNCHES {
        let y = session.upload(&drawn(10 + launch, tokens * d))?;
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
