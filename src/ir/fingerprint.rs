//! A number that tells versions of one Gateway's configuration apart, the same in every process of one version of this
//! program. Knows what belongs to the configuration and what a process merely found: endpoints and history.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::discriminant;

use super::{AttachedRoute, Ir, Listener, ObjectRef, Port, Protocol, ServerTls, TlsTermination};

/// The fingerprint of a value.
///
/// The hasher has fixed keys, but neither its algorithm nor the layout of what is hashed is promised: programs of one
/// version agree, others need not.
pub fn of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Ir {
    /// Tells configurations of one Gateway apart: its ports, listeners, certificates and routes, and what the routes'
    /// backends speak. Equal in all processes of one version that see the same objects, whatever they saw before.
    ///
    /// Endpoints are left out, since they come and go without anyone's configuring; so is a certificate that a process
    /// serves only because it once saw a better Secret, and a listener that has no other.
    pub fn fingerprint(&self, gateway: &ObjectRef) -> u64 {
        let mut hasher = DefaultHasher::new();
        for port in self.ports.iter().filter(|port| port.gateway == *gateway) {
            let listeners = port.listeners.iter();
            let mut listeners = listeners
                .filter(|listener| is_by_itself(listener))
                .peekable();
            if listeners.peek().is_some() {
                hash_port(port, &mut hasher);
                listeners.for_each(|listener| hash_listener(listener, &mut hasher));
            }
        }
        hasher.finish()
    }
}

/// Whether a process without a past serves this listener too.
fn is_by_itself(listener: &Listener) -> bool {
    let termination = listener.protocol.termination();
    termination.is_none_or(|one| one.tls.certificates.len() > one.held_over.len())
}

fn hash_port(port: &Port, hasher: &mut impl Hasher) {
    let Port {
        bind,
        gateway: _,
        listeners: _,
    } = port;
    bind.hash(hasher);
}

fn hash_listener(listener: &Listener, hasher: &mut impl Hasher) {
    let Listener {
        key,
        hostname,
        protocol,
        routes,
    } = listener;
    (key, hostname).hash(hasher);
    hash_protocol(protocol, hasher);
    routes.len().hash(hasher);
    routes
        .iter()
        .map(|route| AttachedRoute::fingerprint(route))
        .for_each(|route| hasher.write_u64(route));
}

fn hash_protocol(protocol: &Protocol, hasher: &mut impl Hasher) {
    discriminant(protocol).hash(hasher);
    match protocol {
        Protocol::Https(termination) | Protocol::TlsTerminate(termination) => {
            hash_termination(termination, hasher);
        }
        Protocol::Http | Protocol::TlsPassthrough | Protocol::Tcp | Protocol::Udp => {}
    }
}

fn hash_termination(termination: &TlsTermination, hasher: &mut impl Hasher) {
    let TlsTermination { tls, held_over } = termination;
    let ServerTls {
        certificates,
        min_version,
        ciphers,
    } = &**tls;
    (min_version, ciphers).hash(hasher);
    let certificates = certificates.iter();
    for certificate in certificates.filter(|one| !held_over.contains(&one.source)) {
        (&certificate.source, &certificate.chain).hash(hasher);
    }
}
