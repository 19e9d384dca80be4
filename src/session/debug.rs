//! What a session and what it makes show of themselves under `{:?}`.

use std::fmt::{self, Debug, Formatter};

use super::{Event, Graph, Plan, Session};
use crate::backend::Kernel;
use crate::device::Device;
use crate::ops::Op;

impl<D: Device> Debug for Session<D> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "session {} on {} ({})", self.id, D::NAME, self.caps().name)
    }
}

impl<O: Op, D: Kernel<O>> Debug for Plan<O, D> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "plan of session {}: {} on {}, {:?}", self.session, self.variant(), D::NAME, self.op)
    }
}

impl<D: Device> Debug for Graph<D> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "graph of session {}", self.session)
    }
}

impl<D: Device> Debug for Event<D> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "event of session {}", self.session)
    }
}
