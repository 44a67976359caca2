//! Totals over all routes: the routes of each listener, and their number. Updated as routes change.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ir::client::ClientPolicies;
use crate::ir::policy::Policies;

use super::translated_route::TranslatedRoute;
use crate::translate::gateway::assembly::OnListener;
use crate::translate::gateway::attachment::ListenerIndex;

/// Totals over all routes.
#[derive(Default)]
pub(in crate::translate) struct Totals {
    listeners: Vec<OnListener>,
    changed: BTreeSet<ListenerIndex>,
    /// Number of listeners with policies.
    with_policies: usize,
}

impl Totals {
    /// Returns the totals of each listener, by its place. Listeners without routes may be missing at the end.
    pub(in crate::translate) fn listeners(&self) -> &[OnListener] {
        &self.listeners
    }

    /// Returns the listeners whose totals have changed since the last call.
    pub(in crate::translate) fn take_changed(&mut self) -> BTreeSet<ListenerIndex> {
        std::mem::take(&mut self.changed)
    }

    /// Sets what policies require on a listener, and how clients connect to it.
    pub(super) fn set_policies(
        &mut self,
        index: ListenerIndex,
        policies: Option<Arc<Policies>>,
        clients: Option<Arc<ClientPolicies>>,
    ) {
        let has = policies.is_some() || clients.is_some();
        if self.listeners.len() <= index {
            if !has {
                return;
            }
            self.listeners.resize(index + 1, OnListener::default());
        }
        let on_listener = &mut self.listeners[index];
        if on_listener.policies == policies && on_listener.clients == clients {
            return;
        }
        let had = on_listener.policies.is_some() || on_listener.clients.is_some();
        self.with_policies = self.with_policies + usize::from(has) - usize::from(had);
        on_listener.policies = policies;
        on_listener.clients = clients;
        self.changed.insert(index);
    }

    /// Reports whether there are listeners with policies.
    pub(super) fn have_policies(&self) -> bool {
        self.with_policies > 0
    }

    /// Replaces a route. The previous version must be the one that was added last.
    pub(super) fn replace(
        &mut self,
        previous: Option<&TranslatedRoute>,
        entry: Option<&TranslatedRoute>,
    ) {
        let attached = |entry: Option<&TranslatedRoute>, index: ListenerIndex| {
            entry.is_some_and(|it| it.attached.iter().any(|(known, _)| *known == index))
        };
        if let Some(previous) = previous {
            for index in previous.accepted_on() {
                self.on_listener(index).accepted -= 1;
            }
            for (index, _) in &previous.attached {
                let on_listener = self.on_listener(*index);
                if !attached(entry, *index) {
                    on_listener.routes.remove(&previous.name);
                }
            }
        }
        if let Some(entry) = entry {
            for index in entry.accepted_on() {
                self.on_listener(index).accepted += 1;
            }
            for (index, route) in &entry.attached {
                self.on_listener(*index).routes.insert(route.clone());
            }
        }
    }

    /// Returns the totals of a listener to change them.
    fn on_listener(&mut self, index: ListenerIndex) -> &mut OnListener {
        if self.listeners.len() <= index {
            self.listeners.resize(index + 1, OnListener::default());
        }
        self.changed.insert(index);
        &mut self.listeners[index]
    }
}
