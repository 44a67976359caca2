//! Which changes may wait until what they refer to is known, while the previous version is published. Owns that nothing is
//! less protected meanwhile. Must not know what is known.

use crate::api::access_policy::AccessSpec;
use crate::api::backend_tls_policy::{BackendTlsSpec, TlsPolicy};
use crate::api::gateway::{GatewaySpec, Listener};
use crate::api::kind::StatusShape;
use crate::api::route_filter::RouteFilterSpec;
use crate::api::route_policy::RouteSpec;
use crate::api::xbackend::XBackendSpec;
use crate::api::{Kind, Object, Text};

/// Reports whether the published version of an object, or its absence, may take the place of the new version. Otherwise, the
/// new one is published although what it refers to is not known, and requests that need that are refused.
pub(super) fn may_wait(published: Option<&Object>, new: &Object) -> bool {
    match published {
        None => !is_policy(new.kind()),
        Some(published) => {
            let unknown = |object: &Object| object.meta().unknown_fields.clone();
            unknown(published) == unknown(new) && protects_alike(published, new)
        }
    }
}

/// Reports whether requests are served without objects of a kind. Without one of another kind, those that need it are refused.
pub(super) fn is_policy(kind: &Kind) -> bool {
    kind.status == Some(StatusShape::Policy)
}

/// Reports whether two versions protect the same in the same way, and differ in nothing but the Secrets and ConfigMaps of
/// it, and in what protects nothing. A change of the first kind is as if the Secret changed, which takes effect later too.
fn protects_alike(one: &Object, other: &Object) -> bool {
    match (one, other) {
        (Object::AccessPolicy(one), Object::AccessPolicy(other)) => {
            one.unreadable == other.unreadable && access(&one.spec) == access(&other.spec)
        }
        (Object::BackendTlsPolicy(one), Object::BackendTlsPolicy(other)) => {
            tls_alike(&**one, &**other)
        }
        (Object::BackendTlsOverride(one), Object::BackendTlsOverride(other)) => {
            tls_alike(&**one, &**other)
        }
        (Object::XBackend(one), Object::XBackend(other)) => {
            xbackend(&one.spec) == xbackend(&other.spec)
        }
        (Object::RoutePolicy(one), Object::RoutePolicy(other)) => {
            route(&one.spec) == route(&other.spec)
        }
        (Object::RouteFilter(one), Object::RouteFilter(other)) => {
            filter(&one.spec) == filter(&other.spec)
        }
        (Object::Gateway(one), Object::Gateway(other)) => {
            gateway(&one.spec) == gateway(&other.spec)
                && listeners_alike(&one.spec.listeners, &other.spec.listeners)
        }
        (Object::ListenerSet(one), Object::ListenerSet(other)) => {
            listeners_alike(&one.spec.listeners, &other.spec.listeners)
        }
        _ => false,
    }
}

fn access(spec: &AccessSpec) -> AccessSpec {
    let mut spec = spec.clone();
    if let Some(basic) = &mut spec.basic {
        let secret = &mut basic.secret_ref;
        (secret.name, secret.namespace) = (Text::from(""), None);
    }
    if let Some(api_key) = &mut spec.api_key {
        api_key.secret_refs.clear();
    }
    for provider in spec.jwt.iter_mut().flat_map(|jwt| &mut jwt.providers) {
        let jwks = &mut provider.jwks;
        (jwks.config_map_ref, jwks.secret_ref) = (None, None);
        if let Some(remote) = &mut jwks.remote {
            remote.ca_config_map_ref = None;
        }
    }
    if let Some(oidc) = &mut spec.oidc {
        (oidc.client_secret_ref, oidc.ca_config_map_ref) = (None, None);
    }
    spec
}

fn tls_alike<P: TlsPolicy>(one: &P, other: &P) -> bool {
    one.unreadable() == other.unreadable() && backend_tls(one.spec()) == backend_tls(other.spec())
}

fn backend_tls(spec: &BackendTlsSpec) -> BackendTlsSpec {
    let mut spec = spec.clone();
    spec.validation.ca_certificate_refs.clear();
    spec
}

fn xbackend(spec: &XBackendSpec) -> XBackendSpec {
    let mut spec = spec.clone();
    if let Some(tls) = &mut spec.tls {
        tls.client_certificate_ref = None;
        if let Some(validation) = &mut tls.validation {
            validation.ca_certificate_refs.clear();
        }
    }
    spec
}

fn route(spec: &RouteSpec) -> RouteSpec {
    RouteSpec {
        error_pages: None,
        ..spec.clone()
    }
}

fn filter(spec: &RouteFilterSpec) -> RouteFilterSpec {
    let mut spec = spec.clone();
    if let Some(response) = &mut spec.direct_response {
        (response.body, response.config_map_ref) = (None, None);
    }
    spec
}

/// Returns what a Gateway says beyond its listeners, such as which clients need a certificate.
fn gateway(spec: &GatewaySpec) -> GatewaySpec {
    let mut spec = GatewaySpec {
        listeners: Vec::new(),
        addresses: Vec::new(),
        infrastructure: None,
        ..spec.clone()
    };
    if let Some(tls) = &mut spec.tls {
        tls.backend = None;
        let frontend = tls.frontend.iter_mut();
        let configs = frontend.flat_map(|it| {
            let ports = it.per_port.iter_mut().map(|port| &mut port.tls);
            ports.chain([&mut it.default])
        });
        for validation in configs.filter_map(|config| config.validation.as_mut()) {
            validation.ca_certificate_refs.clear();
        }
    }
    spec
}

/// Reports whether the listeners that both versions have differ in nothing but their certificates. Listeners of one version
/// do not make others less protected.
fn listeners_alike(ones: &[Listener], others: &[Listener]) -> bool {
    let without_certificates = |listener: &Listener| {
        let mut listener = listener.clone();
        if let Some(tls) = &mut listener.tls {
            tls.certificate_refs.clear();
        }
        listener
    };
    ones.iter().all(|one| {
        let other = others.iter().find(|other| other.name == one.name);
        other.is_none_or(|other| without_certificates(one) == without_certificates(other))
    })
}
