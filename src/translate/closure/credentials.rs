//! Which credentials policies bring to each Gateway, decided as translations decide it. Follows the policies, and where routes
//! with policies are attached. Must not know the graph.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::reference::Credential;
use crate::ir::sharing::Text;
use crate::ir::{ListenerKey, ObjectRef};

use super::super::changes::Changes;
use super::super::gateway::attachment::Parents;
use super::super::gateway::quic::Quic;
use super::super::input::Input;
use super::super::policy::inherited::{Attachments, Credentials, InheritedPolicies};
use super::super::source::Source;

/// The policies with credentials, and what they bring.
#[derive(Default)]
pub(super) struct GatewayCredentials {
    policies: InheritedPolicies,
    credentials: Credentials,
    /// The routes with policies that are attached somewhere.
    attached: BTreeMap<ObjectRef, Attached>,
    /// Those of which that has changed.
    changed: BTreeSet<ObjectRef>,
}

/// Where a route is attached, as policies see it.
#[derive(PartialEq, Eq)]
pub(super) struct Attached {
    /// The listeners, each with its Gateway.
    pub(super) listeners: Vec<(ObjectRef, Arc<ListenerKey>)>,
    pub(super) rule_names: Vec<Text>,
}

impl GatewayCredentials {
    /// Parses the policies that have changed.
    pub(super) fn step(&mut self, input: &Input<'_>, changes: &mut Changes) {
        self.policies.step_outlines(input, changes);
    }

    /// Returns the objects whose policies have changed.
    pub(super) fn touched(&self) -> &BTreeSet<ObjectRef> {
        self.policies.touched()
    }

    /// Reports whether an object has policies.
    pub(super) fn has_policies(&self, object: &ObjectRef) -> bool {
        self.policies.has(object)
    }

    /// Replaces where a route is attached; `None` if nowhere, or if it has no policies.
    pub(super) fn attach(&mut self, route: &ObjectRef, attached: Option<Attached>) {
        if self.attached.get(route) == attached.as_ref() {
            return;
        }
        self.changed.insert(route.clone());
        match attached {
            Some(attached) => drop(self.attached.insert(route.clone(), attached)),
            None => drop(self.attached.remove(route)),
        }
    }

    /// Decides again what policies bring. Returns the objects of which a Gateway may use something else.
    pub(super) fn decide(
        &mut self,
        input: &Input<'_>,
        parents: &Parents,
        changes: &mut Changes,
    ) -> BTreeSet<ObjectRef> {
        for route in std::mem::take(&mut self.changed) {
            changes.announce(Source::AttachmentOf(route));
        }
        let attachments = OfRoutes {
            input,
            parents,
            attached: &self.attached,
        };
        let mut decided = self
            .credentials
            .step(input, changes, &self.policies, &attachments);
        decided.objects.append(&mut decided.policies);
        decided.objects
    }

    /// Returns why the pods of a Gateway get none of the credentials that a policy names, if they get none.
    pub(super) fn withheld(&self, policy: &ObjectRef, gateway: &ObjectRef) -> Option<String> {
        self.credentials.withheld(policy, gateway)
    }

    /// Returns what the policies of a Gateway read from an object.
    pub(super) fn read_from(&self, object: &ObjectRef, gateway: &ObjectRef) -> Vec<Credential> {
        self.credentials.read_from(object, gateway)
    }
}

/// Where the requests to targets of policies come through.
struct OfRoutes<'a> {
    input: &'a Input<'a>,
    parents: &'a Parents,
    attached: &'a BTreeMap<ObjectRef, Attached>,
}

impl Attachments for OfRoutes<'_> {
    fn listeners_of(&self, object: &ObjectRef) -> Vec<(ObjectRef, Arc<ListenerKey>)> {
        self.input.read(|| Source::ListenersOf(object.clone()));
        self.input.read(|| Source::AttachmentOf(object.clone()));
        let attached = self.attached.get(object).into_iter();
        let attached = attached.flat_map(|attached| attached.listeners.iter().cloned());
        let own = self.parents.of_object(object).map(|place| {
            let parent = &self.parents[place];
            (parent.consumer.gateway.clone(), parent.key.clone())
        });
        attached.chain(own).collect()
    }

    fn on_port_of(&self, gateway: &ObjectRef, listener: &ListenerKey) -> Vec<Text> {
        self.input.read(|| Source::ListenersOf(gateway.clone()));
        self.parents.on_port_of(gateway, listener)
    }

    fn quic(&self, gateway: &ObjectRef, listener: &ListenerKey) -> Quic {
        self.input.read(|| Source::ListenersOf(gateway.clone()));
        Quic::of(self.parents, gateway, listener)
    }

    fn rule_names_of(&self, route: &ObjectRef) -> Vec<Text> {
        let attached = self.attached.get(route);
        attached.map_or_else(Vec::new, |attached| attached.rule_names.clone())
    }
}
