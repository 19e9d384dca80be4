//! Copies on the device, and events in its work.

use std::sync::Arc;
use std::time::Instant;

use trifuse::backend::Backend;
use trifuse::session::Session;
use trifuse::{Error, Result};

use super::Test;
use super::work::{LEN, Sum};

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![
        ("a copy keeps its order and stays inside its slice", copies),
        ("copies that overlap, split a word or do not fit are refused", unfit_copies),
        ("events time the work between them, and nothing else", events),
        ("what was copied to the host is read as it was, whatever follows", read_after),
        ("events of another session are refused, and events in a capture", strange_events),
    ]
}

fn copies<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let sum = Sum::new(&mut session, 1.0, 2.0)?;
    let kept = session.upload(&[7f32; 12])?;
    let inside = |slice: &trifuse::device::Slice<B>, at, len| slice.sub_slice(at, len).expect("inside");
    sum.run(&mut session)?;
    session.copy(&inside(&sum.args.y, 40, 24), &inside(&kept, 8, 40))?;
    // The copy took what was there then.
    sum.set_x(&mut session, 5.0)?;
    sum.run(&mut session)?;
    let values: Vec<f32> = session.download(&kept)?;
    assert_eq!(values, [[7.0; 2].as_slice(), &[3.0; 6], &[7.0; 4]].concat());
    session.copy(&inside(&kept, 0, 0), &sum.args.y)?;
    sum.expect(&mut session, 7.0)
}

fn refused<T>(what: &str, result: Result<T>) {
    assert!(matches!(result, Err(Error::Invalid { .. })), "{what}");
}

fn unfit_copies<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let (a, b) = (session.upload(&[1u8; 64])?, session.upload(&[2u8; 32])?);
    let part = |at, len| a.sub_slice(at, len).expect("inside");
    refused("one buffer", session.copy(&part(0, 16), &part(32, 16)));
    refused("too long", session.copy(&a, &b));
    refused("half a word", session.copy(&part(2, 8), &b));
    refused("half a word at the end", session.copy(&part(0, 6), &b));
    let mut told = Ok(());
    let graph = session.capture(|session| {
        told = session.copy(&part(0, 32), &b);
        Ok(())
    });
    refused("in a capture", told);
    drop(graph?);
    assert_eq!((session.read(&a)?, session.read(&b)?), (vec![1; 64], vec![2; 32]));
    Ok(())
}

fn events<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let (from, to) = (session.upload(&vec![1u8; 16 << 20])?, session.alloc(16 << 20)?);
    session.copy(&from, &to)?;
    session.synchronize()?;
    let began = Instant::now();
    let first = session.record_event()?;
    session.copy(&from, &to)?;
    let second = session.record_event()?;
    for _ in 0..20 {
        session.copy(&from, &to)?;
    }
    let third = session.record_event()?;
    let (one, twenty) = (session.elapsed(&first, &second)?, session.elapsed(&second, &third)?);
    let whole = began.elapsed().as_secs_f64();
    assert!(one > 0.0 && twenty > one && one + twenty <= whole * 1.05, "{one} s, {twenty} s of {whole} s");
    // Events may be read again, and in another order.
    let all = session.elapsed(&first, &third)?;
    assert!((all - one - twenty).abs() <= 0.01 * all + 1e-5, "{one} s and {twenty} s are {all} s");
    session.synchronize()
}

fn read_after<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let sum = Sum::new(&mut session, 1.0, 2.0)?;
    let hosts = [(); 2].map(|()| session.alloc_host(sum.args.y.len()));
    let [first, second] = hosts;
    let (first, second) = (first?, second?);
    let mut events = Vec::new();
    for (x, host) in [(1.0, &first), (5.0, &second)] {
        sum.set_x(&mut session, x)?;
        sum.run(&mut session)?;
        session.copy(&sum.args.y, host)?;
        events.push(session.record_event()?);
    }
    sum.set_x(&mut session, 9.0)?;
    sum.run(&mut session)?;
    // In either order, and as often as wanted.
    for (host, event, want) in [(&first, 0, 3.0), (&second, 1, 7.0), (&first, 0, 3.0), (&first, 1, 3.0)] {
        assert_eq!(session.read_after::<f32>(&events[event], host)?, [want; LEN]);
    }
    // Memory of the device is read too.
    assert_eq!(session.read_after::<f32>(&events[0], &sum.args.y)?, [11.0; LEN]);
    let strange = Session::new(device.clone())?.record_event()?;
    refused("another session's event", session.read_after::<f32>(&strange, &first));
    refused("a part of an element", session.read_after::<f32>(&events[0], &first.sub_slice(0, 6).expect("inside")));
    sum.expect(&mut session, 11.0)
}

fn strange_events<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    let mut other = Session::new(device.clone())?;
    let (own, strange) = (session.record_event()?, other.record_event()?);
    refused("another session's event", session.elapsed(&own, &strange));
    refused("another session's event", session.elapsed(&strange, &own));
    let mut told = None;
    drop(session.capture(|session| {
        told = Some((session.record_event().map(drop), session.elapsed(&own, &own).map(drop)));
        Ok(())
    })?);
    let (event, read) = told.expect("the capture ran");
    refused("an event in a capture", event);
    refused("an event read in a capture", read);
    assert!(session.elapsed(&own, &own)? == 0.0);
    Ok(())
}
