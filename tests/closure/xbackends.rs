//! The objects of XBackends that a closure may contain.

use std::collections::BTreeSet;

use portcullis::api::gateway::Gateway;
use portcullis::api::reference::SecretRef;
use portcullis::api::{ObjectMeta, ObjectRef, Resource};
use portcullis::snapshot::Snapshot;

use crate::filters;
use crate::properties::sets_of;

/// Returns the client certificates of XBackends that routes of their namespaces refer to. The routes name the Gateway
/// or one of its ListenerSets, or request default Gateways while it is one.
pub(crate) fn client_certificates(
    cluster: &Snapshot,
    gateway: &Gateway,
) -> Vec<(ObjectRef, SecretRef)> {
    let name = gateway.object_ref();
    let sets = sets_of(cluster, &name).map(Resource::object_ref);
    let parents: BTreeSet<_> = sets.chain([name.clone()]).collect();
    let is_default = gateway.spec.default_scope.as_deref() == Some("All");
    let is_asked_for = |scope: &Option<String>| is_default && scope.as_deref() == Some("All");
    let http = cluster.http_routes.iter().map(|route| {
        let rules = route.spec.rules.iter();
        let references: Vec<_> = rules
            .flat_map(|rule| filters::references(&rule.backend_refs, &rule.filters))
            .collect();
        let asks = is_asked_for(&route.spec.use_default_gateways);
        (&route.metadata, &route.spec.parent_refs, asks, references)
    });
    let grpc = cluster.grpc_routes.iter().map(|route| {
        let rules = route.spec.rules.iter();
        let references: Vec<_> = rules
            .flat_map(|rule| filters::references(&rule.backend_refs, &rule.filters))
            .collect();
        let asks = is_asked_for(&route.spec.use_default_gateways);
        (&route.metadata, &route.spec.parent_refs, asks, references)
    });
    let routes = http.chain(grpc).filter(|(own, named, asks, _)| {
        let is_named = named.iter().any(|parent| {
            let namespace = parent.namespace.as_ref().unwrap_or(&own.namespace);
            let name = ObjectRef::new(&parent.group, &parent.kind, namespace, &parent.name);
            parents.contains(&name)
        });
        is_named || *asks
    });
    let mut found = Vec::new();
    for (ObjectMeta { namespace, .. }, _, _, references) in routes {
        for reference in references {
            let foreign = reference.namespace.as_ref();
            let foreign = foreign.is_some_and(|it| it != namespace);
            if reference.kind != "XBackend" || foreign {
                continue;
            }
            let backend = cluster.xbackends.get(namespace, &reference.name);
            let client = backend.and_then(|backend| {
                let tls = backend.spec.tls.as_ref()?;
                Some((backend.object_ref(), tls.client_certificate_ref.clone()?))
            });
            found.extend(client);
        }
    }
    found
}
