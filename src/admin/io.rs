//! What small servers need: an accept loop, and what hyper needs from Tokio: streams, timers and a place for tasks.
//! Meant for servers where a copy per read does not count; knows nothing of what is served.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{Read, ReadBufCursor, Sleep, Timer, Write};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Bytes of one read.
const READ: usize = 8192;
/// Wait after a failed accept: out of descriptors, most likely, and accepting again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts for as long as it is polled, and serves at most so many connections at once, each in a task of its own.
pub async fn accept<F>(
    listener: TcpListener,
    max_connections: usize,
    connection: impl Fn(TcpStream) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let permits = Arc::new(Semaphore::new(max_connections));
    // Nobody closes the semaphore.
    while let Ok(permit) = permits.clone().acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let served = connection(stream);
        tokio::spawn(async move {
            served.await;
            drop(permit);
        });
    }
}

/// A Tokio stream as hyper wants it.
#[derive(Debug)]
pub struct Io<S>(pub S);

impl<S: AsyncRead + Unpin> Read for Io<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut target: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // hyper's buffer can only be advanced by unsafe code, so bytes are read elsewhere and copied.
        let mut bytes = [0; READ];
        let room = target.remaining().min(READ);
        let mut buffer = ReadBuf::new(&mut bytes[..room]);
        ready!(Pin::new(&mut self.0).poll_read(cx, &mut buffer))?;
        target.put_slice(buffer.filled());
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> Write for Io<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }
}

/// Tokio's clock for hyper.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioTimer;

impl Timer for TokioTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(Instant::now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(TokioSleep(Box::pin(tokio::time::sleep_until(
            deadline.into(),
        ))))
    }
}

struct TokioSleep(Pin<Box<tokio::time::Sleep>>);

impl Future for TokioSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl Sleep for TokioSleep {}

/// Runs hyper's tasks on the current runtime.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioTasks;

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for TokioTasks {
    fn execute(&self, task: F) {
        tokio::spawn(task);
    }
}
