//! `chat`: a talk with a model, a line a turn.

use std::io::{BufRead, IsTerminal};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use trifuse::backends::{AnyDevice, Choice};
use trifuse::llm::{Files, Message, Model};
use trifuse::{Error, Result};

use super::Outcome;
use super::generate::{Finish, Speaker, Writing, show, went_away};
use super::interrupt::Interrupt;
use super::output::Output;
use super::start::Starting;

/// How often a wait for a line looks whether the program is to end.
const LOOK: Duration = Duration::from_millis(50);

/// Arguments of `chat`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    writing: Writing,
    /// What the model is told before the first turn; by default what its template says
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Tokens that the chat has room for; by default 4096, or as many as the model was made for
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
}

/// Reads a turn, and answers it, until there are no more.
pub fn run(args: &Args, backend: &Choice, output: &Output) -> Result<Outcome> {
    if output.is_json() {
        return Err(Error::invalid("--json", "a command that ends with one result, as generate", "chat"));
    }
    let mut starting = Starting::now();
    let interrupt = Interrupt::listen()?;
    let files = Files::open(&args.writing.model)?;
    if files.template.is_none() {
        return Err(Error::input(&args.writing.model, "expected a model with a chat template, found none: generate goes on with any text"));
    }
    let device = starting.open(backend)?;
    Job { args, output, starting, interrupt, files: &files }.on(device)
}

struct Job<'a> {
    args: &'a Args,
    output: &'a Output,
    starting: Starting,
    interrupt: Interrupt,
    files: &'a Files,
}

impl Job<'_> {
    fn on(self, device: AnyDevice) -> Result<Outcome> {
        let Self { args, output, starting, interrupt, files } = self;
        let room = args.context.map_or(4096.min(files.config.context), |room| room as usize);
        let dtype = args.writing.dtype(&device);
        let model = Model::open(Arc::new(device), files, dtype)?;
        let mut speaker = args.writing.speaker(model, files, room, (starting, output))?;
        let typed = std::io::stdin().is_terminal();
        if typed {
            output.note("A line is a turn. /new begins again, Ctrl-C ends an answer, and then Ctrl-C or Ctrl-D the chat.");
        }
        let start: Vec<Message> = args.system.iter().map(|text| Message::new("system", text)).collect();
        let mut chat = start.clone();
        let lines = lines();
        loop {
            if typed {
                show("> ")?;
            }
            let Some(line) = wait(&lines, &interrupt)? else {
                return Ok(if interrupt.asked() { Outcome::Interrupted } else { Outcome::Right });
            };
            match line.trim() {
                "" => continue,
                "/new" => chat.clone_from(&start),
                turn => {
                    chat.push(Message::new("user", turn));
                    match answer(&mut speaker, &mut chat, args, output, &interrupt) {
                        Err(error) if went_away(&error) => return Ok(Outcome::Right),
                        other => other?,
                    }
                }
            }
        }
    }
}

/// Answers the last turn of `chat`, and adds the answer.
fn answer(speaker: &mut Speaker<'_>, chat: &mut Vec<Message>, args: &Args, output: &Output, interrupt: &Interrupt) -> Result<()> {
    let files = speaker.files;
    let text = files.template.as_ref().map_or_else(|| Ok(String::new()), |template| template.render(chat, true))?;
    let ids = files.tokenizer.encode(&text, false)?;
    let room = speaker.room();
    if ids.len() >= room {
        chat.pop();
        output.note(format_args!("this turn makes a chat of {} tokens, and there is room for {room}: /new begins again", ids.len()));
        return Ok(());
    }
    let answer = speaker.answer(&ids, args.writing.max_tokens as usize, interrupt, &mut show)?;
    show("\n")?;
    output.note(answer.sentence());
    chat.push(Message::new("assistant", &answer.text));
    if answer.finish == Finish::Interrupted {
        interrupt.forget();
    }
    Ok(())
}

/// The lines of standard input, read by a thread of their own: a signal does not end a wait for one.
fn lines() -> Receiver<std::io::Result<String>> {
    let (sender, lines) = sync_channel(1);
    std::thread::spawn(move || std::io::stdin().lock().lines().try_for_each(|line| sender.send(line)));
    lines
}

/// The next line; none where there are no more, or the program is to end.
fn wait(lines: &Receiver<std::io::Result<String>>, interrupt: &Interrupt) -> Result<Option<String>> {
    while !interrupt.asked() {
        match lines.recv_timeout(LOOK) {
            Ok(line) => return line.map(Some).map_err(Error::io("standard input", "read")),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
    Ok(None)
}
