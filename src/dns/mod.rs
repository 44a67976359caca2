//! Resolves the hostnames of the served configuration, each again when its TTL expires. Owns the
//! state of each name. While lookups fail, the last good addresses stay in use.

mod guard;
mod lookup;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

pub use self::guard::AllowedAddresses;
pub use self::lookup::SystemLookup;

use crate::ir::sharing::Text;
use crate::runtime::backoff::Backoff;
use crate::runtime::optional::or_pending;
use crate::telemetry::metrics::{DnsStats, LookupResult};

/// Minimum and maximum time until a name is resolved again, regardless of its TTL.
const TTL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5 * 60));
/// Delay before a retry after a failure.
const BACKOFF: Backoff = Backoff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(30),
};
/// Maximum number of addresses of a name that are used. A response of DNS may have thousands, and each is an endpoint of every
/// backend with the name.
const MAX_ADDRESSES: usize = 256;
/// Maximum number of concurrent lookups, for a namespace and in total. Name servers that do not respond delay the names of the
/// namespaces that use them.
const CONCURRENT: (usize, usize) = (8, 32);

/// A resolver of names.
pub trait Lookup {
    /// Starts a lookup of a fully qualified name.
    fn lookup(&mut self, name: &str) -> BoxFuture<'static, Result<Answer, LookupError>>;

    /// Called when a lookup has failed: the system's configuration may have changed.
    fn on_failure(&mut self) {}
}

/// The result of a successful lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The addresses, IPv4 and IPv6; never empty.
    pub addresses: Vec<IpAddr>,
    /// Time to live of the addresses.
    pub ttl: Duration,
}

/// Why a lookup failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// The name does not exist or has no address.
    #[error("it has no address in DNS")]
    NoAddress,
    /// No name server responded.
    #[error("{0}")]
    Failed(String),
}

/// The outcome of a lookup for a namespace.
type Finished = (Arc<str>, Text, Result<Answer, LookupError>);

/// The hostnames of the configuration and their addresses.
pub struct Names<L> {
    lookup: L,
    allowed: AllowedAddresses,
    stats: Arc<DnsStats>,
    names: BTreeMap<Arc<str>, Name>,
    /// Number of running lookups by namespace.
    running: BTreeMap<Text, usize>,
    lookups: FuturesUnordered<BoxFuture<'static, Finished>>,
}

/// State of a name.
#[derive(Debug)]
struct Name {
    /// The namespaces with backends that have the name.
    namespaces: BTreeSet<Text>,
    /// The last resolved addresses that are allowed, sorted.
    addresses: Vec<IpAddr>,
    /// The last resolved addresses that are not allowed.
    refused: Vec<IpAddr>,
    /// Time of the next lookup; `None` during a lookup.
    due: Option<Instant>,
    /// Number of consecutive failures.
    failures: u32,
}

impl<L: Lookup> Names<L> {
    /// Creates a resolver without names. Refuses addresses that are neither public nor `allowed`.
    pub fn new(lookup: L, allowed: AllowedAddresses, stats: Arc<DnsStats>) -> Self {
        Self {
            lookup,
            allowed,
            stats,
            names: BTreeMap::new(),
            running: BTreeMap::new(),
            lookups: FuturesUnordered::new(),
        }
    }

    /// Replaces the names to resolve, in any order, each with a namespace that has a backend of the name. Keeps the state of
    /// names that remain.
    pub fn set<'a>(&mut self, names: impl IntoIterator<Item = (&'a Text, &'a Arc<str>)>) {
        let mut previous = std::mem::take(&mut self.names);
        for (namespace, name) in names {
            let new = || Name {
                namespaces: BTreeSet::new(),
                addresses: Vec::new(),
                refused: Vec::new(),
                due: Some(Instant::now()),
                failures: 0,
            };
            let known = previous.remove(name).map(|known| Name {
                namespaces: BTreeSet::new(),
                ..known
            });
            let name = self.names.entry(name.clone());
            let name = name.or_insert_with(|| known.unwrap_or_else(new));
            name.namespaces.insert(namespace.clone());
        }
    }

    /// Returns the addresses of a name; empty until it is resolved.
    pub fn addresses(&self, name: &str) -> &[IpAddr] {
        self.names.get(name).map_or(&[], |name| &name.addresses)
    }

    /// Returns when the addresses of a name have changed. Resolves names only while polled. Cancel
    /// safe.
    pub async fn changed(&mut self) {
        loop {
            let next = self.start();
            tokio::select! {
                Some((name, namespace, outcome)) = self.lookups.next(), if !self.lookups.is_empty() => {
                    self.leave(&namespace);
                    if self.finish(&name, outcome) {
                        return;
                    }
                }
                () = or_pending(next.map(sleep_until)) => {}
            }
        }
    }

    /// Starts the lookups that are due. Returns when the next one is due.
    fn start(&mut self) -> Option<Instant> {
        let now = Instant::now();
        while let Some((name, namespace)) = self.next_due(now) {
            if let Some(known) = self.names.get_mut(&name) {
                known.due = None;
            }
            *self.running.entry(namespace.clone()).or_default() += 1;
            let lookup = self.lookup.lookup(&name);
            self.lookups
                .push(Box::pin(async move { (name, namespace, lookup.await) }));
        }
        // Those beyond the limits start when a running lookup has finished.
        let due = self.names.values().filter_map(|known| known.due);
        due.filter(|due| *due > now).min()
    }

    /// Returns a name that is due, and the namespace whose lookup it is, if one may start: of the namespace with the fewest
    /// lookups, so that all get their turn, and of that one the name that is due for the longest time.
    fn next_due(&self, now: Instant) -> Option<(Arc<str>, Text)> {
        if self.lookups.len() >= CONCURRENT.1 {
            return None;
        }
        let due = self.names.iter().filter_map(|(name, known)| {
            let due = known.due.filter(|due| *due <= now)?;
            let of = |namespace| (self.running_of(namespace), namespace);
            let (running, namespace) = known.namespaces.iter().map(of).min()?;
            Some((running, due, name, namespace))
        });
        let (running, _, name, namespace) = due.min()?;
        (running < CONCURRENT.0).then(|| (name.clone(), namespace.clone()))
    }

    fn running_of(&self, namespace: &Text) -> usize {
        self.running.get(namespace).copied().unwrap_or_default()
    }

    /// Counts the end of a lookup.
    fn leave(&mut self, namespace: &Text) {
        if let Some(running) = self.running.get_mut(namespace) {
            *running -= 1;
            if *running == 0 {
                self.running.remove(namespace);
            }
        }
    }

    /// Records an outcome. Returns whether the addresses of the name have changed.
    fn finish(&mut self, name: &str, outcome: Result<Answer, LookupError>) -> bool {
        self.stats.looked_up(match &outcome {
            Ok(_) => LookupResult::Found,
            Err(LookupError::NoAddress) => LookupResult::NoAddress,
            Err(LookupError::Failed(_)) => LookupResult::Failed,
        });
        if outcome.is_err() {
            self.lookup.on_failure();
        }
        // The name may have been removed meanwhile.
        let Some(known) = self.names.get_mut(name) else {
            return false;
        };
        match outcome {
            Ok(answer) => {
                let ttl = answer.ttl.clamp(TTL.0, TTL.1);
                known.due = Some(Instant::now() + ttl);
                known.succeed(name, answer.addresses, &self.allowed, &self.stats)
            }
            Err(error) => {
                known.due = Some(Instant::now() + BACKOFF.after(known.failures));
                known.fail(name, &error);
                false
            }
        }
    }
}

impl Name {
    fn succeed(
        &mut self,
        name: &str,
        mut addresses: Vec<IpAddr>,
        allowed: &AllowedAddresses,
        stats: &DnsStats,
    ) -> bool {
        if std::mem::take(&mut self.failures) > 0 {
            tracing::info!("{name}: the name is resolved again");
        }
        addresses.sort_unstable();
        addresses.dedup();
        let (mut good, mut refused): (Vec<_>, Vec<_>) = addresses
            .into_iter()
            .partition(|address| allowed.permits(*address));
        stats.refused(refused.len());
        let found = good.len();
        good.truncate(MAX_ADDRESSES);
        refused.truncate(MAX_ADDRESSES);
        if refused != self.refused && !refused.is_empty() {
            tracing::warn!(
                "{name}: no request is sent to its addresses {}, which are not public; --allow-external-address permits \
                 such addresses",
                list(&refused)
            );
        }
        self.refused = refused;
        if good == self.addresses {
            return false;
        }
        if found > MAX_ADDRESSES {
            tracing::warn!("{name}: {MAX_ADDRESSES} of its {found} addresses get requests");
        }
        tracing::debug!("{name}: its addresses are {}", list(&good));
        self.addresses = good;
        true
    }

    fn fail(&mut self, name: &str, error: &LookupError) {
        if self.failures == 0 {
            let consequence = if self.addresses.is_empty() {
                "requests get a 503"
            } else {
                "its last addresses stay in use"
            };
            tracing::warn!("{name}: its addresses cannot be resolved: {error}; {consequence}");
        }
        self.failures = self.failures.saturating_add(1);
    }
}

fn list(addresses: &[IpAddr]) -> String {
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    addresses.join(", ")
}
