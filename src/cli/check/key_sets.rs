//! Findings about keys of token issuers that are at addresses which the process must not ask. Resolves no names.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::dns::AllowedAddresses;
use crate::finding::{Finding, Kind, Severity};
use crate::snapshot::Snapshot;
use crate::translate::{KeySetSource, Options, key_set_users, wanted_key_sets};

/// Returns warnings about the key sets that the policies of a snapshot need, for each policy: the process that fetches them may
/// have other permissions.
pub(super) fn of(
    snapshot: &Snapshot,
    options: &Options,
    allowed: &AllowedAddresses,
) -> BTreeSet<Finding> {
    let (wanted, users) = (wanted_key_sets(snapshot, options), key_set_users(snapshot));
    let wanted = wanted.into_iter();
    let refused = wanted.filter_map(|(key, set)| {
        let source = set.ok()?.source;
        let address = self::refused(&source, allowed)?;
        let uri = &source.uri;
        let cause = format!("the keys at {uri} are not fetched: {address} is not permitted");
        Some((key, cause))
    });
    let found = refused.flat_map(|(key, cause)| {
        let policies = users.get(&key).into_iter().flatten();
        policies.map(move |policy| {
            Finding::of_object(Kind::Object, policy, cause.clone())
                .of_severity(Severity::Warning)
                .with_remedy("pass --allow-jwks-address if the process that fetches them has it")
        })
    });
    found.collect()
}

/// Returns an address of a key set that must not be asked, as far as the configuration has addresses.
fn refused(source: &KeySetSource, allowed: &AllowedAddresses) -> Option<IpAddr> {
    if let Some(server) = &source.server {
        let mut addresses = server.endpoints.iter().map(|endpoint| endpoint.ip());
        return addresses.find(|address| !allowed.permits_endpoint(*address));
    }
    let host = source.uri.host()?.trim_matches(['[', ']']);
    let address = host.parse().ok()?;
    (!allowed.permits(address)).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api;

    /// Policies whose keys are at a loopback address, at a name, and in a Service with two endpoints.
    const OBJECTS: &str = r"
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: local, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: web}]
  jwt: {providers: [{issuer: a, audiences: [api], jwks: {remote: {uri: 'http://127.0.0.1:8080/keys'}}}]}
---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: named, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: web}]
  jwt: {providers: [{issuer: b, audiences: [api], jwks: {remote: {uri: 'https://login.example.com/keys'}}}]}
---
apiVersion: portcullis.dev/v1alpha1
kind: AccessPolicy
metadata: {name: service, namespace: shop}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: web}]
  jwt:
    providers:
    - {issuer: c, audiences: [api], jwks: {remote: {uri: 'http://keys.shop/keys', backendRef: {name: keys, port: 80}}}}
---
apiVersion: v1
kind: Service
metadata: {name: keys, namespace: shop}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: keys, namespace: shop, labels: {kubernetes.io/service-name: keys}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.0.0.1]}, {addresses: [169.254.169.254]}]
";

    fn warnings(allowed: &[&str]) -> Vec<String> {
        let mut snapshot = Snapshot::default();
        for object in serde_saphyr::from_multiple::<serde_json::Value>(OBJECTS).unwrap() {
            let admission = api::admit(object);
            assert!(admission.findings.is_empty(), "{:?}", admission.findings);
            snapshot.insert(admission.object.unwrap());
        }
        let allowed = allowed.iter().map(|net| net.parse().unwrap()).collect();
        let warnings = of(
            &snapshot,
            &Options::default(),
            &AllowedAddresses::new(allowed),
        );
        warnings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn warns_of_keys_at_addresses_that_are_not_permitted() {
        let found = warnings(&[]);
        assert_eq!(found.len(), 2, "{found:?}");
        let local = "AccessPolicy shop/local: the keys at http://127.0.0.1:8080/keys are not fetched: 127.0.0.1 is not permitted";
        assert!(found[0].starts_with(local), "{found:?}");
        assert!(
            found[1].starts_with("AccessPolicy shop/service: ")
                && found[1].contains("169.254.169.254 is not permitted"),
            "{found:?}"
        );
        assert_eq!(warnings(&["127.0.0.0/8"]).len(), 1);
        assert!(warnings(&["127.0.0.0/8", "169.254.0.0/16"]).is_empty());
    }
}
