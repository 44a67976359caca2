//! The certificates in the configuration that is being served. A Secret that has become invalid keeps its last good one.

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ir::{Certificate, Ir, ObjectRef};
use crate::translate::changes::Changes;
use crate::translate::source::Source;

/// The certificates by their Secrets. Collected when several are looked up.
pub(super) struct ServedCertificates<'a> {
    ir: Option<&'a Ir>,
    /// Number of searches without a collection.
    searches: Cell<usize>,
    all: OnceCell<BySecret>,
    of_clients: OnceCell<BySecret>,
}

/// Number of searches that cost less than the collection.
const SEARCHES: usize = 16;

type BySecret = BTreeMap<ObjectRef, Arc<Certificate>>;

impl<'a> ServedCertificates<'a> {
    pub(super) fn new(ir: Option<&'a Ir>) -> Self {
        Self {
            ir,
            searches: Cell::new(0),
            all: OnceCell::new(),
            of_clients: OnceCell::new(),
        }
    }

    /// Returns the certificate of a Secret, of a listener or presented to backends.
    pub(super) fn get(&self, secret: &ObjectRef) -> Option<&Arc<Certificate>> {
        let searches = self.searches.get();
        if searches < SEARCHES {
            self.searches.set(searches + 1);
            // The last one, as in a collection.
            return self.served().filter(|one| one.source == *secret).last();
        }
        let all = || by_secret(self.served());
        self.all.get_or_init(all).get(secret)
    }

    fn served(&self) -> impl Iterator<Item = &'a Arc<Certificate>> + use<'a> {
        let ports = self.ir.into_iter().flat_map(|ir| &ir.ports);
        let of_listeners = ports.flat_map(|port| port.certificates());
        of_listeners.chain(self.presented())
    }

    /// Returns the certificate of a Secret that is presented to backends.
    pub(super) fn of_client(&self, secret: &ObjectRef) -> Option<&Arc<Certificate>> {
        let of_clients = || by_secret(self.presented());
        self.of_clients.get_or_init(of_clients).get(secret)
    }

    fn presented(&self) -> impl Iterator<Item = &'a Arc<Certificate>> + use<'a> {
        let backends = self.ir.into_iter().flat_map(|ir| ir.backends.iter());
        backends.filter_map(|it| it.tls.as_ref()?.client_certificate.as_ref())
    }
}

fn by_secret<'a>(certificates: impl Iterator<Item = &'a Arc<Certificate>>) -> BySecret {
    let by_secret = certificates.map(|it| (it.source.clone(), it.clone()));
    by_secret.collect()
}

/// The certificates of invalid Secrets that outputs of a step were computed from.
#[derive(Default)]
pub(super) struct LastGood(BTreeMap<ObjectRef, Option<Arc<Certificate>>>);

impl LastGood {
    /// Announces those that are served no longer, or others of them.
    pub(super) fn step<'a>(
        &mut self,
        served: impl Fn(&ObjectRef) -> Option<&'a Arc<Certificate>>,
        changes: &mut Changes,
    ) {
        for (secret, known) in &mut self.0 {
            let now = served(secret);
            if known.as_ref() != now {
                *known = now.cloned();
                changes.announce(Source::ServedCertificate(secret.clone()));
            }
        }
    }

    /// Adds one that an output was computed from.
    pub(super) fn insert(&mut self, secret: &ObjectRef, served: Option<&Arc<Certificate>>) {
        self.0.insert(secret.clone(), served.cloned());
    }

    /// Removes one that no output is computed from any more.
    pub(super) fn remove(&mut self, secret: &ObjectRef) {
        self.0.remove(secret);
    }
}
