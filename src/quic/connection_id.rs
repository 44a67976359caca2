//! Which worker a datagram belongs to: that which a keyed hash of its destination connection id names. Reads only what every
//! version of QUIC has in common (RFC 8999). Also the ids that workers issue. Must not know sockets or connections.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use quinn::{ConnectionId, ConnectionIdGenerator};
use quinn_proto::InvalidCid;
use rand::RngExt;

use super::reset_keys::{NONCE, ResetKeys, TAG};

/// Length of the ids that workers issue, which packets with a short header do not tell. The last byte is free, so that an id
/// for a worker is found with one signature in most cases.
const ID_LENGTH: usize = 8;

/// The first bit of packets with a long header (RFC 8999, 5.1).
const LONG_HEADER: u8 = 0x80;

/// Assigns connection ids to workers. Clones assign alike.
///
/// The hash is SipHash with a random key: clients choose the first id of a connection, and must not choose its worker.
#[derive(Clone, Debug)]
pub struct Router {
    key: RandomState,
    workers: usize,
}

impl Router {
    /// Creates a router for this number of workers, at least one, with a key of its own.
    pub fn new(workers: usize) -> Self {
        Self {
            key: RandomState::new(),
            workers: workers.max(1),
        }
    }

    /// Returns the index of the worker of a datagram; `None` if it has no connection id, and so is not QUIC.
    ///
    /// All packets of a datagram are of one connection (RFC 9000, 12.2), so that the first one decides.
    pub fn route(&self, datagram: &[u8]) -> Option<usize> {
        destination_id(datagram).map(|id| self.worker(id))
    }

    fn worker(&self, id: &[u8]) -> usize {
        // Less than `workers`, and so an index.
        (self.key.hash_one(id) % self.workers as u64) as usize
    }
}

/// Returns the destination connection id of the first packet of a datagram.
fn destination_id(datagram: &[u8]) -> Option<&[u8]> {
    let (first, rest) = datagram.split_first()?;
    if first & LONG_HEADER == 0 {
        return rest.get(..ID_LENGTH);
    }
    let (_version, rest) = rest.split_first_chunk::<4>()?;
    let (length, rest) = rest.split_first()?;
    rest.get(..usize::from(*length))
}

/// Draws ids that belong to one worker, and recognizes those of all workers of all pods with the same keys: packets with other
/// ids get no stateless reset.
#[derive(Clone)]
pub(super) struct WorkerIds {
    pub(super) router: Router,
    pub(super) worker: usize,
    pub(super) keys: Arc<ResetKeys>,
}

impl ConnectionIdGenerator for WorkerIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut random = rand::rng();
        loop {
            let mut id: [u8; ID_LENGTH] = random.random();
            let tag = self.keys.tag(&id[..NONCE]);
            id[NONCE..NONCE + TAG].copy_from_slice(&tag);
            // Takes as many hashes as there are workers on average.
            for _ in 0..=u8::MAX {
                if self.router.worker(&id) == self.worker {
                    return ConnectionId::new(&id);
                }
                id[ID_LENGTH - 1] = id[ID_LENGTH - 1].wrapping_add(1);
            }
        }
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let is_valid = id.len() == ID_LENGTH && self.keys.knows(id);
        if is_valid { Ok(()) } else { Err(InvalidCid) }
    }

    fn cid_len(&self) -> usize {
        ID_LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use quinn::crypto::HmacKey;

    use super::*;
    use crate::quic::ResetSecrets;

    /// Returns the beginning of a packet with a long header and this id.
    fn long(id: &[u8]) -> Vec<u8> {
        let mut packet = vec![0xc0, 0, 0, 0, 1, id.len() as u8];
        packet.extend_from_slice(id);
        packet.extend([0; 20]);
        packet
    }

    /// Returns a packet with a short header and this id.
    fn short(id: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x40];
        packet.extend_from_slice(id);
        packet.extend([0; 20]);
        packet
    }

    fn ids(router: &Router, worker: usize, key: u8) -> WorkerIds {
        WorkerIds {
            router: router.clone(),
            worker,
            keys: Arc::new(ResetKeys::new(Arc::new([key; 32]))),
        }
    }

    #[test]
    fn pods_recognize_ids_of_each_other() {
        let mut here = ids(&Router::new(3), 1, 1);
        let there = ids(&Router::new(2), 0, 1);
        let of_another_gateway = ids(&Router::new(3), 1, 2);
        let id = here.generate_cid();
        assert!(here.validate(&id).is_ok() && there.validate(&id).is_ok());
        assert!(of_another_gateway.validate(&id).is_err());
        for at in 0..NONCE + TAG {
            let mut other = [0; ID_LENGTH];
            other.copy_from_slice(&id);
            other[at] ^= 1;
            assert!(there.validate(&ConnectionId::new(&other)).is_err(), "{at}");
        }
        for length in 0..ID_LENGTH {
            assert!(there.validate(&ConnectionId::new(&id[..length])).is_err());
        }
    }

    /// The secret of new ids of a pod, and another one.
    struct Rotating(Mutex<(u8, Option<u8>)>);

    impl Rotating {
        fn get(&self) -> (u8, Option<u8>) {
            *self.0.lock().unwrap()
        }
    }

    impl ResetSecrets for Rotating {
        fn version(&self) -> [u8; 8] {
            let (issuing, accepted) = self.get();
            [issuing, accepted.unwrap_or(0), 0, 0, 0, 0, 0, 0]
        }

        fn secrets(&self) -> ([u8; 32], Option<[u8; 32]>) {
            let (issuing, accepted) = self.get();
            ([issuing; 32], accepted.map(|it| [it; 32]))
        }
    }

    #[test]
    fn pods_recognize_ids_of_each_other_while_keys_rotate() {
        let [one, two] = [(); 2].map(|()| Arc::new(Rotating(Mutex::new((1, None)))));
        let pod = |secrets: &Arc<Rotating>| WorkerIds {
            router: Router::new(2),
            worker: 0,
            keys: Arc::new(ResetKeys::new(secrets.clone())),
        };
        let (mut here, there) = (pod(&one), pod(&two));
        let token = |ids: &WorkerIds, id: &ConnectionId| {
            let mut token = [0; 32];
            ids.keys.sign(id, &mut token);
            token
        };
        let old = here.generate_cid();
        let token_of_old = token(&here, &old);
        for (pod, keys, knows_old) in [
            (&two, (1, Some(2)), true),
            (&one, (1, Some(2)), true),
            (&one, (2, Some(1)), true),
            (&two, (2, Some(1)), true),
            (&two, (2, None), false),
            (&one, (2, None), false),
        ] {
            *pod.0.lock().unwrap() = keys;
            let new = here.generate_cid();
            assert!(there.validate(&new).is_ok(), "{keys:?}");
            assert_eq!(token(&here, &new), token(&there, &new), "{keys:?}");
            assert_eq!(there.validate(&old).is_ok(), knows_old, "{keys:?}");
            assert_eq!(token(&there, &old) == token_of_old, knows_old, "{keys:?}");
        }
    }

    #[test]
    fn issued_ids_belong_to_their_worker_in_both_headers() {
        for workers in [1, 2, 3, 64] {
            let router = Router::new(workers);
            for worker in 0..workers {
                let mut ids = ids(&router, worker, 1);
                assert_eq!(ids.generate_cid().len(), ids.cid_len());
                for _ in 0..20 {
                    let id = ids.generate_cid();
                    assert_eq!(router.route(&long(&id)), Some(worker));
                    assert_eq!(router.clone().route(&short(&id)), Some(worker));
                }
            }
        }
    }

    #[test]
    fn ids_of_clients_spread_over_workers() {
        let router = Router::new(4);
        let mut counts = [0; 4];
        for number in 0..4000_u32 {
            let id = [&number.to_be_bytes()[..], &[7; 8]].concat();
            counts[router.route(&long(&id)).unwrap()] += 1;
        }
        // Twenty standard deviations.
        assert!(
            counts.iter().all(|it| (450..1550).contains(it)),
            "{counts:?}"
        );
    }

    #[test]
    fn reads_no_more_than_the_invariants() {
        // Ids of other versions have up to 255 bytes.
        for length in [0, 1, 8, 20, 21, 255] {
            let id = vec![3; length];
            let packet = long(&id);
            assert_eq!(destination_id(&packet), Some(&*id));
            for end in 0..6 + length {
                assert_eq!(destination_id(&packet[..end]), None, "{length} {end}");
            }
        }
        let packet = short(&[9; ID_LENGTH]);
        assert_eq!(destination_id(&packet), Some(&[9; ID_LENGTH][..]));
        for end in 0..1 + ID_LENGTH {
            assert_eq!(Router::new(2).route(&packet[..end]), None);
        }
    }
}
