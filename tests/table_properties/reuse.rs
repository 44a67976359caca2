//! The nodes that a table reuses from its predecessor when one thing changes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method};
use portcullis::ir::route::{Match, PathMatch};
use portcullis::ir::{Backend, Endpoints, Ir, Port, Release, Releases, UpstreamProtocol};
use portcullis::runtime::per_worker::WorkerId;
use portcullis::table::{self, RequestView, Table};

use crate::BIND;
use crate::configuration::{GATEWAY, backend_id, listener, route};
use crate::request::Request;

fn plain(path: &str) -> Match {
    PathMatch::Prefix(path.into()).into()
}

/// Listeners `a` and `b`, each with its own route to its own backend.
fn pair() -> Ir {
    let one = Arc::new(route(0, None, vec![(vec![plain("")], vec![(0, 1)])]));
    let two = Arc::new(route(1, None, vec![(vec![plain("")], vec![(1, 1)])]));
    let port = Port {
        bind: BIND,
        gateway: GATEWAY.clone(),
        listeners: vec![
            listener("a", &[one], &[(0, vec![""])]),
            listener("b", &[two], &[(0, vec![""])]),
        ],
    };
    let backends = [0, 1].map(|index| {
        let endpoints = vec![([127, 0, 0, 1], 1).into()].into();
        let backend = Backend::new(backend_id(index), UpstreamProtocol::Http1, endpoints);
        Arc::new(backend)
    });
    Ir {
        ports: vec![Arc::new(port)],
        backends: backends.into(),
        ..Ir::default()
    }
}

fn change_backend(ir: &mut Ir, index: usize, change: impl FnOnce(&mut Backend)) {
    let backends = Arc::make_mut(&mut ir.backends);
    change(Arc::make_mut(&mut backends[index]));
}

fn rule<'a>(table: &'a Table, host: &str) -> &'a Arc<table::Rule> {
    let listener = table.port(&BIND).unwrap().listener(host).unwrap();
    let request = Request {
        host: "a",
        method: Method::GET,
        path: "/",
        query: None,
        headers: HeaderMap::new(),
    };
    let view = RequestView {
        host,
        ..request.view()
    };
    listener.find(&view).unwrap()
}

#[test]
fn keeps_resolved_addresses_until_the_hostname_changes() {
    let at = |name: &str| Endpoints::Hostname {
        hostname: name.into(),
        port: 443,
    };
    let addresses = |table: &Table| -> Vec<String> {
        let endpoints = table.backends().next().unwrap().endpoints();
        endpoints.iter().map(|it| it.address.to_string()).collect()
    };
    let known: [IpAddr; 2] = [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()];
    let mut ir = pair();
    change_backend(&mut ir, 0, |backend| backend.endpoints = at("a.example"));
    let first = Table::build(Arc::new(ir.clone()), None);
    assert!(addresses(&first).is_empty());
    first.set_addresses(|name| match name {
        "a.example" => &known,
        _ => &[],
    });
    let resolved = ["192.0.2.1:443", "192.0.2.2:443"];
    assert_eq!(addresses(&first), resolved);
    change_backend(&mut ir, 1, |backend| {
        backend.protocol = UpstreamProtocol::H2c
    });
    let backends = ir.backends.iter().map(|it| Arc::new(Backend::clone(it)));
    ir.backends = backends.collect();
    let second = Table::build(Arc::new(ir.clone()), Some(&first));
    assert_eq!(addresses(&second), resolved);
    change_backend(&mut ir, 0, |backend| backend.endpoints = at("b.example"));
    let third = Table::build(Arc::new(ir), Some(&second));
    assert!(addresses(&third).is_empty());
}

#[test]
fn change_of_endpoints_reuses_every_node() {
    let first = Table::build(Arc::new(pair()), None);
    let before = first.backends().next().unwrap().endpoints()[0].clone();
    let mut ir = pair();
    change_backend(&mut ir, 0, |backend| {
        let mut addresses = backend.endpoints.addresses().to_vec();
        addresses.push(([127, 0, 0, 1], 2).into());
        backend.endpoints = addresses.into();
    });
    let second = Table::build(Arc::new(ir), Some(&first));
    assert!(Arc::ptr_eq(&first.ports()[0], &second.ports()[0]));
    let after = second.backends().next().unwrap().endpoints();
    assert_eq!(after.len(), 2);
    assert!(Arc::ptr_eq(&after[0], &before));
}

/// Releases `v1` and `v2` with one endpoint each.
fn releases(weights: [u64; 2]) -> Endpoints {
    let release = |name: &str, weight, port| Release {
        name: name.into(),
        weight,
        token: "".into(),
        addresses: vec![([127, 0, 0, 1], port).into()],
    };
    Endpoints::Releases(Releases {
        cookie: None,
        releases: vec![release("v1", weights[0], 1), release("v2", weights[1], 2)],
    })
}

#[test]
fn change_of_releases_reuses_every_node() {
    let mut ir = pair();
    change_backend(&mut ir, 0, |backend| backend.endpoints = releases([9, 1]));
    let first = Table::build(Arc::new(ir.clone()), None);
    let backend = first.backends().next().unwrap();
    let endpoints = backend.endpoints();
    let before = endpoints[0].clone();
    let shown = endpoints.releases().unwrap();
    assert_eq!(shown.share(&shown[0]), 0.9);

    change_backend(&mut ir, 0, |backend| backend.endpoints = releases([1, 3]));
    let second = Table::build(Arc::new(ir.clone()), Some(&first));
    assert!(Arc::ptr_eq(&first.ports()[0], &second.ports()[0]));
    let endpoints = backend.endpoints();
    let shown = endpoints.releases().unwrap();
    assert_eq!(shown.share(&shown[0]), 0.25);
    assert!(Arc::ptr_eq(&shown[0].endpoints[0], &before));
    shown[0].stats.record(WorkerId::ONLY, 200);

    change_backend(&mut ir, 0, |backend| {
        backend.protocol = UpstreamProtocol::H2c;
    });
    let third = Table::build(Arc::new(ir), Some(&second));
    let endpoints = third.backends().next().unwrap().endpoints();
    let counted = endpoints.releases().unwrap()[0].stats.classes();
    assert_eq!(counted, [0, 1, 0, 0, 0]);
}

/// Requests that hold the first table do not reach the other release.
#[test]
fn first_releases_of_a_backend_get_nodes_of_their_own() {
    let first = Table::build(Arc::new(pair()), None);
    let before = first.backends().next().unwrap();
    let mut ir = pair();
    change_backend(&mut ir, 0, |backend| backend.endpoints = releases([9, 1]));
    let second = Table::build(Arc::new(ir), Some(&first));
    let after = second.backends().next().unwrap().endpoints();
    assert_eq!((before.endpoints().len(), after.len()), (1, 2));
    assert!(Arc::ptr_eq(&after[0], &before.endpoints()[0]));
    assert!(!Arc::ptr_eq(rule(&first, "a"), rule(&second, "a")));
}

#[test]
fn change_of_protocol_replaces_only_the_nodes_that_use_the_backend() {
    let first = Table::build(Arc::new(pair()), None);
    let mut ir = pair();
    change_backend(&mut ir, 0, |backend| {
        backend.protocol = UpstreamProtocol::H2c;
    });
    let second = Table::build(Arc::new(ir), Some(&first));
    let backends = |table: &Table| table.backends().cloned().collect::<Vec<_>>();
    let (old, new) = (backends(&first), backends(&second));
    assert_eq!(new[0].protocol, UpstreamProtocol::H2c);
    assert!(Arc::ptr_eq(&old[0].stats, &new[0].stats));
    assert_ne!(old[0].endpoints()[0].id, new[0].endpoints()[0].id);
    assert!(Arc::ptr_eq(&old[1], &new[1]));
    assert!(!Arc::ptr_eq(rule(&first, "a"), rule(&second, "a")));
    assert!(Arc::ptr_eq(rule(&first, "b"), rule(&second, "b")));
    let listener = |table: &Table, host| table.ports()[0].listener(host).unwrap().clone();
    assert!(!Arc::ptr_eq(
        &listener(&first, "a"),
        &listener(&second, "a")
    ));
    assert!(Arc::ptr_eq(&listener(&first, "b"), &listener(&second, "b")));
}

#[test]
fn changed_rule_keeps_its_counters() {
    let first = Table::build(Arc::new(pair()), None);
    rule(&first, "a").state.stats.enter(WorkerId::ONLY);
    let mut ir = pair();
    let changed = Arc::new(route(
        0,
        None,
        vec![(vec![plain("")], vec![(0, 2), (1, 1)])],
    ));
    let port = Arc::make_mut(&mut ir.ports[0]);
    port.listeners[0] = listener("a", &[changed], &[(0, vec![""])]);
    let second = Table::build(Arc::new(ir), Some(&first));
    assert!(!Arc::ptr_eq(rule(&first, "a"), rule(&second, "a")));
    assert_eq!(rule(&second, "a").state.stats.in_flight(), 1);
}

#[test]
fn empty_table_serves_nothing() {
    let table = Table::empty();
    assert_eq!(table.generation, 0);
    assert!(table.port(&BIND).is_none());
    assert_eq!(table.rules().count() + table.backends().count(), 0);
}

#[test]
fn change_of_slow_start_reuses_every_node() {
    let first = Table::build(Arc::new(pair()), None);
    let mut ir = pair();
    let window = Some(Duration::from_secs(30));
    change_backend(&mut ir, 0, |backend| backend.slow_start = window);
    let second = Table::build(Arc::new(ir), Some(&first));
    assert!(Arc::ptr_eq(&first.ports()[0], &second.ports()[0]));
    let windows: Vec<_> = second.backends().map(|it| it.slow_start()).collect();
    assert_eq!(windows, [window, None]);
}

#[test]
fn keeps_listeners_in_another_order() {
    let mut ir = pair();
    let first = Table::build(Arc::new(ir.clone()), None);
    let node = |table: &Table, index: usize| {
        let listeners = table.port(&BIND).unwrap().listeners();
        Arc::clone(&listeners[index])
    };
    let new = Arc::new(route(2, None, vec![(vec![plain("/new")], vec![(0, 1)])]));
    let port = Arc::make_mut(&mut ir.ports[0]);
    let listeners = &mut port.listeners;
    listeners.insert(0, listener("c", &[new], &[(0, vec![""])]));
    listeners.swap(1, 2);
    let second = Table::build(Arc::new(ir.clone()), Some(&first));
    assert!(Arc::ptr_eq(&node(&second, 1), &node(&first, 1)));
    assert!(Arc::ptr_eq(&node(&second, 2), &node(&first, 0)));
    assert_eq!(second.rules().count(), 3);
    // The routes of a removed listener are removed, and those of the others stay.
    Arc::make_mut(&mut ir.ports[0]).listeners.remove(1);
    let third = Table::build(Arc::new(ir), Some(&second));
    assert!(Arc::ptr_eq(&node(&third, 1), &node(&first, 0)));
    assert_eq!(third.rules().count(), 2);
}
