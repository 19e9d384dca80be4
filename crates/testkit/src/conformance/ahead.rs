//! What a case needs before a device sees it, made for many cases at once.

use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};

use super::Subject;
use crate::cases::Problem;
use trifuse::error::Result;

/// Draws the operands of every subject and computes its answers, on all cores. Each is handed to `run`, on this thread, as it becomes ready, with
/// its number in `subjects`; a case that cannot be drawn, or has no answer, as its error. Memory holds two cases a core, however many there are.
///
/// `plan` is told of each case that is drawn, on the thread that drew it: what compiles kernels does so on all cores.
///
/// Subjects are asked for one by one, as cores become free: an iterator that ends early ends the work.
pub fn ahead(subjects: impl Iterator<Item = Subject> + Send, plan: impl Fn(&Problem) + Sync, mut run: impl FnMut(usize, &Subject, Result<Problem>)) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let queue = Mutex::new(subjects.enumerate());
    std::thread::scope(|scope| {
        let (ready, prepared) = sync_channel(threads);
        for _ in 0..threads {
            let (ready, queue, plan) = (ready.clone(), &queue, &plan);
            scope.spawn(move || {
                let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                while let Some((number, subject)) = next() {
                    let problem = prepare(&subject, plan);
                    // Nobody listens once `run` has panicked.
                    if ready.send((number, subject, problem)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(ready);
        for (number, subject, problem) in prepared {
            run(number, &subject, problem);
        }
    });
}

/// The operands of a subject, whose answers it has from then on.
fn prepare(subject: &Subject, plan: &impl Fn(&Problem)) -> Result<Problem> {
    let problem = subject.problem()?;
    plan(&problem);
    subject.expected(&problem)?;
    Ok(problem)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cases::{Case, OpKind, all};
    use trifuse::error::Error;

    #[test]
    fn every_case_comes_once_with_its_own_operands_and_answers() {
        let small = || all().into_iter().filter(|case| case.kind() == OpKind::Pointwise).take(40);
        let names: Vec<String> = small().map(|case| case.name().to_owned()).collect();
        let mut seen = vec![0; names.len()];
        let planned = std::sync::atomic::AtomicUsize::new(0);
        let plan = |_: &Problem| {
            planned.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        };
        ahead(small().map(Subject::from), plan, |number, subject, problem| {
            assert_eq!(subject.name(), names[number]);
            let (Problem::Pointwise(drawn), Problem::Pointwise(again)) = (problem.unwrap(), subject.problem().unwrap()) else { unreachable!() };
            assert!(drawn.host.x.iter().zip(&again.host.x).all(|(a, b)| a.to_bits() == b.to_bits()));
            assert!(subject.expected.get().is_some());
            seen[number] += 1;
        });
        assert!(!seen.is_empty() && seen.iter().all(|&times| times == 1), "{seen:?}");
        assert_eq!(planned.into_inner(), seen.len());
    }

    #[test]
    fn what_cannot_be_drawn_is_handed_over_as_its_error() {
        let broken = Case::new(OpKind::Linear, "broken", |_| Err(Error::invalid("case", "operands", "none")));
        let mut told = Vec::new();
        ahead(
            std::iter::once(Subject::from(broken)),
            |_| unreachable!("nothing is drawn"),
            |number, subject, problem| told.push((number, subject.name().to_owned(), problem.is_err())),
        );
        assert_eq!(told, [(0, "linear/broken".to_owned(), true)]);
    }
}
