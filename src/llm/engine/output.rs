//! What a step tells.

use crate::llm::sample::Choice;
use crate::llm::schedule::Finished;
use crate::llm::step::RequestId;

/// What became of a request in a step.
#[derive(Clone, Debug)]
pub enum Output {
    /// How probable some tokens of the prompt were, in their order, from the second on. All are told before the first token that is drawn.
    Prompt {
        /// The request that it belongs to.
        request: RequestId,
        /// The tokens, as the prompt has them.
        choices: Vec<Choice>,
    },
    /// A token was drawn.
    Token {
        /// The request that it belongs to.
        request: RequestId,
        /// The token, and how probable it was.
        choice: Choice,
    },
    /// The request has ended. Nothing of it comes any more.
    Ended {
        /// Which one, why, and how far it came.
        finished: Finished,
        /// What failed, where the reason is [`Finish::Error`](crate::llm::schedule::Finish::Error).
        error: Option<String>,
    },
}
