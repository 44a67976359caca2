//! Per Gateway of ours, the objects that its translation in [`Mode::Dedicated`] reads: its closure. Kept current from one
//! snapshot to the next. Knows nothing of who gets the objects.

mod links;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::{Object, Resource};
use crate::ir::ObjectRef;
use crate::snapshot::Snapshot;

use self::links::Links;
use super::{Input, Mode, Options};

/// The closures of all Gateways of ours.
pub struct Closures {
    options: Options,
    closures: BTreeMap<ObjectRef, Snapshot>,
}

/// What is different in the closure of a Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// Some objects, in an order that is the same for the same change.
    Changed(Vec<ObjectChange>),
    /// The Gateway is gone, or not ours any more.
    Gone,
}

/// What became of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectChange {
    /// It is new or different.
    Put(Object),
    /// It is gone.
    Delete(ObjectRef),
}

impl Closures {
    /// No closures yet. Gateways of GatewayClasses with this `spec.controllerName` are ours.
    pub fn new(controller_name: Arc<str>) -> Self {
        Self {
            options: Options {
                controller_name,
                mode: Mode::Dedicated,
            },
            closures: BTreeMap::new(),
        }
    }

    /// Follows the cluster. Returns what is different per Gateway; one that is new has everything in its difference.
    pub fn follow(&mut self, snapshot: &Snapshot) -> BTreeMap<ObjectRef, Difference> {
        let options = self.options.clone();
        let input = Input::new(snapshot, None, &options);
        let closures = of_all(&input);
        let before = std::mem::replace(&mut self.closures, closures);
        let mut differences = BTreeMap::new();
        for (gateway, now) in &self.closures {
            let none = Snapshot::default();
            let before = before.get(gateway).unwrap_or(&none);
            let names = now.names_changed_since(before).into_iter();
            let changes: Vec<_> = names
                .map(|name| match now.object(&name) {
                    Some(object) => ObjectChange::Put(object),
                    None => ObjectChange::Delete(name),
                })
                .collect();
            if !changes.is_empty() {
                differences.insert(gateway.clone(), Difference::Changed(changes));
            }
        }
        let gone = before
            .into_keys()
            .filter(|name| !self.closures.contains_key(name));
        differences.extend(gone.map(|name| (name, Difference::Gone)));
        differences
    }

    /// The closure of a Gateway; `None` when it is gone or not ours: its class is not there or has another controllerName.
    /// The next change copies what is still shared with a clone.
    pub fn get(&self, gateway: &ObjectRef) -> Option<&Snapshot> {
        self.closures.get(gateway)
    }
}

fn of_all(input: &Input<'_>) -> BTreeMap<ObjectRef, Snapshot> {
    let snapshot = input.snapshot;
    let mut links: BTreeMap<ObjectRef, Links> = BTreeMap::new();
    let mut members: BTreeMap<ObjectRef, Vec<ObjectRef>> = BTreeMap::new();
    for name in snapshot.names_changed_since(&Snapshot::default()) {
        let Some(object) = snapshot.object(&name) else {
            continue;
        };
        let own = links::links(input, &name, &object);
        for parent in &own.belongs_to {
            members
                .entry(parent.clone())
                .or_default()
                .push(name.clone());
        }
        links.insert(name, own);
    }
    let closure = |gateway: &ObjectRef| {
        let mut reached = BTreeSet::new();
        let mut rest = vec![gateway.clone()];
        let mut closure = Snapshot::default();
        while let Some(name) = rest.pop() {
            if reached.contains(&name) {
                continue;
            }
            rest.extend(members.get(&name).into_iter().flatten().cloned());
            if let Some(links) = links.get(&name) {
                rest.extend(links.refers_to.iter().cloned());
            }
            if let Some(object) = snapshot.object(&name) {
                closure.insert(object);
            }
            reached.insert(name);
        }
        closure
    };
    let gateways = snapshot.gateways.iter().filter(|gateway| {
        let class = &gateway.spec.gateway_class_name;
        let class = snapshot.gateway_classes.get("", class);
        class.is_some_and(|class| class.spec.controller_name == *input.options.controller_name)
    });
    gateways
        .map(|gateway| gateway.object_ref())
        .map(|name| {
            let closure = closure(&name);
            (name, closure)
        })
        .collect()
}
