//! Where the requests come through that a policy applies to. Must not know what policies say.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ir::sharing::Text;
use crate::ir::{ListenerKey, ObjectRef};

use super::attachments::Attachments;
use super::is_route;
use super::path::{Path, Sections};
use super::policy::Target;
use crate::translate::input::Input;
use crate::translate::source::Source;

/// The listeners that the requests to a target come through.
pub(super) struct Reach<'a> {
    target: &'a Target,
    listeners: Vec<(ObjectRef, Arc<ListenerKey>)>,
    /// Whether the listener or rule that it names does not exist.
    pub(super) is_missing: bool,
}

impl<'a> Reach<'a> {
    pub(super) fn new(
        input: &Input<'_>,
        target: &'a Target,
        attachments: &dyn Attachments,
    ) -> Self {
        let object = &target.object;
        input.read(|| Source::Object(object.clone()));
        input.read(|| Source::PoliciesOn(object.clone()));
        let exists = |section: &Text| Existing(attachments).has(object, section);
        Self {
            target,
            listeners: attachments.listeners_of(object),
            is_missing: !target.section.as_ref().is_none_or(exists),
        }
    }

    /// Returns the Gateways of these listeners.
    pub(super) fn gateways(&self) -> BTreeSet<&ObjectRef> {
        self.listeners.iter().map(|(gateway, _)| gateway).collect()
    }

    /// Returns the paths of the requests, one for each listener that the target does not leave out.
    pub(super) fn paths(&self, input: &Input<'_>) -> impl Iterator<Item = Path<'_>> {
        let Self {
            target,
            listeners,
            is_missing,
        } = self;
        let object = &target.object;
        let reached = listeners
            .iter()
            .filter(move |(_, listener)| *is_missing || !is_other_listener(target, listener));
        reached.map(move |(gateway, listener)| {
            input.read(|| Source::PoliciesOn(gateway.clone()));
            input.read(|| Source::PoliciesOn(listener.origin.clone()));
            let rule = target.section.as_ref().filter(|_| !is_missing);
            Path {
                gateway,
                listener,
                route: is_route(object).then_some((object, rule)),
            }
        })
    }
}

/// Reports whether a target names another listener of the same object.
fn is_other_listener(target: &Target, listener: &ListenerKey) -> bool {
    let section = target.section.as_deref();
    listener.origin == target.object && section.is_some_and(|name| *name != *listener.name)
}

/// The sections of targets as routes and Gateways have them.
pub(super) struct Existing<'a>(pub(super) &'a dyn Attachments);

impl Sections for Existing<'_> {
    fn has(&self, object: &ObjectRef, section: &str) -> bool {
        match is_route(object) {
            true => self
                .0
                .rule_names_of(object)
                .iter()
                .any(|it| **it == *section),
            false => {
                let listeners = self.0.listeners_of(object);
                listeners.iter().any(|(_, key)| *key.name == *section)
            }
        }
    }

    fn on_port_of(&self, gateway: &ObjectRef, listener: &ListenerKey) -> Vec<Text> {
        self.0.on_port_of(gateway, listener)
    }
}
