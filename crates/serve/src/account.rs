//! What is known of a request while it is answered, which whoever wants to know is told at its end.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::spent::Spent;

/// The characters of a name that are kept.
const MAX_NAME: usize = 200;

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// By this status of HTTP.
    Http(u16),
    /// By this code of gRPC.
    #[cfg(feature = "grpc")]
    Grpc(u8),
}

/// What is known of a request.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(not(feature = "otlp"), allow(dead_code, reason = "traces alone tell them"))]
pub struct Facts {
    /// The model or adapter that it names.
    pub model: Option<String>,
    /// The tokens of its texts or prompts, and those that were written.
    pub tokens: Option<[usize; 2]>,
    /// The time until the first token that was written.
    pub first_token: Option<Duration>,
    /// The time until the last part of its work reached a device, and the time of the batch with it.
    pub spent: Option<[Duration; 2]>,
    /// How it was answered; where it was not, its caller has gone away.
    pub answer: Option<Answer>,
    /// What went wrong, by the name that errors have.
    pub fault: Option<&'static str>,
}

/// What is told of a request at its end.
type Told = Box<dyn FnOnce(Facts) + Send + Sync>;

#[derive(Default)]
struct Inner {
    facts: Mutex<Facts>,
    spent: Arc<Spent>,
    told: Option<Told>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(told) = self.told.take() {
            let facts = std::mem::take(self.facts.get_mut().unwrap_or_else(PoisonError::into_inner));
            told(Facts { spent: self.spent.times(), ..facts });
        }
    }
}

/// What is known of a request. It has ended when nobody holds this any more.
#[derive(Clone, Default)]
pub struct Account(Arc<Inner>);

impl Account {
    /// One that is told to `told` at its end.
    #[cfg(feature = "otlp")]
    pub fn told_to(told: impl FnOnce(Facts) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { facts: Mutex::default(), spent: Arc::default(), told: Some(Box::new(told)) }))
    }

    fn note(&self, note: impl FnOnce(&mut Facts)) {
        // What nobody is told is not kept.
        if self.0.told.is_some() {
            note(&mut self.0.facts.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// What its work takes.
    pub fn spent(&self) -> &Arc<Spent> {
        &self.0.spent
    }

    /// It names this model or adapter.
    pub fn asks(&self, model: &str) {
        self.note(|facts| facts.model = Some(model.chars().take(MAX_NAME).collect()));
    }

    /// It has tokens of a prompt, and has got some.
    pub fn has(&self, prompt: usize, written: usize) {
        self.note(|facts| {
            let [prompts, all] = facts.tokens.unwrap_or_default();
            facts.tokens = Some([prompts + prompt, all + written]);
        });
    }

    /// It has got its first token after this time.
    pub fn begun(&self, after: Duration) {
        self.note(|facts| facts.first_token = facts.first_token.or(Some(after)));
    }

    /// It was answered so, or its answer has begun so.
    pub fn answered(&self, answer: Answer) {
        self.note(|facts| facts.answer = Some(answer));
    }

    /// It has failed.
    pub fn failed(&self, fault: &'static str) {
        self.note(|facts| facts.fault = Some(fault));
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.facts.fmt(f)
    }
}

#[cfg(all(test, feature = "otlp"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_once_when_the_last_holder_is_gone() {
        let (told, facts) = std::sync::mpsc::channel();
        let account = Account::told_to(move |facts| told.send(facts).unwrap());
        let other = account.clone();
        account.asks("left");
        account.has(3, 0);
        other.has(2, 7);
        other.begun(Duration::from_millis(4));
        other.begun(Duration::from_millis(9));
        account.spent().ran(Duration::from_millis(1), Duration::from_millis(2));
        account.answered(Answer::Http(200));
        drop(account);
        assert!(facts.try_recv().is_err(), "a stream goes on");
        other.failed("abort");
        drop(other);
        let [first, spent @ ..] = [4, 1, 2].map(Duration::from_millis);
        let expected = Facts {
            model: Some("left".into()),
            tokens: Some([5, 7]),
            first_token: Some(first),
            spent: Some(spent),
            answer: Some(Answer::Http(200)),
            fault: Some("abort"),
        };
        assert_eq!(facts.recv().unwrap(), expected);
        assert!(facts.recv().is_err(), "it is told once");
    }
}
