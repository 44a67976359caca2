//! The key of session tokens (GEP-1619), which seal the endpoint of a session and the time when it
//! began, and of sessions of signed-in users, which seal any content. All replicas of a proxy need the same key. If none is configured, each process generates
//! its own. While keys are rotated, a second one opens what it has sealed.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::Rng;

/// Minimum length of the text that a key is derived from, in bytes.
pub const MIN_SECRET: usize = 32;

/// Length of a sealed session in bytes: nonce, time, address, port and authentication tag.
const TOKEN: usize = NONCE_LEN + CONTENT + 16;
const CONTENT: usize = 8 + 16 + 2;

/// Seals and opens session tokens.
pub struct SessionKey(ArcSwap<Ring>);

/// The keys that open what they have sealed.
struct Ring {
    /// Those that seal.
    current: Keys,
    /// Those before, or the next ones.
    accepted: Option<Keys>,
    /// Tells these keys from others.
    id: [u8; 8],
}

/// The keys that are derived from one secret.
struct Keys {
    /// Of session tokens.
    tokens: LessSafeKey,
    /// Of any other content.
    contents: LessSafeKey,
    /// Tells the keys of contents apart.
    id: [u8; 8],
    /// Derives further secrets.
    master: hmac::Key,
}

/// What the key of contents is derived for.
const CONTENTS: &[u8] = b"portcullis sealed contents v1";
const ID: &[u8] = b"portcullis identity of the key v1";

/// Content that was sealed.
#[derive(Debug, PartialEq, Eq)]
pub struct OpenedContent {
    /// The content.
    pub content: Vec<u8>,
    /// Whether it is sealed with the key of new content.
    pub is_current: bool,
}

/// The content of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Endpoint of the session.
    pub endpoint: SocketAddr,
    /// When the session began, in whole seconds since 1970.
    pub began: Duration,
}

/// Never prints the key.
impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionKey").finish_non_exhaustive()
    }
}

impl Default for SessionKey {
    /// Generates a random key.
    fn default() -> Self {
        let mut secret = [0; 32];
        rand::rng().fill_bytes(&mut secret);
        Self(ArcSwap::from_pointee(Ring::new(&secret, None)))
    }
}

impl SessionKey {
    /// Derives a key from a secret text. Fails if the text is shorter than [`MIN_SECRET`].
    pub fn from_secret(secret: &[u8]) -> Result<Self, String> {
        Self::from_secrets(secret, None)
    }

    /// Derives a key from a secret text, which also opens what the key of another text has sealed. Fails if one is shorter than
    /// [`MIN_SECRET`].
    pub fn from_secrets(secret: &[u8], accepted: Option<&[u8]>) -> Result<Self, String> {
        let mut all = std::iter::once(secret).chain(accepted);
        if all.any(|secret| secret.len() < MIN_SECRET) {
            return Err(format!(
                "a session key must have at least {MIN_SECRET} bytes; make one with `openssl rand -base64 48`"
            ));
        }
        Ok(Self(ArcSwap::from_pointee(Ring::new(secret, accepted))))
    }

    /// Replaces the key. Sessions of the previous key end, unless the new one accepts them.
    pub fn replace(&self, other: Self) {
        self.0.store(other.0.into_inner());
    }

    /// Returns the token of a session: text that is valid in a cookie or header and reveals nothing
    /// to its holder. Only the same `scope` opens it.
    pub fn seal(&self, session: Session, scope: &str) -> String {
        let mut token = Vec::with_capacity(TOKEN);
        token.resize(NONCE_LEN, 0);
        rand::rng().fill_bytes(&mut token);
        token.extend(session.began.as_secs().to_be_bytes());
        token.extend(octets(session.endpoint.ip()));
        token.extend(session.endpoint.port().to_be_bytes());
        let (nonce, content) = token.split_at_mut(NONCE_LEN);
        // Random nonces are safe to use here: AES-GCM-SIV tolerates a repeated nonce.
        let nonce = Nonce::try_assume_unique_for_key(nonce);
        let key = self.0.load();
        let tag = nonce.and_then(|nonce| {
            let aad = Aad::from(scope.as_bytes());
            let key = &key.current.tokens;
            key.seal_in_place_separate_tag(nonce, aad, content)
        });
        match tag {
            Ok(tag) => token.extend(tag.as_ref()),
            // Only content of many gigabytes cannot be sealed. An empty token opens nothing.
            Err(_) => token.clear(),
        }
        URL_SAFE_NO_PAD.encode(token)
    }

    /// Returns the session of a token; `None` if no accepted key sealed the token for `scope`.
    pub fn open(&self, token: &[u8], scope: &str) -> Option<Session> {
        let mut bytes = [0; TOKEN];
        let length = URL_SAFE_NO_PAD.decode_slice(token, &mut bytes).ok()?;
        if length != TOKEN {
            return None;
        }
        let open = |keys: &Keys| keys.open_token(bytes, scope);
        let (session, _) = self.0.load().open(open)?;
        Some(session)
    }

    /// Returns an identifier of the accepted keys. Reveals nothing of a key.
    pub fn id(&self) -> [u8; 8] {
        self.0.load().id
    }

    /// Derives a secret for each `purpose`, which all replicas with the key share. The key cannot be inferred from it.
    pub fn derive(&self, purpose: &[u8]) -> [u8; 32] {
        self.0.load().current.derive(purpose)
    }

    /// Derives a secret for a `purpose` as [`Self::derive`] does, and another one from the accepted key, if there is one.
    pub fn derive_from_all(&self, purpose: &[u8]) -> ([u8; 32], Option<[u8; 32]>) {
        let ring = self.0.load();
        let accepted = ring.accepted.as_ref();
        let accepted = accepted.map(|keys| keys.derive(purpose));
        (ring.current.derive(purpose), accepted)
    }

    /// Returns sealed content: text that is valid in a cookie and reveals only its length to its holder. Only the same
    /// `scope` opens it.
    pub fn seal_content(&self, content: &[u8], scope: &[u8]) -> String {
        let mut sealed = Vec::with_capacity(NONCE_LEN + content.len() + 16);
        sealed.resize(NONCE_LEN, 0);
        rand::rng().fill_bytes(&mut sealed);
        sealed.extend(content);
        let (nonce, content) = sealed.split_at_mut(NONCE_LEN);
        // Random nonces are safe to use here: AES-GCM-SIV tolerates a repeated nonce.
        let nonce = Nonce::try_assume_unique_for_key(nonce);
        let key = &self.0.load().current.contents;
        let aad = Aad::from(scope);
        let tag = nonce.and_then(|nonce| key.seal_in_place_separate_tag(nonce, aad, content));
        match tag {
            Ok(tag) => sealed.extend(tag.as_ref()),
            // Only content of many gigabytes cannot be sealed. An empty text opens nothing.
            Err(_) => sealed.clear(),
        }
        URL_SAFE_NO_PAD.encode(sealed)
    }

    /// Returns the content of a sealed text; `None` if no accepted key sealed it for `scope`.
    pub fn open_content(&self, text: &[u8], scope: &[u8]) -> Option<OpenedContent> {
        let open = |keys: &Keys| keys.open_content(text, scope);
        let (content, is_current) = self.0.load().open(open)?;
        Some(OpenedContent {
            content,
            is_current,
        })
    }
}

impl Ring {
    fn new(secret: &[u8], accepted: Option<&[u8]>) -> Self {
        let current = Keys::of(secret);
        let accepted = accepted.map(Keys::of);
        let mut id = current.id;
        if let Some(accepted) = &accepted {
            // Other than that of the same keys the other way round.
            let bytes = id.iter_mut().zip(accepted.id);
            bytes.for_each(|(byte, other)| *byte = byte.rotate_left(1) ^ other);
        }
        Self {
            current,
            accepted,
            id,
        }
    }

    /// Returns what keys open, and whether they are those that seal.
    fn open<T>(&self, open: impl Fn(&Keys) -> Option<T>) -> Option<(T, bool)> {
        if let Some(opened) = open(&self.current) {
            return Some((opened, true));
        }
        let opened = open(self.accepted.as_ref()?)?;
        Some((opened, false))
    }
}

impl Keys {
    fn of(secret: &[u8]) -> Self {
        let master = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let mut id = [0; 8];
        id.copy_from_slice(&hmac::sign(&master, ID).as_ref()[..8]);
        Self {
            id,
            tokens: key(secret),
            contents: key(hmac::sign(&master, CONTENTS).as_ref()),
            master,
        }
    }

    fn derive(&self, purpose: &[u8]) -> [u8; 32] {
        let mut secret = [0; 32];
        secret.copy_from_slice(hmac::sign(&self.master, purpose).as_ref());
        secret
    }

    fn open_token(&self, mut token: [u8; TOKEN], scope: &str) -> Option<Session> {
        let (nonce, sealed) = token.split_at_mut(NONCE_LEN);
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let aad = Aad::from(scope.as_bytes());
        let content = self.tokens.open_in_place(nonce, aad, sealed).ok()?;
        let (began, rest) = content.split_first_chunk::<8>()?;
        let (address, port) = rest.split_first_chunk::<16>()?;
        let address = Ipv6Addr::from(*address).to_canonical();
        let port = u16::from_be_bytes(*port.first_chunk()?);
        Some(Session {
            endpoint: SocketAddr::new(address, port),
            began: Duration::from_secs(u64::from_be_bytes(*began)),
        })
    }

    fn open_content(&self, text: &[u8], scope: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let key = &self.contents;
        let length = key
            .open_in_place(nonce, Aad::from(scope), sealed)
            .ok()?
            .len();
        bytes.drain(..NONCE_LEN);
        bytes.truncate(length);
        Some(bytes)
    }
}

/// Reports whether text has the form of a token. It may be one of another scope or key.
pub fn is_token(text: &[u8]) -> bool {
    /// Base64 without padding has 4 characters for 3 bytes.
    const LENGTH: usize = (TOKEN * 4).div_ceil(3);
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    text.len() == LENGTH && text.iter().all(is_digit)
}

/// Derives a separate secret for each `purpose`. `master` cannot be inferred from it.
pub fn derived_secret(master: &str, purpose: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, master.as_bytes());
    URL_SAFE_NO_PAD.encode(hmac::sign(&key, purpose.as_bytes()))
}

/// Generates a random secret.
pub fn random_secret() -> String {
    let mut secret = [0; 32];
    rand::rng().fill_bytes(&mut secret);
    URL_SAFE_NO_PAD.encode(secret)
}

/// Returns the time since 1970, or zero if the system clock is before it.
pub fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

/// Derives a key from a secret of any length.
#[expect(
    clippy::expect_used,
    reason = "a SHA-256 digest has the length of an AES-256 key"
)]
fn key(secret: &[u8]) -> LessSafeKey {
    let digest = digest(&SHA256, secret);
    let key = UnboundKey::new(&AES_256_GCM_SIV, digest.as_ref());
    LessSafeKey::new(key.expect("32 bytes"))
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(endpoint: &str) -> Session {
        Session {
            endpoint: endpoint.parse().unwrap(),
            began: Duration::from_secs(1_800_000_000),
        }
    }

    #[test]
    fn opens_sealed_tokens() {
        let key = SessionKey::default();
        for endpoint in ["10.0.0.1:8080", "[2001:db8::1]:65535"] {
            let token = key.seal(session(endpoint), "a");
            assert_eq!(key.open(token.as_bytes(), "a"), Some(session(endpoint)));
            assert!(is_token(token.as_bytes()));
            assert!(!is_token(&token.as_bytes()[1..]));
            assert!(
                token
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
            );
        }
    }

    #[test]
    fn replicas_share_a_key_by_its_secret() {
        let [one, other] = [(); 2].map(|()| SessionKey::from_secret(&[7; 40]).unwrap());
        let token = one.seal(session("10.0.0.1:80"), "a");
        assert!(other.open(token.as_bytes(), "a").is_some());
        assert!(SessionKey::from_secret(&[7; 31]).is_err());
        one.replace(SessionKey::default());
        assert_eq!(one.open(token.as_bytes(), "a"), None);
    }

    #[test]
    fn accepted_key_opens_what_it_has_sealed() {
        let key = |secret: u8, accepted: Option<u8>| {
            let accepted = accepted.map(|it| [it; 40]);
            let accepted = accepted.as_ref().map(<[u8; 40]>::as_slice);
            SessionKey::from_secrets(&[secret; 40], accepted).unwrap()
        };
        let before = key(1, None);
        let token = before.seal(session("10.0.0.1:80"), "a");
        let text = before.seal_content(b"content", b"a");
        // The next key is accepted, takes the place of this one, and then this one is no longer accepted.
        for (rotated, is_accepted, is_current) in [
            (key(1, Some(2)), true, true),
            (key(2, Some(1)), true, false),
            (key(2, None), false, false),
            (key(3, Some(2)), false, false),
        ] {
            let opened = rotated.open(token.as_bytes(), "a");
            assert_eq!(opened.is_some(), is_accepted);
            assert_eq!(rotated.open(token.as_bytes(), "b"), None);
            let opened = rotated.open_content(text.as_bytes(), b"a");
            let expected = is_accepted.then(|| OpenedContent {
                content: b"content".to_vec(),
                is_current,
            });
            assert_eq!(opened, expected);
            assert_eq!(rotated.open_content(text.as_bytes(), b"b"), None);
        }
        let new = key(2, Some(1)).seal_content(b"content", b"a");
        assert_eq!(before.open_content(new.as_bytes(), b"a"), None);
        assert!(key(2, None).open_content(new.as_bytes(), b"a").is_some());
        let ids = [key(1, None), key(1, Some(2)), key(2, Some(1)), key(2, None)];
        let ids: std::collections::BTreeSet<_> = ids.iter().map(SessionKey::id).collect();
        assert_eq!(ids.len(), 4);
        assert!(SessionKey::from_secrets(&[1; 40], Some(&[2; 31])).is_err());
    }

    #[test]
    fn derived_secrets_are_keys_and_differ_by_purpose() {
        let derived = |purpose| derived_secret("master", purpose);
        assert_eq!(derived("a"), derived("a"));
        assert_ne!(derived("a"), derived("b"));
        assert!(SessionKey::from_secret(derived("a").as_bytes()).is_ok());
        assert!(SessionKey::from_secret(random_secret().as_bytes()).is_ok());
    }

    #[test]
    fn rejects_tokens_that_it_did_not_seal() {
        let key = SessionKey::default();
        let token = key.seal(session("10.0.0.1:80"), "a");
        assert_eq!(key.open(token.as_bytes(), "b"), None);
        assert_eq!(SessionKey::default().open(token.as_bytes(), "a"), None);
        for index in 0..token.len() {
            let mut forged = token.clone().into_bytes();
            forged[index] = if forged[index] == b'A' { b'B' } else { b'A' };
            assert_eq!(key.open(&forged, "a"), None, "{index}");
        }
        for text in ["", "A", "\u{e4}", &token[1..], &format!("{token}A")] {
            assert_eq!(key.open(text.as_bytes(), "a"), None, "{text}");
        }
    }

    #[test]
    fn content_is_sealed_for_its_scope() {
        let [one, other] = [(); 2].map(|()| SessionKey::from_secret(&[7; 40]).unwrap());
        for content in [&b""[..], b"a", &[7; 20_000]] {
            let text = one.seal_content(content, b"a");
            let opened = other.open_content(text.as_bytes(), b"a").unwrap();
            assert_eq!((&*opened.content, opened.is_current), (content, true));
            assert_eq!(one.open_content(text.as_bytes(), b"b"), None);
            assert_eq!(one.open_content(&text.as_bytes()[1..], b"a"), None);
            let unrelated = SessionKey::default();
            assert_eq!(unrelated.open_content(text.as_bytes(), b"a"), None);
        }
        let token = one.seal(session("10.0.0.1:80"), "a");
        assert_eq!(one.open_content(token.as_bytes(), b"a"), None);
        for text in ["", "A", "\u{e4}", "AAAAAAAAAAAAAAAA"] {
            assert_eq!(one.open_content(text.as_bytes(), b"a"), None, "{text}");
        }
    }

    #[test]
    fn tokens_of_one_endpoint_differ() {
        let key = SessionKey::default();
        let [one, other] = [(); 2].map(|()| key.seal(session("10.0.0.1:80"), "a"));
        assert_ne!(one, other);
    }
}
