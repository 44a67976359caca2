//! The connections of the admin server. At the limit a new connection evicts an old one, so that a
//! health probe always gets through.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Maximum number of open connections.
pub(super) const MAX_CONNECTIONS: usize = 64;
/// Maximum number of open connections of one client address.
pub(super) const MAX_PER_PEER: usize = 16;
/// Delay after a failed accept. The usual cause is a lack of file descriptors; an immediate retry
/// would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Whether a connection has sent a request. Connections without a request are evicted first.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestSeen(Arc<AtomicBool>);

impl RequestSeen {
    /// Records a request.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Accepts connections while polled, and serves each in a task. Dropping the future aborts the
/// tasks.
pub(super) async fn accept<F>(listener: TcpListener, serve: impl Fn(TcpStream, RequestSeen) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    let mut open: Open = Open(Vec::new());
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, peer)) = accepted else {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                };
                let peer = peer.ip().to_canonical();
                if let Some(task) = open.make_room(peer) {
                    task.abort();
                }
                let request_seen = RequestSeen::default();
                let task = tasks.spawn(serve(stream, request_seen.clone()));
                open.0.push(Connection { peer, request_seen, task });
            }
            Some(ended) = tasks.join_next_with_id() => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                open.0.retain(|connection| connection.task.id() != id);
            }
        }
    }
}

/// Open connections, oldest first.
#[derive(Debug)]
struct Open<T = AbortHandle>(Vec<Connection<T>>);

#[derive(Debug)]
struct Connection<T> {
    peer: IpAddr,
    request_seen: RequestSeen,
    task: T,
}

impl<T> Open<T> {
    /// Removes the connection to evict in favor of a new one from `peer`: the oldest without a
    /// request, else the oldest. A peer at its own limit evicts one of its own.
    fn make_room(&mut self, peer: IpAddr) -> Option<T> {
        let own = self.0.iter().filter(|it| it.peer == peer).count();
        let has_many = own >= MAX_PER_PEER;
        if !has_many && self.0.len() < MAX_CONNECTIONS {
            return None;
        }
        let may_end = |it: &Connection<T>| !has_many || it.peer == peer;
        let is_idle = |it: &Connection<T>| !it.request_seen.0.load(Ordering::Relaxed);
        let idle = self.0.iter().position(|it| may_end(it) && is_idle(it));
        let at = idle.or_else(|| self.0.iter().position(may_end))?;
        Some(self.0.remove(at).task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: usize) -> IpAddr {
        [10, 0, 0, u8::try_from(number).unwrap()].into()
    }

    /// Connections of these peers, numbered in order. The connections in `request_seen` have sent a
    /// request.
    fn open(peers: impl IntoIterator<Item = usize>, request_seen: &[usize]) -> Open<usize> {
        let connection = |(task, number)| {
            let connection = Connection {
                peer: peer(number),
                request_seen: RequestSeen::default(),
                task,
            };
            if request_seen.contains(&task) {
                connection.request_seen.set();
            }
            connection
        };
        Open(peers.into_iter().enumerate().map(connection).collect())
    }

    #[test]
    fn evicts_nothing_below_the_limit() {
        let mut some = open((0..63).map(|it| it % 8), &[]);
        assert_eq!(some.make_room(peer(9)), None);
        assert_eq!(some.0.len(), 63);
    }

    #[test]
    fn evicts_oldest_connection_without_a_request_first() {
        let peers = || (0..64).map(|it| it % 8);
        assert_eq!(open(peers(), &[]).make_room(peer(9)), Some(0));
        assert_eq!(open(peers(), &[0, 1, 3]).make_room(peer(9)), Some(2));
        let all: Vec<_> = (0..64).collect();
        assert_eq!(open(peers(), &all).make_room(peer(9)), Some(0));
    }

    #[test]
    fn peer_at_its_limit_evicts_its_own_connection() {
        let peers = || [1, 2, 1].into_iter().chain([3; MAX_PER_PEER]);
        assert_eq!(open(peers(), &[]).make_room(peer(1)), None);
        assert_eq!(open(peers(), &[]).make_room(peer(3)), Some(3));
        assert_eq!(open(peers(), &[3, 4]).make_room(peer(3)), Some(5));
    }
}
