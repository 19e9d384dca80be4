//! A message on its stream: a mark of compression, four bytes of length, and as many bytes.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use prost::Message;
use tokio::time::timeout;

use super::status::Status;
use crate::http::app::App;
use crate::http::body::{Held, room};
use crate::http::fault::Fault;

/// The bytes before a message.
const PREFIX: usize = 5;

/// The one message of a request, within the limits of size and time, and of what all bodies together may hold.
///
/// # Errors
/// A message that is compressed, longer than it may be, cut or followed by another; one that takes too long; no room for it.
pub async fn read<B: Body<Data = Bytes> + Unpin>(app: &Arc<App>, body: B, most: usize) -> Result<Held, Status> {
    let time = app.config.limits.body;
    timeout(time, message(body, most, |length| room(app, length))).await.map_err(|_| Fault::slow(time))?
}

async fn message<B, R>(mut body: B, most: usize, room: impl Fn(usize) -> Result<R, Fault>) -> Result<Held<R>, Status>
where
    B: Body<Data = Bytes> + Unpin,
{
    let cut = || Status::from(Fault::invalid("body_not_read", "expected one whole message, found its end before"));
    let mut whole = BytesMut::new();
    let mut told = None;
    while let Some(frame) = body.frame().await {
        // What a caller sends behind its message says nothing here.
        let Ok(data) = frame.map_err(|_| cut())?.into_data() else { continue };
        whole.extend_from_slice(&data);
        if let (None, [compressed, a, b, c, d, ..]) = (&told, &whole[..]) {
            if *compressed != 0 {
                return Err(Status::unimplemented("expected a message as it is, found one that is compressed"));
            }
            let length = usize::try_from(u32::from_be_bytes([*a, *b, *c, *d])).ok().filter(|length| *length <= most);
            let length = length.ok_or_else(|| Fault::large(most))?;
            told = Some((length, room(length)?));
            whole.reserve((PREFIX + length).saturating_sub(whole.len()));
        }
        if told.as_ref().is_some_and(|(length, _)| whole.len() > PREFIX + length) {
            return Err(Fault::invalid("invalid_value", "expected one message, found more behind it").into());
        }
    }
    match told {
        Some((length, room)) if whole.len() == PREFIX + length => Ok(Held::new(whole.freeze().slice(PREFIX..), room)),
        _ => Err(cut()),
    }
}

/// The message with its prefix.
///
/// # Errors
/// A message of 4 GiB or more.
pub fn framed(message: &impl Message) -> Result<Bytes, Status> {
    let length = message.encoded_len();
    let told = u32::try_from(length).map_err(|_| Fault::internal())?;
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(told);
    message.encode(&mut bytes).map_err(|_| Fault::internal())?;
    Ok(bytes.freeze())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::Cell;
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http_body::Frame;
    use proptest::prelude::*;

    use super::super::messages::ModelName;
    use super::*;

    /// Pieces as they come.
    struct Pieces(Vec<Bytes>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let next = if self.0.is_empty() { None } else { Some(Ok(Frame::data(self.0.remove(0)))) };
            Poll::Ready(next)
        }
    }

    fn reads(pieces: Vec<Bytes>, most: usize) -> (Result<Vec<u8>, Status>, usize) {
        let taken = Cell::new(0);
        let room = |length: usize| {
            taken.set(taken.get() + length);
            Ok(())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let read = runtime.block_on(message(Pieces(pieces), most, room)).map(|held| held.bytes.to_vec());
        (read, taken.get())
    }

    #[test]
    fn what_is_no_message_is_refused_and_a_long_one_before_it_is_taken() {
        for (bytes, code) in [
            (&[][..], 3),
            (&[0, 0, 0], 3),
            (&[0, 0, 0, 0, 2, 1], 3),
            (&[0, 0, 0, 0, 1, 1, 1], 3),
            (&[1, 0, 0, 0, 1, 1], 12),
            (&[0, 0, 0, 0, 9], 8),
            (&[0, 255, 255, 255, 255], 8),
        ] {
            let (read, taken) = reads(vec![Bytes::copy_from_slice(bytes)], 8);
            assert_eq!(read.unwrap_err().code as u8, code, "{bytes:?}");
            assert!(taken <= 2, "{bytes:?} took room for {taken}");
        }
        assert!(reads(vec![Bytes::from_static(&[0; 5])], 8).0.unwrap().is_empty());
    }

    proptest! {
        /// A message is the same however it is cut up, and takes room for its length once.
        #[test]
        fn pieces_make_one_message(name in ".{0,40}", cuts in prop::collection::vec(0usize..60, 0..5)) {
            let sent = ModelName { name, version: String::new() };
            let mut rest = framed(&sent).unwrap();
            let length = rest.len() - PREFIX;
            let mut pieces: Vec<Bytes> = cuts.into_iter().map(|cut| rest.split_to(cut.min(rest.len()))).collect();
            pieces.push(rest);
            let (read, taken) = reads(pieces, 400);
            prop_assert_eq!((ModelName::decode(&read.unwrap()[..]).unwrap(), taken), (sent, length));
        }
    }
}
