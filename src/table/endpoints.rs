//! The endpoints of a backend at one time, with their releases and their ring. Must not know how one is chosen.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::endpoint::Endpoint;
use super::releases::{Release, Releases};
use super::ring::Ring;
use super::stats::BackendStats;
use crate::ir;
use crate::runtime::monotonic;

/// The endpoints of a backend, in order of address, and their releases.
#[derive(Debug, Default)]
pub struct Endpoints {
    pub(super) all: Box<[Arc<Endpoint>]>,
    version: Version,
    /// Boxed, because most backends have no releases.
    pub(super) releases: Option<Box<Releases>>,
    /// Only if they are selected by hash, and are not in releases, which have their own.
    ring: Option<Box<Ring>>,
    /// Those in the zone of the process, if they take precedence.
    near: Option<Box<[Arc<Endpoint>]>>,
    /// Those that only a picker may choose, in order of address.
    pub(super) unready: Box<[Arc<Endpoint>]>,
}

/// Identifies the endpoints of a backend at one time.
#[derive(Debug)]
struct Version(u64);

impl Default for Version {
    /// Returns one that the process has not used yet.
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Relaxed))
    }
}

impl Endpoints {
    pub(super) fn configured(
        &self,
        ir: &ir::Endpoints,
        stats: &BackendStats,
        hashes: bool,
    ) -> Self {
        let all = self.at(&ir.addresses());
        match ir.releases() {
            None => {
                let near = ir.near().map(|near| {
                    let is_near = |it: &&Arc<Endpoint>| near.binary_search(&it.address).is_ok();
                    all.iter().filter(is_near).cloned().collect()
                });
                Self {
                    near,
                    unready: self.at(ir.unready()),
                    ..Self::of(all, hashes)
                }
            }
            Some(ir) => Self {
                near: None,
                unready: Box::default(),
                releases: Some(Box::new(Releases::new(ir, &all, stats, hashes))),
                ring: None,
                version: Version::default(),
                all,
            },
        }
    }

    /// Returns these endpoints, without releases.
    pub(super) fn of(all: Box<[Arc<Endpoint>]>, hashes: bool) -> Self {
        Self {
            ring: hashes.then(|| Box::new(Ring::new(all.iter().map(|it| it.address)))),
            version: Version::default(),
            releases: None,
            near: None,
            unready: Box::default(),
            all,
        }
    }

    /// Returns the endpoints in the zone of the process, if they take precedence.
    #[inline]
    pub fn near(&self) -> Option<&[Arc<Endpoint>]> {
        self.near.as_deref()
    }

    pub(super) fn at(&self, addresses: &[SocketAddr]) -> Box<[Arc<Endpoint>]> {
        let known = |address: &SocketAddr| {
            self.iter()
                .chain(&*self.unready)
                .find(|endpoint| endpoint.address == *address)
                .cloned()
        };
        // Endpoints that join others start slowly. The first endpoints of a backend start with equal shares.
        let added_at = (!self.is_empty()).then(monotonic::now);
        let added = |address| Arc::new(Endpoint::new(address, added_at));
        addresses
            .iter()
            .map(|address| known(address).unwrap_or_else(|| added(*address)))
            .collect()
    }

    /// Returns what differs from that of any other endpoints of a backend, earlier ones included.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.0
    }

    /// Returns the ring of the endpoints, if they are selected by hash and are not in releases.
    #[inline]
    pub fn ring(&self) -> Option<&Ring> {
        self.ring.as_deref()
    }

    /// Returns the releases, if the endpoints are in releases.
    #[inline]
    pub fn releases(&self) -> Option<&Releases> {
        self.releases.as_deref()
    }

    /// Reports whether requests can be balanced over them: in releases, over those of one with a weight.
    pub fn are_served(&self) -> bool {
        match self.releases() {
            None => !self.is_empty(),
            Some(releases) => {
                let mut weighted = releases.iter().filter(|release| release.weight > 0);
                weighted.any(|release| !release.endpoints.is_empty())
            }
        }
    }

    /// Returns the endpoint at this address, with its release. `None` if it was removed or its release has weight 0.
    pub fn find(&self, address: SocketAddr) -> Option<(&Arc<Endpoint>, Option<&Arc<Release>>)> {
        let at = |all: &[Arc<Endpoint>]| all.binary_search_by_key(&address, |it| it.address).ok();
        let Some(releases) = self.releases() else {
            return at(self).map(|index| (&self[index], None));
        };
        let mut served = releases.iter().filter(|release| release.weight > 0);
        served.find_map(|release| {
            let index = at(&release.endpoints)?;
            Some((&release.endpoints[index], Some(release)))
        })
    }

    /// Returns the endpoint at this address, which a picker has chosen; `None` if the backend does not have it. Need not be
    /// ready: the picker decides about that.
    pub fn find_picked(&self, address: SocketAddr) -> Option<&Arc<Endpoint>> {
        let at = |all: &[Arc<Endpoint>]| all.binary_search_by_key(&address, |it| it.address).ok();
        let unready = || at(&self.unready).map(|index| &self.unready[index]);
        at(self).map(|index| &self[index]).or_else(unready)
    }

    /// Returns the endpoints among which `endpoint` is selected: those of its release, or all. Empty if it was removed.
    pub fn peers(&self, endpoint: &Endpoint) -> &[Arc<Endpoint>] {
        let has = |all: &&[Arc<Endpoint>]| all.iter().any(|one| one.id == endpoint.id);
        let Some(releases) = self.releases() else {
            return Some(&*self.all).filter(has).unwrap_or_default();
        };
        let mut of_releases = releases.iter().map(|release| &*release.endpoints);
        of_releases.find(has).unwrap_or_default()
    }
}

impl Deref for Endpoints {
    type Target = [Arc<Endpoint>];

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}
