//! Tags that only this process can compute, so that the time of a look-up tells nothing of a credential.

use aws_lc_rs::hmac;
use rand::Rng;

/// Returns a key that nobody else knows.
pub(super) fn random_key() -> hmac::Key {
    let mut bytes = [0; 32];
    rand::rng().fill_bytes(&mut bytes);
    hmac::Key::new(hmac::HMAC_SHA256, &bytes)
}

/// Returns the tag of these parts in one.
pub(super) fn tag(key: &hmac::Key, parts: &[&[u8]]) -> [u8; 32] {
    let mut context = hmac::Context::with_key(key);
    parts.iter().for_each(|part| context.update(part));
    let mut tag = [0; 32];
    tag.copy_from_slice(context.sign().as_ref());
    tag
}
