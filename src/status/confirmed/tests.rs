//! Each report equals the one computed from nothing, whatever changed before.

use proptest::prelude::*;

use super::*;
use crate::api::reference::ParentRef;
use crate::ir::Bind;
use crate::status::condition::ConditionType;
use crate::status::{Condition, ListenerStatus, ParentStatus};

/// A change of one of the inputs. Numbers select objects, of which there are four of each kind.
#[derive(Clone, Debug)]
enum Step {
    Gateway(u8, Option<u8>),
    ListenerSet(u8, Option<u8>),
    Parent(u8, Option<u8>),
    Route(u8, Option<u8>),
    ReleaseBackend(u8, Option<Vec<u8>>),
    Class(u8, Option<u8>),
    State(u8, Option<DataPlaneState>),
    Unreadable(ObjectRef, Option<i64>),
    Version(Option<bool>),
}

fn name(kind: &str, number: u8) -> ObjectRef {
    ObjectRef::gateway_api(kind, "shop", &number.to_string())
}

fn conditions(generation: u8) -> Vec<Condition> {
    [ConditionType::Accepted, ConditionType::Programmed]
        .map(|kind| Condition::holds(kind, Reason::Accepted, generation.into()))
        .to_vec()
}

fn listeners() -> Vec<ListenerStatus> {
    vec![ListenerStatus {
        name: "http".into(),
        attached_routes: 0,
        supported_kinds: [].into(),
        conditions: Arc::new(conditions(0)),
        port: 80,
        hostname: crate::ir::Hostname::Any,
        binds: vec![Bind::tcp(None, 80)],
    }]
}

fn parent(generation: u8) -> ParentStatus {
    ParentStatus {
        parent_ref: ParentRef::to(&ObjectRef::gateway_api("Gateway", "default", "0")),
        controller_name: "example.com/ours".into(),
        conditions: conditions(generation),
    }
}

/// Inserts a status, or removes it without a new one.
fn set<T: ?Sized>(statuses: &mut StatusMap<T>, name: ObjectRef, status: Option<Arc<T>>) {
    match status {
        Some(status) => drop(statuses.insert(name, status)),
        None => drop(statuses.remove(&name)),
    }
}

impl Confirmation {
    fn apply(&mut self, step: Step) {
        let report = &mut self.translated;
        match step {
            Step::Gateway(number, generation) => {
                let status = generation.map(|generation| GatewayStatus {
                    conditions: conditions(generation),
                    listeners: listeners(),
                    ..GatewayStatus::default()
                });
                set(
                    &mut report.gateways,
                    name("Gateway", number),
                    status.map(Arc::new),
                );
            }
            Step::ListenerSet(number, generation) => {
                let status = generation.map(|generation| ListenerSetStatus {
                    conditions: conditions(generation),
                    listeners: listeners(),
                });
                let name = name("ListenerSet", number);
                set(&mut report.listener_sets, name, status.map(Arc::new));
            }
            Step::Parent(number, gateway) => {
                let gateway = gateway.map(|gateway| Arc::new(name("Gateway", gateway)));
                set(&mut self.parents, name("ListenerSet", number), gateway);
            }
            Step::Route(number, generation) => {
                let parents = generation.map(|generation| vec![parent(generation)].into());
                set(&mut report.routes, name("HTTPRoute", number), parents);
            }
            Step::ReleaseBackend(number, gateways) => {
                let status = gateways.map(|gateways| ReleaseBackendStatus {
                    conditions: conditions(0),
                    gateways: gateways.iter().map(|it| name("Gateway", *it)).collect(),
                    ..ReleaseBackendStatus::default()
                });
                let name = name("ReleaseBackend", number);
                set(&mut report.release_backends, name, status.map(Arc::new));
            }
            Step::Class(number, generation) => {
                let status = generation.map(|generation| conditions(generation).into());
                set(
                    &mut report.gateway_classes,
                    name("GatewayClass", number),
                    status,
                );
            }
            Step::State(number, state) => {
                set(
                    &mut self.states,
                    name("Gateway", number),
                    state.map(Arc::new),
                );
            }
            Step::Unreadable(object, generation) => {
                let unreadable = Arc::make_mut(&mut self.unreadable);
                unreadable.remove(&object);
                unreadable.extend(generation.map(|generation| {
                    let message = "why".to_owned();
                    (
                        object,
                        Unreadable {
                            generation,
                            message,
                            is_pending: generation % 2 == 0,
                        },
                    )
                }));
            }
            Step::Version(is_supported) => {
                self.bundle_version =
                    is_supported.map(|it| if it { "v1.6.1" } else { "v2.0.0" }.to_owned());
            }
        }
    }
}

fn state() -> impl Strategy<Value = DataPlaneState> {
    let fault = |is_faulty: bool| is_faulty.then(|| (Reason::Pending, "why".to_owned()));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    flags.prop_map(move |(address, refusal, absent, unbound)| DataPlaneState {
        address_fault: fault(address),
        refusal: fault(refusal),
        fault: fault(absent),
        unbound: unbound
            .then(|| (Bind::tcp(None, 80), "taken".to_owned()))
            .into_iter()
            .collect(),
        ..DataPlaneState::default()
    })
}

fn step() -> impl Strategy<Value = Step> {
    let some = || proptest::option::weighted(0.8, 0..4_u8);
    let kinds = prop_oneof![
        Just("GatewayClass"),
        Just("Gateway"),
        Just("ListenerSet"),
        Just("HTTPRoute"),
        Just("ReleaseBackend"),
    ];
    let gateways = proptest::collection::vec(0..4_u8, 0..3);
    let gateways = proptest::option::weighted(0.8, gateways);
    prop_oneof![
        (0..4_u8, some()).prop_map(|(number, it)| Step::Gateway(number, it)),
        (0..4_u8, some()).prop_map(|(number, it)| Step::ListenerSet(number, it)),
        (0..4_u8, some()).prop_map(|(number, it)| Step::Parent(number, it)),
        (0..4_u8, some()).prop_map(|(number, it)| Step::Route(number, it)),
        (0..4_u8, gateways).prop_map(|(number, it)| Step::ReleaseBackend(number, it)),
        (0..4_u8, some()).prop_map(|(number, it)| Step::Class(number, it)),
        (0..4_u8, proptest::option::weighted(0.8, state()))
            .prop_map(|(number, it)| Step::State(number, it)),
        (kinds, 0..4_u8, proptest::option::of(1..4_i64))
            .prop_map(|(kind, number, it)| Step::Unreadable(name(kind, number), it)),
        any::<Option<bool>>().prop_map(Step::Version),
    ]
}

proptest! {
    #[test]
    fn equals_the_report_from_nothing(
        rounds in proptest::collection::vec(proptest::collection::vec(step(), 0..4), 1..30),
    ) {
        let mut now = Confirmation::default();
        let mut incremental = ConfirmedReport::default();
        for steps in rounds {
            steps.into_iter().for_each(|step| now.apply(step));
            let from_nothing = ConfirmedReport::default().follow(now.clone());
            prop_assert_eq!(incremental.follow(now.clone()), from_nothing);
        }
    }
}

#[test]
fn unreadable_release_backend_is_not_accepted() {
    let object = name("ReleaseBackend", 0);
    let mut now = Confirmation::default();
    now.apply(Step::ReleaseBackend(0, Some(vec![])));
    now.apply(Step::Unreadable(object.clone(), Some(3)));
    let report = ConfirmedReport::default().follow(now);
    let accepted = &report.release_backends[&object].conditions[0];
    assert_eq!(accepted.reason, Reason::Invalid);
    assert_eq!(accepted.observed_generation, 3);
}
