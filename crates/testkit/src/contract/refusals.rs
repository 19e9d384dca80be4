//! What is refused before it reaches the device, with the device usable afterwards.

use std::slice::from_ref;
use std::sync::Arc;

use half::f16;
use trifuse::backend::Backend;
use trifuse::ops::attention::Form;
use trifuse::ops::index::{Slots, TokenAdapters, VarlenShape};
use trifuse::ops::{Attention, AttentionArgs, PointwiseArgs};
use trifuse::session::Session;
use trifuse::{DType, Error, Result};

use super::Test;
use super::work::{ADAPTERS, Adapted, LEN, Sum, adapter};

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![
        ("a plan or graph of another session is refused", strangers),
        ("an index of another session is refused", strange_index),
        ("operands that overlap are refused", overlap),
        ("operands too small, misplaced or missing are refused", unfit),
        ("copies longer than their slice are refused", long_copies),
        ("unknown variants are refused", unknown_variant),
        ("index data of another shape is refused", other_shape),
        ("slots that sequences do not have are refused", other_slots),
    ]
}

/// Panics unless the caller is told of a mistake.
fn refused<T>(what: &str, result: Result<T>) {
    match result {
        Err(Error::Invalid { subject, expected, .. }) => assert!(!subject.is_empty() && !expected.is_empty(), "{what}"),
        Err(other) => panic!("{what}: {other}"),
        Ok(_) => panic!("{what} was accepted"),
    }
}

fn strangers<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let mut other = Session::new(device.clone())?;
    let sum = Sum::new(&mut session, 1.0, 2.0)?;
    let graph = session.capture(|session| sum.run(session))?;
    session.synchronize()?;
    refused("a plan", sum.run(&mut other));
    refused("a graph", other.replay(&graph));
    other.synchronize()?;
    sum.run(&mut session)?;
    sum.expect(&mut session, 3.0)
}

fn strange_index<B: Backend>(device: &Arc<B>) -> Result<()> {
    let [mut session, mut other] = [Session::new(device.clone())?, Session::new(device.clone())?];
    let rows = [0, 3, 3, -1, 5, 1, 0, 0, 2, 4, -1, 5];
    let seeds = [1, 2, 3, 4, 5, 6];
    let (own, theirs) = (Adapted::new(&mut session, &rows, seeds)?, Adapted::new(&mut other, &rows, seeds)?);
    // The operands are the session's own, but for one index, which the other's queue may be writing.
    let mut mixed = own.args.clone();
    mixed.token_adapter = theirs.tokens.clone();
    refused("another's index", session.run(&own.plan, &mixed));
    let host = TokenAdapters::new(&rows, ADAPTERS)?;
    refused("an update of another's index", session.update_index(&theirs.tokens, &host));
    refused("an update of another's codes", session.update_adapter(&theirs.codes, 0, &adapter(1)?));
    refused("a reading of another's index", session.read_index(&theirs.tokens));
    refused("a copy of another's codes", session.repeat_codes(&theirs.codes, 2, 0));
    let packed = other.indices(from_ref(&host))?;
    refused("an update of another's indices", session.update_indices(&packed, from_ref(&host)));
    let pinned = other.pin_indices(from_ref(&host))?;
    let packed = session.indices(&[host])?;
    refused("another's pinned indices", session.update_indices_pinned(&packed, &pinned));
    own.run(&mut session)?;
    theirs.run(&mut other)?;
    assert_eq!(session.read(own.y())?, other.read(theirs.y())?);
    Ok(())
}

fn overlap<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let sum = Sum::new(&mut session, 1.0, 2.0)?;
    let PointwiseArgs { x, residual, .. } = &sum.args;
    let whole = session.upload(&[1.0f32; 2 * LEN])?;
    let part = |at: usize| whole.sub_slice(at as u64 * 4, LEN as u64 * 4).expect("inside");
    for (x, y) in [(x.clone(), x.clone()), (part(0), part(LEN - 1)), (part(LEN - 1), part(0))] {
        refused("an overlap", session.run(&sum.plan, &PointwiseArgs::new(x, y).with_residual(residual.clone())));
    }
    // Side by side is no overlap, and neither are two that are only read.
    let same = PointwiseArgs::new(part(0), part(LEN)).with_residual(Some(part(0)));
    session.run(&sum.plan, &same)?;
    let values: Vec<f32> = session.download(&whole)?;
    assert_eq!((&values[..LEN], &values[LEN..]), (&[1.0; LEN][..], &[2.0; LEN][..]));
    Ok(())
}

fn unfit<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let sum = Sum::new(&mut session, 1.0, 2.0)?;
    let bytes = LEN as u64 * 4;
    let short = session.alloc(bytes - 4)?;
    let odd = session.alloc(bytes + 8)?.sub_slice(2, bytes).expect("inside");
    for (name, slice) in [("a short operand", short), ("an offset inside an element", odd)] {
        refused(name, session.run(&sum.plan, &sum.args.clone().with_x(slice.clone())));
        refused(name, session.run(&sum.plan, &sum.args.clone().with_residual(Some(slice.clone()))));
        refused(name, session.run(&sum.plan, &sum.args.clone().with_y(slice)));
    }
    let halves = session.upload(&vec![f16::ONE; 2 * LEN])?;
    assert_eq!((halves.dtype(), halves.len()), (Some(DType::F16), bytes));
    refused("elements of another type", session.run(&sum.plan, &sum.args.clone().with_x(halves.clone())));
    refused("a result of another type", session.run(&sum.plan, &sum.args.clone().with_y(halves.clone())));
    refused("a download as another type", session.download::<f32>(&halves));
    assert_eq!(session.download::<u16>(&halves)?, vec![f16::ONE.to_bits(); 2 * LEN]);
    session.run(&sum.plan, &sum.args.clone().with_y(halves.with_dtype(None)))?;
    refused("an absent operand", session.run(&sum.plan, &sum.args.clone().with_residual(None)));
    refused("an operand too many", session.run(&sum.plan, &sum.args.clone().with_weight(Some(sum.args.x.clone()))));
    refused("no columns", session.plan(Sum::<B>::op().with_columns(0)));
    sum.run(&mut session)?;
    sum.expect(&mut session, 3.0)
}

fn long_copies<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let whole = session.upload(&[1u8; 16])?;
    let part = whole.sub_slice(4, 4).expect("inside");
    refused("a long write", session.write(&part, &[2; 5]));
    session.write(&part, &[3; 2])?;
    refused("elements that are not whole", session.download::<u64>(&part));
    refused("elements of no size", session.download::<()>(&part));
    refused("rows of no size", session.upload_rows(&[(), ()], 1, 2));
    assert_eq!(session.read(&whole)?, [1, 1, 1, 1, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]);
    Ok(())
}

fn unknown_variant<B: Backend>(device: &Arc<B>) -> Result<()> {
    let session = Session::new(device.clone())?;
    refused("a variant", session.plan_variant(Sum::<B>::op(), Some("no such variant")));
    Ok(())
}

fn other_shape<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let index = session.index(&TokenAdapters::new(&[0, 1], 2)?)?;
    refused("more tokens", session.update_index(&index, &TokenAdapters::new(&[0, 1, 0], 2)?));
    refused("more adapters", session.update_index(&index, &TokenAdapters::new(&[0, 1], 3)?));
    session.update_index(&index, &TokenAdapters::new(&[1, 1], 2)?)
}

fn other_slots<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let op = Attention::dense(DType::F16, 2, [1, 1], [3, 3], 32).with_slots(4);
    let plan = session.plan(op.clone())?;
    let each = 3 * 32 * 2;
    let read = session.upload(&vec![0u8; 4 * each + 16])?;
    let (o, tables) = (session.alloc(2 * each as u64)?, |at: u64| read.sub_slice(at, 4 * each as u64).expect("inside"));
    let slots = session.index(&Slots::new(&[3, 3], 4)?)?;
    let args = AttentionArgs::new(tables(0), tables(16), tables(0), o).with_slots(slots);
    session.run(&plan, &args)?;
    refused("a slot that is not there", Slots::new(&[4, 0], 4));
    refused("no slots", session.run(&plan, &args.clone().with_slots(None)));
    for (name, slots) in [("more sequences", Slots::new(&[0, 1, 2], 4)?), ("fewer slots", Slots::new(&[0, 1], 3)?)] {
        let slots = session.index(&slots)?;
        refused(name, session.run(&plan, &args.clone().with_slots(slots)));
    }
    refused("tables that start between 16 bytes", session.run(&plan, &args.clone().with_k(tables(8))));
    refused("tables of fewer slots", session.run(&plan, &args.clone().with_v(tables(0).sub_slice(0, 4 * each as u64 - 2).expect("inside"))));
    let plain = session.plan(op.clone().with_slots(None))?;
    refused("slots that nobody asks for", session.run(&plain, &args));
    let ends = VarlenShape { batch: 2, total_q: 6, total_kv: 6, max_q: 3, max_kv: 3 };
    refused("slots of sequences end to end", session.plan(op.with_form(Form::Varlen(ends))));
    session.run(&plan, &args)
}
