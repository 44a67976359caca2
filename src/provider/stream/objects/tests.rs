//! States built from streams: complete, torn and invalid.

use serde_json::json;

use super::*;
use crate::api::Object;

mod pods;
mod unknown_fields;

fn begin(instance: &str, base: Option<u64>) -> Update {
    Update::Begin {
        instance: instance.to_owned(),
        base,
    }
}

fn commit(revision: u64) -> Update {
    Update::Commit { revision }
}

fn service(name: &str, port: u16) -> Update {
    Update::Put(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"ports": [{"port": port}]},
    }))
}

fn broken_service(name: &str) -> Update {
    Update::Put(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "default", "generation": 3},
        "spec": {"ports": "none"},
    }))
}

fn unknown(name: &str) -> Update {
    Update::Put(json!({
        "apiVersion": "portcullis.dev/v9",
        "kind": "Drawbridge",
        "metadata": {"name": name, "namespace": "default"},
    }))
}

fn delete(group: &str, kind: &str, name: &str) -> Update {
    Update::Delete(Deleted {
        group: group.to_owned(),
        kind: kind.to_owned(),
        namespace: "default".to_owned(),
        name: name.to_owned(),
    })
}

fn take_all(
    state: &mut GatewayObjects,
    updates: impl IntoIterator<Item = Update>,
) -> Result<Vec<Step>, String> {
    let mut intake = UpdateDecoder::default();
    let steps = updates.into_iter().map(|update| intake.take(update, state));
    steps.collect()
}

/// Returns a state of instance `a` at revision 1 with these Services on port 80.
fn state(services: &[&str]) -> GatewayObjects {
    let mut state = GatewayObjects::default();
    let puts = services.iter().map(|name| service(name, 80));
    let updates = [begin("a", None)].into_iter().chain(puts);
    take_all(&mut state, updates.chain([commit(1)])).unwrap();
    state
}

fn ports(state: &GatewayObjects) -> Vec<(String, u16)> {
    let services = state.snapshot.services.iter();
    let port = |service: &Arc<crate::api::core::Service>| service.spec.ports[0].port;
    services
        .map(|service| (service.metadata.name.to_string(), port(service)))
        .collect()
}

fn served(names: &[(&str, u16)]) -> Vec<(String, u16)> {
    let names = names.iter();
    names
        .map(|(name, port)| ((*name).to_owned(), *port))
        .collect()
}

#[test]
fn changes_nothing_before_the_commit() {
    let mut state = state(&["one", "two"]);
    let before = state.clone();
    let mut intake = UpdateDecoder::default();
    for update in [
        begin("a", Some(1)),
        service("one", 81),
        delete("", "Service", "two"),
        unknown("x"),
    ] {
        intake.take(update, &mut state).unwrap();
        assert_eq!(state, before);
    }
    let step = intake.take(commit(2), &mut state);
    assert_eq!(step, Ok(Step::Committed));
    assert_eq!(ports(&state), served(&[("one", 81)]));
    assert_eq!(state.position.unwrap().to_string(), "a/2");
}

#[test]
fn session_secret_is_part_of_the_state() {
    let secrets = SessionSecrets {
        secret: "s".to_owned(),
        accepted: Some("t".to_owned()),
    };
    let update = || Update::SessionSecret(secrets.clone());
    let mut state = state(&["one"]);
    let before = state.clone();
    let resumed = [begin("a", Some(1)), update(), commit(2)];
    take_all(&mut state, resumed).unwrap();
    assert_eq!(state.session_secret.as_deref(), Some(&secrets));
    assert_eq!(ports(&state), served(&[("one", 80)]));
    let mut copy = GatewayObjects::default();
    take_all(&mut copy, state.updates().unwrap()).unwrap();
    assert_eq!(copy, state);
    let changes = state.updates_since(&before).unwrap();
    assert_eq!(changes, [update(), commit(2)]);
}

#[test]
fn full_state_replaces_all_objects_and_shares_equal_ones() {
    let mut state = state(&["one", "two", "three"]);
    let kept = state
        .snapshot
        .services
        .get("default", "one")
        .unwrap()
        .clone();
    let updates = [
        begin("b", None),
        service("one", 80),
        service("two", 82),
        service("four", 84),
        service("five", 85),
        delete("", "Service", "five"),
        commit(7),
    ];
    take_all(&mut state, updates).unwrap();
    assert_eq!(
        ports(&state),
        served(&[("four", 84), ("one", 80), ("two", 82)])
    );
    let now = state.snapshot.services.get("default", "one").unwrap();
    assert!(Arc::ptr_eq(now, &kept));
    assert_eq!(state.position.unwrap().to_string(), "b/7");
}

#[test]
fn new_begin_discards_uncommitted_updates() {
    let mut state = state(&["one", "two"]);
    let updates = [
        begin("a", Some(1)),
        service("one", 81),
        begin("a", None),
        service("two", 80),
        commit(5),
        service("three", 83),
        begin("a", Some(5)),
        commit(6),
    ];
    take_all(&mut state, updates).unwrap();
    assert_eq!(ports(&state), served(&[("two", 80)]));
    assert_eq!(state.position.unwrap().to_string(), "a/6");
}

#[test]
fn equal_full_state_leaves_the_snapshot_unchanged() {
    let mut state = state(&["one"]);
    let before = state.snapshot.clone();
    let updates = [begin("b", None), service("one", 80), commit(9)];
    take_all(&mut state, updates).unwrap();
    assert!(
        state
            .snapshot
            .services
            .changes_since(&before.services)
            .is_empty()
    );
    assert_eq!(state.load().position.unwrap().to_string(), "b/9");
}

#[test]
fn empty_commit_only_advances_the_position() {
    let mut state = state(&["one"]);
    let steps = take_all(&mut state, [begin("a", Some(1)), commit(1), commit(5)]);
    let committed = Step::Committed;
    assert_eq!(
        steps.unwrap(),
        [
            Step::Begun { is_caught_up: true },
            committed.clone(),
            committed
        ]
    );
    assert_eq!(ports(&state), served(&[("one", 80)]));
    assert_eq!(state.position.unwrap().revision, 5);
}

#[test]
fn protocol_error_changes_nothing() {
    for (updates, expected) in [
        (vec![service("one", 81)], "does not begin"),
        (vec![commit(2)], "does not begin"),
        (vec![begin("a", Some(2))], "this pod has a/1"),
        (vec![begin("b", Some(1))], "this pod has a/1"),
        (
            vec![begin("a", Some(1)), service("one", 81), commit(0)],
            "follows revision 1",
        ),
        (
            vec![begin("a", Some(1)), Update::Put(json!({"kind": "Service"}))],
            "metadata.name",
        ),
        (
            vec![begin("a", Some(1)), Update::Put(json!([]))],
            "metadata.name",
        ),
    ] {
        let mut state = state(&["one"]);
        let before = state.clone();
        let error = take_all(&mut state, updates).expect_err(expected);
        assert!(error.contains(expected), "{error}");
        assert_eq!(state, before);
    }
    let error = take_all(&mut GatewayObjects::default(), [begin("a", Some(1))]).unwrap_err();
    assert!(error.contains("this pod has nothing"), "{error}");
}

#[test]
fn full_state_may_have_a_lower_revision() {
    let mut state = state(&["one"]);
    take_all(&mut state, [begin("a", None), commit(0)]).unwrap();
    assert!(state.snapshot.services.is_empty());
    assert_eq!(state.position.unwrap().revision, 0);
}

#[test]
fn invalid_object_keeps_its_previous_version() {
    let mut state = state(&["one"]);
    for updates in [
        vec![begin("a", Some(1)), broken_service("one"), commit(2)],
        vec![begin("b", None), broken_service("one"), commit(1)],
    ] {
        take_all(&mut state, updates).unwrap();
        assert_eq!(ports(&state), served(&[("one", 80)]));
        let problems = state.load().problems;
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].generation, 3);
        let text = problems[0].to_string();
        assert!(text.contains("Service default/one"), "{text}");
        assert!(text.contains("spec.ports"), "{text}");
    }
    take_all(
        &mut state,
        [begin("b", Some(1)), service("one", 81), commit(2)],
    )
    .unwrap();
    assert_eq!(ports(&state), served(&[("one", 81)]));
    assert!(state.load().problems.is_empty());
}

/// Both a policy that the pod cannot read, and the stand-in that a controller sends for one that it cannot read.
#[test]
fn unreadable_policy_refuses_its_targets() {
    let policy = |rest: &Value| {
        let mut object = json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy",
            "metadata": {"name": "a", "namespace": "default"},
            "spec": {"targetRefs": [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "b"}]},
        });
        object["spec"]["ipRules"] = rest.clone();
        Update::Put(object)
    };
    let broken = policy(&json!({"allow": 7}));
    let mut state = GatewayObjects::default();
    take_all(&mut state, [begin("a", None), broken.clone(), commit(1)]).unwrap();
    let served = |state: &GatewayObjects| {
        let policy = state.snapshot.access_policies.get("default", "a").cloned();
        policy.map(Object::AccessPolicy)
    };
    let stand_in = served(&state).unwrap();
    assert!(stand_in.unreadable().is_some() && !stand_in.is_without_targets());
    let problem = state.load().problems[0].clone();
    let effect = problem.effect;
    assert!(
        effect.contains("requests to its targets get 500") && !problem.leaves_open,
        "{effect}"
    );
    let mut copy = GatewayObjects::default();
    take_all(&mut copy, state.updates().unwrap()).unwrap();
    assert_eq!(copy, state);
    let mut of_controller = GatewayObjects::default();
    let put = Update::Put(stand_in.to_value().unwrap());
    take_all(&mut of_controller, [begin("a", None), put, commit(1)]).unwrap();
    assert_eq!(served(&of_controller), Some(stand_in));
    let valid = policy(&json!({"deny": ["192.0.2.1"]}));
    take_all(&mut state, [begin("a", Some(1)), valid, broken, commit(2)]).unwrap();
    assert!(served(&state).unwrap().unreadable().is_some());
    let mut without_targets = GatewayObjects::default();
    let Update::Put(mut object) = policy(&json!({})) else {
        panic!("no object");
    };
    object["spec"]["targetRefs"] = json!(7);
    let put = Update::Put(object);
    take_all(&mut without_targets, [begin("a", None), put, commit(1)]).unwrap();
    let problem = without_targets.load().problems[0].clone();
    let expected = "no target of it can be read";
    assert!(problem.leaves_open && problem.effect.contains(expected));
}

#[test]
fn problems_disappear_with_their_objects() {
    let broken = [
        begin("a", Some(1)),
        broken_service("one"),
        unknown("x"),
        commit(2),
    ];
    let mut by_delete = state(&["one"]);
    take_all(&mut by_delete, broken).unwrap();
    let mut by_listing = by_delete.clone();
    assert_eq!(by_delete.load().problems.len(), 2);
    let deletes = [
        begin("a", Some(2)),
        delete("", "Service", "one"),
        delete("portcullis.dev", "Drawbridge", "x"),
        commit(3),
    ];
    take_all(&mut by_delete, deletes).unwrap();
    take_all(&mut by_listing, [begin("b", None), commit(1)]).unwrap();
    for state in [by_delete, by_listing] {
        assert_eq!(state.load().problems, []);
        assert_eq!(state.snapshot, Snapshot::default());
    }
}

#[test]
fn reports_an_unknown_kind_once() {
    let mut state = state(&["one"]);
    let updates = [begin("a", Some(1)), unknown("x"), unknown("y"), commit(2)];
    take_all(&mut state, updates).unwrap();
    let problems = state.load().problems;
    assert_eq!(problems.len(), 1);
    let text = problems[0].to_string();
    assert!(text.contains("Drawbridge of portcullis.dev/v9"), "{text}");
    assert_eq!(ports(&state), served(&[("one", 80)]));
}

#[test]
fn problem_of_a_secret_quotes_no_content() {
    let mut state = state(&[]);
    let secret = Update::Put(json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "tls", "namespace": "default"},
        "data": "hidden",
    }));
    take_all(&mut state, [begin("a", Some(1)), secret, commit(2)]).unwrap();
    let text = state.load().problems[0].to_string();
    assert!(text.contains("Secret default/tls"), "{text}");
    assert!(!text.contains("hidden"), "{text}");
}

#[test]
fn accepts_leader_update_at_any_time() {
    let mut state = GatewayObjects::default();
    let leader = |address: Option<&str>| Update::Leader {
        address: address.map(str::to_owned),
    };
    let updates = [
        leader(Some("a:1")),
        begin("a", None),
        leader(None),
        commit(1),
    ];
    let steps = take_all(&mut state, updates).unwrap();
    assert_eq!(steps[0], Step::Leader(Some("a:1".to_owned())));
    assert_eq!(steps[2], Step::Leader(None));
    assert_eq!(steps[3], Step::Committed);
}

#[test]
fn lines_of_a_state_rebuild_the_state() {
    let mut state = state(&["one", "two"]);
    let more = [
        begin("a", Some(1)),
        broken_service("two"),
        unknown("x"),
        Update::Put(json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "tls", "namespace": "default"},
            "type": "kubernetes.io/tls",
            "data": {"tls.key": "a2V5"},
        })),
        Update::Put(json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "TLSRoute",
            "metadata": {"name": "tls", "namespace": "default"},
        })),
        commit(2),
    ];
    take_all(&mut state, more).unwrap();
    let mut objects = state.snapshot.objects();
    assert!(objects.any(|it| matches!(it, Object::TlsRoute(_))));
    let mut again = GatewayObjects::default();
    take_all(&mut again, state.updates().unwrap()).unwrap();
    assert_eq!(again, state);
    assert!(GatewayObjects::default().updates().is_none());
}

#[test]
fn updates_since_a_state_produce_the_new_state() {
    let steps = [
        vec![service("one", 81), service("three", 80), unknown("x")],
        vec![broken_service("one"), delete("", "Service", "two")],
        vec![broken_service("new"), service("one", 81)],
        vec![
            service("new", 80),
            delete("portcullis.dev", "Drawbridge", "x"),
        ],
        vec![delete("", "Service", "one"), delete("", "Service", "three")],
        vec![],
    ];
    let mut now = state(&["one", "two"]);
    for (revision, step) in (2..).zip(steps) {
        let before = now.clone();
        let begun = [begin("a", Some(revision - 1))].into_iter();
        take_all(&mut now, begun.chain(step).chain([commit(revision)])).unwrap();
        let updates = now.updates_since(&before).unwrap();
        let mut result = before;
        let begun = [begin("a", Some(revision - 1))].into_iter();
        take_all(&mut result, begun.chain(updates)).unwrap();
        assert_eq!(result, now, "{revision}");
    }
    assert_eq!(now.updates_since(&now).unwrap(), [commit(7)]);
}

#[test]
fn no_updates_since_a_state_of_another_process() {
    let before = state(&["one"]);
    let mut now = before.clone();
    take_all(&mut now, [begin("b", None), service("one", 80), commit(1)]).unwrap();
    assert_eq!(now.updates_since(&before), None);
    assert_eq!(GatewayObjects::default().updates_since(&before), None);
    assert_eq!(before.updates_since(&GatewayObjects::default()), None);
}

fn key_set(keys: Option<&str>, problem: Option<&str>) -> Update {
    let mut set = json!({
        "apiVersion": "portcullis.dev/v1alpha1", "kind": "KeySet",
        "metadata": {"name": "https://a.com/keys", "namespace": "default"},
    });
    for (field, value) in [("keys", keys), ("problem", problem)] {
        if let Some(value) = value {
            set[field] = json!(value);
        }
    }
    Update::Put(set)
}

/// A controller that has just started does not have keys that its predecessor sent.
#[test]
fn fetched_keys_stay_until_others_are_fetched() {
    let mut state = GatewayObjects::default();
    let mut after = |updates: Vec<Update>| {
        take_all(&mut state, updates).unwrap();
        let set = state.snapshot.key_sets.get("default", "https://a.com/keys");
        set.map(|set| (set.keys.clone(), set.problem.clone()))
    };
    let text = |text: &str| Some(text.to_owned());
    let first = vec![begin("a", None), key_set(Some("one"), None), commit(1)];
    assert_eq!(after(first), Some((text("one"), None)));
    let restarted = vec![begin("b", None), key_set(None, None), commit(1)];
    assert_eq!(after(restarted), Some((text("one"), None)));
    let failed = vec![
        begin("b", Some(1)),
        key_set(None, Some("refused")),
        commit(2),
    ];
    assert_eq!(after(failed), Some((text("one"), text("refused"))));
    let fetched = vec![begin("b", Some(2)), key_set(Some("two"), None), commit(3)];
    assert_eq!(after(fetched), Some((text("two"), None)));
    let removed = vec![begin("c", None), commit(1)];
    assert_eq!(after(removed), None);
}
