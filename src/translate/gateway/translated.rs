//! One translated Gateway with its ListenerSets, without routes. Must not know other Gateways.

use std::ops::Range;
use std::sync::Arc;

use super::data_plane;
use super::gateway::{GatewayDraft, PortDraft};
use super::occupied::Occupied;
use super::report;
use crate::ir::{Certificate, Listener, ObjectRef, Protocol, ServerTls, Transport};
use crate::provision::data_plane::DataPlane;
use crate::status::{GatewayStatus, ListenerSetStatus};
use crate::translate::affecting::Affecting;
use crate::translate::input::{Input, Mode};

/// A translated Gateway of this controller.
pub(super) struct Translated {
    /// Its listeners, then those of its ListenerSets; `None` for listeners that cannot be served.
    pub(super) listeners: Vec<Option<Listener>>,
    /// Ports to bind. Their listeners are indices of [`Self::listeners`].
    pub(super) ports: Vec<PortDraft>,
    /// Its status, and those of its ListenerSets, without the numbers of routes.
    pub(super) status: GatewayStatus,
    pub(super) sets: Vec<TranslatedSet>,
    /// The data plane that it needs in a cluster.
    pub(super) data_plane: Option<Arc<DataPlane>>,
    /// What its listeners occupy.
    pub(super) occupied: Occupied,
}

/// A translated ListenerSet.
pub(super) struct TranslatedSet {
    pub(super) name: ObjectRef,
    /// Range of its listeners among those of the Gateway.
    pub(super) listeners: Range<usize>,
    pub(super) status: ListenerSetStatus,
}

impl TranslatedSet {
    /// Adds conditions that name the policies on the ListenerSet.
    pub(super) fn name_policies(
        &mut self,
        input: &Input<'_>,
        generation: i64,
        policies: &dyn Affecting,
    ) {
        let conditions = policies.conditions(input, &self.name, generation);
        self.status.conditions.extend(conditions);
    }
}

impl Translated {
    /// Replaces the certificate of a Secret by the one that `renew` returns for it. Returns the indices of the changed
    /// listeners, or `None` if more has to change.
    pub(super) fn renew(
        &mut self,
        secret: &ObjectRef,
        renew: impl FnOnce(&Certificate) -> Option<Arc<Certificate>>,
    ) -> Option<Vec<usize>> {
        let uses = |listener: &Listener| {
            let certificates = listener.tls().into_iter().flat_map(|tls| &tls.certificates);
            let mut same = certificates.filter(|one| one.source == *secret);
            same.next().cloned()
        };
        let listeners = self.listeners.iter().enumerate();
        let found = listeners.filter_map(|(at, listener)| Some((at, uses(listener.as_ref()?)?)));
        let found: Vec<_> = found.collect();
        let new = renew(&found.first()?.1)?;
        for (at, known) in &found {
            let protocol = self.listeners[*at].as_mut().map(|it| &mut it.protocol);
            let Some(Protocol::Https(termination) | Protocol::TlsTerminate(termination)) = protocol
            else {
                return None;
            };
            if termination.held_over.contains(secret) || known.names != new.names {
                return None;
            }
            let mut tls = ServerTls::clone(&termination.tls);
            let certificates = tls.certificates.iter_mut();
            for one in certificates.filter(|one| one.source == *secret) {
                one.clone_from(&new);
            }
            termination.tls = Arc::new(tls);
        }
        Some(found.into_iter().map(|(at, _)| at).collect())
    }

    pub(super) fn new(draft: &GatewayDraft<'_>, mode: Mode) -> Self {
        let listeners = draft.listeners.iter();
        let listeners = listeners.map(|it| it.finish().filter(|_| draft.serves(it)));
        let sets = draft.sets.iter().map(|set| TranslatedSet {
            name: set.name.clone(),
            listeners: set.listeners.clone(),
            status: report::of_set(set, draft),
        });
        Self {
            listeners: listeners.collect(),
            ports: draft.ports(),
            status: report::of_gateway(draft),
            sets: sets.collect(),
            data_plane: data_plane::of_gateway(draft, mode).map(Arc::new),
            occupied: Occupied::new(draft),
        }
    }

    /// Adds conditions that name the policies on the Gateway and its ListenerSets.
    pub(super) fn name_policies(
        &mut self,
        input: &Input<'_>,
        draft: &GatewayDraft<'_>,
        policies: &dyn Affecting,
    ) {
        let generation = draft.object.metadata.generation;
        let conditions = policies.conditions(input, &draft.name, generation);
        self.status.conditions.extend(conditions);
        for (translated, set) in self.sets.iter_mut().zip(&draft.sets) {
            translated.name_policies(input, set.generation, policies);
        }
    }

    /// Reports whether it binds a port.
    pub(super) fn has_port(&self, port: (u16, Transport)) -> bool {
        let mut ports = self
            .ports
            .iter()
            .map(|it| (it.bind.port, it.bind.transport));
        ports.any(|known| known == port)
    }
}
