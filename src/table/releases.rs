//! The releases of a backend: the share of its requests that each gets, its endpoints, and the cookie that keeps a
//! client on it. Must not know how the proxy chooses an endpoint of a release.

use std::ops::Deref;
use std::sync::Arc;

use http::HeaderValue;
use rand::RngExt;

use super::endpoint::Endpoint;
use super::request_stats::ReleaseStats;
use super::ring::Ring;
use super::stats::BackendStats;
use crate::ir;

/// The releases of a backend, in order of name.
#[derive(Debug)]
pub struct Releases {
    /// Name of the cookie that keeps a client on its release; `None` without one.
    pub cookie: Option<Arc<str>>,
    all: Box<[Arc<Release>]>,
    /// Sums of the weights up to and including each release.
    sums: Box<[u64]>,
}

/// One release of a backend in one configuration.
#[derive(Debug)]
pub struct Release {
    /// Its share of the requests, relative to the sum of all weights.
    pub weight: u64,
    /// Its endpoints, in order of address.
    pub endpoints: Box<[Arc<Endpoint>]>,
    /// Its name and counters. Every version of the release shares them while the backend has a release of this name.
    pub stats: Arc<ReleaseStats>,
    /// Only if its endpoints are selected by hash.
    pub ring: Option<Ring>,
    token: Arc<str>,
    set_cookie: Option<SetCookie>,
}

/// Values of `Set-Cookie` for a client of a release.
#[derive(Debug)]
struct SetCookie {
    plain: HeaderValue,
    /// With the attribute `Secure`.
    secure: HeaderValue,
}

impl Releases {
    /// Creates the releases. `endpoints` are those of all releases, in order of address.
    pub(super) fn new(
        ir: &ir::Releases,
        endpoints: &[Arc<Endpoint>],
        stats: &BackendStats,
        hashes: bool,
    ) -> Self {
        let names = ir.releases.iter().map(|release| &release.name);
        let stats = stats.set_releases(names);
        let release = |(ir, stats): (&ir::Release, Arc<ReleaseStats>)| {
            let find = |address| endpoints.binary_search_by_key(address, |it| it.address);
            let found = ir.addresses.iter().filter_map(|at| find(at).ok());
            let endpoints: Box<[_]> = found.map(|at| endpoints[at].clone()).collect();
            let addresses = endpoints.iter().map(|endpoint| endpoint.address);
            Arc::new(Release {
                weight: ir.weight,
                ring: hashes.then(|| Ring::new(addresses)),
                endpoints,
                stats,
                token: ir.token.clone(),
                set_cookie: None,
            })
        };
        let mut all: Box<[_]> = ir.releases.iter().zip(stats).map(release).collect();
        if let Some(name) = &ir.cookie {
            // Nothing else holds the releases yet, so `get_mut` succeeds for all.
            for release in all.iter_mut().filter_map(Arc::get_mut) {
                release.set_cookie = SetCookie::new(name, &release.token);
            }
        }
        let add = |sum: &mut u64, release: &Arc<Release>| {
            *sum = sum.saturating_add(release.weight);
            Some(*sum)
        };
        Self {
            cookie: ir.cookie.clone(),
            sums: all.iter().scan(0, add).collect(),
            all,
        }
    }

    /// Draws a release by weight. `None` if all weights are 0.
    pub fn draw(&self) -> Option<&Arc<Release>> {
        match self.total() {
            0 => None,
            total => self.at(rand::rng().random_range(0..total)),
        }
    }

    /// Returns the release at this point of the sum of all weights.
    fn at(&self, point: u64) -> Option<&Arc<Release>> {
        self.all.get(self.sums.partition_point(|sum| *sum <= point))
    }

    /// Returns the release of a cookie value, if it has a weight and endpoints.
    pub fn of_cookie(&self, value: &[u8]) -> Option<&Arc<Release>> {
        self.iter().find(|release| {
            !value.is_empty()
                && release.token.as_bytes() == value
                && release.weight > 0
                && !release.endpoints.is_empty()
        })
    }

    /// Returns the present version of `previous`, unless the release was removed or has weight 0.
    pub fn current(&self, previous: &Release) -> Option<&Arc<Release>> {
        let is_same = |release: &&Arc<Release>| Arc::ptr_eq(&release.stats, &previous.stats);
        self.iter()
            .find(is_same)
            .filter(|release| release.weight > 0)
    }

    /// Returns the share of the requests that a release gets, from 0 to 1.
    pub fn share(&self, release: &Release) -> f64 {
        match self.total() {
            0 => 0.0,
            total => release.weight as f64 / total as f64,
        }
    }

    fn total(&self) -> u64 {
        self.sums.last().copied().unwrap_or(0)
    }
}

impl Deref for Releases {
    type Target = [Arc<Release>];

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl Release {
    /// Returns the value of `Set-Cookie` that keeps a client on this release. `None` if the backend has no cookie.
    pub fn set_cookie(&self, is_secure: bool) -> Option<&HeaderValue> {
        let values = self.set_cookie.as_ref()?;
        Some(if is_secure {
            &values.secure
        } else {
            &values.plain
        })
    }
}

impl SetCookie {
    /// Returns `None` if `name` or `token` is empty or not valid in a header.
    fn new(name: &str, token: &str) -> Option<Self> {
        if name.is_empty() || token.is_empty() {
            return None;
        }
        let plain = format!("{name}={token}; Path=/; HttpOnly; SameSite=Lax");
        Some(Self {
            secure: HeaderValue::try_from(format!("{plain}; Secure")).ok()?,
            plain: HeaderValue::try_from(plain).ok()?,
        })
    }
}

#[cfg(test)]
mod tests;
