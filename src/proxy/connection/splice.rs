//! Moves bytes from one socket to another without copying them to the process, through a pipe (splice). A worker has one
//! pipe, which is empty between two calls: a connection holds none. Linux only. Must not know what the bytes are.

use std::io;

use tokio::net::TcpStream;

use crate::http2::{StreamReader, StreamWriter};
use crate::upstream::{Io, UpgradedIo};

/// A stream, or one direction of it, that may be a socket without anything above it.
pub(super) trait MaybeSocket {
    /// Passes on the socket whose bytes are those of the stream; `None` if there is none.
    fn with_socket<V>(&self, _: impl FnOnce(&TcpStream) -> V) -> Option<V> {
        None
    }
}

impl MaybeSocket for &mut UpgradedIo {
    fn with_socket<V>(&self, use_socket: impl FnOnce(&TcpStream) -> V) -> Option<V> {
        self.plain_socket().map(use_socket)
    }
}

impl<P> MaybeSocket for StreamReader<P> {}

impl MaybeSocket for &mut StreamWriter {}

impl MaybeSocket for &mut Io {
    fn with_socket<V>(&self, use_socket: impl FnOnce(&TcpStream) -> V) -> Option<V> {
        self.plain_socket().map(use_socket)
    }
}

/// What was moved.
pub(super) struct Moved {
    /// Number of bytes that were read; 0 at the end of the source.
    pub(super) read: usize,
    /// Those of them that the target has not taken.
    pub(super) rest: Vec<u8>,
}

/// Why nothing can be moved.
pub(super) enum Failure {
    /// The source has failed.
    Source(io::Error),
    /// The target has failed.
    Target(io::Error),
    /// The kernel does not move bytes between these sockets, or the process has no descriptor for a pipe. Nothing was
    /// read.
    Unsupported,
}

#[cfg(target_os = "linux")]
pub(super) use self::pipe::poll_move;

#[cfg(not(target_os = "linux"))]
pub(super) fn poll_move(
    _: &TcpStream,
    _: &TcpStream,
    _: &mut std::task::Context<'_>,
    _: usize,
) -> std::task::Poll<Result<Moved, Failure>> {
    std::task::Poll::Ready(Err(Failure::Unsupported))
}

#[cfg(target_os = "linux")]
mod pipe {
    use std::cell::RefCell;
    use std::io::{self, ErrorKind};
    use std::os::fd::{AsFd, OwnedFd};
    use std::task::{Context, Poll, ready};

    use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
    use tokio::io::Interest;
    use tokio::net::TcpStream;

    use super::{Failure, Moved};

    /// Size of the pipe in bytes. Each packet takes a page of it, however short it is.
    const SIZE: usize = 256 * 1024;

    thread_local! {
        /// The pipe of a worker, once one of its connections had use for it.
        static PIPE: RefCell<Option<Pipe>> = const { RefCell::new(None) };
    }

    struct Pipe {
        reader: OwnedFd,
        writer: OwnedFd,
        /// Number of bytes in it.
        held: usize,
    }

    /// Reads at most `most` bytes from a socket, and writes them to another one as far as that takes them.
    pub(in super::super) fn poll_move(
        from: &TcpStream,
        to: &TcpStream,
        cx: &mut Context<'_>,
        most: usize,
    ) -> Poll<Result<Moved, Failure>> {
        PIPE.with_borrow_mut(|free| {
            let pipe = free.take().map_or_else(Pipe::new, Ok);
            let Ok(mut pipe) = pipe else {
                return Poll::Ready(Err(Failure::Unsupported));
            };
            let moved = pipe.poll_move(from, to, cx, most);
            // One with bytes of a failed connection is closed.
            *free = Some(pipe).filter(|pipe| pipe.held == 0);
            moved
        })
    }

    impl Pipe {
        fn new() -> io::Result<Self> {
            let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
            // A smaller one works, too.
            let _ = fcntl_setpipe_size(&writer, SIZE);
            Ok(Self {
                reader,
                writer,
                held: 0,
            })
        }

        fn poll_move(
            &mut self,
            from: &TcpStream,
            to: &TcpStream,
            cx: &mut Context<'_>,
            most: usize,
        ) -> Poll<Result<Moved, Failure>> {
            let read = match ready!(self.poll_fill(from, cx, most)) {
                Ok(read) => read,
                // EINVAL, ENOSYS, or EPERM of a seccomp filter.
                Err(error) if matches!(error.raw_os_error(), Some(22 | 38 | 1)) => {
                    return Poll::Ready(Err(Failure::Unsupported));
                }
                Err(error) => return Poll::Ready(Err(Failure::Source(error))),
            };
            let rest = match self.poll_drain(to, cx) {
                Poll::Ready(Ok(())) => Ok(Vec::new()),
                Poll::Ready(Err(error)) => Err(error),
                // Others need the pipe.
                Poll::Pending => self.take(),
            };
            let moved = rest.map(|rest| Moved { read, rest });
            Poll::Ready(moved.map_err(Failure::Target))
        }

        fn poll_fill(
            &mut self,
            from: &TcpStream,
            cx: &mut Context<'_>,
            most: usize,
        ) -> Poll<io::Result<usize>> {
            loop {
                ready!(from.poll_read_ready(cx))?;
                let filled = from.try_io(Interest::READABLE, || between(from, &self.writer, most));
                match filled {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    filled => {
                        self.held = filled?;
                        return Poll::Ready(Ok(self.held));
                    }
                }
            }
        }

        fn poll_drain(&mut self, to: &TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            while self.held > 0 {
                ready!(to.poll_write_ready(cx))?;
                let drained =
                    to.try_io(Interest::WRITABLE, || between(&self.reader, to, self.held));
                match drained {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Ok(0) => return Poll::Ready(Err(ErrorKind::WriteZero.into())),
                    drained => self.held -= drained?,
                }
            }
            Poll::Ready(Ok(()))
        }

        /// Takes what is left.
        fn take(&mut self) -> io::Result<Vec<u8>> {
            let mut rest = vec![0; self.held];
            while self.held > 0 {
                let start = rest.len() - self.held;
                match rustix::io::read(&self.reader, &mut rest[start..])? {
                    0 => return Err(ErrorKind::UnexpectedEof.into()),
                    count => self.held -= count,
                }
            }
            Ok(rest)
        }
    }

    fn between(from: impl AsFd, to: impl AsFd, most: usize) -> io::Result<usize> {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        Ok(splice(from, None, to, None, most, flags)?)
    }

    #[cfg(test)]
    mod tests {
        use std::future::poll_fn;
        use std::time::Duration;

        use socket2::SockRef;
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        use tokio::net::TcpListener;

        use super::*;

        async fn connected() -> (TcpStream, TcpStream) {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let (one, other) = tokio::join!(TcpStream::connect(address), listener.accept());
            (one.unwrap(), other.unwrap().0)
        }

        async fn moved(from: &TcpStream, to: &TcpStream, most: usize) -> Result<Moved, Failure> {
            poll_fn(|cx| poll_move(from, to, cx, most)).await
        }

        fn has_pipe() -> bool {
            PIPE.with_borrow(Option::is_some)
        }

        #[tokio::test]
        async fn target_gets_all_bytes_in_order_though_it_blocks() {
            let (mut source, from) = connected().await;
            let (to, mut target) = connected().await;
            // More than the buffers of two connections on loopback take.
            let pattern: Vec<u8> = (0..251).collect();
            let bytes = pattern.repeat((64 << 20) / pattern.len());
            let sent = bytes.clone();
            let sending = tokio::spawn(async move {
                source.write_all(&sent).await.unwrap();
                source
            });
            // Nothing is read until the target blocks.
            let mut count = 0;
            let rest = loop {
                let Ok(moved) = moved(&from, &to, 64 * 1024).await else {
                    panic!("not moved");
                };
                assert!(has_pipe(), "another connection can have the pipe");
                count += moved.read;
                if !moved.rest.is_empty() {
                    break moved.rest;
                }
            };
            let mut received = vec![0; count - rest.len()];
            target.read_exact(&mut received).await.unwrap();
            received.extend(rest);
            assert!(received == bytes[..count]);
            let mut next = vec![0; 1000];
            let Ok(moved) = moved(&from, &to, 1000).await else {
                panic!("not moved");
            };
            assert_eq!((moved.read, moved.rest.len()), (1000, 0));
            target.read_exact(&mut next).await.unwrap();
            assert!(next == bytes[count..count + 1000]);
            sending.abort();
        }

        #[tokio::test]
        async fn end_and_failures_are_told_apart() {
            let (mut source, from) = connected().await;
            let (to, target) = connected().await;
            source.shutdown().await.unwrap();
            let end = moved(&from, &to, 1000).await;
            assert!(end.is_ok_and(|moved| moved.read == 0));

            let (mut source, from) = connected().await;
            source.write_all(b"something").await.unwrap();
            SockRef::from(&target)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
            drop(target);
            to.readable().await.unwrap();
            let failed = moved(&from, &to, 1000).await;
            assert!(matches!(failed, Err(Failure::Target(_))));
            assert!(
                !has_pipe(),
                "the bytes of a failed connection reach no other one"
            );

            SockRef::from(&source)
                .set_linger(Some(Duration::ZERO))
                .unwrap();
            drop(source);
            let failed = moved(&from, &to, 1000).await;
            assert!(matches!(failed, Err(Failure::Source(_))));
            assert!(has_pipe());
        }
    }
}
