//! Which tokens need a TokenReview, and whose review comes first. Remembers accepted and refused tokens, and keeps
//! places for pods that are known, so that a flood of invalid tokens does not delay them. Makes no requests.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::digest::{Digest, SHA256, digest};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::keys::Verdict;
use super::token::Claims;

/// Maximum number of remembered tokens, of which each pod has one: whoever may create tokens for a pod can have any number.
const MAX_ACCEPTED: usize = 16_384;
/// Maximum number of remembered refused tokens.
const MAX_REFUSED: usize = 16_384;
/// How long a refusal is remembered. Short, since the API server may not have seen a new pod yet.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Maximum number of remembered pods, suspect addresses and issuers.
const MAX_PODS: usize = 16_384;
const MAX_ADDRESSES: usize = 16_384;
const MAX_ISSUERS: usize = 8;
/// Number of refused reviews that an address may cause at once, and per second.
const ADDRESS_ALLOWANCE: Allowance = Allowance {
    burst: 10.0,
    per_second: 2.0,
};
/// Number of refused reviews that all addresses together may cause in the slow lane at once, and per second.
const TOTAL_ALLOWANCE: Allowance = Allowance {
    burst: 100.0,
    per_second: 20.0,
};
/// Number of streams that a pod may ask for at once, and per second: each costs the API server up to four requests. A pod asks
/// for a few when a controller terminates, and waits between failures.
const POD_ALLOWANCE: Allowance = Allowance {
    burst: 20.0,
    per_second: 2.0,
};
/// Maximum number of concurrent reviews of pods that had a stream before, of plausible tokens, and of all others.
const LANES: [usize; 3] = [4, 8, 2];

/// Where a review waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// The pod had a stream from this address before.
    Known,
    /// The token is signed by the API server, or nothing speaks against it.
    Plausible,
    /// The address sent refused tokens, or the token's issuer or key is unknown.
    Doubtful,
}

/// What is remembered of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Remembered<T> {
    /// The identity that the API server returned.
    Accepted(T),
    /// Why the token was refused.
    Refused(String),
}

/// Memory and lanes of reviews. `T` is the result of an accepted review.
pub(super) struct Reviews<T> {
    memory: Mutex<Memory<T>>,
    hasher: RandomState,
    lanes: [Semaphore; 3],
}

struct Memory<T> {
    /// Results by a keyed hash of the token.
    accepted: HashMap<u64, Accepted<T>>,
    refused: HashMap<u64, (Instant, String)>,
    /// Refused tokens by age.
    refused_order: VecDeque<(Instant, u64)>,
    /// UIDs of pods that had a stream, and its address.
    pods: HashMap<String, IpAddr>,
    /// What is left to pods of their allowance, by UID.
    asking: HashMap<String, Bucket>,
    /// Issuers of accepted tokens.
    issuers: HashSet<String>,
    /// Addresses that sent refused tokens recently.
    suspects: HashMap<IpAddr, Bucket>,
    total: Bucket,
}

struct Accepted<T> {
    /// SHA-256 of the token.
    digest: Digest,
    /// UID of its pod.
    pod: Option<String>,
    result: T,
    /// Seconds since the Unix epoch.
    expires: u64,
}

#[derive(Clone, Copy)]
struct Allowance {
    burst: f64,
    per_second: f64,
}

/// A token bucket.
#[derive(Clone, Copy)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn full(allowance: Allowance, now: Instant) -> Self {
        Self {
            left: allowance.burst,
            at: now,
        }
    }

    fn refill(&mut self, allowance: Allowance, now: Instant) {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        self.left = (self.left + since * allowance.per_second).min(allowance.burst);
        self.at = now;
    }

    /// Takes one, if there is one.
    fn take(&mut self, allowance: Allowance, now: Instant) -> bool {
        self.refill(allowance, now);
        let has_one = self.left >= 1.0;
        if has_one {
            self.left -= 1.0;
        }
        has_one
    }
}

impl<T: Clone> Reviews<T> {
    pub(super) fn new() -> Self {
        let memory = Memory {
            accepted: HashMap::new(),
            refused: HashMap::new(),
            refused_order: VecDeque::new(),
            pods: HashMap::new(),
            asking: HashMap::new(),
            issuers: HashSet::new(),
            suspects: HashMap::new(),
            total: Bucket::full(TOTAL_ALLOWANCE, Instant::now()),
        };
        Self {
            memory: Mutex::new(memory),
            hasher: RandomState::new(),
            lanes: LANES.map(Semaphore::new),
        }
    }

    fn memory(&self) -> MutexGuard<'_, Memory<T>> {
        // No change to the memory can panic half-way.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the result of an earlier review of a token. `now` is in seconds since the Unix epoch.
    pub(super) fn remembered(&self, token: &str, now: u64) -> Option<Remembered<T>> {
        let hash = self.hasher.hash_one(token);
        let memory = self.memory();
        if let Some(known) = memory.accepted.get(&hash)
            && known.digest.as_ref() == digest(&SHA256, token.as_bytes()).as_ref()
            && known.expires > now
        {
            return Some(Remembered::Accepted(known.result.clone()));
        }
        let (at, why) = memory.refused.get(&hash)?;
        (at.elapsed() < REFUSED_FOR).then(|| Remembered::Refused(why.clone()))
    }

    /// Returns the lane of a token that is not remembered; `None` if too many tokens were refused.
    pub(super) fn lane(
        &self,
        claims: &Claims<'_>,
        verdict: Verdict,
        address: IpAddr,
    ) -> Option<Lane> {
        let now = Instant::now();
        let mut memory = self.memory();
        let pod = claims.bound.as_ref().and_then(|bound| bound.pod.as_ref());
        if pod.is_some_and(|pod| memory.pods.get(&pod.uid) == Some(&address)) {
            return Some(Lane::Known);
        }
        if verdict == Verdict::Valid {
            return Some(Lane::Plausible);
        }
        let has_other_issuer = claims
            .issuer
            .as_ref()
            .is_some_and(|issuer| !memory.issuers.is_empty() && !memory.issuers.contains(issuer));
        let is_doubtful = verdict == Verdict::UnknownKey || has_other_issuer;
        let left = memory.left(address, now);
        if left.is_none() && !is_doubtful {
            return Some(Lane::Plausible);
        }
        let has_allowance = left.is_none_or(|left| left >= 1.0) && memory.total.left >= 1.0;
        has_allowance.then_some(Lane::Doubtful)
    }

    /// Waits for a turn in a lane.
    pub(super) async fn turn(&self, lane: Lane) -> Option<SemaphorePermit<'_>> {
        // The semaphores are never closed.
        self.lanes[lane as usize].acquire().await.ok()
    }

    /// Remembers an accepted token until it expires, or until another one of its pod is accepted.
    pub(super) fn accept(&self, token: &str, claims: &Claims<'_>, result: &T, now: u64) {
        let mut memory = self.memory();
        if let Some(issuer) = &claims.issuer
            && memory.issuers.len() < MAX_ISSUERS
        {
            memory.issuers.insert(issuer.clone());
        }
        let pod = claims.bound.as_ref().and_then(|bound| bound.pod.as_ref());
        let pod = pod.map(|pod| pod.uid.clone());
        let is_of_pod = |one: &Accepted<T>| pod.is_some() && one.pod == pod;
        let stays = |one: &Accepted<T>| one.expires > now && !is_of_pod(one);
        memory.accepted.retain(|_, one| stays(one));
        if memory.accepted.len() < MAX_ACCEPTED {
            let one = Accepted {
                digest: digest(&SHA256, token.as_bytes()),
                pod,
                result: result.clone(),
                expires: claims.expires,
            };
            let hash = self.hasher.hash_one(token);
            memory.accepted.insert(hash, one);
        }
    }

    /// Remembers a refused token for some seconds, and its address as suspect.
    pub(super) fn refuse(&self, token: &str, why: &str, address: IpAddr) {
        let now = Instant::now();
        let hash = self.hasher.hash_one(token);
        let mut memory = self.memory();
        memory.charge(address, now);
        let is_over = |at: Instant| now.saturating_duration_since(at) >= REFUSED_FOR;
        while let Some((at, oldest)) = memory.refused_order.front().copied()
            && (is_over(at) || memory.refused_order.len() >= MAX_REFUSED)
        {
            memory.refused_order.pop_front();
            memory.refused.remove(&oldest);
        }
        memory.refused.insert(hash, (now, why.to_owned()));
        memory.refused_order.push_back((now, hash));
    }

    /// Remembers that a pod has a stream from this address.
    pub(super) fn has_stream(&self, pod_uid: &str, address: IpAddr) {
        let mut memory = self.memory();
        if memory.pods.len() >= MAX_PODS && !memory.pods.contains_key(pod_uid) {
            // Pods that still exist return with their next stream.
            memory.pods.clear();
        }
        memory.pods.insert(pod_uid.to_owned(), address);
    }

    /// Counts that a pod, whose token was accepted, asks for a stream. Returns false if it has asked for too many.
    pub(super) fn may_ask(&self, pod_uid: &str) -> bool {
        let now = Instant::now();
        let mut memory = self.memory();
        if memory.asking.len() >= MAX_PODS && !memory.asking.contains_key(pod_uid) {
            // All get their whole allowance back, as most of so many have it already.
            memory.asking.clear();
        }
        let new = || Bucket::full(POD_ALLOWANCE, now);
        let asking = memory.asking.entry(pod_uid.to_owned());
        asking.or_insert_with(new).take(POD_ALLOWANCE, now)
    }

    /// Forgets a pod that is deleted.
    pub(super) fn forget(&self, pod_uid: &str) {
        self.memory().pods.remove(pod_uid);
    }
}

impl<T> Memory<T> {
    /// Returns the rest of a suspect's allowance; `None` if the address is not suspect.
    fn left(&mut self, address: IpAddr, now: Instant) -> Option<f64> {
        self.total.refill(TOTAL_ALLOWANCE, now);
        let bucket = self.suspects.get_mut(&address)?;
        bucket.refill(ADDRESS_ALLOWANCE, now);
        if bucket.left >= ADDRESS_ALLOWANCE.burst {
            self.suspects.remove(&address);
            return None;
        }
        Some(bucket.left)
    }

    fn charge(&mut self, address: IpAddr, now: Instant) {
        if self.suspects.len() >= MAX_ADDRESSES && !self.suspects.contains_key(&address) {
            let known: Vec<_> = self.suspects.keys().copied().collect();
            for address in known {
                self.left(address, now);
            }
            // Still full: the oldest information is no better than that about this address.
            if self.suspects.len() >= MAX_ADDRESSES {
                self.suspects.clear();
            }
        }
        let new = || Bucket::full(ADDRESS_ALLOWANCE, now);
        let bucket = self.suspects.entry(address).or_insert_with(new);
        bucket.refill(ADDRESS_ALLOWANCE, now);
        bucket.left = (bucket.left - 1.0).max(0.0);
        self.total.refill(TOTAL_ALLOWANCE, now);
        self.total.left = (self.total.left - 1.0).max(0.0);
    }
}

/// Returns the address that limits count: an IPv6 host may use its whole /64.
pub(super) fn counted(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            IpAddr::V6(network.into())
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::super::token::{Bound, BoundObject};
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn claims(issuer: &str, pod_uid: &str) -> Claims<'static> {
        let object = |uid: &str| BoundObject {
            name: "name".to_owned(),
            uid: uid.to_owned(),
        };
        Claims {
            expires: 100,
            issuer: Some(issuer.to_owned()),
            key: None,
            algorithm: None,
            bound: Some(Bound {
                namespace: "infra".to_owned(),
                serviceaccount: object("1"),
                pod: Some(object(pod_uid)),
            }),
            signed: "",
            signature: "",
        }
    }

    #[tokio::test(start_paused = true)]
    async fn address_with_refused_tokens_gets_few_reviews() {
        let reviews = Reviews::<u8>::new();
        let (token, unknown) = (claims("ours", "7"), Verdict::NoKeys);
        assert_eq!(reviews.lane(&token, unknown, HERE), Some(Lane::Plausible));
        for number in 0..10 {
            reviews.refuse(&number.to_string(), "it is forged", HERE);
        }
        assert_eq!(reviews.lane(&token, unknown, HERE), None);
        assert_eq!(reviews.lane(&token, unknown, THERE), Some(Lane::Plausible));
        let signed = reviews.lane(&token, Verdict::Valid, HERE);
        assert_eq!(signed, Some(Lane::Plausible));
        reviews.has_stream("7", HERE);
        assert_eq!(reviews.lane(&token, unknown, HERE), Some(Lane::Known));
        reviews.forget("7");
        tokio::time::advance(Duration::from_millis(600)).await;
        assert_eq!(reviews.lane(&token, unknown, HERE), Some(Lane::Doubtful));
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(reviews.lane(&token, unknown, HERE), Some(Lane::Plausible));
    }

    #[tokio::test(start_paused = true)]
    async fn knowing_the_uid_of_a_pod_elsewhere_gives_no_place() {
        let reviews = Reviews::<u8>::new();
        reviews.has_stream("7", HERE);
        let lane = reviews.lane(&claims("ours", "7"), Verdict::NoKeys, THERE);
        assert_eq!(lane, Some(Lane::Plausible));
        reviews.accept("token", &claims("ours", "7"), &1, 0);
        let lane = reviews.lane(&claims("theirs", "7"), Verdict::NoKeys, THERE);
        assert_eq!(lane, Some(Lane::Doubtful));
    }

    #[tokio::test(start_paused = true)]
    async fn remembers_tokens_for_a_time() {
        let reviews = Reviews::<u8>::new();
        assert_eq!(reviews.remembered("good", 0), None);
        reviews.accept("good", &claims("ours", "7"), &5, 0);
        reviews.refuse("bad", "why", HERE);
        let refused = Remembered::Refused("why".to_owned());
        assert_eq!(reviews.remembered("bad", 0), Some(refused));
        assert_eq!(
            reviews.remembered("good", 99),
            Some(Remembered::Accepted(5))
        );
        assert_eq!(reviews.remembered("good", 100), None);
        tokio::time::advance(REFUSED_FOR).await;
        assert_eq!(reviews.remembered("bad", 0), None);
    }

    #[tokio::test(start_paused = true)]
    async fn pod_takes_one_place_however_many_tokens_it_has() {
        let reviews = Reviews::<usize>::new();
        let accept = |token: &str, pod: &str, result: usize| {
            reviews.accept(token, &claims("ours", pod), &result, 0);
        };
        let token = |number: usize| format!("{number} {}", "x".repeat(1000));
        accept("of another pod", "8", 0);
        for number in 0..100 {
            accept(&token(number), "7", number);
        }
        assert_eq!(reviews.memory().accepted.len(), 2);
        let remembered = |token: &str| reviews.remembered(token, 0);
        assert_eq!(remembered(&token(98)), None);
        assert_eq!(remembered(&token(99)), Some(Remembered::Accepted(99)));
        let other = remembered("of another pod");
        assert_eq!(other, Some(Remembered::Accepted(0)));
    }

    #[tokio::test(start_paused = true)]
    async fn remembers_a_bounded_number_of_refused_tokens_and_addresses() {
        let reviews = Reviews::<u8>::new();
        for number in 0..u32::try_from(MAX_REFUSED).unwrap() + 100 {
            let address = IpAddr::V4(number.into());
            reviews.refuse(&number.to_string(), "why", address);
        }
        let memory = reviews.memory();
        assert!(memory.refused.len() <= MAX_REFUSED);
        assert_eq!(memory.refused.len(), memory.refused_order.len());
        assert!(memory.suspects.len() <= MAX_ADDRESSES);
    }

    #[tokio::test(start_paused = true)]
    async fn pod_that_asks_without_pause_waits_for_itself_alone() {
        let reviews = Reviews::<u8>::new();
        let asked = |pod: &str| (0..1000).filter(|_| reviews.may_ask(pod)).count();
        assert_eq!(asked("7"), 20);
        // Neither a stream nor its end gives it more.
        reviews.has_stream("7", HERE);
        reviews.forget("7");
        assert_eq!(asked("7"), 0);
        assert!(reviews.may_ask("8"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(asked("7"), 2);
        for number in 0..MAX_PODS {
            assert!(reviews.may_ask(&format!("other {number}")));
        }
        assert!(reviews.memory().asking.len() <= MAX_PODS);
    }

    #[test]
    fn counts_an_ipv6_network_as_one_address() {
        let parse = |text: &str| counted(text.parse().unwrap());
        assert_eq!(parse("2001:db8::1"), parse("2001:db8::ffff:1"));
        assert_ne!(parse("2001:db8::1"), parse("2001:db8:0:1::1"));
        assert_eq!(parse("::ffff:10.0.0.1"), HERE);
        assert_eq!(parse("::1").to_string(), "::1");
    }
}
