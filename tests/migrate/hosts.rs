//! What the Ingresses of a host share: aliases, paths, default backends and refused spellings of paths. No restriction is
//! evaded by them.

use portcullis::migrate::{Migration, Outcome, Settings};
use serde_json::{Value, json};

use crate::controller::paths;
use crate::hostile::{ROOT, annotation, ingress, is_closed};
use crate::{migrated, name, settings};

const RANGE: (&str, &str) = ("whitelist-source-range", "10.0.0.0/8");

/// Returns an Ingress with another name.
fn named(name: &str, annotations: &str, path: &str) -> String {
    ingress(annotations, path).replace("name: web\n", &format!("name: {name}\n"))
}

fn path(path: &str, kind: &str) -> String {
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    json!({"path": path, "pathType": kind, "backend": backend}).to_string()
}

/// Returns the route of this kind and name.
fn route<'m>(migration: &'m Migration, kind: &str, name: &str) -> Option<&'m Value> {
    let mut objects = migration.output.objects();
    objects.find(|object| object["kind"] == kind && object["metadata"]["name"] == name)
}

fn hostnames(migration: &Migration, name: &str) -> Value {
    let route = route(migration, "HTTPRoute", name);
    route.map_or(Value::Null, |route| route["spec"]["hostnames"].clone())
}

#[test]
fn an_alias_has_the_paths_of_all_ingresses_of_its_host() {
    let open = named("open", &annotation("server-alias", "b.example.com"), ROOT);
    let range = annotation(RANGE.0, RANGE.1);
    let admin = named("admin", &range, &path("/admin", "Prefix"));
    let later = named(
        "later",
        &annotation("server-alias", "c.example.com"),
        &path("/later", "Prefix"),
    );
    let later = later.replace(
        "  namespace: shop\n",
        "  namespace: shop\n  creationTimestamp: \"2026-01-01T00:00:00Z\"\n",
    );
    let text = [open, admin, later].join("---\n");
    let migration = migrated(&text, &settings());
    assert_eq!(migration.report.faults, Vec::<String>::new());
    for name in ["open", "admin", "later"] {
        let expected = json!(["a.example.com", "b.example.com"]);
        assert_eq!(hostnames(&migration, name), expected, "{name}");
    }
    let mut lines = migration.report.lines.iter();
    let line = lines.find(|line| line.object.ends_with("/later") && line.setting == "server-alias");
    assert!(
        line.unwrap().text.starts_with("c.example.com: "),
        "{line:?}"
    );
}

#[test]
fn certificates_and_snippets_of_a_host_restrict_its_alias() {
    let closing = named("closing", &annotation("server-snippet", "deny all;"), ROOT);
    let alias = annotation("server-alias", "b.example.com");
    let other = named("other", &alias, &path("/other", "Prefix"));
    let migration = migrated(&[closing, other].join("---\n"), &settings());
    for name in ["closing", "other"] {
        assert!(is_closed(&migration, name), "{name}");
        let expected = json!(["a.example.com", "b.example.com"]);
        assert_eq!(hostnames(&migration, name), expected, "{name}");
    }
}

/// With the same second of creation, the last name comes first.
#[test]
fn a_path_belongs_to_the_ingress_that_comes_first() {
    let created = |text: String, second: &str| {
        let metadata = format!("  namespace: shop\n  creationTimestamp: \"{second}\"\n");
        text.replace("  namespace: shop\n", &metadata)
    };
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z");
    for (of_one, of_two, expected) in [(early, late, "one"), (early, early, "two")] {
        let one = created(named("one", "{}", ROOT), of_one);
        let two = created(named("two", "{}", ROOT), of_two);
        let migration = migrated(&[one, two].join("---\n"), &settings());
        for name in ["one", "two"] {
            let is_there = route(&migration, "HTTPRoute", name).is_some();
            assert_eq!(is_there, name == expected, "{of_one} {of_two} {name}");
        }
    }
}

#[test]
fn a_host_has_the_default_backend_of_its_first_ingress() {
    let default = "spec:\n  defaultBackend: {service: {name: web, port: {number: 80}}}";
    let with_default = |text: String| text.replace("spec:", default);
    let text = |path: &str, first: bool, second: bool| {
        let of = |name: &str, has: bool| {
            let text = named(name, "{}", &path.replace("NAME", name));
            if has { with_default(text) } else { text }
        };
        // Of the same age, `two` comes first.
        [of("two", first), of("one", second)].join("---\n")
    };
    let path = path("/NAME", "Prefix");
    for (first, second, expected) in [
        (true, true, Some("two")),
        (true, false, Some("two")),
        (false, true, None),
    ] {
        let migration = migrated(&text(&path, first, second), &settings());
        for name in ["one", "two"] {
            let has_root = paths(&migration, name).contains(&"/".to_owned());
            assert_eq!(has_root, expected == Some(name), "{first} {second} {name}");
        }
        assert_eq!(migration.report.faults, Vec::<String>::new());
    }
}

/// Hosts with the same paths share a route only if they refuse the same.
#[test]
fn a_guarded_host_refuses_spellings_beside_one_that_is_not() {
    let rule = "  - host: b.example.com\n    http:\n      paths:\n      - ";
    let regex = "nginx.ingress.kubernetes.io/use-regex: \"true\"";
    let range = "nginx.ingress.kubernetes.io/whitelist-source-range: 10.0.0.0/8";
    let admin = path("/admin/.*", "ImplementationSpecific");
    // Of the two hosts, `b.example.com` comes first and has one Ingress.
    let two_hosts = |name: &str, annotations: &str, path: &str, other: &str| {
        let text = named(name, annotations, path).replace("a.example.com", other);
        format!(
            "{text}{}{path}\n",
            rule.replace("b.example.com", "a.example.com")
        )
    };
    let open = two_hosts("open", &format!("{{{regex}}}"), ROOT, "b.example.com");
    let both = format!("{{{regex}, {range}}}");
    let restricted = two_hosts("restricted", &both, &admin, "c.example.com");
    let migration = migrated(&[open, restricted].join("---\n"), &settings());
    let refusing = migration.output.objects().filter(|object| {
        let hosts = object["spec"]["hostnames"].as_array();
        let is_of_host = hosts.is_some_and(|hosts| hosts.contains(&json!("a.example.com")));
        let value = &object["spec"]["rules"][0]["matches"][0]["path"]["value"];
        is_of_host && value.as_str().is_some_and(|value| value.contains("|2F)"))
    });
    assert_eq!(refusing.count(), 2);
    assert_eq!(migration.report.faults, Vec::<String>::new());
}

#[test]
fn a_canary_is_for_the_host_that_it_names() {
    let main = ingress("{}", ROOT);
    let rule = format!("  - host: b.example.com\n    http:\n      paths:\n      - {ROOT}\n");
    let weight = "{nginx.ingress.kubernetes.io/canary: \"true\", nginx.ingress.kubernetes.io/canary-weight: \"20\"}";
    let canary = named("next", weight, ROOT).replace("a.example.com", "b.example.com");
    let text = [format!("{main}{rule}"), canary].join("---\n");
    let migration = migrated(&text, &settings());
    for (host, expected) in [("a.example.com", 1), ("b.example.com", 2)] {
        let mut objects = migration.output.objects();
        let route = objects.find(|object| object["spec"]["hostnames"] == json!([host]));
        let backends = &route.unwrap()["spec"]["rules"][0]["backendRefs"];
        assert_eq!(backends.as_array().unwrap().len(), expected, "{host}");
    }
    assert!(!migration.report.needs_hand());
}

#[test]
fn limits_hold_for_all_that_begins_with_a_path() {
    let login = path("/wp-login", "ImplementationSpecific");
    let open = named("open", "{}", ROOT);
    for (annotations, expected, is_guarded) in [
        (annotation("limit-rpm", "5"), "/wp\\-login(.*)?", true),
        ("{}".to_owned(), "/wp-login", false),
    ] {
        let limited = named("limited", &annotations, &login);
        let text = [open.clone(), limited].join("---\n");
        let migration = migrated(&text, &settings());
        let mut found = paths(&migration, "limited");
        assert_eq!(found.pop().unwrap(), expected, "{annotations}");
        // Other spellings of the path are refused before it.
        let is_refusing = |path: &String| path.contains("%(?:2F)");
        assert_eq!(found.iter().any(is_refusing), is_guarded, "{annotations}");
        assert_eq!(found.len(), usize::from(is_guarded), "{annotations}");
    }
}

/// Requests that no path of a host matches may match a path of a wildcard.
#[test]
fn a_restricted_host_below_a_wildcard_refuses_spellings() {
    let range = annotation(RANGE.0, RANGE.1);
    let restricted = named("restricted", &range, &path("/admin", "Prefix"));
    for (host, expected) in [
        ("\"*.example.com\"", true),
        ("\"*.example.org\"", false),
        ("b.example.com", false),
    ] {
        let other = named("other", "{}", ROOT).replace("a.example.com", host);
        let text = [restricted.clone(), other].join("---\n");
        let migration = migrated(&text, &settings());
        let found = paths(&migration, "restricted");
        let is_refusing = |path: &String| path.contains("%(?:2F)");
        assert_eq!(found.iter().any(is_refusing), expected, "{host}");
        assert_eq!(migration.report.faults, Vec::<String>::new(), "{host}");
    }
}

#[test]
fn restricted_calls_are_those_of_the_path() {
    let grpc = "nginx.ingress.kubernetes.io/backend-protocol: GRPC";
    let range = "nginx.ingress.kubernetes.io/whitelist-source-range: 10.0.0.0/8";
    for service in ["/shop.Orders", "/shop.Orders/"] {
        let path = path(service, "Prefix");
        let text = ingress(&format!("{{{grpc}, {range}}}"), &path);
        let migration = migrated(&text, &settings());
        let rules = &route(&migration, "GRPCRoute", "web").unwrap()["spec"]["rules"];
        let expected = json!([{"method": {"service": "shop.Orders"}}]);
        assert_eq!(rules[0]["matches"], expected, "{service}");
        assert_eq!(rules.as_array().unwrap().len(), 1, "{service}");
        assert_eq!(migration.report.faults, Vec::<String>::new(), "{service}");
    }
}

#[test]
fn a_switch_with_blanks_is_none() {
    let server = ("global-auth-url", "http://auth.login.svc/");
    for (value, expected) in [("false", false), ("false\n", true)] {
        let off = annotation("enable-global-auth", value);
        let text = crate::controller::with_controller(&off, &[server]);
        let migration = migrated(&text, &crate::controller::controller_settings());
        assert_eq!(is_closed(&migration, "web"), expected, "{value:?}");
    }
}

#[test]
fn a_redirect_to_www_without_a_certificate_is_said() {
    for (hosts, expected) in [
        ("a.example.com", true),
        ("a.example.com, www.a.example.com", false),
    ] {
        let text = ingress(&annotation("from-to-www-redirect", "true"), ROOT);
        let text = format!("{text}  tls:\n  - {{hosts: [{hosts}], secretName: a}}\n");
        let migration = migrated(&text, &settings());
        let mut lines = migration.report.lines.iter();
        let is_said = lines.any(|line| {
            line.setting == "from-to-www-redirect" && line.outcome == Outcome::ChangedMeaning
        });
        assert_eq!(is_said, expected, "{hosts}");
        assert_eq!(migration.report.faults, Vec::<String>::new(), "{hosts}");
    }
}

/// ingress-nginx serves every host with TLS, and redirects those without `tls` only if that is forced.
#[test]
fn hosts_without_tls_have_the_default_certificate() {
    let settings = Settings {
        default_certificate: Some(name("shop/default")),
        ..crate::controller::controller_settings()
    };
    let force = "force-ssl-redirect";
    let forced = annotation(force, "true");
    let cases: [(&str, crate::controller::Data<'_>, &[&str]); 3] = [
        ("{}", &[], &["https", "http"]),
        (forced.as_str(), &[], &["https"]),
        ("{}", &[(force, "true")], &["https"]),
    ];
    for (annotations, data, expected) in cases {
        let text = crate::controller::with_controller(annotations, data);
        let migration = migrated(&text, &settings);
        let parents = &route(&migration, "HTTPRoute", "web").unwrap()["spec"]["parentRefs"];
        let parents = parents.as_array().unwrap().iter();
        let sections: Vec<&Value> = parents.map(|parent| &parent["sectionName"]).collect();
        assert_eq!(json!(sections), json!(expected), "{annotations} {data:?}");
        let redirect = route(&migration, "HTTPRoute", "web-https-redirect");
        assert_eq!(redirect.is_some(), expected.len() == 1, "{annotations}");
        assert_eq!(migration.report.faults, Vec::<String>::new());
    }
}

#[test]
fn hosts_have_the_certificate_of_the_wildcard_above_them() {
    for (wildcard, expected) in [("*.example.com", true), ("*.example.org", false)] {
        let quoted = format!("\"{wildcard}\"");
        let above = named("above", "{}", ROOT).replace("a.example.com", &quoted);
        let above = format!("{above}  tls:\n  - {{hosts: [{quoted}], secretName: above}}\n");
        let text = [ingress("{}", ROOT), above].join("---\n");
        let migration = migrated(&text, &settings());
        let parents = &route(&migration, "HTTPRoute", "web").unwrap()["spec"]["parentRefs"];
        let has_tls = parents[0]["kind"] == "ListenerSet";
        assert_eq!(has_tls, expected, "{wildcard}");
        let redirect = route(&migration, "HTTPRoute", "web-https-redirect");
        assert_eq!(redirect.is_some(), expected, "{wildcard}");
        assert_eq!(migration.report.faults, Vec::<String>::new());
    }
}
