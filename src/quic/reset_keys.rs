//! The keys of stateless resets (RFC 9000, 10.3), which also authenticate ids. They may change while connections are open.

use std::iter;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use aws_lc_rs::hmac;
use quinn::crypto::{CryptoError, HmacKey};

/// Number of the first bytes of an id, which are random, and of the next ones, which authenticate these.
pub(super) const NONCE: usize = 4;
pub(super) const TAG: usize = 3;

/// The secrets of stateless resets, with which whoever has them may end connections.
pub trait ResetSecrets: Send + Sync {
    /// Tells the present secrets from others. Is called for each id.
    fn version(&self) -> [u8; 8];

    /// Returns the secret of new ids, and another one, of which other pods have ids meanwhile.
    fn secrets(&self) -> ([u8; 32], Option<[u8; 32]>);
}

/// Signs an id with the key that it is from.
pub(super) struct ResetKeys {
    secrets: Arc<dyn ResetSecrets>,
    ring: ArcSwap<Ring>,
}

/// The keys of one version of the secrets.
struct Ring {
    version: [u8; 8],
    issuing: hmac::Key,
    accepted: Option<hmac::Key>,
}

impl ResetKeys {
    pub(super) fn new(secrets: Arc<dyn ResetSecrets>) -> Self {
        let ring = Ring::of(&*secrets);
        Self {
            secrets,
            ring: ArcSwap::from_pointee(ring),
        }
    }

    /// Returns what authenticates the first bytes of a new id.
    pub(super) fn tag(&self, nonce: &[u8]) -> [u8; TAG] {
        tag(&self.ring().issuing, nonce)
    }

    /// Reports whether a pod with one of the keys has issued an id.
    pub(super) fn knows(&self, id: &[u8]) -> bool {
        self.ring().key_of(id).is_some()
    }

    /// Returns the present keys.
    fn ring(&self) -> Guard<Arc<Ring>> {
        if self.ring.load().version != self.secrets.version() {
            self.ring.store(Arc::new(Ring::of(&*self.secrets)));
        }
        self.ring.load()
    }
}

impl Ring {
    fn of(secrets: &dyn ResetSecrets) -> Self {
        // Read before the secrets, so that a later change is noticed.
        let version = secrets.version();
        let (issuing, accepted) = secrets.secrets();
        let key = |secret: [u8; 32]| hmac::Key::new(hmac::HMAC_SHA256, &secret);
        Self {
            version,
            issuing: key(issuing),
            accepted: accepted.map(key),
        }
    }

    /// Returns the key of an id.
    fn key_of(&self, id: &[u8]) -> Option<&hmac::Key> {
        let nonce = id.get(..NONCE)?;
        let found = id.get(NONCE..NONCE + TAG)?;
        let mut keys = iter::once(&self.issuing).chain(&self.accepted);
        keys.find(|key| *found == tag(key, nonce))
    }

    fn signing(&self, id: &[u8]) -> &hmac::Key {
        self.key_of(id).unwrap_or(&self.issuing)
    }
}

/// What it authenticates is no token of a reset, which is derived from a whole id.
fn tag(key: &hmac::Key, nonce: &[u8]) -> [u8; TAG] {
    let mut tag = [0; TAG];
    tag.copy_from_slice(&hmac::sign(key, nonce).as_ref()[..TAG]);
    tag
}

/// quinn signs ids alone.
impl HmacKey for ResetKeys {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        HmacKey::sign(self.ring().signing(data), data, signature_out);
    }

    fn signature_len(&self) -> usize {
        HmacKey::signature_len(&self.ring().issuing)
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        HmacKey::verify(self.ring().signing(data), data, signature)
    }
}

/// A secret that does not change.
#[cfg(test)]
impl ResetSecrets for [u8; 32] {
    fn version(&self) -> [u8; 8] {
        [0; 8]
    }

    fn secrets(&self) -> ([u8; 32], Option<[u8; 32]>) {
        (*self, None)
    }
}
