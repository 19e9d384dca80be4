//! Captured work and its replays.

use std::sync::Arc;

use trifuse::backend::Backend;
use trifuse::ops::attention::{AttentionIndex, Form};
use trifuse::ops::index::{BlockMap, MapShape, TokenAdapters};
use trifuse::ops::{Attention, AttentionArgs};
use trifuse::session::Session;
use trifuse::{DType, Error, Result};

use super::Test;
use super::work::{ADAPTERS, Adapted, LEN, Sum, adapter};

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![
        ("capture records and replays see new operands", replays),
        ("replays of several launches keep their order", launches_in_order),
        ("replays see new index data", new_index_data),
        ("replays see blocks rewritten on the device", new_blocks),
        ("a graph keeps its buffers alive", kept_alive),
        ("two graphs of one session", two_graphs),
        ("work after a capture follows the work before it", follows),
        ("an empty capture", empty),
        ("a failed capture leaves the session usable", failed_capture),
        ("a panic in a capture ends it", panicking),
        ("copies and waits inside a capture are refused", nothing_else_inside),
    ]
}

fn panicking<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let sum = Sum::new(&mut session, 1.0, 10.0)?;
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        session.capture(|session| {
            sum.run(session)?;
            // Without the message that a panic prints.
            std::panic::resume_unwind(Box::new("a fault in the work that is recorded"))
        })
    }));
    assert!(caught.is_err(), "the panic goes on to who catches it");
    sum.run(&mut session)?;
    sum.expect(&mut session, 11.0)?;
    let graph = session.capture(|session| sum.run(session))?;
    sum.set_x(&mut session, 2.0)?;
    session.replay(&graph)?;
    sum.expect(&mut session, 12.0)
}

fn replays<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let sum = Sum::new(&mut session, 1.0, 10.0)?;
    let graph = session.capture(|session| sum.run(session))?;
    let y: Vec<f32> = session.download(&sum.args.y)?;
    assert!(y.iter().all(|y| y.is_nan()), "a capture only records");
    for x in [1.0, 2.0, 3.0] {
        sum.set_x(&mut session, x)?;
        session.replay(&graph)?;
        sum.expect(&mut session, x + 10.0)?;
    }
    // Replays without a wait between, and plain work after.
    session.replay(&graph)?;
    session.replay(&graph)?;
    sum.set_x(&mut session, 7.0)?;
    sum.run(&mut session)?;
    sum.expect(&mut session, 17.0)
}

fn launches_in_order<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let there = Sum::new(&mut session, 1.0, 10.0)?;
    let back = Sum { plan: session.plan(Sum::<B>::op())?, args: there.args.clone().with_x(there.args.y.clone()).with_y(there.args.x.clone()) };
    // Each replay adds 20 to x, by way of y.
    let graph = session.capture(|session| {
        there.run(session)?;
        back.run(session)
    })?;
    for _ in 0..3 {
        session.replay(&graph)?;
    }
    back.expect(&mut session, 61.0)
}

fn new_index_data<B: Backend>(device: &Arc<B>) -> Result<()> {
    const SEEDS: [u32; ADAPTERS as usize] = [1, 2, 3, 4, 5, 6];
    let mut session = Session::new(device.clone())?;
    let captured = [2, 2, -1, 2, 2, 2, -1, 2, 2, 2, 2, 2];
    let work = Adapted::new(&mut session, &captured, SEEDS)?;
    let graph = session.capture(|session| work.run(session))?;
    let batches = [
        // More segments than at capture, one token each, then none, then all of one.
        [5, 4, 3, 2, 1, 0, 5, 4, 3, 2, 1, 0],
        [-1; 12],
        [0, 1, 2, 3, 4, 5, -1, -1, -1, 5, 5, 5],
        [3; 12],
    ];
    for (round, ids) in batches.iter().enumerate() {
        let mut seeds = SEEDS;
        seeds[3] = 40 + round as u32;
        session.update_index(&work.tokens, &TokenAdapters::new(ids, ADAPTERS)?)?;
        session.update_adapter(&work.codes, 3, &adapter(seeds[3])?)?;
        session.replay(&graph)?;
        let got = session.read(work.y())?;
        let fresh = Adapted::new(&mut session, ids, seeds)?;
        fresh.run(&mut session)?;
        assert_eq!(got, session.read(fresh.y())?, "round {round}");
        assert_eq!(ids.iter().all(|&id| id < 0), got.iter().all(|&byte| byte == 0), "round {round}");
    }
    Ok(())
}

/// Which blocks of attention are there, byte by byte, as other work on the device would leave it.
fn new_blocks<B: Backend>(device: &Arc<B>) -> Result<()> {
    const BLOCK: usize = 64;
    let mut session = Session::new(device.clone())?;
    let shape = MapShape { block: BLOCK as u32, q_blocks: 2, kv_blocks: 2, patterns: 1 };
    let op = Attention::dense(DType::F32, 1, [1, 1], [2 * BLOCK as u64; 2], 1).with_form(Form::BlockMap(shape));
    let map = session.index(&BlockMap::new(&[1; 4], shape)?)?;
    // Equal scores: a query's output is the middle of the values that it sees.
    let zeros = session.upload(&[0.0f32; 2 * BLOCK])?;
    let values: Vec<f32> = (0..2 * BLOCK).map(|key| if key < BLOCK { 1.0 } else { 3.0 }).collect();
    let (v, o) = (session.upload(&values)?, session.upload(&[f32::NAN; 2 * BLOCK])?);
    let args = AttentionArgs::new(zeros.clone(), zeros, v, o.clone()).with_index(AttentionIndex::BlockMap(map.clone()));
    let plan = session.plan(op)?;
    let graph = session.capture(|session| session.run(&plan, &args))?;
    for (bytes, rows) in [([1, 1, 0, 1], [2.0, 3.0]), ([0, 0, 1, 255], [0.0, 2.0]), ([0, 9, 1, 0], [3.0, 1.0]), ([0; 4], [0.0, 0.0])] {
        session.write(map.bytes(), &bytes)?;
        session.replay(&graph)?;
        let got: Vec<f32> = session.download(&o)?;
        let off = got.iter().enumerate().map(|(row, o)| (o - rows[row / BLOCK]).abs()).fold(0.0, f32::max);
        assert!(off < 1e-5, "{bytes:?}: off by {off}");
    }
    Ok(())
}

fn kept_alive<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let sum = Sum::new(&mut session, 4.0, 5.0)?;
    let y = sum.args.y.clone();
    let graph = session.capture(|session| sum.run(session))?;
    drop(sum);
    // Memory that was given back would be given out again, and overwritten.
    let other: Vec<_> = (0..16).map(|_| session.upload(&[-1.0f32; LEN])).collect::<Result<_>>()?;
    session.replay(&graph)?;
    assert_eq!(session.download::<f32>(&y)?, [9.0; LEN]);
    for slice in &other {
        assert_eq!(session.download::<f32>(slice)?, [-1.0; LEN]);
    }
    Ok(())
}

fn two_graphs<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let (first, second) = (Sum::new(&mut session, 1.0, 1.0)?, Sum::new(&mut session, 2.0, 2.0)?);
    let graphs = [session.capture(|session| first.run(session))?, session.capture(|session| second.run(session))?];
    session.replay(&graphs[1])?;
    session.replay(&graphs[0])?;
    first.expect(&mut session, 2.0)?;
    second.expect(&mut session, 4.0)
}

/// Kernels may start before the one ahead of them has ended where nothing says that they read what it writes. What a capture
/// recorded is not ahead of them.
fn follows<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let ids = [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5];
    let first = Adapted::new(&mut session, &ids, [1, 2, 3, 4, 5, 6])?;
    let other = Adapted::new(&mut session, &ids, [7, 8, 9, 10, 11, 12])?;
    let mut second = Adapted::new(&mut session, &ids, [6, 5, 4, 3, 2, 1])?;
    second.args.x = first.y().clone();
    first.run(&mut session)?;
    session.synchronize()?;
    second.run(&mut session)?;
    let want = session.read(second.y())?;
    let zeros = vec![0; first.y().len() as usize];
    for round in 0..20 {
        session.write(first.y(), &zeros)?;
        first.run(&mut session)?;
        let graph = session.capture(|session| other.run(session))?;
        second.run(&mut session)?;
        assert_eq!(session.read(second.y())?, want, "round {round}");
        session.replay(&graph)?;
    }
    Ok(())
}

fn empty<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let graph = session.capture(|_| Ok(()))?;
    session.replay(&graph)?;
    session.synchronize()
}

fn failed_capture<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let sum = Sum::new(&mut session, 1.0, 10.0)?;
    let short = sum.args.clone().with_y(session.alloc(4)?);
    let failed = session.capture(|session| {
        sum.run(session)?;
        session.run(&sum.plan, &short)
    });
    assert!(matches!(failed, Err(Error::Invalid { .. })), "{:?}", failed.err());
    sum.run(&mut session)?;
    sum.expect(&mut session, 11.0)?;
    sum.set_x(&mut session, 2.0)?;
    let graph = session.capture(|session| sum.run(session))?;
    session.replay(&graph)?;
    sum.expect(&mut session, 12.0)
}

fn nothing_else_inside<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let sum = Sum::new(&mut session, 1.0, 10.0)?;
    let earlier = session.capture(|session| sum.run(session))?;
    let tokens = session.index(&TokenAdapters::new(&[0], 1)?)?;
    let graph = session.capture(|session| {
        let refused = [
            ("write", session.write(&sum.args.x, &[0; 4]).err()),
            ("read", session.read(&sum.args.x).err()),
            ("wait", session.synchronize().err()),
            ("upload", session.upload(&[1u8]).err()),
            ("capture", session.capture(|_| Ok(())).err()),
            ("replay", session.replay(&earlier).err()),
            ("index", session.update_index(&tokens, &TokenAdapters::new(&[-1], 1)?).err()),
        ];
        for (name, error) in refused {
            assert!(matches!(error, Some(Error::Invalid { .. })), "{name}: {error:?}");
        }
        sum.run(session)
    })?;
    session.replay(&graph)?;
    sum.expect(&mut session, 11.0)
}
