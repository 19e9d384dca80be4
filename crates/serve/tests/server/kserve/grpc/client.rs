//! A client of one connection, which frames messages by hand.

use std::net::SocketAddr;

use axum::http::{HeaderMap, Request};
use bytes::Bytes;
use h2::client::SendRequest;
use prost::Message;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

/// How a call ended.
#[derive(Debug)]
pub struct Answer {
    /// The status of HTTP.
    pub http: u16,
    /// The code of gRPC; `None` where the answer has none.
    pub code: Option<u32>,
    pub words: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    /// The message of a call that ended well.
    pub fn message<M: Message + Default>(&self) -> M {
        assert_eq!((self.http, self.code), (200, Some(0)), "{}", self.words);
        let (prefix, message) = self.body.split_at(5);
        assert_eq!((prefix[0], prefix[1..].to_vec()), (0, (message.len() as u32).to_be_bytes().to_vec()));
        M::decode(message).unwrap()
    }
}

/// A connection.
pub struct Client {
    pub runtime: Runtime,
    pub calls: SendRequest<Bytes>,
    /// Ends with the connection, and tells whether that ended well.
    pub connection: tokio::task::JoinHandle<Result<(), h2::Error>>,
}

/// A request of these headers besides those that all have.
pub fn request(path: &str, headers: &[(&str, &str)]) -> Request<()> {
    let all = [("te", "trailers"), ("content-type", "application/grpc")].into_iter().filter(|(name, _)| !headers.iter().any(|(own, _)| own == name));
    let mut request = Request::post(format!("http://test{path}"));
    for (name, value) in all.chain(headers.iter().copied()) {
        request = request.header(name, value);
    }
    request.body(()).unwrap()
}

/// A message with what stands before it.
pub fn framed(message: &[u8]) -> Bytes {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat().into()
}

/// Sends a request and takes all of its answer.
pub async fn ask(calls: SendRequest<Bytes>, request: Request<()>, body: Bytes) -> Result<Answer, h2::Error> {
    let mut calls = calls.ready().await?;
    let (answer, mut stream) = calls.send_request(request, false)?;
    // A server that refuses reads no further.
    drop(stream.send_data(body, true));
    let (parts, mut body) = answer.await?.into_parts();
    let mut taken = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        taken.extend_from_slice(&piece);
    }
    let trailers = body.trailers().await?.unwrap_or_default();
    let told = |name: &str| trailers.get(name).or_else(|| parts.headers.get(name)).map(|value| value.to_str().unwrap().to_owned());
    let code = told("grpc-status").map(|code| code.parse().unwrap());
    Ok(Answer { http: parts.status.as_u16(), code, words: told("grpc-message").unwrap_or_default(), headers: parts.headers, body: taken })
}

impl Client {
    pub fn to(addr: SocketAddr) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (calls, connection) = runtime.block_on(async {
            let stream = TcpStream::connect(addr).await.unwrap();
            h2::client::handshake(stream).await.unwrap()
        });
        let connection = runtime.spawn(connection);
        Self { runtime, calls, connection }
    }

    /// Calls a method by its path.
    pub fn call(&self, path: &str, message: &impl Message, headers: &[(&str, &str)]) -> Answer {
        self.send(path, framed(&message.encode_to_vec()), headers)
    }

    /// Sends bytes as they are.
    pub fn send(&self, path: &str, body: Bytes, headers: &[(&str, &str)]) -> Answer {
        self.runtime.block_on(ask(self.calls.clone(), request(path, headers), body)).unwrap()
    }
}
