//! The threads that serve connections. Each has a runtime of its own, and a connection stays with the one that had the fewest: no thread wakes a second
//! one to take its work, as threads of one runtime do.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use trifuse::{Error, Result};

/// How long a thread has to end what it is in the middle of.
const LAST: Duration = Duration::from_millis(100);
/// How often it is looked for.
const STEP: Duration = Duration::from_millis(1);

/// A thread that serves connections.
struct Worker {
    runtime: Handle,
    /// Connections that it serves.
    open: Arc<AtomicUsize>,
}

/// The threads that serve connections.
pub struct Workers(Vec<Worker>);

/// What ends [`Workers`], and waits for that.
pub struct Ends(Vec<(oneshot::Sender<()>, JoinHandle<()>)>);

/// A connection among those of its thread.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Workers {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// Threads that cannot be had.
    pub fn start(count: usize) -> Result<(Self, Ends)> {
        let (mut workers, mut ends) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for _ in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build().map_err(Error::io("a thread for connections", "start"))?;
            let (end, ended) = oneshot::channel();
            workers.push(Worker { runtime: runtime.handle().clone(), open: Arc::default() });
            let work = move || {
                drop(runtime.block_on(ended));
                runtime.shutdown_background();
            };
            let thread = std::thread::Builder::new().name("serve".into()).spawn(work).map_err(Error::io("a thread for connections", "start"))?;
            ends.push((end, thread));
        }
        Ok((Self(workers), Ends(ends)))
    }

    /// Has the thread with the fewest connections serve one, by what `serve` makes of it there.
    ///
    /// # Errors
    /// A connection that another thread cannot watch, as where there are no descriptors left.
    pub fn serve<S>(&self, stream: TcpStream, serve: impl FnOnce(TcpStream) -> S) -> std::io::Result<()>
    where
        S: Future<Output = ()> + Send + 'static,
    {
        let Some(worker) = self.0.iter().min_by_key(|worker| worker.open.load(Ordering::Relaxed)) else { return Err(std::io::ErrorKind::NotFound.into()) };
        let stream = stream.into_std()?;
        let stream = {
            let _inside = worker.runtime.enter();
            TcpStream::from_std(stream)?
        };
        worker.open.fetch_add(1, Ordering::Relaxed);
        let (open, served) = (Open(Arc::clone(&worker.open)), serve(stream));
        worker.runtime.spawn(async move {
            served.await;
            drop(open);
        });
        Ok(())
    }
}

impl Ends {
    /// Ends the threads. One that is still in the middle of something a moment later ends with the process.
    pub fn wait(self) {
        let threads: Vec<JoinHandle<()>> = self.0.into_iter().map(|(_, thread)| thread).collect();
        let end = Instant::now() + LAST;
        while Instant::now() < end && !threads.iter().all(JoinHandle::is_finished) {
            std::thread::sleep(STEP);
        }
        threads.into_iter().filter(JoinHandle::is_finished).for_each(|thread| drop(thread.join()));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc;
    use std::thread::ThreadId;

    use super::*;

    fn ask(runtime: &tokio::runtime::Runtime, workers: &Workers, told: &mpsc::Sender<ThreadId>) -> (TcpStream, oneshot::Sender<()>) {
        let (caller, stream) = runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (caller, stream) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
            (caller.unwrap(), stream.unwrap().0)
        });
        let (end, ended) = oneshot::channel();
        let told = told.clone();
        let serve = move |stream| async move {
            told.send(std::thread::current().id()).unwrap();
            drop(ended.await);
            drop(stream);
        };
        workers.serve(stream, serve).unwrap();
        (caller, end)
    }

    #[test]
    fn a_connection_goes_to_the_thread_with_the_fewest() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (workers, ends) = Workers::start(2).unwrap();
        let (told, threads) = mpsc::channel();
        let mut open: Vec<_> = (0..4).map(|_| (ask(&runtime, &workers, &told), threads.recv().unwrap())).collect();
        let of = |thread: ThreadId| open.iter().filter(|(_, own)| *own == thread).count();
        let first = open[0].1;
        assert_eq!((of(first), open.len()), (2, 4));
        // Both of one thread end, and the next two go there.
        open.retain(|(_, own)| *own != first);
        while workers.0.iter().map(|worker| worker.open.load(Ordering::Relaxed)).sum::<usize>() > 2 {
            std::thread::yield_now();
        }
        let _next = ask(&runtime, &workers, &told);
        assert_eq!(threads.recv().unwrap(), first);
        let _after = ask(&runtime, &workers, &told);
        assert_eq!(threads.recv().unwrap(), first);
        ends.wait();
    }
}
