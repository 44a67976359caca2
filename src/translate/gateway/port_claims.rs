//! Ports of several Gateways on one machine: each address and port belongs to the oldest Gateway that requests it. A
//! listener without a certificate still occupies its port, so that repairing one Gateway never stops another. Must not
//! know listeners otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::api::gateway::Gateway;
use crate::ir::Time;
use crate::ir::{ObjectRef, Transport};
use crate::translate::changes::Changes;
use crate::translate::input::Input;
use crate::translate::memo::Memo;
use crate::translate::reason::{Fault, Reason};
use crate::translate::source::Source;

use super::gateway::{self, GatewayDraft};

/// A port, and its transport.
type PortKey = (u16, Transport);

/// The age of a Gateway: oldest first, then by namespace and name.
type Age = (Option<Time>, ObjectRef);

/// The claims of all Gateways.
#[derive(Default)]
pub(super) struct PortClaims {
    claims: Memo<Claim>,
    by_port: BTreeMap<PortKey, BTreeMap<Age, Vec<Option<IpAddr>>>>,
    /// The Gateway that holds a port, by the Gateway that requests it too.
    holders: BTreeMap<ObjectRef, BTreeMap<PortKey, ObjectRef>>,
}

/// What a Gateway claims: each of these ports on each of these addresses.
#[derive(PartialEq, Eq)]
pub(super) struct Claim {
    created: Option<Time>,
    ports: BTreeSet<PortKey>,
    addresses: Vec<Option<IpAddr>>,
}

impl Claim {
    fn new(draft: &GatewayDraft<'_>) -> Self {
        let is_claimed = draft.fault.is_none();
        let listeners = draft.listeners.iter();
        let listeners = listeners.filter(|listener| is_claimed && listener.is_accepted());
        Self {
            created: draft.object.metadata.creation_timestamp,
            ports: listeners.map(|listener| listener.port()).collect(),
            addresses: draft.addresses.clone(),
        }
    }

    /// Returns the ports, each with the age of the Gateway.
    fn ports(&self) -> impl Iterator<Item = (Option<Time>, PortKey)> {
        self.ports.iter().map(|port| (self.created, *port))
    }
}

impl PortClaims {
    /// Adds what the claims of a Gateway were computed from, that it keeps although it has more ListenerSets.
    pub(super) fn extend(&mut self, gateway: &ObjectRef, reads: Vec<Source>) {
        self.claims.extend(gateway, reads);
    }

    /// Updates the claims of Gateways of which a source has changed, except those that `has_claimed` knows to be the same.
    /// Announces Gateways that get other ports.
    pub(super) fn step<'a>(
        &mut self,
        input: &Input<'a>,
        changes: &mut Changes,
        has_claimed: impl Fn(&ObjectRef) -> bool,
        draft: impl Fn(&ObjectRef) -> Option<GatewayDraft<'a>>,
    ) {
        let mut names = self.claims.outdated(changes);
        names.extend(changes.of::<Gateway>());
        names.retain(|name| !has_claimed(name));
        let mut ports = BTreeSet::new();
        for name in names {
            let computed = input.reading(|| draft(&name).as_ref().map(Claim::new));
            let previous = self.claims.replace(&name, computed).previous;
            let now = self.claims.get(&name);
            if previous.as_ref() == now {
                continue;
            }
            for (created, port) in previous.iter().flat_map(Claim::ports) {
                if let Some(claims) = self.by_port.get_mut(&port) {
                    claims.remove(&(created, name.clone()));
                }
                if let Some(held) = self.holders.get_mut(&name) {
                    held.remove(&port);
                }
                ports.insert(port);
            }
            let addresses = now.map_or(&[][..], |now| &now.addresses);
            for (created, port) in now.into_iter().flat_map(Claim::ports) {
                let claims = self.by_port.entry(port).or_default();
                claims.insert((created, name.clone()), addresses.to_vec());
                ports.insert(port);
            }
        }
        for port in ports {
            self.decide(port, changes);
        }
    }

    /// Decides who holds a port.
    fn decide(&mut self, port: PortKey, changes: &mut Changes) {
        let Some(claims) = self.by_port.get(&port) else {
            return;
        };
        let mut held: Vec<(Option<IpAddr>, &ObjectRef)> = Vec::new();
        for ((_, name), addresses) in claims {
            let overlaps = |taken: Option<IpAddr>| {
                let mut addresses = addresses.iter();
                addresses.any(|address| gateway::overlap(taken, *address))
            };
            let rival = held.iter().find(|(taken, _)| overlaps(*taken));
            let holder = rival.map(|(_, holder)| (*holder).clone());
            if holder.is_none() {
                held.extend(addresses.iter().map(|address| (*address, name)));
            }
            let known = self.holders.entry(name.clone()).or_default();
            let previous = match &holder {
                Some(holder) => known.insert(port, holder.clone()),
                None => known.remove(&port),
            };
            if previous != holder {
                changes.announce(Source::PortsOf(name.clone()));
            }
            if known.is_empty() {
                self.holders.remove(name);
            }
        }
        if claims.is_empty() {
            self.by_port.remove(&port);
        }
    }

    /// Rejects the listeners of a Gateway on ports that other Gateways hold.
    pub(super) fn apply(&self, input: &Input<'_>, gateway: &mut GatewayDraft<'_>) {
        input.read(|| Source::PortsOf(gateway.name.clone()));
        let Some(holders) = self.holders.get(&gateway.name) else {
            return;
        };
        for listener in &mut gateway.listeners {
            let holder = holders.get(&listener.port());
            if let Some(holder) = holder.filter(|_| listener.is_accepted()) {
                let message = format!(
                    "{}: {holder} has port {} already, because it is older or first by name; use another port or \
                     other spec.addresses",
                    listener.field("port"),
                    listener.spec.port
                );
                listener.rejected = Some(Fault::new(Reason::PortUnavailable, message));
            }
        }
    }
}
