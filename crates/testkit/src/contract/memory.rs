//! Memory, and the order of reads and writes.

use std::sync::Arc;

use trifuse::backend::Backend;
use trifuse::ops::index::{AdapterCodes, Codes, CodesShape, HostIndex, TokenAdapters};
use trifuse::ops::{CodeWidth, Linear, LinearArgs, PointwiseArgs};
use trifuse::session::Session;
use trifuse::{Error, Result};

use super::Test;
use super::work::{LEN, Sum, plan_any};

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![
        ("what is written is read", round_trip),
        ("what is written piece by piece is read", pieces),
        ("work and copies keep their order", order),
        ("clones alias, other buffers do not", clones),
        ("a part of a buffer is only that part", parts),
        ("an operation on parts leaves the rest alone", parts_as_operands),
        ("indices are copied from page-locked memory", pinned),
        ("an update of several indices stays inside them", alone),
        ("codes are repeated on the device", repeated),
        ("zero bytes are legal", zero_bytes),
        ("out of memory is an error, and work goes on", out_of_memory),
    ]
}

fn round_trip<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    for len in [1usize, 2, 3, 4, 5, 255, 256, 257, 1 << 20] {
        let mut bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
        let slice = session.alloc(len as u64)?;
        session.write(&slice, &bytes)?;
        let written = bytes.clone();
        // The bytes were taken before the call returned.
        bytes.fill(0);
        assert_eq!(session.read(&slice)?, written, "{len} bytes");
    }
    Ok(())
}

fn pieces<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let byte = |at: u64| (at * 7 % 251) as u8;
    let all: Vec<u8> = (0..(36 << 20) + 5).map(byte).collect();
    // Within a piece, at its ends, and more pieces than a device may have on their way at once; also a part of a buffer.
    for (from, len) in [(0, 0), (0, 1), (0, 5), (3, 4096), (0, 1 << 19), (4, (1 << 19) + 4), (0, 8 << 20), (0, all.len() as u64), (1, (16 << 20) + 3)] {
        let whole = session.alloc(from + len + 3)?;
        session.write(&whole, &vec![9; whole.len() as usize])?;
        let mut end = 0;
        session.write_with(&whole.sub_slice(from, len).expect("inside"), &mut |at, to| {
            assert_eq!((at, at % 4096, to.is_empty()), (end, 0, false), "pieces come in order");
            to.copy_from_slice(&all[at as usize..][..to.len()]);
            end += to.len() as u64;
            Ok(())
        })?;
        assert_eq!(end, len);
        let found = session.read(&whole)?;
        let (before, rest) = found.split_at(from as usize);
        let (written, behind) = rest.split_at(len as usize);
        assert!(written == &all[..len as usize] && before.iter().chain(behind).all(|&byte| byte == 9), "{len} bytes at {from}");
    }
    // What fails says so, and the queue goes on.
    let slice = session.alloc(20 << 20)?;
    let mut made = 0;
    let failed = session.write_with(&slice, &mut |_, to| {
        made += 1;
        to.fill(0);
        Err(Error::invalid("a piece", "one that is made", "none"))
    });
    assert!(matches!(failed, Err(Error::Invalid { .. })) && made == 1, "{failed:?} after {made}");
    session.write(&slice, &all[..20 << 20])?;
    assert!(session.read(&slice)? == all[..20 << 20]);
    let mut inside = Ok(());
    session.capture(|session| {
        inside = session.write_with(&slice, &mut |_, _| Ok(()));
        Ok(())
    })?;
    assert!(matches!(inside, Err(Error::Invalid { .. })), "{inside:?}");
    Ok(())
}

fn pinned<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let mixes = [[0, 1, -1, 2], [2, 2, 1, 0], [-1, -1, 0, 1]].map(|ids| TokenAdapters::new(&ids, 3));
    let [first, second, third] = mixes;
    let (first, second, third) = (first?, second?, third?);
    let indices = session.indices(&[first.clone(), second.clone()])?;
    let from_host = session.pin_indices(&[third.clone(), first.clone()])?;
    assert!(from_host.bytes() >= 2 * 4 * 19);
    for _ in 0..3 {
        session.update_indices_pinned(&indices, &from_host)?;
        for (index, wanted) in indices.iter().zip([&third, &first]) {
            assert_eq!(session.read_index(index)?, *wanted.words());
        }
        session.update_indices(&indices, &[second.clone(), second.clone()])?;
    }
    assert!(session.update_indices_pinned(&indices[..1], &from_host).is_err(), "another number of indices");
    let other = session.pin_indices(&[third, TokenAdapters::new(&[0], 3)?])?;
    assert!(session.update_indices_pinned(&indices, &other).is_err(), "another shape");
    let bytes: Vec<u8> = (0..4096u32).map(|i| (i * 13 % 251) as u8).collect();
    let (host, target) = (session.alloc_host(4096)?, session.alloc(4096)?);
    session.write(&host, &bytes)?;
    session.copy(&host, &target)?;
    // Freed while the copy may still be under way.
    drop(host);
    assert_eq!(session.read(&target)?, bytes);
    Ok(())
}

fn alone<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let [before, after] = [[0, 1, -1, 2], [2, 2, 1, 0]].map(|ids| TokenAdapters::new(&ids, 3));
    let (before, after) = (before?, after?);
    // Made by itself, it has no room behind it, as one of several has.
    let alone = [session.index(&before)?];
    session.update_indices(&alone, std::slice::from_ref(&after))?;
    assert_eq!(session.read_index(&alone[0])?, *after.words());
    let pinned = session.pin_indices(std::slice::from_ref(&before))?;
    session.update_indices_pinned(&alone, &pinned)?;
    assert_eq!(session.read_index(&alone[0])?, *before.words());
    Ok(())
}

fn repeated<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let (d, rank, width) = (40, 3, CodeWidth::Three);
    let adapter = |seed: u32| {
        let codes: Vec<u8> = (0..d * rank).map(|at| ((at * 5 + seed * 3) % 8) as u8).collect();
        AdapterCodes::from_indices(d, rank, width, &codes, &[])
    };
    let four = (0..4).map(adapter).collect::<Result<Vec<_>>>()?;
    let codes = session.index(&Codes::new(CodesShape::uniform(4, d, rank, width)?, &four)?)?;
    for (adapters, first) in [(1, 0), (3, 2), (11, 3), (8, 5), (0, 0)] {
        let made = session.repeat_codes(&codes, adapters, first)?;
        let sets: Vec<_> = (0..adapters).map(|at| four[(first + at) as usize % 4].clone()).collect();
        let wanted = Codes::new(CodesShape::uniform(adapters, d, rank, width)?, &sets)?;
        assert_eq!(*made.shape(), wanted.shape());
        assert_eq!(session.read_index(&made)?, *wanted.words(), "{adapters} from {first}");
    }
    Ok(())
}

fn order<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let sum = Sum::new(&mut session, 1.0, 10.0)?;
    let twice = Sum { plan: session.plan(Sum::<B>::op())?, args: Sum::new(&mut session, 0.0, 100.0)?.args.with_x(sum.args.y.clone()) };
    sum.run(&mut session)?;
    twice.run(&mut session)?;
    // Overwritten after it was read by work that may not have run yet.
    sum.set_x(&mut session, 5.0)?;
    sum.set_x(&mut session, 2.0)?;
    sum.expect(&mut session, 11.0)?;
    twice.expect(&mut session, 111.0)?;
    sum.run(&mut session)?;
    session.synchronize()?;
    sum.expect(&mut session, 12.0)?;
    twice.expect(&mut session, 111.0)
}

fn clones<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let (first, second) = (session.upload(&[1u8; 64])?, session.upload(&[2u8; 64])?);
    let alias = first.clone();
    assert_eq!(B::buffer_id(first.buffer()), B::buffer_id(alias.buffer()));
    assert_ne!(B::buffer_id(first.buffer()), B::buffer_id(second.buffer()));
    session.write(&alias, &[3; 64])?;
    assert_eq!(session.read(&first)?, [3; 64]);
    assert_eq!(session.read(&second)?, [2; 64]);
    drop(first);
    assert_eq!(session.read(&alias)?, [3; 64]);
    Ok(())
}

fn parts<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let whole = session.upload(&[1u8; 1024])?;
    // Also at places and lengths that are no multiple of a word.
    for (at, len) in [(0, 4), (512, 256), (260, 12), (1020, 4), (7, 3), (1023, 1)] {
        session.write(&whole, &[1; 1024])?;
        let part = whole.sub_slice(at, len).expect("inside");
        session.write(&part, &vec![9; len as usize])?;
        let mut want = vec![1u8; 1024];
        want[at as usize..(at + len) as usize].fill(9);
        assert_eq!(session.read(&whole)?, want, "{len} bytes at {at}");
        assert_eq!(session.read(&part)?, vec![9; len as usize]);
    }
    assert!(whole.sub_slice(1000, 25).is_none() && whole.sub_slice(u64::MAX, 2).is_none());
    Ok(())
}

fn parts_as_operands<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let plan = session.plan(Sum::<B>::op())?;
    let bytes = LEN as u64 * 4;
    // One buffer holds all three, four bytes between them.
    let whole = session.upload(&vec![1.0f32; 3 * LEN + 4])?;
    let [x, residual, y] = [4, 8 + bytes, 12 + 2 * bytes].map(|at| whole.sub_slice(at, bytes).expect("inside"));
    session.run(&plan, &PointwiseArgs::new(x, y).with_residual(Some(residual)))?;
    let values: Vec<f32> = session.download(&whole)?;
    assert_eq!(values[..2 * LEN + 3], vec![1.0; 2 * LEN + 3]);
    assert_eq!(values[2 * LEN + 3..3 * LEN + 3], [2.0; LEN]);
    assert_eq!(values[3 * LEN + 3..], [1.0]);
    Ok(())
}

fn zero_bytes<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let empty = session.alloc(0)?;
    session.write(&empty, &[])?;
    assert!(session.read(&empty)?.is_empty());
    let at_end = session.upload(&[1u8; 8])?.sub_slice(8, 0).expect("inside");
    assert!(session.read(&at_end)?.is_empty());
    let plan = plan_any(&session, |dtype| Linear::new(dtype, [0, 16, 32]))?;
    let w = session.alloc(32 * 16 * 4)?;
    let graph = session.capture(|session| session.run(&plan, &LinearArgs::new(empty.clone(), w.clone(), session.alloc(0)?)))?;
    session.replay(&graph)?;
    session.synchronize()
}

fn out_of_memory<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let out = |result: Result<_>| match result {
        Err(Error::OutOfMemory { requested, purpose }) => assert!(requested > 0 && !purpose.is_empty()),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the device gave more memory than it says it has"),
    };
    out(session.alloc(u64::MAX));
    if let Some(more) = session.caps().max_buffer_bytes.checked_add(1) {
        out(session.alloc(more));
    }
    let Some(memory) = session.caps().memory_bytes else {
        return Err(Error::unsupported("taking all memory", "the driver does not say how much there is"));
    };
    let first = session.upload(&[7u8; 4096])?;
    let chunk = session.caps().max_buffer_bytes.min(memory / 8 + 1);
    let mut taken = Vec::new();
    let refusal = (0..=memory / chunk).find_map(|_| session.alloc(chunk).map(|slice| taken.push(slice)).err());
    out(Err(refusal.expect("a device gives no more than it has")).map(|()| first.clone()));
    // What was allocated before stays usable; and once some is given back, there is room again.
    assert_eq!(session.read(&first)?, [7; 4096]);
    taken.clear();
    session.synchronize()?;
    let sum = Sum::new(&mut session, 1.0, 2.0)?;
    sum.run(&mut session)?;
    sum.expect(&mut session, 3.0)
}
