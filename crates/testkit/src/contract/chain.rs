//! Launches that each read what the one before wrote: a device may begin one before the last has ended.

use std::sync::Arc;

use trifuse::backend::Backend;
use trifuse::device::Slice;
use trifuse::ops::attention::AttentionIndex;
use trifuse::ops::codebook_gemm::{CodebookSliceArgs, FactorArgs};
use trifuse::ops::index::{AdapterCodes, Codes, CodesShape, PageShape, PageTable, TokenAdapters};
use trifuse::ops::pointwise::Kind;
use trifuse::ops::{Attention, AttentionArgs, CodeWidth, CodebookGemm, CodebookGemmArgs, Linear, LinearArgs, Pointwise, PointwiseArgs};
use trifuse::session::Session;
use trifuse::{DType, Result};

use super::Test;
use super::work::noise;

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![
        ("adapters on what the launch before wrote give the bits of launches that are waited for", chained),
        ("decoding over keys that the launch before wrote gives the bits of launches that are waited for", decoded),
        ("a token of many adapters gets the same bits in a batch of any size", beside_others),
        ("a weight that the launch before wrote is read behind it", written_weights),
    ]
}

const RANK: u64 = 16;
const LAUNCHES: u32 = 3;
const WIDTH: CodeWidth = CodeWidth::FourThree;

fn chained<B: Backend>(device: &Arc<B>) -> Result<()> {
    for ([tokens, d], adapters, accumulate) in [([16, 2048], 1, true), ([16, 2048], 16, false), ([140, 4096], 40, false), ([260, 4096], 40, false)] {
        let of = |wait| results(device, [tokens, d], adapters, accumulate, wait);
        let [waited_for, at_once] = [of(true)?, of(false)?];
        for (launch, (expected, found)) in waited_for.iter().zip(&at_once).enumerate() {
            assert!(expected == found && found.iter().any(|&byte| byte != 0), "{tokens} tokens over {adapters} adapters, launch {launch}");
        }
    }
    Ok(())
}

/// One cache, which is written anew before each step; and each step's output is what the next one asks with. A device may read what nothing
/// under way writes before the last launch has ended, and nothing else.
fn decoded<B: Backend>(device: &Arc<B>) -> Result<()> {
    for paged in [false, true] {
        let [waited_for, at_once] = [steps(device, paged, true)?, steps(device, paged, false)?];
        assert_ne!(waited_for[0], waited_for[1], "each step has keys of its own");
        for (step, (expected, found)) in waited_for.iter().zip(&at_once).enumerate() {
            assert!(expected == found && found.iter().any(|&byte| byte != 0), "step {step}, paged: {paged}");
        }
    }
    Ok(())
}

/// What each step of decoding writes.
fn steps<B: Backend>(device: &Arc<B>, paged: bool, wait: bool) -> Result<Vec<Vec<u8>>> {
    const HEADS: u64 = 32;
    const KEYS: u64 = 576;
    const HEAD_DIM: u64 = 128;
    const PAGE: u64 = 16;
    let mut session = Session::new(device.clone())?;
    let shape = PageShape { batch: 1, pages: KEYS / PAGE, page: PAGE, pool_pages: KEYS / PAGE };
    let op = |dtype| match paged {
        true => Attention::paged(dtype, shape, [HEADS; 2], 1, HEAD_DIM),
        false => Attention::dense(dtype, 1, [HEADS; 2], [1, KEYS], HEAD_DIM),
    };
    let attend = session.plan(op(DType::F16)).or_else(|_| session.plan(op(DType::F32)))?;
    let dtype = attend.op().dtype;
    let append = session.plan(Pointwise::new(dtype, KEYS, HEADS * HEAD_DIM, Kind::Add))?;
    let drawn = |seed: u32, rows: u64| {
        let few = dtype.encode(&(0..4099).map(|i| f64::from(noise(seed, i)) / 256.0 - 0.5).collect::<Vec<_>>());
        few.iter().copied().cycle().take((rows * HEADS * HEAD_DIM) as usize * dtype.size() as usize).collect::<Vec<u8>>()
    };
    let index = match paged {
        true => AttentionIndex::Paged(session.index(&PageTable::new(&(0..shape.pages as i32).rev().collect::<Vec<_>>(), &[KEYS as i32], shape)?)?),
        false => AttentionIndex::None,
    };
    let [k, v, base] = [20, 21, 22].map(|seed| session.upload(&drawn(seed, KEYS)));
    let (k, v, base) = (k?, v?, base?);
    let mut launches = Vec::new();
    for step in 0..LAUNCHES {
        let mut writes = Vec::new();
        for (seed, to) in [(30, &k), (40, &v)] {
            let x = session.upload(&drawn(seed + step, KEYS))?;
            writes.push(PointwiseArgs::new(x, to.clone()).with_residual(Some(base.clone())));
        }
        let [q, first, second, third] = [50 + step, 60, 61, 62].map(|seed| session.upload(&drawn(seed, 1)));
        let (first, second) = (first?, second?);
        let attends = [(q?, first.clone()), (first, second.clone()), (second, third?)]
            .map(|(q, o)| AttentionArgs::new(q, k.clone(), v.clone(), o).with_index(index.clone()));
        launches.push((writes, attends));
    }
    for (writes, attends) in &launches {
        for write in writes {
            session.run(&append, write)?;
        }
        for args in attends {
            session.run(&attend, args)?;
            if wait {
                session.synchronize()?;
            }
        }
    }
    launches.iter().flat_map(|(_, attends)| attends).map(|args| session.read(&args.o)).collect()
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

/// Products of few rows may ask for their weights before the launch before has ended, unless that writes them.
fn written_weights<B: Backend>(device: &Arc<B>) -> Result<()> {
    const ROWS: u64 = 64;
    const WIDE: u64 = 1024;
    let mut session = Session::new(device.clone())?;
    let plan = |sizes: [u64; 3]| {
        session.plan(Linear::new(DType::F16, [sizes[0], sizes[2], sizes[1]])).or_else(|_| session.plan(Linear::new(DType::F32, [sizes[0], sizes[2], sizes[1]])))
    };
    let [square, last] = [plan([ROWS, WIDE, WIDE])?, plan([16, ROWS, WIDE])?];
    let dtype = square.op().dtype;
    let drawn = |seed: u32, len: u64| dtype.encode(&(0..len as usize).map(|i| f64::from(noise(seed, i)) / 2048.0 - 0.0625).collect::<Vec<_>>());
    let [x, w] = [session.upload(&drawn(1, ROWS * WIDE))?, session.upload(&drawn(2, WIDE * WIDE))?];
    let [first, second, y] = [session.alloc(x.len())?, session.alloc(x.len())?, session.alloc(16 * ROWS * dtype.size())?];
    let product = |x: &Slice<B>, w: &Slice<B>, y: &Slice<B>| LinearArgs::new(x.clone(), w.clone(), y.clone());
    let few = x.sub_slice(0, 16 * WIDE * dtype.size()).expect("rows of x");
    // The second of three may start early, and the third one's weight is what the second writes, or the first.
    for weight in [&second, &first] {
        let run = |session: &mut Session<B>, wait: bool| -> Result<()> {
            let steps = [(&square, product(&x, &w, &first)), (&square, product(&first, &w, &second)), (&last, product(&few, weight, &y))];
            for (plan, args) in &steps {
                session.run(plan, args)?;
                if wait {
                    session.synchronize()?;
                }
            }
            Ok(())
        };
        run(&mut session, true)?;
        let expected = session.read(&y)?;
        let graph = session.capture(|session| run(session, false))?;
        for replay in [false, true] {
            for slice in [&first, &second, &y] {
                session.write(slice, &vec![0; slice.len() as usize])?;
            }
            if replay {
                session.replay(&graph)?
            } else {
                run(&mut session, false)?
            }
            assert!(session.read(&y)? == expected && expected.iter().any(|&byte| byte != 0), "replayed: {replay}");
        }
    }
    Ok(())
}

/// What each launch writes, the next one's x.
fn results<B: Backend>(device: &Arc<B>, [tokens, d]: [u64; 2], adapters: u32, accumulate: bool, wait: bool) -> Result<Vec<Vec<u8>>> {
    let mut session = Session::new(device.clone())?;
    let op = |dtype| CodebookGemm::s2lc(dtype, tokens, [d, d, RANK], adapters, WIDTH).with_accumulate(accumulate);
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
        let slices = vec![CodebookSliceArgs::new(input, output, y.clone())];
        launches.push(CodebookGemmArgs::new(x, token_adapter.clone(), scaling.clone(), slices));
        x = y;
    }
    for args in &launches {
        session.run(&plan, args)?;
        if wait {
            session.synchronize()?;
        }
    }
    launches.iter().map(|args| session.read(&args.slices[0].y)).collect()
}
