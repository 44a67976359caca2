//! Schema of AccessPolicy, and what inherited policies have in common.

use super::{findings, yaml};

fn policy(spec: &str) -> Vec<String> {
    findings(yaml(&format!(
        "{{apiVersion: portcullis.dev/v1alpha1, kind: AccessPolicy, metadata: {{name: a}}, spec: {spec}}}"
    )))
}

fn on(targets: &str, rest: &str) -> Vec<String> {
    policy(&format!("{{targetRefs: [{targets}], {rest}}}"))
}

const GROUP: &str = "group: gateway.networking.k8s.io";

#[test]
fn validates_fields_of_access_policies() {
    let gateway = &format!("{{{GROUP}, kind: Gateway, name: web}}");
    let route = &format!("{{{GROUP}, kind: HTTPRoute, name: web}}");
    let listener = &format!("{{{GROUP}, kind: Gateway, name: web, sectionName: http}}");
    let service = &"{group: '', kind: Service, name: web}".to_owned();
    let rules = "ipRules: {deny: [10.0.0.0/8, '2001:db8::1']}";
    let locked = &format!("strategy: Overrides, {rules}");
    let rows = [
        (gateway, rules, ""),
        (&format!("{gateway}, {listener}"), rules, ""),
        (gateway, locked, ""),
        (route, rules, ""),
        (&String::new(), rules, "should have at least 1 items"),
        (
            service,
            rules,
            "spec.targetRefs[0].group: Unsupported value",
        ),
        (
            &format!("{gateway}, {gateway}"),
            rules,
            "targetRefs must be distinct",
        ),
        (
            route,
            locked,
            "strategy Overrides is for Gateways and ListenerSets",
        ),
        (
            gateway,
            "strategy: Defaults",
            "an AccessPolicy needs ipRules, basic, apiKey, jwt, oidc, external, require or authorization",
        ),
        (gateway, "ipRules: {}", "ipRules need allow or deny"),
        (
            gateway,
            "ipRules: {allow: []}",
            "should have at least 1 items",
        ),
        (
            gateway,
            "ipRules: {allow: [example.com]}",
            "spec.ipRules.allow[0]: Invalid value",
        ),
    ];
    check(&rows);
}

/// Checks the findings of targets with a spec.
fn check(rows: &[(&String, &str, &str)]) {
    for (targets, rest, expected) in rows.iter().copied() {
        let found = on(targets, rest);
        match expected {
            "" => assert!(found.is_empty(), "{targets} {rest}: {found:?}"),
            _ => assert!(
                found.iter().any(|it| it.contains(expected)),
                "{targets} {rest}: {found:?}"
            ),
        }
    }
}

#[test]
fn validates_where_keys_of_issuers_are() {
    let route = &format!("{{{GROUP}, kind: HTTPRoute, name: web}}");
    for (jwks, expected) in [
        ("remote: {uri: 'https://a.com/keys?b=c'}", ""),
        (
            "remote: {uri: 'http://127.0.0.1:8080/keys', cacheDuration: 10s}",
            "",
        ),
        (
            "remote: {uri: 'https://a.com', caConfigMapRef: {name: ca}}",
            "",
        ),
        ("remote: {}", "remote.uri: Required value"),
        (
            "remote: {uri: 'http://a.com/keys', backendRef: {name: a, port: 80, namespace: b}}",
            "",
        ),
        (
            "remote: {uri: 'http://a.com/keys', backendRef: {name: a}}",
            "backendRef.port: Required value",
        ),
        (
            "remote: {uri: 'http://a.com/keys', backendRef: {name: a, port: 80, kind: XBackend}}",
            "backendRef.kind",
        ),
        (
            "remote: {uri: 'https://a.com', cacheDuration: 9s}",
            "must be from 10s to 24h",
        ),
        (
            "remote: {uri: 'https://a.com', cacheDuration: 25h}",
            "must be from 10s to 24h",
        ),
        (
            "remote: {uri: 'https://b@a.com/keys'}",
            "remote.uri: Invalid value",
        ),
        (
            "remote: {uri: 'https://a.com/keys#b'}",
            "remote.uri: Invalid value",
        ),
        (
            "remote: {uri: 'ftp://a.com/keys'}",
            "remote.uri: Invalid value",
        ),
        (
            "remote: {uri: 'https:///keys'}",
            "remote.uri: Invalid value",
        ),
        (
            "inline: '{}', remote: {uri: 'https://a.com'}",
            "Too many: 2",
        ),
    ] {
        let spec = format!("jwt: {{providers: [{{issuer: a, jwks: {{{jwks}}}}}]}}");
        check(&[(route, &spec, expected)]);
    }
}

#[test]
fn validates_credentials_and_rules_of_access_policies() {
    let route = &format!("{{{GROUP}, kind: HTTPRoute, name: web}}");
    let tcp_route = &format!("{{{GROUP}, kind: TCPRoute, name: web}}");
    let keys = "apiKey: {secretRefs: [{name: keys}], from: [{type: Query, name: key}]}";
    let rules = "ipRules: {deny: [10.0.0.0/8]}";
    let rows = [
        (route, "basic: {secretRef: {name: users}}", ""),
        (route, "basic: {}", "spec.basic.secretRef: Required value"),
        (
            route,
            "basic: {secretRef: {kind: ConfigMap, name: users}}",
            "spec.basic.secretRef.kind: Unsupported value",
        ),
        (route, keys, ""),
        (
            route,
            "apiKey: {secretRefs: [{name: keys}], from: [{type: Body, name: key}]}",
            "spec.apiKey.from[0].type: Unsupported value",
        ),
        (route, "require: Any", ""),
        (route, "require: Some", "spec.require: Unsupported value"),
        (
            tcp_route,
            "require: Any",
            "basic, apiKey, jwt, oidc, external, require and authorization are for requests",
        ),
        (tcp_route, rules, ""),
        (route, "authorization: {default: Allow}", ""),
        (
            route,
            "authorization: {rules: [{name: a, action: Deny}]}",
            "",
        ),
        (
            route,
            "authorization: {rules: [{name: a, action: Audit}]}",
            "spec.authorization.rules[0].action: Unsupported value",
        ),
        (
            route,
            "authorization: {rules: [{name: a, action: Deny, match: {}}]}",
            "should have at least 1 properties",
        ),
        (
            route,
            "authorization: {rules: [{name: a, action: Deny, match: {methods: [get]}}]}",
            "match.methods[0]: Unsupported value",
        ),
    ];
    check(&rows);
}

#[test]
fn validates_authorization_servers_of_access_policies() {
    let route = &format!("{{{GROUP}, kind: HTTPRoute, name: web}}");
    let tcp_route = &format!("{{{GROUP}, kind: TCPRoute, name: web}}");
    let external =
        |rest: &str| format!("external: {{backendRef: {{name: auth, port: 80}}, {rest}}}");
    let rows: [(&String, &str, &str); 11] = [
        (route, &external("protocol: HTTP"), ""),
        (tcp_route, &external("protocol: HTTP"), "are for requests"),
        (
            route,
            "external: {protocol: HTTP, backendRef: {name: auth}}",
            "Must have port for Service reference",
        ),
        (
            route,
            &external("protocol: GRPC, http: {}"),
            "http needs protocol HTTP",
        ),
        (
            route,
            &external("protocol: HTTP, grpc: {}"),
            "grpc needs protocol GRPC",
        ),
        (
            route,
            &external("protocol: HTTP, http: {pathMode: Prefix}"),
            "http.pathMode: Unsupported value",
        ),
        (
            route,
            &external("protocol: HTTP, forwardBody: {maxSize: 65536}"),
            "forwardBody.maxSize: Invalid value",
        ),
        (
            route,
            &external("protocol: HTTP, signInRedirect: 'https://a.com/?rd={return}'"),
            "",
        ),
        (
            route,
            &external("protocol: HTTP, signInRedirect: /login"),
            "",
        ),
        (
            route,
            &external("protocol: HTTP, signInRedirect: //a.com/"),
            "signInRedirect: Invalid value",
        ),
        (
            route,
            &external("protocol: HTTP, signInRedirect: 'javascript:a'"),
            "signInRedirect: Invalid value",
        ),
    ];
    check(&rows);
}

#[test]
fn validates_sign_in_of_access_policies() {
    let route = &format!("{{{GROUP}, kind: HTTPRoute, name: web}}");
    let tcp_route = &format!("{{{GROUP}, kind: TCPRoute, name: web}}");
    for (target, rest, expected) in [
        (route, "", ""),
        (tcp_route, "", "are for requests"),
        (
            route,
            "clientSecretRef: {name: login}, scopes: [email, 'https://a.com/b']",
            "",
        ),
        (route, "redirectPath: /login, logoutPath: /logout", ""),
        (
            route,
            "redirectPath: /login, logoutPath: /login",
            "must differ",
        ),
        (route, "redirectPath: /oauth2/logout", "must differ"),
        (route, "backChannelLogoutPath: /ended", ""),
        (
            route,
            "backChannelLogoutPath: /oauth2/callback",
            "must differ",
        ),
        (
            route,
            "logoutPath: /out, backChannelLogoutPath: /out",
            "must differ",
        ),
        (
            route,
            "backChannelLogoutPath: 'https://a.com/ended'",
            "backChannelLogoutPath: Invalid value",
        ),
        (
            route,
            "redirectPath: 'https://a.com/'",
            "redirectPath: Invalid value",
        ),
        (route, "redirectPath: /a?b", "redirectPath: Invalid value"),
        (
            route,
            "cookie: {name: a, domain: example.com, sameSite: None, path: /a}",
            "",
        ),
        (
            route,
            "cookie: {sameSite: none}",
            "cookie.sameSite: Unsupported value",
        ),
        (
            route,
            "cookie: {domain: com}",
            "cookie.domain: Invalid value",
        ),
        (route, "cookie: {name: 'a b'}", "cookie.name: Invalid value"),
        (route, "cookie: {}", "should have at least 1 properties"),
        (route, "scopes: ['a b']", "scopes[0]: Invalid value"),
        (
            route,
            "redirectOnlyFor: [html]",
            "redirectOnlyFor[0]: Invalid value",
        ),
        (route, "absoluteTimeout: 30s", "must be from 1m to 720h"),
        (route, "absoluteTimeout: 721h", "must be from 1m to 720h"),
        (
            route,
            "forwardIDToken: 'a b'",
            "forwardIDToken: Invalid value",
        ),
    ] {
        let spec = format!("oidc: {{issuer: 'https://a.com/b', clientID: shop, {rest}}}");
        check(&[(target, &spec, expected)]);
    }
}

#[test]
fn validates_provider_of_sign_in() {
    let route = &format!("{{{GROUP}, kind: HTTPRoute, name: web}}");
    for issuer in ["a.com", "https://a.com?b", "https://a@b.com", "ftp://a.com"] {
        let spec = format!("oidc: {{issuer: '{issuer}', clientID: shop}}");
        check(&[(route, &spec, "spec.oidc.issuer: Invalid value")]);
    }
    check(&[(
        route,
        "oidc: {issuer: 'https://a.com'}",
        "spec.oidc.clientID: Required value",
    )]);
}

#[test]
fn validates_parameters_of_authorization_requests() {
    let route = &format!("{{{GROUP}, kind: HTTPRoute, name: web}}");
    for (parameters, expected) in [
        ("{audience: 'https://api.a.com', prompt: login}", ""),
        (
            "{audience: a, nonce: b}",
            "code_challenge_method, request and request_uri are set by the protocol",
        ),
        ("{request_uri: a}", "are set by the protocol"),
        ("{audience: ''}", "should be at least 1 chars"),
        (
            "{a: a, b: a, c: a, d: a, e: a, f: a, g: a, h: a, i: a}",
            "Too many: 9",
        ),
    ] {
        let spec = format!(
            "oidc: {{issuer: 'https://a.com', clientID: shop, authorizationParameters: {parameters}}}"
        );
        check(&[(route, &spec, expected)]);
    }
}
