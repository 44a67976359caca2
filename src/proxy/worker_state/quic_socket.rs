//! The bound socket of a QUIC port, as each worker gets it.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::quic::{BoundSocket, Choose, EndpointKeys, Inbox, ResetSecrets, Router, WorkerPort};
use crate::settings::session_key::SessionKey;

/// What the keys of QUIC are derived for.
const RESETS: &[u8] = b"portcullis stateless resets of QUIC v1";
const ADDRESSES: &[u8] = b"portcullis address validation of QUIC v1";

/// What a worker needs to serve QUIC on a socket.
pub(in crate::proxy) struct QuicSocket {
    /// Where its endpoint receives and sends.
    pub(in crate::proxy) port: WorkerPort,
    /// Keys that all pods of the Gateway share.
    pub(in crate::proxy) keys: EndpointKeys,
    /// Chooses listeners.
    pub(in crate::proxy) choose: Choose,
    /// To be held while the worker may have connections.
    pub(in crate::proxy) in_use: mpsc::UnboundedSender<Infallible>,
    /// What the worker needs that reads the socket, which is one of them.
    pub(in crate::proxy) reading: Option<Reading>,
}

/// The secrets of stateless resets, which change with the key of sessions.
struct Resets(Arc<SessionKey>);

impl ResetSecrets for Resets {
    fn version(&self) -> [u8; 8] {
        self.0.id()
    }

    fn secrets(&self) -> ([u8; 32], Option<[u8; 32]>) {
        self.0.derive_from_all(RESETS)
    }
}

/// What the reader of a socket needs.
pub(in crate::proxy) struct Reading {
    /// Those of all workers.
    pub(in crate::proxy) inboxes: Vec<Inbox>,
    /// Closes when no worker has connections any more.
    pub(in crate::proxy) unused: mpsc::UnboundedReceiver<Infallible>,
}

impl QuicSocket {
    /// Divides a socket among `workers` workers, of which `reader` reads it.
    pub(in crate::proxy) fn divide(
        socket: &Arc<BoundSocket>,
        workers: usize,
        reader: usize,
        key: &Arc<SessionKey>,
        choose: &Choose,
    ) -> impl Iterator<Item = Box<Self>> {
        let router = Router::new(workers);
        let inboxes: Vec<Inbox> = (0..workers).map(|_| Inbox::default()).collect();
        let keys = EndpointKeys::new(Arc::new(Resets(key.clone())), &key.derive(ADDRESSES));
        let (in_use, unused) = mpsc::unbounded_channel();
        let mut unused = Some(unused);
        let (socket, choose) = (socket.clone(), choose.clone());
        (0..workers).map(move |worker| {
            let reading = match worker == reader {
                true => unused.take(),
                false => None,
            };
            Box::new(Self {
                port: WorkerPort {
                    socket: socket.clone(),
                    inbox: inboxes[worker].clone(),
                    router: router.clone(),
                    worker,
                },
                keys: keys.clone(),
                choose: choose.clone(),
                in_use: in_use.clone(),
                reading: reading.map(|unused| Reading {
                    inboxes: inboxes.clone(),
                    unused,
                }),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_resets_follow_the_rotation_of_the_key() {
        let key = |secret: u8, accepted: Option<[u8; 40]>| {
            let accepted = accepted.as_ref().map(<[u8; 40]>::as_slice);
            SessionKey::from_secrets(&[secret; 40], accepted).unwrap()
        };
        let shared = Arc::new(key(1, None));
        let resets = Resets(shared.clone());
        let (version, (first, accepted)) = (resets.version(), resets.secrets());
        assert_eq!(accepted, None);
        shared.replace(key(2, Some([1; 40])));
        assert_ne!(resets.version(), version);
        let (second, accepted) = resets.secrets();
        assert_ne!(second, first);
        assert_eq!(accepted, Some(first));
    }
}
