//! A connection of HTTP/2, whose calls run side by side.

use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::answer::{Answer, Sending};
use super::service::answer;
use crate::http::activity::{Activity, Watched};
use crate::http::app::{App, Phase};
use crate::http::connection::{LINGER, TICK};

/// The most calls of a connection at once.
const CALLS: u32 = 128;

/// What runs the calls of a connection.
#[derive(Clone, Copy, Debug)]
struct Tasks;

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, task: F) {
        tokio::spawn(task);
    }
}

/// A call, as hyper asks for it.
type Called = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

/// Serves a connection until the caller ends it, or has done nothing for too long, or the server ends.
pub async fn connection(stream: TcpStream, app: Arc<App>, mut phase: watch::Receiver<Phase>) {
    // Small answers go out at once. A socket that refuses is only slower.
    drop(stream.set_nodelay(true));
    let (activity, sending) = (Activity::of_many(), Sending::default());
    let service = {
        let (app, activity, sending) = (Arc::clone(&app), activity.clone(), sending.clone());
        service_fn(move |request: Request<Incoming>| -> Called {
            let (app, sending, answering) = (Arc::clone(&app), sending.clone(), activity.answer());
            Box::pin(async move { Ok(answer(&app, request, &sending, answering).await) })
        })
    };
    let mut builder = http2::Builder::new(Tasks);
    builder.max_concurrent_streams(CALLS);
    let mut connection = pin!(builder.serve_connection(Watched::new(stream, activity.clone()), service));
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let limits = app.config.limits;
    let mut draining = false;
    // Since when the caller was told that no more calls are taken, as it has made none for long.
    let mut idle: Option<Instant> = None;
    loop {
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = tick.tick() => {
                let stalled = sending.stalled().is_some_and(|since| since.elapsed() > limits.stalled) || activity.is_stalled(&limits);
                if stalled || idle.is_some_and(|since| since.elapsed() > LINGER) {
                    return;
                }
                if idle.is_none() && activity.is_over(&limits) {
                    idle = Some(Instant::now());
                    connection.as_mut().graceful_shutdown();
                }
            }
            changed = phase.changed(), if !draining => {
                draining = changed.is_err() || *phase.borrow() == Phase::Draining;
                if draining {
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}
