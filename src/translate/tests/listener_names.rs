//! Listeners of one name in an object, which no API server stores: the second one is refused and takes nothing from others.

use serde_json::{Value, json};

use super::{Translation, gateway, object, run};
use crate::status::{Condition, ConditionType, ListenerStatus, Reason};

fn listener(name: &str, port: u16, hostname: &str) -> Value {
    json!({"name": name, "port": port, "protocol": "HTTP", "hostname": hostname})
}

fn accepted(status: &ListenerStatus) -> &Condition {
    let mut conditions = status.conditions.iter();
    let accepted = conditions.find(|one| one.kind == ConditionType::Accepted);
    accepted.unwrap()
}

fn served(translation: &Translation) -> Vec<(u16, &str)> {
    let ports = translation.ir.ports.iter();
    let listeners =
        ports.flat_map(|port| port.listeners.iter().map(move |one| (port.bind.port, one)));
    listeners
        .map(|(port, listener)| (port, &*listener.key.name))
        .collect()
}

#[test]
fn second_listener_of_a_name_is_refused() {
    let listeners = [
        listener("http", 80, "a.com"),
        listener("http", 81, "b.com"),
        // The one that is refused takes neither the hostname nor the port.
        listener("late", 81, "b.com"),
    ];
    let translation = run(&[gateway(&json!({"listeners": listeners}))], None);
    assert_eq!(served(&translation), [(80, "http"), (81, "late")]);
    let status = translation.report.gateways.values().next().unwrap();
    let reasons = status.listeners.iter().map(|one| accepted(one).reason);
    let expected = [Reason::Accepted, Reason::UnsupportedValue, Reason::Accepted];
    assert!(reasons.eq(expected));
    assert_eq!(
        accepted(&status.listeners[1]).message,
        "spec.listeners[http].name: an earlier listener has this name; choose another one"
    );
}

#[test]
fn names_are_unique_in_each_object_alone() {
    let gateway = gateway(&json!({"allowedListeners": {"namespaces": {"from": "Same"}}}));
    let set = |name: &str, port: u16| {
        let spec = json!({
            "parentRef": {"name": "web"},
            "listeners": [listener("http", port, "a.com"), listener("http", port + 1, "a.com")],
        });
        let api = "gateway.networking.k8s.io/v1";
        object(api, "ListenerSet", name, &json!({"spec": spec}))
    };
    let translation = run(&[gateway, set("one", 8080), set("two", 8090)], None);
    let expected = [(80, "http"), (8080, "http"), (8090, "http")];
    assert_eq!(served(&translation), expected);
}
