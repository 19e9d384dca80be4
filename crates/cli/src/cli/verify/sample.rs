//! What `--quick` runs: some cases of each operation, and the tests that end in a second or two.

use std::collections::BTreeMap;
use std::time::Duration;

use trifuse_cli::verify::NAMES as TESTS;
use trifuse_testkit::cases::{Case, all};
use trifuse_testkit::conformance::Subject;

use super::report::LeftOut;

/// Of how many cases of an operation one is run. Not a multiple of three: neighbours differ by their type.
const ONE_OF: usize = 7;
/// How long cases may take; one that is begun is ended.
pub const LIMIT: Duration = Duration::from_secs(8);
/// The tests that are left out, and why.
const SLOW: [(u8, &str); 3] =
    [(1, "--quick does not encode all adapters twice"), (3, "--quick starts no profiler"), (4, "--quick makes no runs by the hundred for their times")];

/// One in [`ONE_OF`] of the cases of each operation, its first among them; the operations in turn, so that all are met where time is short.
pub fn cases(left_out: &mut Vec<LeftOut>) -> Vec<Subject> {
    let all = all();
    let total = all.len();
    let mut met = BTreeMap::new();
    let numbered = all.into_iter().map(|case| {
        let next = met.entry(case.kind().name()).or_insert(0);
        *next += 1;
        (*next - 1, case)
    });
    let mut taken: Vec<(usize, Case)> = numbered.filter(|(number, _)| number % ONE_OF == 0).collect();
    taken.sort_by_key(|(number, _)| *number);
    let count = total - taken.len();
    left_out.push(LeftOut { what: format!("{count} of {total} cases"), count, reason: format!("--quick runs one in {ONE_OF} of each operation") });
    taken.into_iter().map(|(_, case)| Subject::from(case)).collect()
}

/// The tests that are run, by number.
pub fn tests(left_out: &mut Vec<LeftOut>) -> Vec<u8> {
    for (number, reason) in SLOW {
        let what = format!("test {number}, {}", TESTS[usize::from(number) - 1]);
        left_out.push(LeftOut { what, count: 1, reason: reason.into() });
    }
    (1..=TESTS.len() as u8).filter(|number| SLOW.iter().all(|(slow, _)| slow != number)).collect()
}

#[cfg(test)]
mod tests {
    use trifuse_testkit::cases::OpKind;

    use super::*;

    #[test]
    fn a_sample_has_every_operation_at_once_and_counts_the_rest() {
        let mut left_out = Vec::new();
        let subjects = cases(&mut left_out);
        let operations = |subjects: &[Subject]| subjects.iter().map(|subject| subject.kind().name()).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(operations(&subjects).len(), OpKind::ALL.len());
        assert_eq!(operations(&subjects[..OpKind::ALL.len()]).len(), OpKind::ALL.len());
        assert_eq!(subjects.len() + left_out[0].count, all().len());
        let run = tests(&mut left_out);
        assert_eq!(run.len() + left_out[1..].len(), TESTS.len());
    }
}
