//! Events of a stream. A body that ends without its mark is broken off, so that a caller cannot take it for whole.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use http_body::Frame;
use serde_json::Value;
use tokio::sync::mpsc;

use super::fault::Fault;

/// Events that wait for a caller: the next one is made while one is written.
const CAPACITY: usize = 4;

/// Where events are put.
#[derive(Debug)]
pub struct Events(mpsc::Sender<Option<Bytes>>);

/// The caller is gone.
#[derive(Debug)]
pub struct Gone;

impl Events {
    /// A stream, and the answer that carries it.
    pub fn answer() -> (Self, Response) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        let mut response = Response::new(Body::new(Stream { receiver, over: false }));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        (Self(sender), response)
    }

    async fn put(&self, event: Option<String>) -> Result<(), Gone> {
        self.0.send(event.map(Bytes::from)).await.map_err(|_| Gone)
    }

    /// An event.
    ///
    /// # Errors
    /// The caller is gone.
    pub async fn data(&self, value: &Value) -> Result<(), Gone> {
        self.put(Some(format!("data: {value}\n\n"))).await
    }

    /// A line that means nothing, so that nobody between takes the connection for dead.
    ///
    /// # Errors
    /// The caller is gone.
    pub async fn nothing(&self) -> Result<(), Gone> {
        self.put(Some(": keep-alive\n\n".into())).await
    }

    /// Waits until the caller is gone.
    pub async fn gone(&self) {
        self.0.closed().await;
    }

    /// The end of a stream that is whole.
    ///
    /// # Errors
    /// The caller is gone.
    pub async fn done(self) -> Result<(), Gone> {
        self.put(Some("data: [DONE]\n\n".into())).await?;
        self.put(None).await
    }

    /// The end of a stream that is not.
    ///
    /// # Errors
    /// The caller is gone.
    pub async fn fail(self, fault: &Fault) -> Result<(), Gone> {
        self.put(Some(format!("event: error\ndata: {}\n\n", fault.body()))).await?;
        self.put(None).await
    }
}

struct Stream {
    receiver: mpsc::Receiver<Option<Bytes>>,
    over: bool,
}

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        if self.over {
            return Poll::Ready(None);
        }
        Poll::Ready(match ready!(self.receiver.poll_recv(context)) {
            Some(Some(event)) => Some(Ok(Frame::data(event))),
            Some(None) => {
                self.over = true;
                None
            }
            None => {
                self.over = true;
                Some(Err(std::io::Error::other("the stream was left without an end")))
            }
        })
    }
}
