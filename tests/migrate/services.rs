//! Services that Ingresses name: their ports, and the policies on them, which other Ingresses of the Service share.

use portcullis::migrate::{Migration, Outcome};
use serde_json::{Value, json};

use crate::hostile::{ROOT, annotation, ingress};
use crate::{migrated, settings};

/// Returns Service `web` with this spec.
fn service(spec: &Value) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\nspec: {spec}\n"
    )
}

/// Returns an Ingress of Service `web` with another name and path.
fn other(annotations: &str, port: &str) -> String {
    let path = ROOT.replace("path: /,", "path: /other,");
    let path = path.replace("number: 80", &format!("number: {port}"));
    ingress(annotations, &path).replace("  name: web\n", "  name: other\n")
}

/// Returns what the report says of a setting of an Ingress.
fn outcome(migration: &Migration, object: &str, setting: &str) -> Option<Outcome> {
    let mut lines = migration.report.lines.iter();
    let line = lines.find(|line| line.object == object && line.setting == setting)?;
    Some(line.outcome)
}

#[test]
fn ports_are_found_as_by_ingress_nginx() {
    for (port, spec, expected, needs_hand) in [
        (
            "{number: 80}",
            json!({"ports": [{"port": 80}]}),
            Some(80),
            false,
        ),
        (
            "{number: 8080}",
            json!({"ports": [{"port": 80, "targetPort": 8080}]}),
            Some(80),
            false,
        ),
        (
            "{name: web}",
            json!({"ports": [{"port": 80, "targetPort": "web"}]}),
            Some(80),
            false,
        ),
        (
            "{name: web}",
            json!({"ports": [{"port": 80, "name": "web"}]}),
            Some(80),
            false,
        ),
        (
            "{number: 8080}",
            json!({"ports": [{"port": 80}]}),
            None,
            false,
        ),
        (
            "{number: 80}",
            json!({"type": "ExternalName", "externalName": "a.example.org"}),
            None,
            true,
        ),
    ] {
        let path = ROOT.replace("{number: 80}", port);
        let text = [ingress("{}", &path), service(&spec)].join("---\n");
        let migration = migrated(&text, &settings());
        let mut objects = migration.output.objects();
        let route = objects.find(|object| object["kind"] == "HTTPRoute");
        let found = &route.unwrap()["spec"]["rules"][0]["backendRefs"][0]["port"];
        assert_eq!(*found, json!(expected), "{port} {spec}");
        assert_eq!(migration.report.needs_hand(), needs_hand, "{port} {spec}");
        assert_eq!(migration.report.faults, Vec::<String>::new());
    }
}

/// A policy on TLS is for a port of a Service, or for all of them if the Service is not in the input.
#[test]
fn tls_that_another_ingress_asks_for_is_said() {
    let path = ROOT.replace("number: 80", "number: 443");
    let secure = ingress(&annotation("backend-protocol", "HTTPS"), &path);
    let ports = json!({"ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}]});
    for (port, is_known, expected) in [
        ("80", false, Some(Outcome::NotPossible)),
        ("80", true, None),
        ("443", true, Some(Outcome::ChangedMeaning)),
    ] {
        let mut text = [secure.clone(), other("{}", port)].join("---\n");
        if is_known {
            text.push_str("---\n");
            text.push_str(&service(&ports));
        }
        let migration = migrated(&text, &settings());
        let found = outcome(&migration, "Ingress shop/other", "backend-protocol");
        assert_eq!(found, expected, "{port} {is_known}");
        assert_eq!(migration.report.faults, Vec::<String>::new());
    }
}

#[test]
fn sessions_that_another_ingress_asks_for_are_said() {
    let affinity = annotation("affinity", "cookie");
    for (annotations, expected) in [
        ("{}", Outcome::ChangedMeaning),
        (affinity.as_str(), Outcome::Converted),
    ] {
        let text = [ingress(&affinity, ROOT), other(annotations, "80")].join("---\n");
        let migration = migrated(&text, &settings());
        let found = outcome(&migration, "Ingress shop/other", "affinity");
        assert_eq!(found, Some(expected), "{annotations}");
    }
}

/// With `AUTO_HTTP`, ingress-nginx sends requests as it gets them.
#[test]
fn plain_text_in_place_of_the_scheme_of_clients_is_said() {
    for (protocol, expected) in [
        ("HTTP", Outcome::DefaultAlready),
        ("AUTO_HTTP", Outcome::ChangedMeaning),
    ] {
        let text = ingress(&annotation("backend-protocol", protocol), ROOT);
        let migration = migrated(&text, &settings());
        let found = outcome(&migration, "Ingress shop/web", "backend-protocol");
        assert_eq!(found, Some(expected), "{protocol}");
    }
}

/// ingress-nginx verifies no backend without `proxy-ssl-secret`.
#[test]
fn verification_without_an_authority_is_said() {
    let name = |name: &str| format!("nginx.ingress.kubernetes.io/{name}");
    for (secret, expected) in [
        (None, Outcome::ChangedMeaning),
        (Some("shop/ca"), Outcome::Converted),
    ] {
        let mut annotations = json!({
            name("backend-protocol"): "HTTPS",
            name("proxy-ssl-verify"): "on",
        });
        if let Some(secret) = secret {
            annotations[name("proxy-ssl-secret")] = json!(secret);
        }
        let migration = migrated(&ingress(&annotations.to_string(), ROOT), &settings());
        for setting in ["backend-protocol", "proxy-ssl-verify"] {
            let found = outcome(&migration, "Ingress shop/web", setting);
            assert_eq!(found, Some(expected), "{secret:?} {setting}");
        }
    }
}

#[test]
fn ports_that_get_no_plain_text_are_said() {
    for (protocol, annotations, expected) in [
        ("https", "{}".to_owned(), Some(Outcome::NotPossible)),
        ("http", "{}".to_owned(), None),
        (
            "https",
            annotation("backend-protocol", "HTTPS"),
            Some(Outcome::ChangedMeaning),
        ),
    ] {
        let ports = json!({"ports": [{"port": 80, "appProtocol": protocol}]});
        let text = [ingress(&annotations, ROOT), service(&ports)].join("---\n");
        let migration = migrated(&text, &settings());
        let found = outcome(&migration, "Ingress shop/web", "backend-protocol");
        assert_eq!(found, expected, "{protocol} {annotations}");
    }
}

/// A host with other paths has HTTPRoutes, which send HTTP/2 to ports with this `appProtocol`, and with TLS by ALPN.
#[test]
fn calls_need_a_port_for_http2() {
    for (calls, protocol, expected) in [
        ("GRPC", "kubernetes.io/h2c", Outcome::Converted),
        ("GRPC", "grpc", Outcome::NotPossible),
        ("GRPCS", "grpc", Outcome::Converted),
    ] {
        let calls = annotation("backend-protocol", calls);
        let ports = json!({"ports": [{"port": 80, "appProtocol": protocol}]});
        let text = [ingress(&calls, ROOT), other("{}", "80"), service(&ports)].join("---\n");
        let migration = migrated(&text, &settings());
        let found = outcome(&migration, "Ingress shop/web", "backend-protocol");
        assert_eq!(found, Some(expected), "{protocol}");
    }
}
