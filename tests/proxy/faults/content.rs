//! Faults of what objects say, and of the backends that they lead to.

use serde_json::json;

use super::{Fault, GATEWAY, ROUTE, SECRET, fault};
use crate::harness::tls::Certificate;
use crate::harness::yaml;
use crate::mirror::mirror;
use crate::origin::Origin;
use crate::scene::{http, secret, to};

/// Returns the faults.
pub(super) fn all() -> Vec<Fault> {
    [routes(), files(), backends()]
        .into_iter()
        .flatten()
        .collect()
}

/// What routes say.
fn routes() -> Vec<Fault> {
    vec![
        fault(
            "route",
            ROUTE,
            &[
                "all weights of spec.rules[0].backendRefs are 0: every request gets status 500",
                "name a backendRef with a weight above 0",
            ],
            |it| it.backend()["weight"] = json!(0),
        ),
        fault(
            "object",
            ROUTE,
            &[
                "NoMatchingListenerHostname",
                "change spec.hostnames, or add a listener for them",
            ],
            |it| {
                it.listeners[0] = http("http", 80, "a.com");
                it.hosts = &["b.com"];
            },
        ),
        fault(
            "object",
            ROUTE,
            &[
                "that the parentRef selects allows HTTPRoutes; see protocol and allowedRoutes.kinds of its listeners",
            ],
            |it| {
                let allowed = "{name: http, port: 80, protocol: HTTP, allowedRoutes: {kinds: [{kind: GRPCRoute}]}}";
                it.listeners[0] = allowed.to_owned();
                it.parent = "gateway/http";
            },
        ),
        fault(
            "shadowed",
            "HTTPRoute default/zoo",
            &[
                "spec.rules[0] gets no request: the same match or a wider one comes first in spec.rules[0] of HTTPRoute default/route",
                "remove it, or narrow the match that comes first",
            ],
            |it| {
                let rules = json!([to("app")]).to_string();
                it.more.push(yaml::route("zoo", "gateway", &[], &rules));
            },
        ),
    ]
}

/// What listeners, files and certificates say.
fn files() -> Vec<Fault> {
    vec![
        fault(
            "object",
            GATEWAY,
            &[
                "ProtocolConflict",
                "cannot share port 80 with listener",
                "neither is served; change one of them",
            ],
            |it| {
                it.listeners
                    .push("{name: tcp, port: 80, protocol: TCP}".to_owned())
            },
        ),
        fault(
            "file",
            ROUTE,
            &["spec.rulez: unknown field; did you mean rules?"],
            |it| it.typo = ("rules:", "rulez:"),
        ),
        fault(
            "file",
            "objects.yaml",
            &[
                "render the template first",
                "the objects of this file retain their previous version",
            ],
            |it| it.more.push("{{ include \"labels\" . }}".to_owned()),
        ),
        fault(
            "expired",
            SECRET,
            &[
                "the certificate has expired at ",
                "clients refuse it; renew it",
            ],
            |it| it.secret = Some(secret("tls", &Certificate::expired(&["a.com"]))),
        ),
        fault(
            "notYetValid",
            SECRET,
            &[
                "the certificate is not valid before ",
                "clients refuse it until then; issue it again, or check the clock of this host",
            ],
            |it| it.secret = Some(secret("tls", &Certificate::early(&["a.com"]))),
        ),
        fault(
            "expires",
            SECRET,
            &["the certificate expires at ", "; renew it"],
            |it| it.secret = Some(secret("tls", &Certificate::ending(&["a.com"]))),
        ),
        fault(
            "hostname",
            GATEWAY,
            &[
                "no certificate is for a.com, only for b.com: clients refuse it; tls.certificateRefs needs one for this hostname",
            ],
            |it| it.secret = Some(secret("tls", &Certificate::new(&["b.com"]))),
        ),
    ]
}

/// What requests find.
fn backends() -> Vec<Fault> {
    vec![
        fault(
            "backend",
            "Service default/app:80",
            &[
                "has no ready endpoint: its requests get 503",
                "check that pods which its selector names exist and are ready; in a folder, add an EndpointSlice",
            ],
            |it| it.endpoints.clear(),
        ),
        fault(
            "failing",
            " of Service default/app:80",
            &[
                "refuses connections (failed attempts in the last minute: ",
                "check that the pods listen on this port, and targetPort of the Service",
            ],
            |it| it.endpoints = vec![Origin::dead()],
        ),
        fault(
            "failing",
            " of Service default/copy:80",
            &[
                "refuses connections",
                "check that the pods listen on this port, and targetPort of the Service",
            ],
            |it| {
                it.more.push(yaml::service("copy", &[Origin::dead()]));
                it.filter(&mirror("copy"));
            },
        ),
        fault(
            "failing",
            " of Service default/auth:80",
            &[
                "refuses connections",
                "check that the pods listen on this port, and targetPort of the Service",
            ],
            |it| {
                it.more.push(yaml::service("auth", &[Origin::dead()]));
                it.filter(&json!({"type": "ExternalAuth", "externalAuth": {
                    "protocol": "HTTP", "backendRef": {"name": "auth", "port": 80}, "http": {"path": "/auth"},
                }}));
            },
        ),
        fault(
            "failing",
            " of Service default/collector:80",
            &[
                "refuses connections",
                "check that the pods listen on this port, and targetPort of the Service",
            ],
            |it| {
                it.more.push(yaml::service("collector", &[Origin::dead()]));
                it.more.push(
                    "apiVersion: portcullis.dev/v1alpha1\nkind: TelemetryPolicy\nmetadata: {name: traces}\nspec:\n  \
                     targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: gateway}]\n  \
                     tracing: {provider: {backendRef: {name: collector, port: 80}}, samplingRate: {numerator: 100}}"
                        .to_owned(),
                );
            },
        ),
    ]
}
