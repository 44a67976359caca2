//! What the policy of a backend means at run time. Backends without a policy have none of this.

use std::net::IpAddr;
use std::sync::Arc;

use super::backend_counts::{
    BackendCounts, ConnectionSlot, Overloaded, PendingSlot, RequestSlot, Slot,
};
use super::limits::LimitedRequest;
use super::ring;
use crate::ir::backend_policy::{BackendPolicy, LoadBalancing};
use crate::ir::limit::KeyPart;
use crate::runtime::per_worker::{Count, PerWorker};

/// The settings of a backend by its policy.
#[derive(Debug)]
pub struct BackendSettings {
    /// The policy.
    pub ir: Arc<BackendPolicy>,
    /// Requests that each worker has sent to one endpoint after the other.
    pub turns: PerWorker<Count>,
    counts: Arc<BackendCounts>,
}

impl BackendSettings {
    pub(super) fn new(ir: &Arc<BackendPolicy>) -> Self {
        Self {
            ir: ir.clone(),
            turns: PerWorker::default(),
            counts: Arc::default(),
        }
    }

    /// Returns the settings for health checks of the backend: those of connections.
    pub(super) fn for_checks(&self) -> Self {
        Self::new(&Arc::new(BackendPolicy {
            connection: self.ir.connection,
            ..BackendPolicy::without_settings(self.ir.policy.clone())
        }))
    }

    /// Takes over the counts of settings that these replace.
    pub(super) fn take_over(&mut self, previous: &Self) {
        self.counts = previous.counts.clone();
    }

    /// Counts a request, if they are limited. `held` is the slot that it has, maybe of another backend.
    ///
    /// # Errors
    /// When the backend has as many as its policy permits.
    pub fn admit(&self, held: Option<RequestSlot>) -> Result<Option<RequestSlot>, Overloaded> {
        match held {
            Some(held) if held.is_of(&self.counts) => Ok(Some(held)),
            _ => self.take(self.ir.limits.requests),
        }
    }

    /// Counts a request that waits for a connection, if they are limited.
    ///
    /// # Errors
    /// When as many wait as the policy permits.
    pub fn wait(&self) -> Result<Option<PendingSlot>, Overloaded> {
        self.take(self.ir.limits.pending)
    }

    /// Counts a connection, if they are limited.
    ///
    /// # Errors
    /// When there are as many as the policy permits. Idle ones close soon.
    pub fn connect(&self) -> Result<Option<ConnectionSlot>, Overloaded> {
        let max = self.ir.limits.connections;
        max.map(|max| self.counts.connect(max)).transpose()
    }

    fn take<const KIND: usize>(&self, max: Option<u32>) -> Result<Option<Slot<KIND>>, Overloaded> {
        let take = |max| Slot::take(&self.counts, max).ok_or(Overloaded);
        max.map(take).transpose()
    }

    /// Reports whether there are limits for each endpoint.
    pub fn limits_endpoints(&self) -> bool {
        let limits = &self.ir.limits;
        limits.requests_per_endpoint.is_some() || limits.connections_per_endpoint.is_some()
    }

    /// Returns the key by which requests are hashed.
    fn key(&self) -> Option<&[KeyPart]> {
        match &self.ir.load_balancing {
            LoadBalancing::ConsistentHash(key) => Some(key),
            LoadBalancing::LeastRequest | LoadBalancing::RoundRobin | LoadBalancing::Random => None,
        }
    }

    /// Reports whether requests are hashed.
    pub(super) fn hashes(&self) -> bool {
        self.key().is_some()
    }

    /// Returns the hash of a request that selects its endpoint, if one does.
    pub fn affinity(&self, request: &LimitedRequest<'_>) -> Option<u64> {
        ring::hash(self.key()?, request)
    }

    /// Returns the hash of a client that selects its endpoint, if one does: nothing but its address is known.
    pub fn affinity_of_client(&self, client: IpAddr) -> Option<u64> {
        ring::hash_client(self.key()?, client)
    }
}
