//! Faults of references between objects.

use serde_json::json;

use super::{Fault, GATEWAY, ROUTE, fault};
use crate::access_policy::{access, gateway, ip_rules, of_route};
use crate::backend_tls::{self, trust};
use crate::mirror::mirror;
use crate::rate_limit_policy::{limits, per_hour};
use crate::route_policy;
use crate::scene::secret_of;

/// Returns the faults.
pub(super) fn all() -> Vec<Fault> {
    [backends(), parents(), policies(), weak_policies()]
        .into_iter()
        .flatten()
        .collect()
}

/// Of routes to backends.
fn backends() -> Vec<Fault> {
    vec![
        fault(
            "object",
            ROUTE,
            &[
                "Service default/ap does not exist",
                "correct the reference, or create what it names",
            ],
            |it| it.backend()["name"] = json!("ap"),
        ),
        fault(
            "object",
            ROUTE,
            &[
                "Service default/app has no port 81; its ports: [80]",
                "correct the reference, or create what it names",
            ],
            |it| it.backend()["port"] = json!(81),
        ),
        fault(
            "object",
            ROUTE,
            &["kind Pod of group \"\" is not supported as a backend; supported kinds: "],
            |it| it.backend()["kind"] = json!("Pod"),
        ),
        fault(
            "object",
            ROUTE,
            &["no ReferenceGrant in namespace data permits it; add one there"],
            |it| it.backend()["namespace"] = json!("data"),
        ),
        fault(
            "object",
            ROUTE,
            &[
                "Service default/copy does not exist",
                "correct the reference, or create what it names",
            ],
            |it| it.filter(&mirror("copy")),
        ),
    ]
}

/// Of routes to Gateways, and of Gateways.
fn parents() -> Vec<Fault> {
    vec![
        fault(
            "note",
            ROUTE,
            &[
                "names Gateway default/gatewy, which does not exist: nothing is served through it; did you mean gateway?",
                "correct the name, or create it",
            ],
            |it| it.parent = "gatewy",
        ),
        fault(
            "object",
            ROUTE,
            &[
                "has no listener named htp (sectionName) that a route can attach to; see its spec.listeners",
            ],
            |it| it.parent = "gateway/htp",
        ),
        fault(
            "object",
            GATEWAY,
            &[
                "InvalidCertificateRef",
                "Secret default/tls does not exist",
                "create the Secret, repair it, or name another one: it has type kubernetes.io/tls",
            ],
            |it| it.secret = None,
        ),
        fault(
            "object",
            GATEWAY,
            &[
                "Secret default/tls has no PEM certificate in tls.crt",
                "create the Secret, repair it, or name another one: it has type kubernetes.io/tls",
            ],
            |it| it.secret = Some(secret_of("tls", "no certificate", "no key")),
        ),
        fault(
            "note",
            GATEWAY,
            &[
                "not served: spec.gatewayClassName is nginx, which does not exist; classes served here: portcullis",
            ],
            |it| it.typo = ("gatewayClassName: portcullis", "gatewayClassName: nginx"),
        ),
    ]
}

/// Of policies.
fn policies() -> Vec<Fault> {
    vec![
        fault(
            "note",
            "AccessPolicy default/open",
            &[
                "without effect: spec.targetRefs: HTTPRoute default/rout does not exist; did you mean route?",
                "correct the name, or create it",
            ],
            |it| {
                let target = json!({"kind": "HTTPRoute", "name": "rout"});
                let open = access("open", &target, &ip_rules(&["127.0.0.0/8"], &[]));
                it.more.push(open);
            },
        ),
        fault(
            "object",
            "AccessPolicy default/users",
            &[
                "Secret default/users does not exist",
                "correct the name, or create it",
            ],
            |it| {
                let basic = json!({"basic": {"secretRef": {"name": "users"}}});
                it.more.push(access("users", &of_route(), &basic));
            },
        ),
        fault(
            "object",
            "BackendTLSPolicy default/app",
            &[
                "ConfigMap default/ca does not exist",
                "create the ConfigMap, repair it, or name another one: ca.crt has the certificates of the authorities as PEM",
            ],
            |it| {
                let policy = backend_tls::policy("app", &trust("app.example.com"), &json!({}));
                it.more.push(policy);
            },
        ),
        fault(
            "object",
            "RoutePolicy default/pages",
            &[
                "ConfigMap default/pages does not exist",
                "correct the name, or create it",
            ],
            |it| {
                let keys = json!([{"key": "a.html", "mediaType": "text/html"}]);
                let page = json!({
                    "codes": [503], "source": "Any", "configMapRef": {"name": "pages", "keys": keys},
                });
                let spec = json!({"errorPages": [page]});
                it.more
                    .push(route_policy::policy("pages", &gateway(), &spec));
            },
        ),
    ]
}

/// Of policies that do less than they seem to.
fn weak_policies() -> Vec<Fault> {
    vec![
        fault(
            "policy",
            "AccessPolicy default/open",
            &[
                "spec.ipRules.allow permits addresses that AccessPolicy default/edge does not permit",
                "narrow it, unless it is meant to permit more",
            ],
            |it| {
                let edge = access("edge", &gateway(), &ip_rules(&["127.0.0.0/8"], &[]));
                let open = access("open", &of_route(), &ip_rules(&["0.0.0.0/0"], &[]));
                it.more.extend([edge, open]);
            },
        ),
        fault(
            "policy",
            "RateLimitPolicy default/all",
            &[
                "limit all has scope Gateway: a process without a controller knows no others, and admits the whole limit by itself",
                "run it with a controller, or divide the limit and count by scope Replica",
            ],
            |it| {
                let mut limit = per_hour("all", 1000);
                limit["scope"] = json!("Gateway");
                it.more
                    .push(limits("all", &gateway(), &json!([limit]), None));
            },
        ),
        fault(
            "signIn",
            "AccessPolicy default/desk",
            &[
                "no rule that the policy applies to matches spec.oidc.redirectPath /oauth2/callback for host ",
                "browsers that come back from the provider are not signed in",
                "correct the path, or add a rule for it",
            ],
            |it| {
                it.hosts = &["desk.example.com"];
                it.rule["matches"] = ["/app", "/oauth2/logout"]
                    .map(|path| json!({"path": {"value": path}}))
                    .into();
                let oidc = json!({"oidc": {"issuer": "https://login.invalid", "clientID": "desk"}});
                it.more.push(access("desk", &of_route(), &oidc));
            },
        ),
    ]
}
