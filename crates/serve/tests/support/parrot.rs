//! A stand-in for a language model's engine, which says what the prompt tells it to.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use trifuse::adapters::encoded::EncodedAdapter;
use trifuse::llm::Message;
use trifuse::llm::schedule::Finish;
use trifuse::{Error, Result};
use trifuse_serve::generate::{Accept, Generate, NotLetIn, Prompt, Sent, Token};
use trifuse_serve::keeper::{Holder, Keeper, Names};
use trifuse_serve::line::Closed;
use trifuse_serve::queueing::admit::Refused;
use trifuse_serve::queueing::registry::{Generation, Lease, Registry};
use trifuse_serve::queueing::ticket::Failure;

/// Ids are bytes; it says the prompt again, turned round, and in capitals with an adapter. A prompt with `!` fails at the end, one with `#` finds no device, and
/// one with `?` never ends, unless the parrot is bounded: then it keeps to its context and has no faults. It gives its seat up before one with `~`.
pub struct Parrot {
    pub prompts: Mutex<Vec<Prompt>>,
    pub bounded: bool,
    /// The prompts that it takes at once.
    pub seats: usize,
    /// How often it has no room for a prompt.
    pub full: AtomicUsize,
    pub keeper: Keeper<String>,
}

impl Default for Parrot {
    fn default() -> Self {
        let mut registry = Registry::new("parrot");
        registry.load(Generation::new("loud", "1", "loud".into()), false, None).unwrap();
        Self {
            prompts: Mutex::default(),
            bounded: false,
            seats: usize::MAX,
            full: AtomicUsize::new(0),
            keeper: Keeper::new(Names::new(registry), Box::new(Anything)),
        }
    }
}

/// A device that takes any adapter.
struct Anything;

impl Holder<String> for Anything {
    fn add(&self, name: &str, _: EncodedAdapter) -> Result<String> {
        Ok(name.into())
    }

    fn sweep(&self) {}

    fn are_resident(&self, _: &[Lease<String>]) -> Option<Vec<bool>> {
        None
    }
}

impl Generate for Parrot {
    fn keeper(&self) -> &Keeper<String> {
        &self.keeper
    }

    fn max_tokens(&self) -> usize {
        200
    }

    fn vocabulary(&self) -> usize {
        256
    }

    fn encode(&self, text: &str, marks: bool) -> Result<Vec<u32>> {
        Ok(marks.then_some(1).into_iter().chain(text.bytes().map(u32::from)).collect())
    }

    fn render(&self, messages: &[Message], _: Option<&Lease<String>>) -> Result<String> {
        match messages.last() {
            Some(last) if last.role == "user" => Ok(last.content.clone()),
            _ => Err(Error::invalid("chat", "a turn of the user", "another")),
        }
    }

    fn decode(&self, ids: &[u32]) -> Vec<u8> {
        ids.iter().filter(|id| **id > 1).map(|id| *id as u8).collect()
    }

    fn seats(&self) -> usize {
        self.seats
    }

    fn submit(&self, prompt: Prompt, accept: Accept) -> Result<(), Box<NotLetIn>> {
        if self.full.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Err(accept.refuse(Closed::Busy(Refused { retry_after: Duration::from_secs(1) })));
        }
        self.prompts.lock().unwrap().push(prompt.clone());
        if !self.bounded && prompt.ids.contains(&u32::from(b'#')) {
            return Err(accept.refuse(Closed::For(Failure::DeviceLost)));
        }
        let (mut tokens, faulty) = (accept.accept(), !self.bounded);
        let room = if self.bounded { self.max_tokens().saturating_sub(prompt.ids.len()) } else { usize::MAX };
        std::thread::spawn(move || {
            let text: Vec<u8> = prompt.ids.iter().rev().filter(|id| **id > 1).map(|id| *id as u8).collect();
            if text.contains(&b'~') {
                tokens.free_seat();
            }
            let text = if prompt.adapter.is_some() { text.to_ascii_uppercase() } else { text };
            // Whether the caller is still there.
            let send = |mut token: Token| loop {
                match tokens.send(token) {
                    Sent::Taken => break true,
                    Sent::Gone => break false,
                    Sent::Full(same) => token = same,
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            let behind = if prompt.prompt_logprobs.is_some() { &prompt.ids[1..] } else { &[] };
            if !behind.iter().all(|id| send(Token { id: *id, of_prompt: true, logprob: -2.0, top: vec![(*id, -2.0)] })) {
                return drop(tokens);
            }
            let most = prompt.max_tokens.unwrap_or(room);
            let endless = text.contains(&b'?');
            for (count, byte) in text.iter().cycle().take(if endless { usize::MAX } else { text.len() }).enumerate() {
                if count == most {
                    return tokens.finish(Finish::Length);
                }
                let id = u32::from(*byte);
                if !send(Token { id, of_prompt: false, logprob: -0.5, top: vec![(id, -0.5), (65, -1.5)] }) {
                    return drop(tokens);
                }
            }
            match faulty && text.contains(&b'!') {
                true => tokens.fail(Failure::Internal("a fault that is planned".into())),
                false => tokens.finish(Finish::Stop),
            }
        });
        Ok(())
    }

    fn close(&self, _: bool) {}
}
