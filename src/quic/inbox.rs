//! What a worker is to receive: datagrams that the reader of a socket has put there, and that wait for the endpoint of the
//! worker. Must not know what they contain.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use quinn::udp::{EcnCodepoint, RecvMeta};

/// Maximum number of bytes that wait. A worker that is busy for some milliseconds finds less.
const MAX_BYTES: usize = 2 * 1024 * 1024;

/// Bytes that an entry counts for beside its own.
const ENTRY: usize = size_of::<Received>() + 64;

/// Datagrams of one sender, all of one length but the last, which may be shorter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// One after the other.
    pub bytes: Bytes,
    /// Length of each, at least 1.
    pub length: usize,
    /// Who sent them.
    pub peer: SocketAddr,
    /// The local address to which they were sent, if it is that of one host.
    pub local: Option<IpAddr>,
    /// What the network says about congestion.
    pub ecn: Option<EcnCodepoint>,
}

/// A bounded queue from the thread that reads a socket to the endpoint of one worker, with which it closes. Clones are the
/// same queue.
#[derive(Clone, Debug, Default)]
pub struct Inbox(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    entries: VecDeque<Received>,
    /// What the entries count for.
    bytes: usize,
    /// The task of the endpoint, while nothing waits.
    waker: Option<Waker>,
    is_closed: bool,
}

impl Inbox {
    /// Puts datagrams into the queue and wakes the worker. Returns whether there was room: they are dropped otherwise, as on
    /// any hop, and when the worker has ended.
    pub fn push(&self, received: Received) -> bool {
        let waker = {
            let mut waiting = self.lock();
            let bytes = received.bytes.len() + ENTRY;
            if waiting.is_closed || waiting.bytes + bytes > MAX_BYTES {
                return false;
            }
            waiting.bytes += bytes;
            waiting.entries.push_back(received);
            waiting.waker.take()
        };
        // Outside the lock, which the worker would have to wait for.
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    /// Fills buffers with datagrams, and describes them. Returns the number of filled buffers, at least one.
    pub(super) fn poll_receive(
        &self,
        cx: &Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<usize> {
        let mut waiting = self.lock();
        let mut count = 0;
        for (buffer, meta) in buffers.iter_mut().zip(metas) {
            let Some(received) = waiting.take(buffer.len()) else {
                break;
            };
            buffer[..received.bytes.len()].copy_from_slice(&received.bytes);
            meta.addr = received.peer;
            meta.len = received.bytes.len();
            meta.stride = received.length;
            meta.ecn = received.ecn;
            meta.dst_ip = received.local;
            count += 1;
        }
        if count > 0 {
            return Poll::Ready(count);
        }
        let waker = waiting.waker.get_or_insert_with(|| cx.waker().clone());
        waker.clone_from(cx.waker());
        Poll::Pending
    }

    /// Drops what waits and all that follows.
    pub(super) fn close(&self) {
        let mut waiting = self.lock();
        *waiting = Waiting {
            is_closed: true,
            ..Waiting::default()
        };
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Takes as many of the oldest datagrams of one sender as have room in this number of bytes. Drops datagrams that are
    /// longer.
    fn take(&mut self, room: usize) -> Option<Received> {
        loop {
            let first = self.entries.front_mut()?;
            let fitting = room / first.length.max(1) * first.length;
            if fitting > 0 && first.bytes.len() > fitting {
                self.bytes -= fitting;
                let bytes = first.bytes.split_to(fitting);
                return Some(Received {
                    bytes,
                    ..first.clone()
                });
            }
            let first = self.entries.pop_front()?;
            self.bytes -= first.bytes.len() + ENTRY;
            if first.bytes.len() <= room {
                return Some(first);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(text: &'static str, length: usize) -> Received {
        Received {
            bytes: Bytes::from_static(text.as_bytes()),
            length,
            peer: ([127, 0, 0, 1], 9).into(),
            local: Some([127, 0, 0, 2].into()),
            ecn: Some(EcnCodepoint::Ect0),
        }
    }

    /// Receives once with buffers of a size; returns what they have, with its length.
    fn receive(inbox: &Inbox, buffers: usize, size: usize) -> Vec<(String, usize)> {
        let mut memory = vec![vec![0; size]; buffers];
        let mut slices: Vec<_> = memory.iter_mut().map(|it| IoSliceMut::new(it)).collect();
        let mut metas = vec![RecvMeta::default(); buffers];
        let cx = Context::from_waker(Waker::noop());
        let Poll::Ready(count) = inbox.poll_receive(&cx, &mut slices, &mut metas) else {
            return Vec::new();
        };
        let filled = memory.iter().zip(&metas).take(count);
        let text = |(bytes, meta): (&Vec<u8>, &RecvMeta)| {
            assert_eq!(meta.ecn, Some(EcnCodepoint::Ect0));
            assert_eq!(meta.dst_ip, Some([127, 0, 0, 2].into()));
            let text = String::from_utf8(bytes[..meta.len].to_vec()).unwrap();
            (text, meta.stride)
        };
        filled.map(text).collect()
    }

    fn texts(all: &[(&str, usize)]) -> Vec<(String, usize)> {
        let owned = all
            .iter()
            .map(|(text, length)| ((*text).to_owned(), *length));
        owned.collect()
    }

    #[test]
    fn datagrams_keep_order_and_boundaries_whatever_the_buffers() {
        let inbox = Inbox::default();
        for _ in 0..2 {
            assert!(inbox.push(received("aabbccd", 2)));
            assert!(inbox.push(received("ee", 2)));
            assert!(inbox.push(received("too long", 8)));
            assert!(inbox.push(received("f", 1)));
            assert_eq!(receive(&inbox, 2, 5), texts(&[("aabb", 2), ("ccd", 2)]));
            assert_eq!(receive(&inbox, 4, 5), texts(&[("ee", 2), ("f", 1)]));
            assert!(receive(&inbox, 4, 5).is_empty());
            assert_eq!(inbox.lock().bytes, 0);
        }
    }

    #[test]
    fn drops_what_has_no_room() {
        let inbox = Inbox::default();
        let mut count = 0;
        while inbox.push(received("a", 1)) {
            count += 1;
        }
        assert!(count > 1000);
        assert!(inbox.lock().bytes <= MAX_BYTES);
        assert_eq!(receive(&inbox, 1, 5), texts(&[("a", 1)]));
        assert!(inbox.push(received("b", 1)));
        assert!(!inbox.push(received("c", 1)));
        inbox.close();
        assert!(!inbox.push(received("d", 1)));
        assert!(receive(&inbox, 1, 5).is_empty());
    }

    #[test]
    fn waiting_worker_is_woken_by_the_first_datagram() {
        struct Counted(std::sync::atomic::AtomicUsize);
        impl std::task::Wake for Counted {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let counted = Arc::new(Counted(0.into()));
        let waker = Waker::from(counted.clone());
        let inbox = Inbox::default();
        let mut memory = [0_u8; 4];
        let poll = |memory: &mut [u8]| {
            let mut metas = [RecvMeta::default()];
            let cx = Context::from_waker(&waker);
            inbox.poll_receive(&cx, &mut [IoSliceMut::new(memory)], &mut metas)
        };
        assert_eq!(poll(&mut memory), Poll::Pending);
        inbox.push(received("a", 1));
        inbox.push(received("b", 1));
        assert_eq!(counted.0.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert_eq!(poll(&mut memory), Poll::Ready(1));
    }
}
