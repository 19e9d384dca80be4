//! Two devices of one backend in a process: what is on the one is nothing to the other.

use std::sync::Arc;

use libtest_mimic::{Completion, Trial};
use trifuse::backend::Backend;
#[cfg(all(feature = "cpu", feature = "wgpu"))]
use trifuse::backends::Choice;
use trifuse::device::Open;
use trifuse::ops::index::TokenAdapters;
use trifuse::ops::{Linear, LinearArgs};
use trifuse::session::Session;
use trifuse::{DType, Error, Result};

/// A trial of each backend that keeps memory of its own. `cpu` works in the host's, which all its devices may use.
pub fn trials() -> Vec<Trial> {
    vec![
        #[cfg(feature = "cuda")]
        trial::<trifuse::backends::cuda::Cuda>(),
        #[cfg(feature = "wgpu")]
        trial::<trifuse::backends::wgpu::Wgpu>(),
        #[cfg(all(feature = "cpu", feature = "wgpu"))]
        between_backends("wgpu", "cpu"),
        #[cfg(all(feature = "cpu", feature = "wgpu"))]
        between_backends("cpu", "wgpu"),
    ]
}

fn trial<B: Backend + Open>() -> Trial {
    let run = || match (B::open(0), B::open(0)) {
        (Ok(one), Ok(other)) => strangers(one, other).map(|()| Completion::Completed).map_err(Into::into),
        (Err(absent), _) | (_, Err(absent)) => Ok(Completion::ignored_with(absent.to_string())),
    };
    Trial::ignorable_test("memory of another device is refused", run).with_kind(B::NAME)
}

/// Devices of one type and of two backends.
#[cfg(all(feature = "cpu", feature = "wgpu"))]
fn between_backends(one: &'static str, other: &'static str) -> Trial {
    let open = |name| Choice::Named(name, 0).open_any();
    let run = move || match (open(one), open(other)) {
        (Ok(one), Ok(other)) => strangers(one, other).map(|()| Completion::Completed).map_err(Into::into),
        (Err(absent), _) | (_, Err(absent)) => Ok(Completion::ignored_with(absent.to_string())),
    };
    Trial::ignorable_test(format!("memory of {other} is refused on {one}"), run).with_kind("any")
}

/// Devices number what they make from the same start: unrefused, these would reach other memory of the second one, or memory that nobody keeps.
fn strangers<B: Backend>(one: B, other: B) -> Result<()> {
    let (mut session, mut other) = (Session::new(Arc::new(one))?, Session::new(Arc::new(other))?);
    let theirs = other.upload(&[1f32, 2.0, 3.0])?;
    let (x, w, y) = (session.upload(&[4f32, 5.0, 6.0])?, session.upload(&[1f32; 6])?, session.alloc(8)?);
    let plan = session.plan(Linear::new(DType::F32, [1, 3, 2]))?;
    let args = LinearArgs::new(x.clone(), w, y.clone());
    let tokens = TokenAdapters::new(&[0], 1)?;
    let index = other.index(&tokens)?;
    let refusals = [
        session.write(&theirs, &[0; 4]),
        session.read(&theirs).map(drop),
        session.copy(&theirs, &x),
        session.copy(&x, &theirs),
        session.run(&plan, &args.clone().with_x(theirs.clone())),
        session.run(&plan, &args.clone().with_y(theirs.clone())),
        session.update_index(&index, &tokens),
    ];
    for refused in refusals {
        assert!(matches!(&refused, Err(Error::Invalid { found, .. }) if found == "another device's"), "{refused:?}");
    }
    session.run(&plan, &args)?;
    assert_eq!(session.download::<f32>(&y)?, [15.0; 2]);
    assert_eq!(other.download::<f32>(&theirs)?, [1.0, 2.0, 3.0]);
    Ok(())
}
