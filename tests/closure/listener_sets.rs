//! ListenerSets that come and leave one after the other. The closure is that of a new start, also if their listeners share
//! hosts or ports with others.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::contents::{class, object};
use crate::objects::certificate_secret;
use crate::properties::{Step, apply, check, closures, runner, take};
use crate::snapshot;

const NAMES: std::ops::Range<usize> = 0..5;

/// A Gateway that lets ListenerSets of all namespaces add listeners, each set with a route and two Secrets.
fn cluster() -> Vec<Value> {
    let own = |name: &str, hostname: &str| {
        let tls = json!({"certificateRefs": [{"name": "own"}]});
        json!({"name": name, "port": 443, "protocol": "HTTPS", "hostname": hostname, "tls": tls})
    };
    let gateway = json!({
        "gatewayClassName": "ours",
        "allowedListeners": {"namespaces": {"from": "All"}},
        "listeners": [own("a", "a.example"), own("wide", "*.wide.example")],
    });
    let gateway = object("Gateway", "infra", "g", gateway);
    let mut objects = vec![class(), gateway, certificate_secret("infra", "own")];
    for name in NAMES {
        let route = json!({
            "parentRefs": [{"kind": "ListenerSet", "name": format!("set{name}")}],
            "rules": [{"filters": [{"type": "RequestRedirect", "requestRedirect": {"statusCode": 302}}]}],
        });
        objects.push(object("HTTPRoute", "team", &format!("r{name}"), route));
        for secret in ["x", "y"] {
            objects.push(certificate_secret("team", &format!("{secret}{name}")));
        }
    }
    objects
}

/// A ListenerSet. Most hostnames are its own, so that it often shares none with others.
fn listener_set() -> impl Strategy<Value = Step> {
    let host = prop_oneof![
        4 => Just(None),
        2 => select(vec!["a.example", "b.example", "b.wide.example", "*.wide.example", "*.example", ""]).prop_map(Some),
    ];
    let listener = (
        host,
        select(vec![
            (443, "HTTPS"),
            (443, "HTTPS"),
            (443, "HTTP"),
            (80, "HTTP"),
        ]),
        select(vec!["x", "y"]),
    );
    let age = select(vec![1, 2, 3]);
    (NAMES, age, vec(listener, 1..3)).prop_map(|(name, age, listeners)| {
        let listeners = listeners.into_iter().enumerate();
        let listeners = listeners.map(|(number, (host, (port, protocol), secret))| {
            let own = format!("l{number}.set{name}.example");
            let tls = json!({"certificateRefs": [{"name": format!("{secret}{name}")}]});
            json!({
                "name": format!("l{number}"), "port": port, "protocol": protocol,
                "hostname": host.unwrap_or(&own), "tls": (protocol == "HTTPS").then_some(tls),
            })
        });
        let spec = json!({
            "parentRef": {"name": "g", "namespace": "infra"},
            "listeners": listeners.collect::<Vec<_>>(),
        });
        let mut set = object("ListenerSet", "team", &format!("set{name}"), spec);
        set["metadata"]["creationTimestamp"] = format!("2026-01-0{age}T00:00:00Z").into();
        Step::Put(set)
    })
}

#[test]
fn added_listener_sets_get_what_a_new_start_would_give_them() {
    let step = prop_oneof![
        4 => listener_set(),
        1 => any::<prop::sample::Index>().prop_map(Step::Delete),
    ];
    let result = runner(300).run(&(vec(step, 1..12), 1..3_usize), |(steps, burst)| {
        let mut cluster = snapshot(cluster());
        let (mut closures, mut copies) = (closures(), BTreeMap::new());
        apply(&mut copies, closures.follow(&cluster));
        for steps in steps.chunks(burst) {
            steps.iter().for_each(|step| take(&mut cluster, step));
            apply(&mut copies, closures.follow(&cluster));
            check(&cluster, &closures, &copies);
        }
        Ok(())
    });
    result.unwrap();
}
