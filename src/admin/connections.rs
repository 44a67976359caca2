//! The open connections of the admin server: few, and never so many that a probe finds no place, since new ones take the
//! place of old ones. Knows nothing of what is served.

use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Connections at one time.
pub(super) const MAX_CONNECTIONS: usize = 64;
/// Connections of one address at one time.
pub(super) const MAX_PER_PEER: usize = 16;
/// Wait after a failed accept: out of descriptors, most likely, and accepting again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Whether a connection has asked for something; until then it is the first that makes room.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked(Arc<AtomicBool>);

impl Asked {
    /// Takes note of a request.
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Accepts for as long as it is polled, and serves each connection in a task of its own, which ends with this.
pub(super) async fn accept<F>(listener: TcpListener, serve: impl Fn(TcpStream, Asked) -> F)
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
                let asked = Asked::default();
                let task = tasks.spawn(serve(stream, asked.clone()));
                open.0.push(Connection { peer, asked, task });
            }
            Some(ended) = tasks.join_next_with_id() => {
                let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
                open.0.retain(|connection| connection.task.id() != id);
            }
        }
    }
}

/// Connections from the oldest to the newest.
#[derive(Debug)]
struct Open<T = AbortHandle>(Vec<Connection<T>>);

#[derive(Debug)]
struct Connection<T> {
    peer: IpAddr,
    asked: Asked,
    task: T,
}

impl<T> Open<T> {
    /// Takes out the connection that has to end for another one of this peer: the oldest that has asked for nothing, else
    /// the oldest; one of the peer's own when that has many.
    fn make_room(&mut self, peer: IpAddr) -> Option<T> {
        let own = self.0.iter().filter(|it| it.peer == peer).count();
        let has_many = own >= MAX_PER_PEER;
        if !has_many && self.0.len() < MAX_CONNECTIONS {
            return None;
        }
        let may_end = |it: &Connection<T>| !has_many || it.peer == peer;
        let is_idle = |it: &Connection<T>| !it.asked.0.load(Ordering::Relaxed);
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

    /// Connections of these peers, named by their order, of which some have asked.
    fn open(peers: impl IntoIterator<Item = usize>, asked: &[usize]) -> Open<usize> {
        let connection = |(task, number)| {
            let connection = Connection {
                peer: peer(number),
                asked: Asked::default(),
                task,
            };
            if asked.contains(&task) {
                connection.asked.set();
            }
            connection
        };
        Open(peers.into_iter().enumerate().map(connection).collect())
    }

    #[test]
    fn nobody_has_to_go_while_there_is_room() {
        let mut some = open((0..63).map(|it| it % 8), &[]);
        assert_eq!(some.make_room(peer(9)), None);
        assert_eq!(some.0.len(), 63);
    }

    #[test]
    fn the_oldest_that_has_asked_for_nothing_goes_first() {
        let peers = || (0..64).map(|it| it % 8);
        assert_eq!(open(peers(), &[]).make_room(peer(9)), Some(0));
        assert_eq!(open(peers(), &[0, 1, 3]).make_room(peer(9)), Some(2));
        let all: Vec<_> = (0..64).collect();
        assert_eq!(open(peers(), &all).make_room(peer(9)), Some(0));
    }

    #[test]
    fn a_peer_with_many_makes_room_for_itself() {
        let peers = || [1, 2, 1].into_iter().chain([3; MAX_PER_PEER]);
        assert_eq!(open(peers(), &[]).make_room(peer(1)), None);
        assert_eq!(open(peers(), &[]).make_room(peer(3)), Some(3));
        assert_eq!(open(peers(), &[3, 4]).make_room(peer(3)), Some(5));
    }
}
