//! Every case, drawn or from a file, on every variant of every backend of this build. A backend that is not there, and a case that a variant
//! does not support, show as ignored tests with the reason; nothing is skipped in silence.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use trifuse::Result;
use trifuse::backend::Backend;
use trifuse::backends::{Choice, NAMES, Visit};
use trifuse::casefile::{self, CaseFile};
use trifuse::cases::{OpKind, all};
use trifuse::conformance::{Mode, Outcome, Subject, run_case, variants};
use trifuse::session::Session;

pub fn main() {
    let arguments = Arguments::from_args();
    let mut subjects: Vec<Arc<Subject>> = all().into_iter().map(|case| Arc::new(Subject::from(case))).collect();
    match vectors() {
        Ok(vectors) => subjects.extend(vectors),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
    let mut trials = Vec::new();
    for name in NAMES {
        match Choice::Named(name, 0).open(Collect(&subjects)) {
            Ok(found) => trials.extend(found),
            Err(error) => {
                trials
                    .push(Trial::test(format!("not available: {error}"), || Err("this backend is not there".into())).with_kind(*name).with_ignored_flag(true));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// The cases of `tests/vectors`, whose answers NumPy computed.
fn vectors() -> Result<Vec<Arc<Subject>>> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors"));
    let named = |case: CaseFile| CaseFile { name: format!("vectors/{}", case.name), ..case };
    casefile::list(folder)?.iter().map(|path| Ok(Arc::new(Subject::from(named(casefile::read(path)?))))).collect()
}

/// Makes the trials of one backend.
struct Collect<'a>(&'a [Arc<Subject>]);

impl Visit for Collect<'_> {
    type Out = Vec<Trial>;

    fn visit<B: Backend>(self, backend: B) -> Result<Vec<Trial>> {
        let device = Arc::new(backend);
        // Never dropped: the last trial's worker could still be at it when the process exits and the driver goes.
        std::mem::forget(device.clone());
        let mut trials = Vec::new();
        let mut captured = BTreeSet::new();
        for subject in self.0 {
            for &variant in variants(&*device, subject.kind()) {
                trials.push(trial(&device, subject, variant, Mode::Direct));
                // Capture does not depend on sizes: one case of each operation and variant shows it.
                if captured.insert((subject.kind().name(), variant)) {
                    trials.push(trial(&device, subject, variant, Mode::Captured));
                }
            }
        }
        for kind in OpKind::ALL {
            if variants(&*device, kind).is_empty() {
                trials.push(Trial::test(format!("{} has no variant", kind.name()), || Ok(())).with_kind(B::NAME).with_ignored_flag(true));
            }
        }
        Ok(trials)
    }
}

fn trial<B: Backend>(device: &Arc<B>, subject: &Arc<Subject>, variant: &'static str, mode: Mode) -> Trial {
    let suffix = if mode == Mode::Captured { ", captured" } else { "" };
    let name = format!("{} ({variant}{suffix})", subject.name());
    let (device, subject) = (device.clone(), subject.clone());
    Trial::ignorable_test(name, move || {
        let mut session = Session::new(device)?;
        match run_case(&mut session, &subject, Some(variant), mode)? {
            Outcome::Passed(_) => Ok(Completion::Completed),
            Outcome::Failed { why } => Err(Failed::from(why)),
            Outcome::Unsupported { reason } => Ok(Completion::ignored_with(reason)),
        }
    })
    .with_kind(B::NAME)
}
