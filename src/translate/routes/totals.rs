//! Totals over all routes: the routes of each listener, their number, and notes. Updated as routes change.

use std::collections::BTreeMap;

use super::super::attachment::ListenerIndex;
use super::entry::Entry;
use crate::ir::{AttachedRoutes, ObjectRef};
use crate::status::Note;

/// Totals over all routes.
#[derive(Default)]
pub(in crate::translate) struct Totals {
    listeners: Vec<OnListener>,
    notes: BTreeMap<ObjectRef, Vec<Note>>,
}

/// Totals over the routes of one listener.
#[derive(Clone, Default)]
pub(in crate::translate) struct OnListener {
    pub(in crate::translate) routes: AttachedRoutes,
    /// Number of accepted routes.
    pub(in crate::translate) accepted: usize,
}

impl Totals {
    /// Creates totals without routes, for this number of listeners.
    pub(super) fn of(listeners: usize) -> Self {
        Self {
            listeners: vec![OnListener::default(); listeners],
            notes: BTreeMap::new(),
        }
    }

    /// Returns the totals of each listener, by its index.
    pub(in crate::translate) fn listeners(&self) -> &[OnListener] {
        &self.listeners
    }

    /// Returns the notes on all routes.
    pub(in crate::translate) fn notes(&self) -> impl Iterator<Item = &Note> {
        self.notes.values().flatten()
    }

    /// Replaces a route. The former version must be the one that was added last.
    pub(super) fn replace(&mut self, former: Option<&Entry>, entry: Option<&Entry>) {
        let attached = |entry: Option<&Entry>, index: ListenerIndex| {
            entry.is_some_and(|it| it.attached.iter().any(|(known, _)| *known == index))
        };
        if let Some(former) = former {
            self.notes.remove(&former.name);
            for (index, _) in &former.attached {
                let on_listener = &mut self.listeners[*index];
                on_listener.accepted -= usize::from(former.is_usable);
                if !attached(entry, *index) {
                    on_listener.routes.remove(&former.name);
                }
            }
        }
        if let Some(entry) = entry {
            if !entry.notes.is_empty() {
                self.notes.insert(entry.name.clone(), entry.notes.clone());
            }
            for (index, route) in &entry.attached {
                let on_listener = &mut self.listeners[*index];
                on_listener.accepted += usize::from(entry.is_usable);
                on_listener.routes.insert(route.clone());
            }
        }
    }
}
