//! What a session and its parts are to the compiler and to `{:?}`.

use super::{Event, Graph, Plan, Session};
use crate::backend::Kernel;
use crate::device::{Device, Slice};
use crate::ops::index::{Codes, Index};
use crate::ops::{Linear, Op};

/// What the documentation of [`Session`] says of threads, for the compiler to hold.
const _: () = {
    const fn send<T: Send>() {}
    const fn sync<T: Send + Sync>() {}
    #[expect(dead_code, reason = "compiled is proven")]
    const fn all<D: Kernel<Linear>>() {
        send::<Session<D>>();
        send::<Plan<Linear, D>>();
        send::<Graph<D>>();
        send::<Event<D>>();
        sync::<Slice<D>>();
        sync::<Index<Codes, D>>();
    }
};

impl<D: Device> std::fmt::Debug for Session<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "session {} on {} ({})", self.id, D::NAME, self.caps().name)
    }
}

impl<O: Op, D: Kernel<O>> std::fmt::Debug for Plan<O, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "plan of session {}: {} on {}, {:?}", self.session, self.variant(), D::NAME, self.op)
    }
}

impl<D: Device> std::fmt::Debug for Graph<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "graph of session {}", self.session)
    }
}

impl<D: Device> std::fmt::Debug for Event<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "event of session {}", self.session)
    }
}
