//! How long a first call takes: from nothing to an answer of dense attention, and of the same again.
//!
//! `TRIFUSE_CACHE_DIR=$(mktemp -d) cargo run --profile dist --features cuda --example first_call -- cuda`

use std::time::Instant;

use trifuse::backend::Backend;
use trifuse::backends::{Choice, Visit};
use trifuse::ops::{Attention, AttentionArgs};
use trifuse::session::Session;
use trifuse::{DType, Result};

struct FirstCall(Instant);

impl Visit for FirstCall {
    type Out = ();

    fn visit<B: Backend>(self, backend: B) -> Result<()> {
        let opened = self.0.elapsed();
        let mut session = Session::new(std::sync::Arc::new(backend))?;
        let op = Attention::dense(DType::F16, 1, [32, 32], [1024, 1024], 128);
        let bytes = 32 * 1024 * 128 * 2;
        let [q, k, v, o] = [session.alloc(bytes)?, session.alloc(bytes)?, session.alloc(bytes)?, session.alloc(bytes)?];
        for call in ["first", "second"] {
            let start = Instant::now();
            let plan = session.plan(op.clone())?;
            let args = AttentionArgs::new(q.clone(), k.clone(), v.clone(), o.clone());
            session.run(&plan, &args)?;
            session.synchronize()?;
            println!("{call} call of {}: {:.3} s", plan.variant(), start.elapsed().as_secs_f64());
        }
        println!("opening: {:.3} s; in all {:.3} s", opened.as_secs_f64(), self.0.elapsed().as_secs_f64());
        Ok(())
    }
}

fn main() -> Result<()> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "cpu".into());
    let start = Instant::now();
    name.parse::<Choice>()?.open(FirstCall(start))
}
