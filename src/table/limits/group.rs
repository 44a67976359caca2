//! The pods of a Gateway, as limits that count for all of them see them: which pod owns a key, and which pods are away.
//! Must not know limits, nor how pods talk to each other.

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::{ArcSwap, Guard};

use crate::runtime::monotonic;

/// Time without a response after which a pod counts as away for those that ask it.
const AWAY: u64 = 1_500_000_000;
/// Time without a message after which a pod counts as away for those that it asks. Shorter: its share of a limit is free
/// before it uses that.
const UNHEARD: u64 = 1_200_000_000;
/// Pods that may own keys. Others borrow.
const MAX_OWNERS: usize = 256;

/// The pods of the Gateway that this process serves, of which it is one.
pub struct Group {
    /// Whether there may be other pods: a controller names them.
    is_open: AtomicBool,
    view: ArcSwap<View>,
    /// Serializes changes of the view.
    changes: Mutex<()>,
    /// What became of leases.
    pub counts: LeaseCounts,
}

/// What became of leases, in tokens where nothing else is said.
#[derive(Debug, Default)]
pub struct LeaseCounts {
    /// Asked of other pods.
    pub asked: AtomicU64,
    /// Granted by them.
    pub borrowed: AtomicU64,
    /// Granted to other pods.
    pub granted: AtomicU64,
    /// Replaced without a lease while the owner was away.
    pub unowned: AtomicU64,
    /// Pods that do not respond to this one.
    pub away: AtomicU64,
    /// Connections that ended because the other side broke the protocol.
    pub faults: AtomicU64,
}

/// The pods at a time.
pub struct View {
    hasher: KeyHasher,
    /// The ready pods in order of their names.
    pods: Box<[Arc<Pod>]>,
    /// The index of this pod; `None` while it is not ready.
    own: Option<usize>,
    /// The name of this pod.
    name: Arc<str>,
    /// Number of other pods that this one has not heard of lately.
    absent: AtomicUsize,
}

/// A pod of the Gateway.
#[derive(Debug)]
pub struct Pod {
    /// Its name.
    pub name: Arc<str>,
    /// Its address.
    pub address: IpAddr,
    seed: u64,
    /// When it last responded to this pod, in nanoseconds; 0 if never.
    answered: AtomicU64,
    /// When it last sent this pod a message, in nanoseconds; 0 if never.
    heard: AtomicU64,
}

/// The pod that decides about a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner<'a> {
    /// This one.
    Own,
    /// The pod at this index.
    Other(usize, &'a Arc<Pod>),
}

/// Hashes keys with a secret that all pods of a Gateway share, so that keys are not sent in the clear and clients cannot
/// choose their owner.
#[derive(Clone, Copy)]
pub(super) struct KeyHasher(u64, u64);

/// Never prints the secret.
impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHasher")
    }
}

impl BuildHasher for KeyHasher {
    #[expect(deprecated, reason = "the hasher of the standard library with a key")]
    type Hasher = std::hash::SipHasher;

    #[expect(deprecated, reason = "the hasher of the standard library with a key")]
    fn build_hasher(&self) -> Self::Hasher {
        std::hash::SipHasher::new_with_keys(self.0, self.1)
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let view = self.view();
        f.debug_list()
            .entries(view.pods.iter().map(|pod| &pod.name))
            .finish()
    }
}

impl Default for Group {
    fn default() -> Self {
        let view = View {
            hasher: KeyHasher(rand::random(), rand::random()),
            pods: Box::default(),
            own: None,
            name: "".into(),
            absent: AtomicUsize::new(0),
        };
        Self {
            is_open: AtomicBool::new(false),
            view: ArcSwap::from_pointee(view),
            changes: Mutex::default(),
            counts: LeaseCounts::default(),
        }
    }
}

impl Group {
    /// Prepares for other pods. Limits that exist already do not borrow.
    pub fn open(&self) {
        self.is_open.store(true, Relaxed);
    }

    /// Reports whether there may be other pods.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Relaxed)
    }

    /// Returns the present pods. Does not wait.
    pub fn view(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// Returns the names of the pods that do not respond to this one.
    pub fn away(&self) -> Vec<Arc<str>> {
        let (view, now) = (self.view(), monotonic::nanos());
        let away = view.others().filter(|(_, pod)| !pod.is_present(now));
        away.map(|(_, pod)| pod.name.clone()).collect()
    }

    /// Sets the secret that keys are hashed with. What was counted under another one is lost.
    pub fn set_secret(&self, secret: [u64; 2]) {
        let _turn = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let view = self.view.load();
        if (view.hasher.0, view.hasher.1) == (secret[0], secret[1]) {
            return;
        }
        let pods = view.pods.iter().map(|pod| (&*pod.name, pod.address));
        let hasher = KeyHasher(secret[0], secret[1]);
        self.view
            .store(Arc::new(View::new(hasher, &view, &view.name, pods)));
    }

    /// Sets the ready pods and the name of this one. State of pods that stay is kept. Without any, those that were ready
    /// before stay: requests still arrive, and each pod alone would admit the whole limit.
    pub fn set_pods<'a>(&self, own: &str, pods: impl IntoIterator<Item = (&'a str, IpAddr)>) {
        let _turn = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let view = self.view.load();
        let next = View::new(view.hasher, &view, &own.into(), pods);
        if !next.pods.is_empty() {
            self.view.store(Arc::new(next));
        }
    }
}

impl View {
    fn new<'a>(
        hasher: KeyHasher,
        previous: &Self,
        name: &Arc<str>,
        pods: impl IntoIterator<Item = (&'a str, IpAddr)>,
    ) -> Self {
        let known = |name: &str, address, seed| {
            let mut known = previous.pods.iter();
            known.find(|pod| &*pod.name == name && pod.address == address && pod.seed == seed)
        };
        let pods = pods.into_iter().map(|(name, address)| {
            let mut of_name = hasher.build_hasher();
            of_name.write(name.as_bytes());
            let seed = of_name.finish();
            known(name, address, seed).cloned().unwrap_or_else(|| {
                Arc::new(Pod {
                    name: name.into(),
                    address,
                    seed,
                    answered: AtomicU64::new(0),
                    heard: AtomicU64::new(0),
                })
            })
        });
        let mut pods: Vec<_> = pods.collect();
        pods.sort_by(|one, other| one.name.cmp(&other.name));
        pods.dedup_by(|one, other| one.name == other.name);
        let own = pods.iter().position(|pod| pod.name == *name);
        let others = pods.len() - usize::from(own.is_some());
        let absent = previous.absent.load(Relaxed);
        // Those that are new are away until they are heard.
        let added = others.saturating_sub(previous.others().count());
        Self {
            hasher,
            own,
            name: name.clone(),
            absent: AtomicUsize::new((absent + added).min(others)),
            pods: pods.into(),
        }
    }

    /// Returns the name of this pod.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the number of pods that share limits, at least 1.
    pub fn pods(&self) -> usize {
        self.pods.len().max(1)
    }

    /// Returns the other ready pods with their indices.
    pub fn others(&self) -> impl Iterator<Item = (usize, &Arc<Pod>)> {
        let pods = self.pods.iter().enumerate();
        pods.filter(|(index, _)| Some(*index) != self.own)
    }

    /// Returns the number of pods that use their own shares of a limit at the owner: this one, and those away.
    pub(super) fn present(&self) -> usize {
        let absent = self.absent.load(Relaxed);
        self.pods().saturating_sub(absent).max(1)
    }

    /// Returns the place of this pod among the pods.
    pub(super) fn index(&self) -> usize {
        self.own.unwrap_or(0)
    }

    pub(super) fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    /// Returns the owner of a key: that of the largest hash of the pod and the key, so that few keys move when pods change.
    pub(super) fn owner(&self, key: u64) -> Owner<'_> {
        let owners = self.pods.iter().take(MAX_OWNERS).enumerate();
        let owner = owners.max_by_key(|(_, pod)| mixed(pod.seed ^ key));
        match owner {
            Some((index, pod)) if Some(index) != self.own => Owner::Other(index, pod),
            _ => Owner::Own,
        }
    }

    /// Counts the pods that are away at `now`. Returns those that do not respond to this one.
    pub fn count_absent(&self, now: u64) -> usize {
        let unheard = |pod: &Pod| {
            let heard = pod.heard.load(Relaxed);
            heard == 0 || now.saturating_sub(heard) > UNHEARD
        };
        let absent = self.others().filter(|(_, pod)| unheard(pod)).count();
        self.absent.store(absent, Relaxed);
        self.others()
            .filter(|(_, pod)| !pod.is_present(now))
            .count()
    }

    /// Notes that a pod has sent a message.
    pub fn heard_of(&self, name: &str, now: u64) {
        if let Some((_, pod)) = self.others().find(|(_, pod)| &*pod.name == name) {
            pod.heard.store(now, Relaxed);
        }
    }
}

impl Pod {
    /// Reports whether it has responded lately.
    pub fn is_present(&self, now: u64) -> bool {
        let answered = self.answered.load(Relaxed);
        answered != 0 && now.saturating_sub(answered) <= AWAY
    }

    /// Notes that it has responded.
    pub fn has_answered(&self, now: u64) {
        self.answered.store(now, Relaxed);
    }
}

/// Mixes the bits of a number.
pub(super) fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn group(own: &str, pods: &[&str]) -> Group {
        let group = Group::default();
        group.set_secret([1, 2]);
        group.set_pods(own, pods.iter().map(|name| (*name, ADDRESS)));
        group
    }

    fn owner(group: &Group, key: u64) -> String {
        let view = group.view();
        match view.owner(key) {
            Owner::Own => view.name().to_string(),
            Owner::Other(_, pod) => pod.name.to_string(),
        }
    }

    #[test]
    fn pods_agree_on_owners_and_few_keys_move() {
        let three = ["a", "b", "c"].map(|own| group(own, &["c", "a", "b"]));
        let four = group("a", &["a", "b", "c", "d"]);
        let mut of_pod = [0; 3];
        let mut moved = 0;
        for key in 0..3_000 {
            let owners = three.each_ref().map(|group| owner(group, key));
            assert!(owners.iter().all(|owner| *owner == owners[0]));
            of_pod[usize::from(owners[0].as_bytes()[0] - b'a')] += 1;
            let with_four = owner(&four, key);
            if with_four != owners[0] {
                assert_eq!(with_four, "d", "keys move to the new pod only");
                moved += 1;
            }
        }
        assert!(
            of_pod.iter().all(|count| (850..1_150).contains(count)),
            "{of_pod:?}"
        );
        assert!((650..850).contains(&moved), "{moved}");
    }

    #[test]
    fn pod_alone_or_without_a_list_owns_all_keys_and_an_unready_one_none() {
        for group in [Group::default(), group("a", &[]), group("a", &["a"])] {
            let view = group.view();
            assert!(matches!(view.owner(7), Owner::Own));
            assert_eq!((view.pods(), view.present()), (1, 1));
        }
        let draining = group("d", &["a", "b"]);
        assert!((0..100).all(|key| matches!(draining.view().owner(key), Owner::Other(..))));
    }

    #[test]
    fn pods_are_away_until_they_are_heard_and_after_a_time() {
        let group = group("a", &["a", "b", "c"]);
        let present = || group.view().present();
        assert_eq!(present(), 1);
        let start = 10_000_000_000;
        group.view().heard_of("b", start);
        group.view().heard_of("nobody", start);
        assert_eq!(group.view().count_absent(start), 2);
        assert_eq!(present(), 2);
        group.set_pods("a", ["a", "b", "c", "d"].map(|name| (name, ADDRESS)));
        assert_eq!(present(), 2, "a new pod is away");
        group.view().count_absent(start + UNHEARD + 1);
        assert_eq!(present(), 1);
        let view = group.view();
        let (_, other) = view.others().next().unwrap();
        assert!(!other.is_present(start));
        other.has_answered(start);
        assert!(other.is_present(start + AWAY) && !other.is_present(start + AWAY + 1));
        assert_eq!(group.view().count_absent(start), 2);
    }
}
