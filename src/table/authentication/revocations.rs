//! Sessions that OpenID providers have ended. Each entry stays until the last session that it ends would have ended by itself: one
//! that has no room is refused. Pure: the caller passes the time, in microseconds since 1970.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use aws_lc_rs::digest::{Context, SHA256};
use rustc_hash::FxHashMap;

use super::logout_token::{LogoutFault, LogoutToken, lifetime};
use crate::ir::oidc::{Oidc, SIGN_IN_LIFETIME};

/// Number of entries, and of logout tokens that are remembered: 7/8 of a power of two, which a table holds before it doubles.
/// Both take up to 8 MiB.
const MAX_REVOKED: usize = 114_688;
const MAX_TOKENS: usize = 14_336;

/// Microseconds of a second.
pub(super) const MICROS: u64 = 1_000_000;

/// A digest of a client at a provider, and of what is named.
type Key = [u8; 32];

/// What the providers of a namespace have ended. Policies with the same provider and client share it, since the provider sends
/// one request for each client.
#[derive(Debug, Default)]
pub(super) struct Revocations {
    /// Since when they are known.
    since: u64,
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    revoked: FxHashMap<Key, Revoked>,
    /// Until when each logout token could be sent again.
    tokens: FxHashMap<Key, u64>,
}

/// The end of what an entry names.
#[derive(Clone, Copy, Debug)]
struct Revoked {
    /// Sessions that began after that go on.
    at: u64,
    /// When the last of the others ends by itself.
    until: u64,
}

/// What sessions are found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Name<'a> {
    /// The session at the provider.
    Session(&'a str),
    /// The user.
    Subject(&'a str),
    /// The user of a session whose name at the provider is unknown.
    SubjectOfUnnamed(&'a str),
}

impl Revocations {
    /// Creates them when nothing has ended yet as far as this process knows.
    pub(super) fn new(now: u64) -> Self {
        Self {
            since: now,
            known: RwLock::default(),
        }
    }

    /// Reports whether what had ended at a time, in seconds since 1970, may be unknown.
    pub(super) fn began_after(&self, time: u64) -> bool {
        time < self.since / MICROS
    }

    /// Ends the sessions of a client that a logout token names, once.
    ///
    /// # Errors
    /// When the token was sent before, or when there is no room. It ends nothing then.
    pub(super) fn add(
        &self,
        oidc: &Oidc,
        token: &LogoutToken<'_>,
        now: u64,
    ) -> Result<(), LogoutFault> {
        let id = key(oidc, "token", token.id);
        let names = match (token.session, token.subject) {
            (Some(session), subject) => [
                Some(Name::Session(session)),
                subject.map(Name::SubjectOfUnnamed),
            ],
            (None, subject) => [subject.map(Name::Subject), None],
        };
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.tokens.get(&id).is_some_and(|until| now < *until) {
            return Err(LogoutFault::Replayed);
        }
        if !known.has_room(names.len(), now) {
            return Err(LogoutFault::Full);
        }
        // The last one is of a sign-in that has begun.
        let last = oidc.absolute_timeout.as_secs() + SIGN_IN_LIFETIME;
        let until = now.saturating_add(micros(last));
        for name in names.into_iter().flatten() {
            let entry = known.revoked.entry(name.key(oidc));
            let entry = entry.or_insert(Revoked { at: now, until });
            entry.at = entry.at.max(now);
            entry.until = entry.until.max(until);
        }
        let until = now.saturating_add(micros(lifetime(oidc.id_token.leeway)));
        known.tokens.insert(id, until);
        Ok(())
    }

    /// Reports whether a session of a client that began at a time, and that has these names, has ended.
    pub(super) fn has_ended<'a>(
        &self,
        oidc: &Oidc,
        mut names: impl Iterator<Item = Name<'a>>,
        began: u64,
    ) -> bool {
        let known = self.read();
        !known.revoked.is_empty()
            && names.any(|name| {
                let revoked = known.revoked.get(&name.key(oidc));
                revoked.is_some_and(|it| began <= it.at)
            })
    }

    /// Reports whether nothing has ended that would go on without it.
    pub(super) fn is_over(&self, now: u64) -> bool {
        self.read().revoked.values().all(|it| it.until <= now)
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Reports whether so many entries and a token have room. What is over leaves only for others: a longer `absoluteTimeout`
    /// lets sessions go on that had ended.
    fn has_room(&mut self, count: usize, now: u64) -> bool {
        if self.revoked.len() + count > MAX_REVOKED {
            self.revoked.retain(|_, it| now < it.until);
        }
        if self.tokens.len() == MAX_TOKENS {
            self.tokens.retain(|_, until| now < *until);
        }
        self.revoked.len() + count <= MAX_REVOKED && self.tokens.len() < MAX_TOKENS
    }
}

impl Name<'_> {
    fn key(self, oidc: &Oidc) -> Key {
        match self {
            Self::Session(text) => key(oidc, "session", text),
            Self::Subject(text) => key(oidc, "subject", text),
            Self::SubjectOfUnnamed(text) => key(oidc, "subject of unnamed", text),
        }
    }
}

fn key(oidc: &Oidc, kind: &str, text: &str) -> Key {
    let mut context = Context::new(&SHA256);
    for part in [oidc.issuer(), &*oidc.client_id, kind, text] {
        // Its length keeps it apart from the next one.
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    let mut key = [0; 32];
    key.copy_from_slice(context.finish().as_ref());
    key
}

fn micros(seconds: u64) -> u64 {
    seconds.saturating_mul(MICROS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::ObjectRef;

    const NOW: u64 = 1000 * MICROS;
    /// That of the sample, after the longest sign-in.
    const TIMEOUT: u64 = (3600 + SIGN_IN_LIFETIME) * MICROS;

    fn token<'a>(
        session: Option<&'a str>,
        subject: Option<&'a str>,
        id: &'a str,
    ) -> LogoutToken<'a> {
        LogoutToken {
            session,
            subject,
            id,
        }
    }

    #[test]
    fn ends_what_is_named_and_began_before() {
        let (oidc, revocations) = (Oidc::sample(), Revocations::default());
        let has_ended = |name, began| revocations.has_ended(&oidc, [name].into_iter(), began);
        assert!(!has_ended(Name::Session("s"), NOW));
        let one = token(Some("s"), Some("alice"), "1");
        revocations.add(&oidc, &one, NOW).unwrap();
        let all = token(None, Some("bob"), "2");
        revocations.add(&oidc, &all, NOW).unwrap();
        for (name, began, expected) in [
            (Name::Session("s"), NOW, true),
            (Name::Session("s"), 0, true),
            (Name::Session("s"), NOW + 1, false),
            (Name::Session("t"), NOW, false),
            (Name::Session("alice"), NOW, false),
            (Name::Subject("alice"), NOW, false),
            (Name::SubjectOfUnnamed("alice"), NOW, true),
            (Name::Subject("bob"), NOW, true),
            (Name::Subject("bob"), NOW + 1, false),
        ] {
            assert_eq!(has_ended(name, began), expected, "{name:?} {began}");
        }
    }

    #[test]
    fn other_clients_and_providers_are_not_meant() {
        let (oidc, revocations) = (Oidc::sample(), Revocations::default());
        let one = token(Some("s"), None, "1");
        revocations.add(&oidc, &one, NOW).unwrap();
        let has = |oidc: &Oidc| revocations.has_ended(oidc, [Name::Session("s")].into_iter(), NOW);
        let mut client = oidc.clone();
        client.client_id = "desk".into();
        let mut provider = oidc.clone();
        provider.id_token.issuer = "https://b.example".into();
        let mut policy = oidc.clone();
        policy.policy = ObjectRef::new("portcullis.dev", "AccessPolicy", "ns", "other");
        assert_eq!(
            [&oidc, &policy, &client, &provider].map(has),
            [true, true, false, false]
        );
        // Their tokens have names of their own, too.
        assert_eq!(revocations.add(&client, &one, NOW), Ok(()));
        assert_eq!(
            revocations.add(&policy, &one, NOW),
            Err(LogoutFault::Replayed)
        );
    }

    /// Fills the table with entries of another client.
    fn filled() -> Revocations {
        let mut known = Known::default();
        for number in 0..MAX_REVOKED as u64 {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_be_bytes());
            let (at, until) = (NOW, NOW + TIMEOUT);
            known.revoked.insert(key, Revoked { at, until });
        }
        Revocations {
            since: 0,
            known: RwLock::new(known),
        }
    }

    #[test]
    fn full_table_forgets_nothing_before_its_time() {
        let (oidc, revocations) = (Oidc::sample(), filled());
        let one = token(None, Some("alice"), "1");
        let has = || revocations.has_ended(&oidc, [Name::Subject("alice")].into_iter(), NOW);
        let last = NOW + TIMEOUT - 1;
        assert_eq!(revocations.add(&oidc, &one, last), Err(LogoutFault::Full));
        assert_eq!(revocations.read().revoked.len(), MAX_REVOKED);
        assert!(!has() && !revocations.is_over(last));
        // The provider sends the same token again, once the others are over.
        assert!(revocations.is_over(last + 1));
        assert_eq!(revocations.add(&oidc, &one, last + 1), Ok(()));
        assert_eq!(revocations.read().revoked.len(), 1);
        assert!(has());
    }

    #[test]
    fn tokens_are_remembered_as_long_as_they_count() {
        let (oidc, revocations) = (Oidc::sample(), Revocations::default());
        let end = NOW + lifetime(60) * MICROS;
        let add = |id: &str, now| revocations.add(&oidc, &token(Some("s"), None, id), now);
        for number in 0..MAX_TOKENS {
            assert_eq!(add(&number.to_string(), NOW), Ok(()));
        }
        assert_eq!(add("0", end - 1), Err(LogoutFault::Replayed));
        assert_eq!(add("new", end - 1), Err(LogoutFault::Full));
        assert_eq!(add("new", end), Ok(()));
        assert_eq!(revocations.read().tokens.len(), 1);
        assert_eq!(revocations.read().revoked.len(), 1);
    }
}
