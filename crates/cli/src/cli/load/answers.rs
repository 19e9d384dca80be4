//! Whether answers are the same each time, and those of an adapter other than the base's.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::questions::{Model, Question};

/// What a text's first answer was, as a digest, and how often it came.
#[derive(Clone, Copy, Debug)]
struct First {
    digest: [u8; 32],
    came: u64,
}

/// Parts with a lock of their own, so that threads with answers to different questions seldom wait for each other.
const PARTS: usize = 64;

/// The first answer to every question.
pub struct Answers(Vec<Mutex<HashMap<Question, First>>>);

impl Default for Answers {
    fn default() -> Self {
        Self((0..PARTS).map(|_| Mutex::default()).collect())
    }
}

impl Answers {
    /// Whether an answer is the one that came first. The first is.
    pub fn agrees(&self, question: Question, said: &[u8]) -> bool {
        let digest: [u8; 32] = Sha256::digest(said).into();
        let part = (question.text as usize).wrapping_mul(7).wrapping_add(question.model as usize) % PARTS;
        let mut all = self.0[part].lock().unwrap_or_else(PoisonError::into_inner);
        let first = all.entry(question).or_insert(First { digest, came: 0 });
        let agrees = first.digest == digest;
        first.came += u64::from(agrees);
        agrees
    }

    /// The answers of adapters that say what their base says to the same text: how many did, and how many were compared.
    pub fn as_base(&self, models: &[Model]) -> (u64, u64) {
        let all: HashMap<Question, First> = self.0.iter().flat_map(|part| part.lock().unwrap_or_else(PoisonError::into_inner).clone()).collect();
        let base = |model: &Model| models.iter().position(|other| Some(&other.name) == model.parent.as_ref());
        let bases: Vec<Option<u32>> = models.iter().map(|model| base(model).map(|at| at as u32)).collect();
        let pairs = all.iter().filter_map(|(question, own)| {
            let base = all.get(&Question { model: bases[question.model as usize]?, ..*question })?;
            Some((own.came, base.digest == own.digest))
        });
        pairs.fold((0, 0), |(same, compared), (came, is_same)| (same + if is_same { came } else { 0 }, compared + came))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_changes_and_one_of_the_base_are_found() {
        let model = |name: &str, parent: Option<&str>| Model { name: name.into(), parent: parent.map(str::to_owned) };
        let models = [model("base", None), model("one", Some("base")), model("two", Some("base"))];
        let at = |text: u32, model: u32| Question { text, model };
        let answers = Answers::default();
        assert!(answers.agrees(at(0, 0), b"a") && answers.agrees(at(0, 0), b"a") && !answers.agrees(at(0, 0), b"b"));
        assert!(answers.agrees(at(0, 1), b"c") && answers.agrees(at(1, 1), b"d"), "the second has no answer of the base");
        assert_eq!(answers.as_base(&models), (0, 1));
        assert!(answers.agrees(at(0, 2), b"a") && answers.agrees(at(0, 2), b"a"));
        assert_eq!(answers.as_base(&models), (2, 3));
    }
}
