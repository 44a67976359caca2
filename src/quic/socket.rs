//! The bound UDP socket of an address, and what the endpoint of a worker has for a socket: it receives from an [`Inbox`] and
//! sends with the socket that all workers share. Must not know connections.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::spawn_local;

use super::inbox::Inbox;

/// Maximum number of datagrams that the endpoint takes as one: its buffers have room for so many, 32 times.
const MAX_SEGMENTS: usize = 16;

/// A bound UDP socket. Its datagrams are not fragmented, and the kernel tells where they were sent to, their ECN bits, and
/// joins those of one sender.
#[derive(Debug)]
pub struct BoundSocket {
    pub(super) socket: UdpSocket,
    pub(super) state: UdpSocketState,
    local: SocketAddr,
}

impl BoundSocket {
    /// Prepares a bound socket.
    ///
    /// # Errors
    /// When the kernel refuses an option of the socket.
    pub fn new(socket: UdpSocket) -> io::Result<Arc<Self>> {
        let state = UdpSocketState::new((&socket).into())?;
        let local = socket.local_addr()?;
        Ok(Arc::new(Self {
            socket,
            state,
            local,
        }))
    }

    /// Returns the address to which it is bound.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl AsRawFd for BoundSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Registers a socket with the reactor of the worker for one kind of event.
///
/// # Errors
/// When the reactor cannot watch the socket.
#[expect(
    deprecated,
    reason = "the other function is unsafe: sockets here are open while something owns them"
)]
pub(super) fn watched<T: AsRawFd>(socket: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(socket, interest)
}

/// The socket of the endpoint of one worker.
#[derive(Debug)]
pub(super) struct WorkerSocket {
    bound: Arc<BoundSocket>,
    inbox: Inbox,
    writability: Arc<Writability>,
    pollers: AtomicU64,
}

impl WorkerSocket {
    /// Creates the socket of a worker, which receives what is put into the inbox.
    ///
    /// # Errors
    /// When the process has no descriptor.
    pub(super) fn new(bound: Arc<BoundSocket>, inbox: Inbox) -> io::Result<Arc<Self>> {
        let writability = Arc::new(Writability {
            duplicate: Arc::new(bound.socket.try_clone()?),
            blocked: Mutex::default(),
        });
        Ok(Arc::new(Self {
            bound,
            inbox,
            writability,
            pollers: AtomicU64::new(0),
        }))
    }
}

impl Drop for WorkerSocket {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

impl AsyncUdpSocket for WorkerSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller {
            number: self.pollers.fetch_add(1, Relaxed),
            writability: self.writability.clone(),
        })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let sent = (self.bound.state).send((&self.bound.socket).into(), transmit);
        if let Err(error) = &sent
            && error.kind() == io::ErrorKind::WouldBlock
        {
            self.writability.on_full();
        }
        sent
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inbox.poll_receive(cx, buffers, metas).map(Ok)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.bound.local)
    }

    fn max_transmit_segments(&self) -> usize {
        self.bound.state.max_gso_segments()
    }

    fn max_receive_segments(&self) -> usize {
        MAX_SEGMENTS
    }

    fn may_fragment(&self) -> bool {
        self.bound.state.may_fragment()
    }
}

/// Whether the socket takes datagrams, and who waits for that.
///
/// The kernel reports each datagram that leaves a socket to all that watch whether it is writable, those of other workers
/// too. So it is watched only while it is full.
#[derive(Debug)]
struct Writability {
    /// A descriptor of its own, since a reactor watches a descriptor once, and that of the reader watches the original.
    duplicate: Arc<UdpSocket>,
    blocked: Mutex<Blocked>,
}

#[derive(Debug, Default)]
struct Blocked {
    /// The socket was full when something was sent last.
    is_full: bool,
    /// A task watches the socket.
    is_watched: bool,
    /// The connections that wait, by the number of their poller.
    waiting: HashMap<u64, Waker>,
}

impl Writability {
    fn on_full(&self) {
        self.lock().is_full = true;
    }

    /// Ready when the socket is not full, as far as is known.
    fn poll(self: &Arc<Self>, poller: u64, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut blocked = self.lock();
        if !blocked.is_full {
            return Poll::Ready(Ok(()));
        }
        blocked.waiting.insert(poller, cx.waker().clone());
        if !blocked.is_watched {
            let watched = match watched(self.duplicate.clone(), Interest::WRITABLE) {
                Ok(watched) => watched,
                Err(error) => return Poll::Ready(Err(error)),
            };
            blocked.is_watched = true;
            drop(blocked);
            spawn_local(watch(self.clone(), watched));
        }
        Poll::Pending
    }

    /// Wakes all that wait.
    fn on_writable(&self) {
        let waiting = {
            let mut blocked = self.lock();
            (blocked.is_full, blocked.is_watched) = (false, false);
            std::mem::take(&mut blocked.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Blocked> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until the socket is writable.
async fn watch(writability: Arc<Writability>, watched: AsyncFd<Arc<UdpSocket>>) {
    // Fails only with the runtime of the worker.
    let _ = watched.writable().await;
    // Before another task may watch the descriptor.
    drop(watched);
    writability.on_writable();
}

/// Waits for the socket on behalf of one connection.
#[derive(Debug)]
struct Poller {
    number: u64,
    writability: Arc<Writability>,
}

impl UdpPoller for Poller {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writability.poll(self.number, cx)
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        self.writability.lock().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tokio::runtime::{Builder, LocalOptions};

    #[test]
    fn connections_that_wait_for_a_full_socket_are_all_woken() {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())
            .unwrap();
        runtime.block_on(async {
            let bound = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let bound = BoundSocket::new(bound).unwrap();
            let _reader = watched(bound.clone(), Interest::READABLE).unwrap();
            let socket = WorkerSocket::new(bound, Inbox::default()).unwrap();
            for _ in 0..3 {
                socket.writability.on_full();
                let waits = (0..5).map(|_| {
                    let mut poller = socket.clone().create_io_poller();
                    let mut polls = 0;
                    std::future::poll_fn(move |cx| {
                        polls += 1;
                        poller.as_mut().poll_writable(cx).map(|ready| {
                            ready.unwrap();
                            polls
                        })
                    })
                });
                let polls = futures_util::future::join_all(waits).await;
                assert!(polls.iter().all(|polls| *polls > 1), "{polls:?}");
                let blocked = socket.writability.lock();
                assert!(blocked.waiting.is_empty() && !blocked.is_full && !blocked.is_watched);
            }
        });
    }
}
