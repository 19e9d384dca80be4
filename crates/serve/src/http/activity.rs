//! What a connection does and since when, and so whether it has taken too long.

use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use hyper::rt::ReadBufCursor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::config::Limits;

#[derive(Clone, Copy, Debug)]
enum Doing {
    /// Nothing, until the next request.
    Idle,
    /// It reads the header of a request.
    Header,
    /// It answers one.
    Answer,
}

#[derive(Debug)]
struct State {
    doing: Doing,
    since: Instant,
    /// Answers that are on their way.
    answers: usize,
    /// Whether requests run side by side, so that what comes in is not the header of one alone.
    many: bool,
    /// Since when the caller takes nothing.
    stalled: Option<Instant>,
}

/// What a connection does.
#[derive(Clone, Debug)]
pub struct Activity(Arc<Mutex<State>>);

impl Activity {
    /// A connection that is new.
    pub fn begin() -> Self {
        Self::new(false)
    }

    /// A connection that is new, whose requests run side by side.
    #[cfg(feature = "grpc")]
    pub fn of_many() -> Self {
        Self::new(true)
    }

    fn new(many: bool) -> Self {
        Self(Arc::new(Mutex::new(State { doing: Doing::Idle, since: Instant::now(), answers: 0, many, stalled: None })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The header of a request is there; the answer lasts until what is returned is dropped.
    pub fn answer(&self) -> Answering {
        let mut state = self.lock();
        state.answers += 1;
        (state.doing, state.since) = (Doing::Answer, Instant::now());
        Answering(self.clone())
    }

    /// Whether the caller has taken nothing for too long.
    pub fn is_stalled(&self, limits: &Limits) -> bool {
        self.lock().stalled.is_some_and(|since| since.elapsed() > limits.stalled)
    }

    /// Whether the connection has to be given up.
    pub fn is_over(&self, limits: &Limits) -> bool {
        let state = self.lock();
        let most = match state.doing {
            Doing::Idle => Some(limits.idle),
            Doing::Header => Some(limits.header),
            Doing::Answer => None,
        };
        let over = most.is_some_and(|most| state.since.elapsed() > most);
        drop(state);
        over || self.is_stalled(limits)
    }
}

/// An answer that is on its way.
#[derive(Debug)]
pub struct Answering(Activity);

impl Drop for Answering {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.answers = state.answers.saturating_sub(1);
        if state.answers == 0 {
            (state.doing, state.since) = (Doing::Idle, Instant::now());
        }
    }
}

/// The body of an answer, with the mark that it is on its way.
#[derive(Debug)]
pub struct Marked {
    body: Body,
    _answering: Answering,
}

impl Marked {
    /// The body with its mark.
    pub fn new(body: Body, answering: Answering) -> Self {
        Self { body, _answering: answering }
    }
}

impl http_body::Body for Marked {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A socket whose reads and writes are noted.
#[derive(Debug)]
pub struct Watched {
    /// The socket.
    pub stream: TcpStream,
    activity: Activity,
}

impl Watched {
    /// The socket of a connection.
    pub fn new(stream: TcpStream, activity: Activity) -> Self {
        Self { stream, activity }
    }

    fn written<T>(&self, poll: Poll<T>) -> Poll<T> {
        let mut state = self.activity.lock();
        state.stalled = if poll.is_pending() { state.stalled.or_else(|| Some(Instant::now())) } else { None };
        poll
    }
}

/// The bytes that are read at once, at most.
const CHUNK: usize = 8 << 10;

impl hyper::rt::Read for Watched {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, mut into: ReadBufCursor<'_>) -> Poll<std::io::Result<()>> {
        let mut bytes = [MaybeUninit::uninit(); CHUNK];
        let most = into.remaining().min(CHUNK);
        let mut buffer = ReadBuf::uninit(&mut bytes[..most]);
        ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
        into.put_slice(buffer.filled());
        let mut state = self.activity.lock();
        if matches!(state.doing, Doing::Idle) && !state.many && !buffer.filled().is_empty() {
            (state.doing, state.since) = (Doing::Header, Instant::now());
        }
        Poll::Ready(Ok(()))
    }
}

impl hyper::rt::Write for Watched {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
