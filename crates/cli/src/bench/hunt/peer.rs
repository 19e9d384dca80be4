//! Another program that measures the same shapes: it is kept running, and answers a line of JSON with one.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::bench::pattern::Pattern;
use crate::bench::report::Timing;
use crate::bench::shape::Point;
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};

/// The longest answer, in bytes.
const MAX_ANSWER: u64 = 1 << 20;
/// Seconds that a shape may take.
const SECONDS: std::ops::RangeInclusive<f64> = 1e-12..=1e9;
/// Lines of what it said on standard error that are told where it fails.
const LAST_WORDS: usize = 3;
/// Letters of an answer that are told where it is none.
const QUOTED: usize = 160;
/// How long a peer may take to end once it is asked no more.
const LEAVE: Duration = Duration::from_secs(1);
/// How often a wait looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// The first question: how shapes are to be timed.
#[derive(Serialize)]
struct Hello {
    timing: Timing,
    dtype: DType,
}

/// Who answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Who {
    /// The program and its version.
    pub peer: String,
    /// The device that it measures on.
    pub device: String,
}

/// A shape, as a report of `trifuse bench SUITE --json` has it.
#[derive(Serialize)]
struct Question<'a> {
    name: &'a str,
    #[serde(flatten)]
    point: &'a Point,
    pattern: Option<Pattern>,
}

/// What is answered: what benches/peers/run.py writes of a shape.
#[derive(Deserialize)]
struct Answered {
    name: String,
    peers: Vec<Way>,
}

/// A way to compute it, with its time or the reason why there is none.
#[derive(Deserialize)]
struct Way {
    peer: String,
    #[serde(default)]
    cold: Option<Cold>,
    #[serde(default)]
    why: Option<String>,
}

/// Seconds with other data in the caches.
#[derive(Clone, Copy, Deserialize)]
struct Cold {
    median: f64,
}

/// The fastest of a peer's ways to compute a shape, or why there is none.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The name of the fastest, and its seconds.
    Fastest(String, f64),
    /// Every way's reason.
    None(String),
}

/// The program while it runs.
pub struct Peer {
    name: String,
    child: Child,
    questions: Option<Sender<Vec<u8>>>,
    answers: Receiver<Vec<u8>>,
    words: Arc<Mutex<VecDeque<String>>>,
    limit: Duration,
}

impl Peer {
    /// Starts `script` by the interpreter `python`. It may take `limit` for each answer.
    ///
    /// # Errors
    /// A script that is not there; an interpreter that cannot be started.
    pub fn start(python: &Path, script: &Path, limit: Duration) -> Result<Self> {
        if !script.is_file() {
            return Err(Error::input(
                script,
                "expected the script that measures peers, found no file; run from the root of the repository, or name it by --peer-script",
            ));
        }
        let mut command = Command::new(python);
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for this program, which ends the other one.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(Error::io(python, "start"))?;
        let (questions, asked) = channel::<Vec<u8>>();
        let (answered, answers) = channel();
        let words = Arc::new(Mutex::new(VecDeque::new()));
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let name = format!("the peer `{} {}`", python.display(), script.display());
        // A peer that reads or writes nothing more holds up a thread, and not this program.
        let thread = |work: Box<dyn FnOnce() + Send>| Builder::new().name("peer".into()).spawn(work).map(drop).map_err(Error::io(python, "talk to"));
        let mut peer = Self { name, child, questions: Some(questions), answers, words: Arc::clone(&words), limit };
        let spawned = thread(Box::new(move || {
            if let Some(mut input) = input {
                while asked.recv().is_ok_and(|line| input.write_all(&line).and_then(|()| input.flush()).is_ok()) {}
            }
        }))
        .and_then(|()| {
            thread(Box::new(move || {
                let Some(output) = output else { return };
                let mut output = BufReader::new(output);
                while line(&mut output).is_some_and(|line| answered.send(line).is_ok()) {}
            }))
        })
        .and_then(|()| {
            thread(Box::new(move || {
                let Some(errors) = errors else { return };
                let mut errors = BufReader::new(errors);
                while let Some(line) = line(&mut errors) {
                    keep(&words, &line);
                }
            }))
        });
        match spawned {
            Ok(()) => Ok(peer),
            Err(error) => {
                peer.end();
                Err(error)
            }
        }
    }

    /// Tells how to time, and learns who measures; nothing where `stop` said so first.
    ///
    /// # Errors
    /// A peer that ends, hangs or says something else.
    pub fn hello(&mut self, timing: Timing, dtype: DType, stop: &dyn Fn() -> bool) -> Result<Option<Who>> {
        let Some(text) = self.ask(&Hello { timing, dtype }, "the first line", stop)? else { return Ok(None) };
        serde_json::from_slice(&text).map(Some).map_err(|error| self.nonsense("its name and its device", &text, error))
    }

    /// Has a shape measured; nothing where `stop` said so first.
    ///
    /// # Errors
    /// A peer that ends, hangs or says something else than the times of that shape.
    pub fn measure(&mut self, name: &str, point: &Point, stop: &dyn Fn() -> bool) -> Result<Option<Answer>> {
        let question = Question { name, point, pattern: point.shape.pattern()? };
        let Some(text) = self.ask(&question, name, stop)? else { return Ok(None) };
        let wanted = format!("times of {name}");
        let answer: Answered = serde_json::from_slice(&text).map_err(|error| self.nonsense(&wanted, &text, error))?;
        if answer.name != name {
            return Err(self.nonsense(&wanted, &text, "those of another shape"));
        }
        let mut times = answer.peers.iter().filter_map(|way| Some((way, way.cold?.median)));
        if let Some((_, odd)) = times.clone().find(|(_, seconds)| !SECONDS.contains(seconds)) {
            return Err(self.nonsense(&wanted, &text, format!("a time of {odd:e} s")));
        }
        let Some(first) = times.next() else {
            let why = answer.peers.iter().map(|way| format!("{}: {}", way.peer, way.why.as_deref().unwrap_or("no time")));
            return Ok(Some(Answer::None(why.collect::<Vec<_>>().join("; "))));
        };
        let (fastest, seconds) = times.fold(first, |best, next| if next.1 < best.1 { next } else { best });
        Ok(Some(Answer::Fastest(fastest.peer.clone(), seconds)))
    }

    fn ask<Q: Serialize>(&mut self, question: &Q, about: &str, stop: &dyn Fn() -> bool) -> Result<Option<Vec<u8>>> {
        let mut line = serde_json::to_vec(question).map_err(|error| Error::invalid("question", "values that JSON can hold", error))?;
        line.push(b'\n');
        // Where the thread that writes has ended, so has the peer, and no answer will come.
        let _ = self.questions.as_ref().map(|questions| questions.send(line));
        let asked = Instant::now();
        loop {
            match self.answers.recv_timeout(LOOK) {
                Ok(text) if text.last() == Some(&b'\n') => return Ok(Some(text)),
                Ok(text) if text.len() as u64 > MAX_ANSWER => return Err(self.nonsense("a line", &text, format!("more than {MAX_ANSWER} bytes"))),
                // Its last words, without the end of a line.
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return Err(self.died(about)),
                Err(RecvTimeoutError::Timeout) if stop() => return Ok(None),
                Err(RecvTimeoutError::Timeout) if asked.elapsed() > self.limit => {
                    let expected = format!("an answer about {about} within {:?} (--peer-limit)", self.limit);
                    return Err(Error::invalid(&self.name, expected, format!("none{}", self.last_words())));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn nonsense(&self, wanted: &str, text: &[u8], why: impl std::fmt::Display) -> Error {
        let quoted: String = String::from_utf8_lossy(text).trim().chars().take(QUOTED).collect();
        Error::invalid(&self.name, wanted, format!("{why} in {quoted:?}{}", self.last_words()))
    }

    fn died(&mut self, about: &str) -> Error {
        let status = self.wait(LEAVE).map_or_else(|| "it closed its output".to_owned(), |status| format!("it ended with {status}"));
        // What it said last may be on its way still.
        sleep(LOOK);
        Error::invalid(&self.name, format!("an answer about {about}"), format!("{status}{}", self.last_words()))
    }

    /// What it said last on standard error.
    fn last_words(&self) -> String {
        let words = self.words.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if words.is_empty() { String::new() } else { format!("; its last words: {}", words.iter().cloned().collect::<Vec<_>>().join(" / ")) }
    }

    fn wait(&mut self, most: Duration) -> Option<std::process::ExitStatus> {
        let began = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(None) if began.elapsed() < most => sleep(LOOK),
                status => return status.ok().flatten(),
            }
        }
    }

    /// Ends it: by the end of its input, else by force.
    fn end(&mut self) {
        self.questions = None;
        if self.wait(LEAVE).is_none() {
            // One that has ended meanwhile needs none.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.end();
    }
}

/// The next line with its end, or what there is of one that is too long or the last; nothing at the end.
fn line(from: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let read = from.by_ref().take(MAX_ANSWER + 1).read_until(b'\n', &mut text);
    (read.is_ok() && !text.is_empty()).then_some(text)
}

fn keep(words: &Mutex<VecDeque<String>>, line: &[u8]) {
    let text: String = String::from_utf8_lossy(line).trim().chars().take(QUOTED).collect();
    if !text.is_empty() {
        let mut words = words.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        words.push_back(text);
        if words.len() > LAST_WORDS {
            words.pop_front();
        }
    }
}
