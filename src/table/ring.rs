//! Consistent hashing over the endpoints of a backend: equal keys get the same endpoint, in every process. When an endpoint
//! leaves, only its keys move. Must not know loads or health.
//!
//! Each endpoint has several points on a ring. A key is hashed several times, and gets the endpoint of the point that is
//! closest to one of its hashes (multi-probe consistent hashing). So endpoints get nearly equal shares with few points,
//! and 1,000 endpoints take 100 KB.

use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::ir::limit::KeyPart;
use crate::runtime::per_worker::PerWorker;
use crate::table::limits::LimitedRequest;
use crate::table::limits::key;

/// Points of each endpoint.
const POINTS: u64 = 8;
/// Hashes of each key.
const PROBES: u64 = 21;

/// The points of endpoints.
#[derive(Debug, Default)]
pub struct Ring {
    /// Positions with the index of their endpoint, in order.
    points: Box<[(u64, u32)]>,
    /// For each value of the first bits of a position the index of the first point at or behind it.
    starts: Box<[u32]>,
    /// Number of bits that do not count for `starts`.
    shift: u32,
    /// What each worker knows of the load of the endpoints.
    pub loads: PerWorker<KnownLoad>,
}

/// The mean load of endpoints, as a worker has counted it. Only that worker writes it.
#[derive(Debug, Default)]
pub struct KnownLoad {
    /// Requests in flight at an endpoint.
    pub mean: AtomicU64,
    /// When they were counted.
    pub counted: AtomicU64,
    /// Selections for which that count is still used.
    pub left: AtomicU64,
}

impl Ring {
    /// Creates the ring of the endpoints at these addresses.
    pub(super) fn new(addresses: impl Iterator<Item = SocketAddr>) -> Self {
        let mut points = Vec::new();
        for (index, address) in addresses.enumerate() {
            let mut hasher = StableHasher::default();
            write_address(&mut hasher, address);
            let seed = hasher.finish();
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            points.extend((1..=POINTS).map(|point| (mix(seed ^ mix(point)), index)));
        }
        points.sort_unstable();
        let buckets = (points.len() * 2).next_power_of_two().max(2);
        let shift = u64::BITS - buckets.trailing_zeros();
        let start = |bucket: usize| {
            let position = (bucket as u64) << shift;
            points.partition_point(|(point, _)| *point < position) as u32
        };
        Self {
            starts: (0..buckets).map(start).collect(),
            shift,
            points: points.into(),
            loads: PerWorker::default(),
        }
    }

    /// Returns the index of the endpoint for a key. Each further `choice` is independent of those before. `None` without
    /// endpoints.
    pub fn find(&self, key: u64, choice: u64) -> Option<usize> {
        let seed = mix(key ^ mix(choice.wrapping_add(POINTS + 1)));
        let hashes = (1..=PROBES).map(|probe| mix(seed.wrapping_add(probe.wrapping_mul(ODD))));
        let distances = hashes.filter_map(|hash| {
            let (position, endpoint) = self.next(hash)?;
            Some((position.wrapping_sub(hash), endpoint))
        });
        distances.min().map(|(_, endpoint)| endpoint as usize)
    }

    /// Returns the first point at or behind a position.
    fn next(&self, position: u64) -> Option<(u64, u32)> {
        let start = *self.starts.get((position >> self.shift) as usize)? as usize;
        let behind = self.points.get(start..)?.iter();
        let mut behind = behind.skip_while(|(point, _)| *point < position);
        behind.next().or_else(|| self.points.first()).copied()
    }
}

/// Returns the hash of a request's key; `None` if the request lacks a part of it.
pub(super) fn hash(key: &[KeyPart], request: &LimitedRequest<'_>) -> Option<u64> {
    let mut hasher = StableHasher::default();
    key::write(&mut hasher, key, request, key::KeyUse::Endpoint).then(|| hasher.finish())
}

/// Returns the hash of the key of a client of which only the address is known; `None` if the key has other parts.
pub(super) fn hash_client(key: &[KeyPart], client: IpAddr) -> Option<u64> {
    let mut hasher = StableHasher::default();
    for part in key {
        let KeyPart::ClientIp { v4, v6 } = part else {
            return None;
        };
        key::write_network(&mut hasher, client, (*v4, *v6));
    }
    Some(hasher.finish())
}

fn write_address(hasher: &mut impl Hasher, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => hasher.write(&ip.octets()),
        IpAddr::V6(ip) => hasher.write(&ip.octets()),
    }
    hasher.write(&address.port().to_be_bytes());
}

/// FNV-1a with the last step of SplitMix64. Equal in every version of the program, unlike the hashers of libraries: replicas
/// of two versions have to agree.
struct StableHasher(u64);

impl Default for StableHasher {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for StableHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        mix(self.0)
    }
}

/// An odd number without pattern: 2^64 divided by the golden ratio.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl KnownLoad {
    /// Returns the mean, if it was counted at `now` and not too many selections ago.
    pub fn known(&self, now: u64) -> Option<u64> {
        let left = self.left.load(Relaxed);
        if left == 0 || self.counted.load(Relaxed) != now {
            return None;
        }
        self.left.store(left - 1, Relaxed);
        Some(self.mean.load(Relaxed))
    }

    /// Stores the mean for this number of selections.
    pub fn store(&self, mean: u64, now: u64, selections: u64) {
        self.mean.store(mean, Relaxed);
        self.counted.store(now, Relaxed);
        self.left.store(selections, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(number: u32) -> SocketAddr {
        (number.to_be_bytes(), 8080).into()
    }

    fn ring(numbers: impl Iterator<Item = u32>) -> (Ring, Vec<u32>) {
        let numbers: Vec<_> = numbers.collect();
        (Ring::new(numbers.iter().copied().map(address)), numbers)
    }

    fn keys(count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(|number| mix(number.wrapping_mul(ODD)))
    }

    #[test]
    fn no_endpoint_has_much_more_than_its_share() {
        for endpoints in [2, 3, 10, 100, 1000] {
            let (ring, _) = ring(0..endpoints);
            let count = 500 * u64::from(endpoints).max(50);
            let mut counts = vec![0_u32; endpoints as usize];
            keys(count).for_each(|key| counts[ring.find(key, 0).unwrap()] += 1);
            let most =
                f64::from(*counts.iter().max().unwrap()) * f64::from(endpoints) / count as f64;
            assert!(most < 1.3, "{endpoints}: {most}");
        }
    }

    #[test]
    fn empty_ring_has_no_endpoint() {
        assert_eq!(Ring::new(std::iter::empty()).find(7, 0), None);
    }

    #[test]
    fn hashes_are_the_same_in_every_version() {
        let key = [KeyPart::ClientIp { v4: 24, v6: 64 }];
        let of = |client: &str| hash_client(&key, client.parse().unwrap()).unwrap();
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.77"));
        assert_ne!(of("192.0.2.1"), of("192.0.3.1"));
        let (ring, _) = ring(0..10);
        let found: Vec<_> = (0..8).map(|key| ring.find(key, 0).unwrap()).collect();
        assert_eq!(found, FOUND);
    }

    const FOUND: [usize; 8] = [3, 2, 5, 9, 7, 0, 9, 1];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// At most 1.3/N of the keys move when one of N endpoints leaves, and only those of that endpoint.
        #[test]
        fn only_keys_of_an_endpoint_that_leaves_move(
            endpoints in 2..40_u32, first in any::<u16>(), gone in any::<proptest::sample::Index>(),
        ) {
            let first = u32::from(first) << 8;
            let gone = first + gone.index(endpoints as usize) as u32;
            let (before, numbers) = ring(first..first + endpoints);
            let (after, left) = ring((first..first + endpoints).filter(|it| *it != gone));
            let count = 20_000_u32;
            let mut moved = 0;
            for key in keys(count.into()) {
                let from = numbers[before.find(key, 0).unwrap()];
                let to = left[after.find(key, 0).unwrap()];
                moved += u32::from(from != to);
                prop_assert!(from == to || from == gone);
            }
            let share = f64::from(moved) * f64::from(endpoints) / f64::from(count);
            prop_assert!(share < 1.3, "{share} of {endpoints}");
        }
    }
}
