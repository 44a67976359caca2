//! Schema of the CORS filter of an HTTPRoute.

use serde_json::{Value, json};

use super::{findings, route};
use crate::api::{Object, admit};

fn with(cors: &Value) -> Value {
    route(json!({"rules": [{"filters": [{"type": "CORS", "cors": cors}]}]}))
}

#[test]
fn accepts_valid_cors_filters() {
    let names = |count: usize| -> Vec<String> { (0..count).map(|at| format!("x-{at}")).collect() };
    let origins: Vec<String> = (0..64).map(|at| format!("https://{at}.com")).collect();
    let rows = [
        json!({}),
        json!({"allowOrigins": []}),
        json!({"allowOrigins": ["*"]}),
        json!({"allowOrigins": ["https://*", "http://*:8080", "https://*.a.com:99999", "http://A"]}),
        json!({"allowOrigins": origins}),
        json!({"allowMethods": ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"]}),
        json!({"allowMethods": ["*"], "allowHeaders": ["*"], "exposeHeaders": ["*", "x-a"]}),
        json!({"allowHeaders": names(64), "exposeHeaders": names(64)}),
        json!({"allowCredentials": false, "maxAge": 1}),
        json!({"maxAge": i32::MAX}),
    ];
    for cors in rows {
        assert_eq!(findings(with(&cors)), [""; 0], "{cors}");
    }
}

#[test]
fn max_age_defaults_to_five_seconds() {
    let Some(Object::HttpRoute(route)) = admit(with(&json!({}))).object else {
        panic!("not a route")
    };
    let cors = route.spec.rules[0].filters[0].cors.as_ref();
    assert_eq!(cors.and_then(|cors| cors.max_age), Some(5));
}

#[test]
fn rejects_invalid_cors_filters() {
    let rows = [
        ("allowOrigins", json!(["*", "https://a.com"])),
        ("allowOrigins", json!(["https://a.com", "https://a.com"])),
        ("allowOrigins", json!(vec!["https://a.com"; 65])),
        ("allowOrigins", json!(["a.com"])),
        ("allowOrigins", json!([""])),
        ("allowOrigins", json!(["null"])),
        ("allowOrigins", json!(["ftp://a.com"])),
        ("allowOrigins", json!(["https://a.*.com"])),
        ("allowOrigins", json!(["https://*a.com"])),
        ("allowOrigins", json!(["https://a.com/"])),
        ("allowOrigins", json!(["https://[::1]"])),
        ("allowOrigins", json!(["https://a.com:123456"])),
        ("allowMethods", json!(["*", "GET"])),
        ("allowMethods", json!(["get"])),
        ("allowMethods", json!(["PURGE"])),
        ("allowHeaders", json!(["*", "x-a"])),
        ("allowHeaders", json!(["x a"])),
        ("allowHeaders", json!([""])),
        ("exposeHeaders", json!(["x-a", "x-a"])),
        ("exposeHeaders", json!(["x:a"])),
        ("allowCredentials", json!("true")),
        ("maxAge", json!(0)),
        ("maxAge", json!(1_i64 << 31)),
    ];
    for (member, value) in rows {
        let found = findings(with(&json!({member: value})));
        let field = format!("spec.rules[0].filters[0].cors.{member}");
        let is_error = |finding: &String| finding.starts_with("error") && finding.contains(&field);
        assert!(found.iter().any(is_error), "{member}: {value}: {found:?}");
    }
    let twice = json!({"type": "CORS", "cors": {}});
    let found = findings(route(json!({"rules": [{"filters": [twice, twice]}]})));
    assert!(
        found
            .iter()
            .any(|finding| finding.contains("CORS filter cannot be repeated")),
        "{found:?}"
    );
    let missing = route(json!({"rules": [{"filters": [{"type": "CORS"}]}]}));
    let found = findings(missing);
    assert!(
        found
            .iter()
            .any(|finding| finding.contains("filter.cors must be specified")),
        "{found:?}"
    );
}
