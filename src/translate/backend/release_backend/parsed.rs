//! A parsed ReleaseBackend, and the endpoints of its load balancer by release. Must not know other ReleaseBackends.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::endpoints::Groups;
use super::{endpoints, weights};
use crate::api::core::ServicePort;
use crate::api::release_backend::ReleaseBackend;
use crate::ir::hex;
use crate::ir::tls::sha256;
use crate::ir::{ObjectRef, Release, Releases};
use crate::settings::permissions::BackendKinds;
use crate::status::ReleaseStatus;
use crate::translate::backend::kind::{Balanced, Kinds, Sources};
use crate::translate::backend::load_balancer::{Chosen, choose};
use crate::translate::input::Input;
use crate::translate::reason::Fault;

/// Counts for the status of a ReleaseBackend, at its first TCP port.
#[derive(Default)]
pub(super) struct Counted {
    pub(super) releases: Vec<ReleaseStatus>,
    /// Notes on endpoints that get no requests.
    pub(super) notes: Vec<String>,
}

/// A parsed ReleaseBackend.
pub(super) struct ParsedReleaseBackend {
    pub(super) object: Arc<ReleaseBackend>,
    /// Reason `Invalid` means that the object itself is at fault.
    pub(super) load_balancer: Result<FoundBalancer, Fault>,
    /// Configurations of load balancers that are not used.
    pub(super) unused: Vec<String>,
    pub(super) counted: Counted,
}

/// A load balancer that exists.
#[derive(PartialEq, Eq)]
pub(super) struct FoundBalancer {
    pub(super) object: ObjectRef,
    pub(super) ports: Vec<ServicePort>,
    /// The labels of its pods; `None` if its EndpointSlices name them.
    pub(super) labels: Option<BTreeMap<String, String>>,
}

/// Returns the load balancer of an object, and the configurations that are not used.
pub(super) fn chosen(
    all: Kinds,
    kinds: &BackendKinds,
    input: &Input<'_>,
    object: &ReleaseBackend,
) -> Chosen {
    let kinds = all.enabled(kinds);
    let namespace = &object.metadata.namespace;
    choose(all, &kinds, input, namespace, &object.spec.load_balancer)
}

impl ParsedReleaseBackend {
    /// Parses an object, and counts its endpoints.
    pub(super) fn read(sources: &Sources<'_, '_>, name: &ObjectRef) -> Option<Self> {
        let input = sources.input;
        let object = input.find::<ReleaseBackend>(name)?;
        let kinds = &input.options.permissions.backend_kinds;
        let Chosen { result, unused } = chosen(sources.kinds, kinds, input, object);
        let found = result.and_then(|(kind, load_balancer)| {
            let Balanced { ports, labels } = (kind.find)(input, &load_balancer)?;
            Ok(FoundBalancer {
                object: load_balancer.object,
                ports: ports.to_vec(),
                labels,
            })
        });
        let mut entry = Self {
            object: object.clone(),
            load_balancer: found,
            unused,
            counted: Counted::default(),
        };
        entry.counted = entry.count(sources);
        Some(entry)
    }

    /// Returns the endpoints of a port, by release.
    pub(super) fn groups(
        &self,
        found: &FoundBalancer,
        sources: &Sources<'_, '_>,
        port: &ServicePort,
    ) -> Groups {
        let split_by = &self.object.spec.split_by;
        let namespace = &self.object.metadata.namespace;
        let pods = endpoints::Pods {
            input: sources.input,
            namespace,
            split_by,
        };
        match &found.labels {
            Some(labels) => pods.selected(labels, port),
            None => pods.of_slices(sources.slices(&found.object), port),
        }
    }

    pub(super) fn releases(&self, groups: &Groups) -> Releases {
        let spec = &self.object.spec;
        let cookie = spec.sticky.as_ref().map(|sticky| sticky.cookie.as_str());
        let cookie = cookie.filter(|name| !name.is_empty());
        let release = |share: weights::Share<'_>| Release {
            name: share.name.into(),
            weight: share.weight,
            token: cookie.map_or_else(|| "".into(), |_| self.token(share.name)),
            addresses: share.addresses().to_vec(),
        };
        let shares = weights::weigh(spec, &groups.releases).into_iter();
        Releases {
            cookie: cookie.map(Arc::from),
            releases: shares.map(release).collect(),
        }
    }

    /// Returns the cookie value of a release: opaque to clients, and equal in all replicas.
    fn token(&self, release: &str) -> Arc<str> {
        let metadata = &self.object.metadata;
        let text = format!("{}/{}/{release}", metadata.namespace, metadata.name);
        let digest = sha256(text.as_bytes()).unwrap_or_default();
        hex::encode(&digest[..8]).into()
    }
}
