//! What the policy of a backend means at run time. Backends without a policy have none of this.

use std::net::IpAddr;
use std::sync::Arc;

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
}

impl BackendSettings {
    pub(super) fn new(ir: &Arc<BackendPolicy>) -> Self {
        Self {
            ir: ir.clone(),
            turns: PerWorker::default(),
        }
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
