//! Which listeners may have HTTP/3: QUIC needs the UDP port beside the TCP port of an HTTPS listener. Must not know policies.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::assembly::OnListener;
use super::attachment::{ListenerIndex, Parents};
use crate::ir::{ListenerKey, ObjectRef, Transport};
use crate::provision::data_plane::DataPlane;

/// Whether a listener may have HTTP/3.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::translate) enum Quic {
    /// It may.
    Possible,
    /// It is not an HTTPS listener.
    NotHttps,
    /// A UDP listener has its port.
    Taken { port: u16, by: Arc<ListenerKey> },
}

impl Quic {
    /// Returns whether a listener of a Gateway may have HTTP/3. A UDP listener counts even if it cannot be served: repairing it
    /// must not stop HTTP/3.
    pub(in crate::translate) fn of(
        parents: &Parents,
        gateway: &ObjectRef,
        listener: &ListenerKey,
    ) -> Self {
        let mut places = parents.of_object(&listener.origin);
        let place = places.find(|place| *parents[*place].key == *listener);
        let own = place.map(|place| &parents[place]);
        let Some(own) = own.filter(|own| own.is_https) else {
            return Self::NotHttps;
        };
        let port = own.port.0;
        let mut all = parents.of_gateway(gateway);
        let rival = all.find(|place| parents[*place].port == (port, Transport::Udp));
        match rival {
            Some(rival) => Self::Taken {
                port,
                by: parents[rival].key.clone(),
            },
            None => Self::Possible,
        }
    }
}

/// Reports whether policies ask for HTTP/3 on a listener.
pub(super) fn is_on(totals: &[OnListener], place: ListenerIndex) -> bool {
    let clients = totals.get(place).and_then(|total| total.clients.as_ref());
    clients.is_some_and(|clients| clients.http3.is_some())
}

/// Returns the data plane of a Gateway with the UDP ports for HTTP/3. It keeps them while a listener cannot be served, as it
/// does TCP ports.
pub(super) fn with_ports(
    (gateway, own): (&ObjectRef, &Arc<DataPlane>),
    parents: &Parents,
    totals: &[OnListener],
) -> Arc<DataPlane> {
    let places = parents.of_gateway(gateway);
    let places = places.filter(|place| is_on(totals, *place));
    let quic = places.map(|place| parents[place].port.0);
    let quic: BTreeSet<u16> = quic.filter(|port| own.ports.contains(port)).collect();
    if quic.is_empty() {
        return own.clone();
    }
    let all: BTreeSet<u16> = own.udp_ports.iter().copied().chain(quic).collect();
    Arc::new(DataPlane {
        udp_ports: all.into_iter().collect(),
        ..DataPlane::clone(own)
    })
}
