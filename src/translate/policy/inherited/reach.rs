//! Where the requests come through that a policy applies to. Must not know what policies say.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::ir::sharing::Text;
use crate::ir::{ListenerKey, ObjectRef};

use super::attachments::Attachments;
use super::index::Index;
use super::is_route;
use super::path::{Path, Sections};
use super::policy::Target;
use crate::translate::gateway::quic::Quic;
use crate::translate::input::Input;
use crate::translate::memo::Reads;
use crate::translate::source::Source;

/// What the policies of a step ask of attachments. Each object is asked for once, since many policies may name it.
pub(super) struct Known<'a> {
    input: &'a Input<'a>,
    pub(super) index: &'a Index,
    attachments: &'a dyn Attachments,
    objects: RefCell<FxHashMap<(ObjectRef, Distinguish), Rc<Listeners>>>,
}

/// What distinguishes two listeners.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Distinguish {
    /// The policies on their requests.
    Requests,
    /// These, and the policies on the connections of their ports.
    Connections,
    /// These, and whether they may have HTTP/3.
    Quic,
}

/// The listeners that the requests to an object come through.
struct Listeners {
    all: Vec<Listener>,
    /// Their names.
    names: FxHashSet<Text>,
    /// What they were computed from.
    reads: Reads,
}

/// A listener. Those with the same number differ in nothing that policies decide.
struct Listener {
    gateway: ObjectRef,
    key: Arc<ListenerKey>,
    number: usize,
}

impl<'a> Known<'a> {
    pub(super) fn new(
        input: &'a Input<'a>,
        index: &'a Index,
        attachments: &'a dyn Attachments,
    ) -> Self {
        Self {
            input,
            index,
            attachments,
            objects: RefCell::default(),
        }
    }

    fn listeners_of(&self, object: &ObjectRef, by: Distinguish) -> Rc<Listeners> {
        let key = (object.clone(), by);
        let known = self.objects.borrow().get(&key).cloned();
        let listeners = known.unwrap_or_else(|| {
            let (listeners, reads) = self.input.reading(|| self.read(object, by));
            let reads = reads.into();
            let listeners = Rc::new(Listeners { reads, ..listeners });
            self.objects.borrow_mut().insert(key, listeners.clone());
            listeners
        });
        for source in &*listeners.reads {
            self.input.read(|| source.clone());
        }
        listeners
    }

    fn read(&self, object: &ObjectRef, by: Distinguish) -> Listeners {
        let mut numbers = FxHashMap::default();
        let listeners = self.attachments.listeners_of(object).into_iter();
        let listeners = listeners.map(|(gateway, key)| {
            let has_own = self.index.on(&key.origin, Some(&key.name)).is_some();
            let name = has_own.then(|| key.name.clone());
            let of_port = match by {
                Distinguish::Requests => Vec::new(),
                Distinguish::Connections | Distinguish::Quic => {
                    self.targets_on_port_of(&gateway, &key)
                }
            };
            let quic = (by == Distinguish::Quic).then(|| self.quic(&gateway, &key));
            let next = numbers.len();
            let policies = (gateway.clone(), key.origin.clone(), name, of_port, quic);
            let number = *numbers.entry(policies).or_insert(next);
            Listener {
                gateway,
                key,
                number,
            }
        });
        let all: Vec<_> = listeners.collect();
        Listeners {
            names: all.iter().map(|it| it.key.name.clone()).collect(),
            all,
            reads: Reads::default(),
        }
    }

    /// Returns whether a listener of a Gateway may have HTTP/3.
    pub(super) fn quic(&self, gateway: &ObjectRef, listener: &ListenerKey) -> Quic {
        self.attachments.quic(gateway, listener)
    }

    /// Returns the names of the Gateway's own listeners on the port of a listener that have policies.
    fn targets_on_port_of(&self, gateway: &ObjectRef, listener: &ListenerKey) -> Vec<Text> {
        let mut targets = self.index.within(gateway);
        if !targets.any(|(target, _)| target.section.is_some()) {
            return Vec::new();
        }
        let mut names = self.attachments.on_port_of(gateway, listener);
        names.retain(|name| self.index.on(gateway, Some(name)).is_some());
        names
    }
}

/// The sections of targets as routes and Gateways have them.
impl Sections for Known<'_> {
    fn has(&self, object: &ObjectRef, section: &str) -> bool {
        match is_route(object) {
            true => {
                let names = self.attachments.rule_names_of(object);
                names.iter().any(|it| **it == *section)
            }
            false => {
                let listeners = self.listeners_of(object, Distinguish::Requests);
                listeners.names.contains(section)
            }
        }
    }

    fn on_port_of(&self, gateway: &ObjectRef, listener: &ListenerKey) -> Vec<Text> {
        self.attachments.on_port_of(gateway, listener)
    }
}

/// The listeners that the requests to a target come through.
pub(super) struct Reach<'a> {
    input: &'a Input<'a>,
    target: &'a Target,
    listeners: Rc<Listeners>,
    /// Whether the listener or rule that it names does not exist.
    pub(super) is_missing: bool,
}

impl<'a> Reach<'a> {
    pub(super) fn new(known: &Known<'a>, target: &'a Target, by: Distinguish) -> Self {
        let (input, object) = (known.input, &target.object);
        input.read(|| Source::Object(object.clone()));
        input.read(|| Source::PoliciesOn(object.clone()));
        let exists = |section: &Text| known.has(object, section);
        Self {
            input,
            target,
            listeners: known.listeners_of(object, by),
            is_missing: !target.section.as_ref().is_none_or(exists),
        }
    }

    /// Returns the Gateways of these listeners.
    pub(super) fn gateways(&self) -> BTreeSet<&ObjectRef> {
        self.listeners.all.iter().map(|it| &it.gateway).collect()
    }

    /// Returns the paths of the requests through the listeners that the target does not leave out. One path stands for all with
    /// the same policies.
    pub(super) fn paths(&self) -> impl Iterator<Item = Path<'_>> {
        let (target, is_missing) = (self.target, self.is_missing);
        let mut seen = FxHashSet::default();
        let reached = self.listeners.all.iter().filter(move |listener| {
            let is_reached = is_missing || !is_other_listener(target, &listener.key);
            is_reached && seen.insert(listener.number)
        });
        reached.map(move |listener| {
            let Listener { gateway, key, .. } = listener;
            self.input.read(|| Source::PoliciesOn(gateway.clone()));
            self.input.read(|| Source::PoliciesOn(key.origin.clone()));
            let rule = target.section.as_ref().filter(|_| !is_missing);
            Path {
                gateway,
                listener: key,
                route: is_route(&target.object).then_some((&target.object, rule)),
            }
        })
    }
}

/// Reports whether a target names another listener of the same object.
fn is_other_listener(target: &Target, listener: &ListenerKey) -> bool {
    let section = target.section.as_deref();
    listener.origin == target.object && section.is_some_and(|name| *name != *listener.name)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use serde_json::{Value, json};

    use super::*;
    use crate::api::Kind;
    use crate::snapshot::Snapshot;
    use crate::translate::changes::Changes;
    use crate::translate::input::Options;
    use crate::translate::policy::inherited::index;
    use crate::translate::registry::Registry;

    const POLICIES: usize = 30;
    const ROUTES: usize = 16;
    const LISTENERS: usize = 512;

    /// Every object has all listeners.
    struct Counted {
        listeners: Vec<(ObjectRef, Arc<ListenerKey>)>,
        /// Number of questions.
        asked: Cell<usize>,
    }

    impl Attachments for Counted {
        fn listeners_of(&self, _: &ObjectRef) -> Vec<(ObjectRef, Arc<ListenerKey>)> {
            self.asked.set(self.asked.get() + 1);
            self.listeners.clone()
        }

        fn on_port_of(&self, _: &ObjectRef, _: &ListenerKey) -> Vec<Text> {
            self.asked.set(self.asked.get() + 1);
            Vec::new()
        }

        fn quic(&self, _: &ObjectRef, _: &ListenerKey) -> Quic {
            Quic::NotHttps
        }

        fn rule_names_of(&self, _: &ObjectRef) -> Vec<Text> {
            Vec::new()
        }
    }

    fn policy(name: &str, targets: &[Value]) -> Value {
        json!({
            "apiVersion": "portcullis.dev/v1alpha1", "kind": "AccessPolicy",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"ipRules": {"deny": ["192.0.2.1"]}, "targetRefs": targets},
        })
    }

    fn target(kind: &str, name: &str) -> Value {
        json!({"group": "gateway.networking.k8s.io", "kind": kind, "name": name})
    }

    #[test]
    fn listeners_with_the_same_policies_have_one_path() {
        let routes = (0..ROUTES).map(|route| target("HTTPRoute", &format!("r{route}")));
        let routes: Vec<_> = routes.collect();
        let mut on_listener = target("Gateway", "web");
        on_listener["sectionName"] = "l7".into();
        let policies = (0..POLICIES).map(|name| policy(&format!("p{name}"), &routes));
        let mut snapshot = Snapshot::default();
        for policy in policies.chain([policy("of-listener", &[on_listener])]) {
            let kind = Kind::find("portcullis.dev/v1alpha1", "AccessPolicy").unwrap();
            snapshot.insert(kind.decode(&policy).unwrap());
        }
        let options = Options::default();
        let input = Input::new(&snapshot, None, &options, &Registry);
        let mut changes = Changes::between(Snapshot::default(), &snapshot);
        let mut index = Index::default();
        index.step(&input, &mut changes, index::read);

        let gateway = ObjectRef::gateway_api("Gateway", "default", "web");
        let listener = |number: usize| {
            let key = ListenerKey {
                origin: gateway.clone(),
                name: format!("l{number}").into(),
            };
            (gateway.clone(), Arc::new(key))
        };
        let attachments = Counted {
            listeners: (0..LISTENERS).map(listener).collect(),
            asked: Cell::new(0),
        };
        let known = Known::new(&input, &index, &attachments);
        for number in 0..POLICIES {
            let name = ObjectRef::new(
                "portcullis.dev",
                "AccessPolicy",
                "default",
                &format!("p{number}"),
            );
            for target in &index.get(&name).unwrap().targets {
                let reach = Reach::new(&known, target, Distinguish::Requests);
                let paths: Vec<_> = reach.paths().map(|path| &path.listener.name).collect();
                assert_eq!(paths, ["l0", "l7"]);
            }
        }
        assert_eq!(attachments.asked.get(), ROUTES);
    }
}
