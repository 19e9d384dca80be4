//! Two devices of one backend in a process: what is on the one is nothing to the other.
#![cfg(feature = "wgpu")]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use trifuse::backend::Backend;
use trifuse::backends::wgpu::Wgpu;
use trifuse::device::Open;
use trifuse::ops::index::TokenAdapters;
use trifuse::ops::{Linear, LinearArgs};
use trifuse::session::Session;
use trifuse::{DType, Error};

/// wgpu numbers what a device makes from the same start for each: unrefused, these would reach other memory of the second one.
#[test]
fn memory_of_another_device_is_refused() {
    match (Wgpu::open(0), Wgpu::open(0)) {
        (Ok(one), Ok(other)) => strangers(one, other),
        (Err(absent), _) | (_, Err(absent)) => eprintln!("skipped: {absent}"),
    }
}

fn strangers<D: Backend + Open>(one: D, other: D) {
    let [mut session, mut other] = [one, other].map(|device| Session::new(Arc::new(device)).unwrap());
    let theirs = other.upload(&[1f32, 2.0, 3.0]).unwrap();
    let (x, y) = (session.upload(&[4f32, 5.0, 6.0]).unwrap(), session.alloc(8).unwrap());
    let w = session.upload(&[1f32; 6]).unwrap();
    let plan = session.plan(Linear::new(DType::F32, [1, 2, 3])).unwrap();
    let args = LinearArgs { x: x.clone(), w, bias: None, residual: None, delta: None, norm: None, y: y.clone() };
    let tokens = TokenAdapters::new(&[0], 1).unwrap();
    let index = other.index(&tokens).unwrap();
    let refusals = [
        session.write(&theirs, &[0; 4]),
        session.read(&theirs).map(drop),
        session.copy(&theirs, &x),
        session.copy(&x, &theirs),
        session.run(&plan, &LinearArgs { x: theirs.clone(), ..args.clone() }),
        session.run(&plan, &LinearArgs { y: theirs.clone(), ..args.clone() }),
        session.update_index(&index, &tokens),
    ];
    for refused in refusals {
        assert!(matches!(&refused, Err(Error::Invalid { found, .. }) if found == "another device's"), "{refused:?}");
    }
    session.run(&plan, &args).unwrap();
    assert_eq!(session.download::<f32>(&y).unwrap(), [15.0; 2]);
    assert_eq!(other.download::<f32>(&theirs).unwrap(), [1.0, 2.0, 3.0]);
}
