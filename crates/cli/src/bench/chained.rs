//! What tests of chains share: a run on the processor, with one link zeroed or none.

use std::sync::Arc;

use trifuse::backends::cpu::Cpu;
use trifuse::device::Open;
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::ops::CodebookGemm;
use trifuse::session::Session;
use trifuse_testkit::cases::Draw;

use super::sample::{Checked, Placed, check, poison_all};

/// What the check says of a chain whose link `zeroed` leaves zeros.
pub fn checked(
    dtype: DType,
    op: CodebookGemm,
    zeroed: Option<usize>,
    operands: impl FnOnce(&mut Session<Cpu>, &mut Draw) -> Result<Placed<CodebookGemm, Cpu>>,
) -> Result<std::result::Result<Checked, String>> {
    let mut session = Session::new(Arc::new(Cpu::open(0)?))?;
    let Placed { launches, probes, .. } = operands(&mut session, &mut Draw::seeded("chain"))?;
    let plan = session.plan(op)?;
    poison_all(&mut session, &probes)?;
    for (number, args) in launches.iter().enumerate() {
        session.run(&plan, args)?;
        if zeroed == Some(number) {
            let y = &args.slices[0].y;
            session.write(y, &vec![0; y.len() as usize])?;
        }
    }
    check(&mut session, dtype, &probes)
}
