//! What policies decide in worlds in which they share targets, miss targets, and are broken, all at once.

mod rules;

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use serde_json::{Value, json};

use self::rules::expected;
use crate::api::{Kind, Object, admit};
use crate::ir::client::ClientPolicies;
use crate::ir::policy::{Enforced, Policies};
use crate::ir::{Ir, ObjectRef};
use crate::provider::fixtures::runner;
use crate::scale::scaled;
use crate::snapshot::Snapshot;
use crate::status::ConditionType;
use crate::translate::{Options, Translator, translate};

/// A target: kind, name and section.
type Target = (&'static str, &'static str, Option<&'static str>);

/// What is there, and what is missing: listeners, rules and objects.
const TARGETS: [Target; 16] = [
    ("Gateway", "web", None),
    ("Gateway", "web", Some("a")),
    ("Gateway", "web", Some("b")),
    ("Gateway", "web", Some("nope")),
    ("Gateway", "web", Some("none")),
    ("Gateway", "gone", None),
    ("ListenerSet", "set", None),
    ("ListenerSet", "set", Some("c")),
    ("ListenerSet", "set", Some("nope")),
    ("HTTPRoute", "r", None),
    ("HTTPRoute", "r", Some("x")),
    ("HTTPRoute", "r", Some("y")),
    ("HTTPRoute", "r", Some("nope")),
    ("HTTPRoute", "r", Some("none")),
    ("HTTPRoute", "s", None),
    ("HTTPRoute", "gone", None),
];

/// What a policy says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Deny,
    Limit,
    /// A limit that refuses nothing.
    Audit,
    /// Where the addresses of clients come from.
    Client,
    /// The size of request bodies, which refuses nothing while it cannot be used.
    Body,
}

/// Whether that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Valid,
    /// An API server stores it, but it cannot be used.
    Broken,
    /// It is not valid, as in a folder.
    Unreadable,
}

#[derive(Clone, Debug)]
struct Policy {
    number: u8,
    says: Says,
    form: Form,
    targets: Vec<Target>,
    created: Option<u8>,
    overrides: bool,
}

impl Policy {
    fn kind(&self) -> &'static str {
        match self.says {
            Says::Deny => "AccessPolicy",
            Says::Limit | Says::Audit => "RateLimitPolicy",
            Says::Client => "ClientPolicy",
            Says::Body => "RoutePolicy",
        }
    }

    /// What is written.
    fn value(&self) -> Value {
        let Self { number, form, .. } = self;
        let mut spec = match (self.says, form) {
            (Says::Deny, Form::Valid) => json!({"ipRules": {"deny": [format!("10.0.0.{number}")]}}),
            (Says::Deny, Form::Broken) => json!({"ipRules": {"deny": ["none"]}}),
            (Says::Deny, Form::Unreadable) => json!({"ipRules": {"deny": 7}}),
            (Says::Limit, Form::Valid) => json!({"rules": [{"name": "one", "concurrent": 1}]}),
            (Says::Limit, Form::Broken) => json!({"rules": [{"name": "one", "concurrent": 0}]}),
            (Says::Limit, Form::Unreadable) => json!({"rules": 7}),
            (Says::Audit, form) => {
                let concurrent = match form {
                    Form::Valid => json!(1),
                    Form::Broken => json!(0),
                    Form::Unreadable => json!("one"),
                };
                json!({"rules": [{"name": "one", "mode": "Audit", "concurrent": concurrent}]})
            }
            (Says::Client, Form::Valid) => {
                json!({"clientIP": {"xForwardedFor": {"trustedHops": 1}}})
            }
            (Says::Client, _) => json!({"clientIP": {"xForwardedFor": 7}}),
            (Says::Body, form) => {
                let size = match form {
                    Form::Valid => json!("1Mi"),
                    Form::Broken => json!("999999999999999Gi"),
                    Form::Unreadable => json!([]),
                };
                json!({"requestBody": {"maxSize": size}})
            }
        };
        let target = |(kind, name, section): &Target| {
            let target = json!({"group": "gateway.networking.k8s.io", "kind": kind, "name": name});
            match section {
                Some(section) => {
                    let mut target = target;
                    target["sectionName"] = json!(section);
                    target
                }
                None => target,
            }
        };
        spec["targetRefs"] = self.targets.iter().map(target).collect();
        if self.overrides {
            spec["strategy"] = json!("Overrides");
        }
        let mut metadata = json!({"namespace": "default", "name": self.name()});
        if let Some(day) = self.created {
            metadata["creationTimestamp"] = json!(format!("2026-01-0{}T00:00:00Z", day + 1));
        }
        json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": self.kind(),
            "metadata": metadata, "spec": spec,
        })
    }

    fn name(&self) -> String {
        format!("p{}", self.number)
    }

    /// What is in the snapshot: nothing if it would refuse nothing.
    fn object(&self) -> Option<Object> {
        let value = self.value();
        let kind = Kind::find("portcullis.dev/v1alpha1", self.kind()).unwrap();
        match (kind.decode(&value), self.says) {
            (Ok(object), _) => Some(object),
            (Err(_), Says::Audit | Says::Body) => {
                assert!(admit(value).stand_in.is_none());
                None
            }
            (Err(_), _) => Some(*admit(value).stand_in.expect("its requests are refused")),
        }
    }

    fn protects(&self) -> bool {
        matches!(self.says, Says::Deny | Says::Limit)
    }

    fn is_usable(&self) -> bool {
        self.form == Form::Valid
    }

    /// Reports whether it takes part in the merge.
    fn counts(&self) -> bool {
        self.is_usable() || self.protects() || self.says == Says::Client
    }

    fn with_form(&self, form: Form) -> Self {
        Self {
            form,
            ..self.clone()
        }
    }

    /// What decides between policies of one target.
    fn age(&self) -> (Option<u8>, u8) {
        (self.created, self.number)
    }
}

/// A path of requests: a listener, and a route with the name of its rule.
type Path = (&'static str, &'static str, Option<&'static str>);

const PATHS: [Path; 9] = [
    ("a", "r", Some("x")),
    ("a", "r", Some("y")),
    ("a", "s", None),
    ("b", "r", Some("x")),
    ("b", "r", Some("y")),
    ("b", "s", None),
    ("c", "r", Some("x")),
    ("c", "r", Some("y")),
    ("c", "s", None),
];

/// What decides on a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Decision {
    /// Requests get 500.
    Broken,
    /// The policies with these numbers, or none.
    Of(Vec<u8>),
}

/// The decisions on a path: IP rules, limits, the size of bodies, and the addresses of clients.
type Decisions = Vec<[Decision; 4]>;

/// Returns what the IR says.
fn decisions(ir: &Ir) -> Decisions {
    let paths = PATHS.into_iter();
    let decisions = paths.map(|(listener, route, rule)| {
        let mut listeners = ir.ports.iter().flat_map(|port| &port.listeners);
        let listener = listeners.find(|it| &*it.key.name == listener).unwrap();
        let mut routes = listener.routes.iter();
        let attached = routes.find(|it| &*it.route.object.name == route).unwrap();
        let mut rules = attached.route.rules.iter();
        let index = rules.position(|it| it.id.name.as_deref() == rule).unwrap();
        let policies = match &attached.route.policies {
            Some(policies) => Some(&policies[index]),
            None => listener.policies.as_ref(),
        };
        let nothing = || Decision::Of(Vec::new());
        let [rules, limits, bodies] =
            policies.map_or_else(|| [nothing(), nothing(), nothing()], |it| decided(it));
        let clients = listener.clients.as_ref();
        let addresses = clients.map_or_else(nothing, |it| address_of(it));
        [rules, limits, bodies, addresses]
    });
    decisions.collect()
}

/// Returns the number of a policy.
fn number(policy: &ObjectRef) -> u8 {
    policy.name[1..].parse().unwrap()
}

/// Returns which policy says where the addresses of clients come from.
fn address_of(clients: &ClientPolicies) -> Decision {
    match &clients.address {
        None => Decision::Of(Vec::new()),
        Some(Enforced::Valid(address)) => Decision::Of(address.policy.iter().map(number).collect()),
        Some(Enforced::Broken(_)) => Decision::Broken,
    }
}

fn decided(policies: &Policies) -> [Decision; 3] {
    let denied = |rules: &crate::ir::policy::IpRules| {
        let address = |number: &u8| IpAddr::V4(Ipv4Addr::new(10, 0, 0, *number));
        let numbers = (0..100).filter(|number| rules.deny.contains(address(number)));
        numbers.collect()
    };
    [
        match &policies.ip_rules {
            None => Decision::Of(Vec::new()),
            Some(Enforced::Valid(rules)) => Decision::Of(denied(rules)),
            Some(Enforced::Broken(_)) => Decision::Broken,
        },
        match &policies.limits {
            None => Decision::Of(Vec::new()),
            Some(Enforced::Valid(limits)) => Decision::Of(vec![number(&limits.policy)]),
            Some(Enforced::Broken(_)) => Decision::Broken,
        },
        match &policies.route {
            None => Decision::Of(Vec::new()),
            Some(defaults) => Decision::Of(defaults.policies.iter().map(number).collect()),
        },
    ]
}

/// The Gateway and the routes.
fn infrastructure() -> Snapshot {
    let listener = |name: &str, port: u16| json!({"name": name, "port": port, "protocol": "HTTP"});
    let gateway = json!({
        "gatewayClassName": "portcullis", "listeners": [listener("a", 80), listener("b", 81)],
        "allowedListeners": {"namespaces": {"from": "Same"}},
    });
    let set = json!({"parentRef": {"name": "web"}, "listeners": [listener("c", 82)]});
    let parents = json!([{"name": "web"}, {"kind": "ListenerSet", "name": "set"}]);
    let route = |rules: Value| json!({"parentRefs": parents, "rules": rules});
    let mut snapshot = Snapshot::default();
    for (kind, name, spec) in [
        ("Gateway", "web", gateway),
        ("ListenerSet", "set", set),
        (
            "HTTPRoute",
            "r",
            route(json!([{"name": "x"}, {"name": "y"}])),
        ),
        ("HTTPRoute", "s", route(json!([{}]))),
    ] {
        let kind = Kind::find("gateway.networking.k8s.io/v1", kind).unwrap();
        let metadata = json!({"namespace": "default", "name": name});
        let value = json!({"metadata": metadata, "spec": spec});
        snapshot.insert(kind.decode(&value).unwrap());
    }
    snapshot
}

fn snapshot<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> Snapshot {
    let mut snapshot = infrastructure();
    for object in policies.into_iter().filter_map(Policy::object) {
        snapshot.insert(object);
    }
    snapshot
}

fn translated(policies: &[Policy]) -> Ir {
    translate(&snapshot(policies), None, &Options::default()).ir
}

/// Policies on few targets, so that they share them, in the order in which they arrive.
fn worlds() -> impl Strategy<Value = Vec<Policy>> {
    let says = prop_oneof![
        3 => Just(Says::Deny), 3 => Just(Says::Limit), 2 => Just(Says::Audit), 2 => Just(Says::Client),
        2 => Just(Says::Body),
    ];
    let form = select(vec![
        Form::Valid,
        Form::Valid,
        Form::Broken,
        Form::Unreadable,
    ]);
    let created = weighted(0.8, 0..3_u8);
    let policy = (
        says,
        form,
        vec(any::<Index>(), 1..4),
        created,
        any::<bool>(),
    );
    let worlds = (subsequence(TARGETS.to_vec(), 2..6), vec(policy, 2..10));
    let worlds = worlds.prop_map(|(targets, policies)| {
        let policies = (1..)
            .zip(policies)
            .map(|(number, (says, form, on, created, overrides))| {
                let is_client = says == Says::Client;
                let mut own: Vec<Target> = on.iter().map(|it| *it.get(&targets)).collect();
                if is_client {
                    own.retain(|(kind, ..)| *kind != "HTTPRoute");
                }
                if own.is_empty() {
                    own.push(TARGETS[0]);
                }
                Policy {
                    number,
                    says,
                    form,
                    targets: own,
                    created,
                    overrides,
                }
            });
        policies.collect::<Vec<_>>()
    });
    worlds.prop_shuffle()
}

/// Reports whether policies of one kind share a target, some miss their target, and some are broken.
fn has_all(policies: &[Policy]) -> bool {
    let share = |one: &Policy, other: &Policy| {
        let is_other = one.number != other.number && one.kind() == other.kind();
        is_other && one.targets.iter().any(|it| other.targets.contains(it))
    };
    let is_missing =
        |it: &Target| it.1 == "gone" || it.2.is_some_and(|section| section.starts_with("no"));
    policies
        .iter()
        .any(|one| policies.iter().any(|other| share(one, other)))
        && policies.iter().any(|it| it.targets.iter().any(is_missing))
        && policies.iter().any(|it| !it.is_usable())
}

/// Compares with the rules after each arrival, and the result with that of another order.
fn check_order(policies: &[Policy]) {
    let mut translator = Translator::new(Options::default());
    let mut served = Ir::default();
    let mut cluster = infrastructure();
    for (count, policy) in (1..).zip(policies) {
        if let Some(object) = policy.object() {
            cluster.insert(object);
        }
        served = translator.translate(&cluster, Some(&served)).ir;
        assert_eq!(decisions(&served), expected(&policies[..count]));
    }
    let reversed = snapshot(policies.iter().rev());
    let anew = translate(&reversed, None, &Options::default()).ir;
    assert!(served == anew, "the order of objects decides");
}

/// A policy that breaks refuses what it decided, and changes nothing else.
fn check_breaking(policies: &[Policy]) {
    let broken = decisions(&translated(policies));
    for (place, policy) in policies
        .iter()
        .enumerate()
        .filter(|(_, it)| !it.is_usable())
    {
        let mut others = policies.to_vec();
        if !policy.protects() {
            if policy.says != Says::Client {
                others.remove(place);
                assert_eq!(
                    decisions(&translated(&others)),
                    broken,
                    "{policy:?} decides"
                );
            }
            continue;
        }
        others[place] = policy.with_form(Form::Valid);
        let repaired = decisions(&translated(&others));
        for (before, after) in repaired.iter().zip(&broken) {
            for (before, after) in before.iter().zip(after) {
                let is_decided = |it: &Vec<u8>| it.contains(&policy.number);
                let expected = match before {
                    Decision::Of(numbers) if is_decided(numbers) => &Decision::Broken,
                    other => other,
                };
                assert_eq!(after, expected, "{policy:?} breaks");
            }
        }
    }
}

#[test]
fn policies_that_share_targets_miss_targets_and_are_broken_decide_what_the_rules_say() {
    const CASES: u32 = 60;
    let seen = Cell::new(0);
    let result = runner(CASES).run(&worlds(), |policies| {
        seen.set(seen.get() + u32::from(has_all(&policies)));
        check_order(&policies);
        check_breaking(&policies);
        Ok(())
    });
    result.unwrap();
    let (seen, cases) = (seen.get(), scaled(CASES));
    assert!(seen >= cases / 5, "all at once in {seen} of {cases} worlds");
}

/// It is in force for a target that the present version lacks, and is no object whose status could be written.
#[test]
fn earlier_version_of_a_policy_has_no_status_and_is_shown_under_the_name_of_the_policy() {
    let policy = Policy {
        number: 1,
        says: Says::Deny,
        form: Form::Valid,
        targets: vec![("HTTPRoute", "s", None)],
        created: None,
        overrides: false,
    };
    let mut earlier = policy.value();
    earlier["metadata"]["name"] = json!(ObjectRef::earlier_name(&policy.name(), 7));
    let kind = Kind::find("portcullis.dev/v1alpha1", policy.kind()).unwrap();
    let mut snapshot = infrastructure();
    snapshot.insert(kind.decode(&earlier).unwrap());
    let report = translate(&snapshot, None, &Options::default()).report;
    assert!(report.policies.is_empty());
    let route = ObjectRef::gateway_api("HTTPRoute", "default", "s");
    let conditions = report.routes[&route].iter().flat_map(|it| &it.conditions);
    let mut affected = conditions.filter(|it| it.kind == ConditionType::AccessPolicyAffected);
    assert_eq!(
        affected.next().unwrap().message,
        "affected by AccessPolicy default/p1 before a recent change"
    );
}
