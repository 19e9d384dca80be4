//! The body of an answer: a message in pieces, and how the call ended behind it.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::http::HeaderMap;
use bytes::Bytes;
use http_body::{Body, Frame};

use crate::http::activity::Answering;

/// The bytes of a piece. The next one is asked for once the caller has taken some.
const PIECE: usize = 64 << 10;

#[derive(Debug, Default)]
struct Streams {
    /// The number of the next answer.
    next: u64,
    /// When each answer that is on its way was last asked for a piece.
    since: BTreeMap<u64, Instant>,
}

/// The answers of a connection that are on their way.
#[derive(Clone, Debug, Default)]
pub struct Sending(Arc<Mutex<Streams>>);

impl Sending {
    fn lock(&self) -> MutexGuard<'_, Streams> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> u64 {
        let mut streams = self.lock();
        let number = streams.next;
        streams.next += 1;
        streams.since.insert(number, Instant::now());
        number
    }

    /// Since when the caller takes nothing of one of them.
    pub fn stalled(&self) -> Option<Instant> {
        self.lock().since.values().min().copied()
    }
}

/// The body of an answer.
#[derive(Debug)]
pub struct Answer {
    message: Bytes,
    trailers: Option<HeaderMap>,
    sending: Sending,
    number: u64,
    _answering: Answering,
}

impl Answer {
    /// A message and the trailers behind it; neither where the header says all.
    pub fn new(message: Bytes, trailers: Option<HeaderMap>, sending: &Sending, answering: Answering) -> Self {
        Self { message, trailers, sending: sending.clone(), number: sending.begin(), _answering: answering }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let number = self.number;
        self.sending.lock().since.insert(number, Instant::now());
        if self.message.is_empty() {
            return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        }
        let length = self.message.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.message.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_empty() && self.trailers.is_none()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.sending.lock().since.remove(&self.number);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::http::activity::Activity;

    #[test]
    fn a_message_comes_in_pieces_and_an_answer_is_on_its_way_until_it_is_taken() {
        let (sending, trailers) = (Sending::default(), HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]));
        let sent = Bytes::from(vec![7; PIECE + 1]);
        let mut answer = Answer::new(sent.clone(), Some(trailers.clone()), &sending, Activity::begin().answer());
        let began = sending.stalled().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut next = || runtime.block_on(answer.frame()).map(Result::unwrap);
        let pieces = [next().unwrap().into_data().unwrap(), next().unwrap().into_data().unwrap()];
        assert_eq!((pieces.each_ref().map(Bytes::len), pieces.concat()), ([PIECE, 1], sent.to_vec()));
        assert!(sending.stalled().unwrap() > began);
        assert_eq!(next().unwrap().into_trailers().unwrap(), trailers);
        assert!(next().is_none());
        assert!(answer.is_end_stream());
        drop(answer);
        assert_eq!(sending.stalled(), None);
    }
}
