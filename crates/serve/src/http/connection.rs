//! Connections: how many, how long, and how they end without a reset.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::activity::{Activity, Marked, Watched};
use super::app::{App, Phase};
use super::routes::answer;
use crate::workers::Workers;

/// How often a connection's times are looked at.
pub const TICK: Duration = Duration::from_millis(500);
/// How long a caller that sent more than was read may take to see the end of the connection.
pub const LINGER: Duration = Duration::from_millis(500);
/// How long nobody must come before a server that ends stops listening.
const QUIET: Duration = Duration::from_millis(100);
/// How long to wait where no connection can be accepted, as where there are no descriptors left.
const RETRY: Duration = Duration::from_millis(20);

/// A connection's requests, as hyper calls for them. It can be moved, so that the socket comes back at the end.
type Answer = Pin<Box<dyn Future<Output = Result<hyper::Response<Marked>, Infallible>> + Send>>;

/// Accepts connections, which `serve` serves on threads of their own, until `phase` is gone, and then until none has come for a while: one that the system has taken and nobody
/// accepts is reset.
pub async fn accept<S>(
    listener: TcpListener,
    app: Arc<App>,
    workers: Arc<Workers>,
    room: Arc<Semaphore>,
    mut phase: watch::Receiver<Phase>,
    serve: impl Fn(TcpStream, Arc<App>, watch::Receiver<Phase>) -> S,
) where
    S: Future<Output = ()> + Send + 'static,
{
    loop {
        let accepted = tokio::select! {
            biased;
            accepted = one(&listener, &room) => accepted,
            () = gone(&mut phase) => match timeout(QUIET, one(&listener, &room)).await {
                Ok(accepted) => accepted,
                Err(_) => return,
            },
        };
        let Some((stream, permit)) = accepted else { return };
        let (app, phase) = (Arc::clone(&app), phase.clone());
        // Where no thread can have it, it ends here, and the caller learns that.
        drop(workers.serve(stream, |stream| {
            let served = serve(stream, Arc::clone(&app), phase);
            async move {
                app.shared.metrics.connections.inc();
                served.await;
                app.shared.metrics.connections.dec();
                drop(permit);
            }
        }));
    }
}

/// Waits until nobody sends phases any more.
async fn gone(phase: &mut watch::Receiver<Phase>) {
    while phase.changed().await.is_ok() {}
}

/// The next connection, once there is room for it.
async fn one(listener: &TcpListener, room: &Arc<Semaphore>) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = Arc::clone(room).acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Some((stream, permit)),
            Err(_) => sleep(RETRY).await,
        }
    }
}

/// Serves a connection by HTTP/1.1 until the caller ends it, or has done nothing for too long, or the server ends.
pub async fn connection(stream: TcpStream, app: Arc<App>, router: Router, mut phase: watch::Receiver<Phase>) {
    // Small answers go out at once. A socket that refuses is only slower.
    drop(stream.set_nodelay(true));
    let activity = Activity::begin();
    let service = {
        let (app, activity) = (Arc::clone(&app), activity.clone());
        service_fn(move |request: hyper::Request<hyper::body::Incoming>| -> Answer {
            let (app, router, answering) = (Arc::clone(&app), router.clone(), activity.answer());
            Box::pin(async move {
                let response = answer(&app, router, request.map(Body::new)).await;
                Ok(response.map(|body| Marked::new(body, answering)))
            })
        })
    };
    let mut connection = http1::Builder::new().serve_connection(Watched::new(stream, activity.clone()), service);
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut draining = false;
    loop {
        tokio::select! {
            ended = poll_fn(|context| connection.poll_without_shutdown(context)) => {
                if ended.is_err() {
                    return;
                }
                break;
            }
            _ = tick.tick() => {
                if activity.is_over(&app.config.limits) {
                    return;
                }
            }
            // The phase ends with the server: what is under way goes on until the runtime does.
            changed = phase.changed(), if !draining => {
                draining = changed.is_err() || *phase.borrow() == Phase::Draining;
                if draining {
                    Pin::new(&mut connection).graceful_shutdown();
                }
            }
        }
    }
    linger(connection.into_parts().io.stream).await;
}

/// Ends a connection so that the caller sees the end of it and no reset: what it has sent meanwhile is read.
async fn linger(mut stream: TcpStream) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut bytes = [0; 4096];
    let read = async { while stream.read(&mut bytes).await.is_ok_and(|count| count > 0) {} };
    drop(timeout(LINGER, read).await);
}
