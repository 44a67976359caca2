//! TLS for requests that the process sends itself for an object, through no Gateway: which policy applies, and its settings.
//! Must not know what is requested.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::applicable;
use super::policy::{Path, Policy};
use super::settings::Settings;
use crate::api::backend_tls_policy::{BackendTlsOverride, BackendTlsPolicy, TlsPolicy};
use crate::ir::tls::AlpnProtocol;
use crate::ir::{ClientTls, ObjectRef, UpstreamProtocol};
use crate::snapshot::Listed;
use crate::translate::input::Input;
use crate::translate::policy::index::TargetPolicy;

/// Returns the policy that asks for TLS to a port of a backend, and its settings for HTTP/1.1; `None` if no policy does. The
/// namespace of the object is the consumer. `from` selects none of these requests, and they present no client certificate:
/// both are about Gateways.
///
/// # Errors
/// When the policy that applies cannot be applied. Continues a sentence that begins with the backend.
pub(in crate::translate) fn of_own_requests(
    input: &Input<'_>,
    object: &ObjectRef,
    (backend, port): (&ObjectRef, Option<&str>),
) -> Result<Option<(ObjectRef, Arc<ClientTls>)>, String> {
    let namespaces = BTreeSet::from([&*object.namespace, &*backend.namespace]);
    let mut policies = Vec::new();
    for namespace in namespaces {
        policies.extend(targeting::<BackendTlsPolicy>(input, namespace, backend));
        policies.extend(targeting::<BackendTlsOverride>(input, namespace, backend));
    }
    policies.sort_by(TargetPolicy::by_age);
    let path = Path {
        route: object,
        rule: None,
        consumer: Some(&object.namespace),
        through: None,
    };
    let Some(applied) = applicable(policies.iter(), (backend, port), &path) else {
        return Ok(None);
    };
    let policy = &applied.policy.name;
    match applied.settings() {
        Ok(Settings::Plain) => Ok(None),
        Ok(Settings::Tls(settings)) => {
            let tls = ClientTls {
                alpn: vec![AlpnProtocol::Http11],
                ..settings.with(UpstreamProtocol::Http1, None)
            };
            Ok(Some((policy.clone(), Arc::new(tls))))
        }
        Err(fault) => Err(format!(
            "{policy} cannot be applied to it: {}",
            fault.message
        )),
    }
}

/// Returns the policies of a namespace that target a backend.
fn targeting<P: TlsPolicy + Listed>(
    input: &Input<'_>,
    namespace: &str,
    backend: &ObjectRef,
) -> impl Iterator<Item = Policy> {
    let policies = input.in_namespace::<P>(namespace);
    let targeting = policies.filter(|policy| {
        let mut targets = policy.targets();
        targets.any(|(target, _)| target.object_ref(namespace) == *backend)
    });
    targeting.map(|policy| Policy::read(input, &**policy))
}
