//! Credentials at run time: which are valid, and which passwords were verified lately. Survives configuration changes that
//! keep them. Must not know where requests have credentials, or threads.

mod apr1;
mod claims;
mod keyed;
mod logout_token;
mod logouts;
mod oidc;
mod password;
mod remembered;
mod remembered_bytes;
mod revocations;
mod token_endpoint;
mod tokens;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwapOption;
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use hashbrown::HashTable;
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue};
use rustc_hash::FxHashMap;

use self::keyed::{random_key, tag};
use self::remembered_bytes::NamespaceBytes;
use self::revocations::Revocations;
use crate::ir::ObjectRef;
use crate::ir::auth_call::ExternalPolicy;
use crate::ir::authentication::{ApiKeys, Authentication as IrAuthentication, Basic, Require};
use crate::ir::oidc::Oidc as IrOidc;
use crate::ir::sharing::Text;
use crate::ir::token;
use crate::key_requests::KeyRequests;
use crate::runtime::monotonic;

pub use self::claims::Claims;
pub use self::logout_token::LogoutFault;
pub use self::logouts::{Logout, Logouts};
pub use self::oidc::{IdToken, Oidc, Session, SessionContent};
pub use self::token_endpoint::{Attempt, GrantType, TokenEndpoint, TokenOutcome};
pub use self::tokens::{TokenFault, Tokens, VerifiedToken};

/// For how long a verified password is remembered, in milliseconds.
const REMEMBERED: u64 = 5 * 60 * 1000;

/// The credentials in service, each policy's once however many rules it applies to.
#[derive(Clone, Debug, Default)]
pub(super) struct Authenticators {
    known: Arc<Mutex<Known>>,
    /// The key sets that tokens lack.
    pub(super) key_requests: Arc<KeyRequests>,
    /// The logout tokens that other pods are to hear of.
    pub(super) logouts: Arc<Logouts>,
}

#[derive(Debug, Default)]
struct Known {
    users: FxHashMap<ObjectRef, Weak<Users>>,
    clients: FxHashMap<ObjectRef, Weak<Clients>>,
    tokens: FxHashMap<ObjectRef, Weak<Tokens>>,
    oidc: FxHashMap<ObjectRef, Weak<Oidc>>,
    /// What OpenID providers have ended, by namespace, also while no policy for them is in service.
    revocations: FxHashMap<Text, Arc<Revocations>>,
    /// What policies remember, by namespace.
    remembered: FxHashMap<Text, Weak<NamespaceBytes>>,
}

/// The credentials that requests need.
#[derive(Debug)]
pub struct Authentication {
    /// User names and passwords.
    pub users: Option<Arc<Users>>,
    /// API keys.
    pub clients: Option<Arc<Clients>>,
    /// JSON Web Tokens.
    pub tokens: Option<Arc<Tokens>>,
    /// Sign-in at an OpenID provider.
    pub oidc: Option<Arc<Oidc>>,
    /// The permission of an authorization server.
    pub external: Option<Arc<ExternalPolicy>>,
    /// Which of these.
    pub require: Require,
    /// Headers that say who sent a request, which no client may set. Without those of authorization servers.
    pub identity_headers: Box<[HeaderName]>,
}

/// The users of a policy.
#[derive(Debug)]
pub struct Users {
    /// Their configuration.
    pub ir: Arc<Basic>,
    /// The challenge for clients without valid credentials.
    pub challenge: HeaderValue,
    key: hmac::Key,
    /// What was verified lately, by user: each has one password, so that nobody takes the place of others.
    verified: Box<[ArcSwapOption<Verified>]>,
}

/// A password that was verified.
#[derive(Debug)]
struct Verified {
    /// Of the password, with a key that only this process has.
    tag: [u8; 32],
    /// When, in milliseconds of the monotonic clock.
    at: u64,
}

/// The clients of a policy that have API keys.
#[derive(Debug)]
pub struct Clients {
    /// Their configuration.
    pub ir: Arc<ApiKeys>,
    hasher: RandomState,
    /// The indices of the keys, by their texts. The time of a look-up tells nothing of them: the hash depends on a secret of the
    /// process, and texts are compared in constant time.
    by_text: HashTable<u32>,
}

impl Authenticators {
    /// Returns credentials. What was verified is remembered if the policy's section is the same as before.
    pub(super) fn get(&self, ir: &IrAuthentication) -> Authentication {
        let IrAuthentication {
            basic,
            api_key,
            tokens: ir_of_tokens,
            oidc: ir_of_oidc,
            external,
            require,
        } = ir;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let Known {
            users,
            clients,
            tokens,
            oidc,
            revocations,
            remembered,
        } = &mut *known;
        Authentication {
            users: basic.as_ref().map(|ir| {
                let is_current = |known: &Users| known.ir == *ir;
                shared(users, &ir.policy, is_current, || Users::new(ir))
            }),
            clients: api_key.as_ref().map(|ir| {
                let is_current = |known: &Clients| known.ir == *ir;
                shared(clients, &ir.policy, is_current, || Clients::new(ir))
            }),
            tokens: ir_of_tokens.as_ref().map(|ir: &Arc<token::Tokens>| {
                let is_current = |known: &Tokens| known.ir == *ir;
                let new = || {
                    let bytes = bytes_of(remembered, &ir.policy.namespace);
                    Tokens::new(ir, &self.key_requests, &bytes)
                };
                shared(tokens, &ir.policy, is_current, new)
            }),
            oidc: ir_of_oidc.as_ref().map(|ir: &Arc<IrOidc>| {
                let is_current = |known: &Oidc| known.ir == *ir;
                let previous = oidc.get(&ir.policy).and_then(Weak::upgrade);
                let new = || {
                    let ended = of_namespace(revocations, &ir.policy.namespace);
                    let bytes = bytes_of(remembered, &ir.policy.namespace);
                    let previous = previous.as_deref();
                    Oidc::new(ir, &self.key_requests, ended, &bytes, previous)
                };
                shared(oidc, &ir.policy, is_current, new)
            }),
            external: external.clone(),
            require: *require,
            identity_headers: identity_headers(ir),
        }
    }

    /// Returns the sign-ins in service, by policy.
    pub(super) fn sign_ins(&self) -> BTreeMap<ObjectRef, Arc<Oidc>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.oidc.iter();
        let in_service = known.filter_map(|(policy, oidc)| Some((policy.clone(), oidc.upgrade()?)));
        in_service.collect()
    }

    /// Returns the sign-in of a policy as it is in service now.
    pub(super) fn oidc(&self, policy: &ObjectRef) -> Option<Arc<Oidc>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.oidc.get(policy)?.upgrade()
    }

    /// Ends sessions by a logout token of the policy of this namespace and name, as another pod has done at a time, in microseconds
    /// since 1970. Returns false if the token may count later.
    pub(super) fn hear_logout(&self, policy: (&str, &str), token: &str, at: u64) -> bool {
        let oidc = {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            let mut all = known.oidc.iter();
            let found = all.find(|(it, _)| (&*it.namespace, &*it.name) == policy);
            found.and_then(|(_, oidc)| oidc.upgrade())
        };
        let Some(oidc) = oidc.filter(|it| it.ir.back_channel_logout_path.is_some()) else {
            return false;
        };
        let ended = oidc.end_sessions(token, at.min(now_micros()));
        !matches!(ended, Err(LogoutFault::UnknownKeys | LogoutFault::Full))
    }
}

/// Returns what OpenID providers of policies of a namespace have ended. Forgets that of others without policies, once it is over.
fn of_namespace(
    known: &mut FxHashMap<Text, Arc<Revocations>>,
    namespace: &Text,
) -> Arc<Revocations> {
    let now = now_micros();
    let new = || Arc::new(Revocations::new(now));
    known.retain(|_, it| Arc::strong_count(it) > 1 || !it.is_over(now));
    known.entry(namespace.clone()).or_insert_with(new).clone()
}

/// Returns the time in microseconds since 1970.
fn now_micros() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_micros().try_into().unwrap_or(u64::MAX))
}

/// Returns what counts the memory that policies of a namespace take for what they remember.
fn bytes_of(
    known: &mut FxHashMap<Text, Weak<NamespaceBytes>>,
    namespace: &Text,
) -> Arc<NamespaceBytes> {
    if let Some(known) = known.get(namespace).and_then(Weak::upgrade) {
        return known;
    }
    known.retain(|_, bytes| bytes.strong_count() > 0);
    let bytes = Arc::default();
    known.insert(namespace.clone(), Arc::downgrade(&bytes));
    bytes
}

/// Returns the headers that tell backends who sent a request. `Authorization` has the credentials of clients, too.
fn identity_headers(ir: &IrAuthentication) -> Box<[HeaderName]> {
    let IrAuthentication {
        basic,
        api_key,
        tokens,
        oidc,
        external: _,
        require: _,
    } = ir;
    let user = basic.iter().filter_map(|it| it.forward_user.as_ref());
    let client = api_key.iter().filter_map(|it| it.forward_client.as_ref());
    let providers = tokens.iter().flat_map(|it| &it.providers);
    let providers = providers.chain(oidc.iter().map(|it| &it.id_token));
    let claims = providers.flat_map(|it| &it.claim_headers);
    let claims = claims.map(|it| &it.header);
    let session = oidc.iter();
    let session = session.flat_map(|it| [&it.access_token_header, &it.id_token_header]);
    let session = session.flatten().filter(|it| **it != AUTHORIZATION);
    let mut headers: Vec<_> = user
        .chain(client)
        .chain(claims)
        .chain(session)
        .cloned()
        .collect();
    headers.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
    headers.dedup();
    headers.into()
}

/// Returns the value of a policy that is known and current, or a new one.
fn shared<T>(
    known: &mut FxHashMap<ObjectRef, Weak<T>>,
    policy: &ObjectRef,
    is_current: impl Fn(&T) -> bool,
    create: impl FnOnce() -> T,
) -> Arc<T> {
    let current = known.get(policy).and_then(Weak::upgrade);
    if let Some(current) = current.filter(|it| is_current(it)) {
        return current;
    }
    known.retain(|_, value| value.strong_count() > 0);
    let value = Arc::new(create());
    known.insert(policy.clone(), Arc::downgrade(&value));
    value
}

impl Users {
    fn new(ir: &Arc<Basic>) -> Self {
        let realm = ir.realm.replace('\\', "\\\\").replace('"', "\\\"");
        let challenge = format!("Basic realm=\"{realm}\", charset=\"UTF-8\"");
        let challenge = HeaderValue::from_bytes(challenge.as_bytes());
        Self {
            challenge: challenge.unwrap_or(HeaderValue::from_static("Basic realm=\"restricted\"")),
            key: random_key(),
            verified: ir.users.iter().map(|_| ArcSwapOption::empty()).collect(),
            ir: ir.clone(),
        }
    }

    /// Returns the index of the user of a name and a password that were verified within the last minutes. Takes
    /// microseconds.
    pub fn remembered(&self, name: &[u8], password: &[u8]) -> Option<u32> {
        self.remembered_at(name, password, monotonic::now().get())
    }

    fn remembered_at(&self, name: &[u8], password: &[u8], now: u64) -> Option<u32> {
        let at = self.find(name)?;
        let verified = self.verified[at].load();
        let verified = verified.as_ref()?;
        let is_fresh = now.saturating_sub(verified.at) < REMEMBERED;
        let tag = tag(&self.key, &[password]);
        let is_same = verify_slices_are_equal(&tag, &verified.tag).is_ok();
        let at = u32::try_from(at).ok()?;
        (is_fresh && is_same).then_some(at)
    }

    /// Returns the index of the user of a name and a password, and remembers that. Takes up to a second of CPU time, also if
    /// there is no such user.
    pub fn verify(&self, name: &[u8], password: &[u8]) -> Option<u32> {
        let known = self.find(name);
        let at = known.unwrap_or_else(|| self.decoy(name));
        let is_valid = password::verify(&self.ir.users.get(at)?.password, password);
        let at = known.filter(|_| is_valid)?;
        self.verified[at].store(Some(Arc::new(Verified {
            tag: tag(&self.key, &[password]),
            at: monotonic::now().get(),
        })));
        at.try_into().ok()
    }

    /// Returns the index of the user whose hash takes the time for an unknown one. It depends on the name, as that of a
    /// known one does.
    fn decoy(&self, name: &[u8]) -> usize {
        let tag = tag(&self.key, &[b"decoy ", name]);
        let number = usize::from(u16::from_le_bytes([tag[0], tag[1]]));
        number % self.ir.users.len().max(1)
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        let users = &self.ir.users;
        users
            .binary_search_by(|user| user.name.as_bytes().cmp(name))
            .ok()
    }
}

impl Clients {
    fn new(ir: &Arc<ApiKeys>) -> Self {
        let hasher = RandomState::new();
        let hash = |at: &u32| hasher.hash_one(ir.keys[*at as usize].text.as_ref());
        let mut by_text = HashTable::with_capacity(ir.keys.len());
        for (at, _) in (0..).zip(&ir.keys) {
            by_text.insert_unique(hash(&at), at, hash);
        }
        Self {
            by_text,
            hasher,
            ir: ir.clone(),
        }
    }

    /// Returns the index of the API key that has this text.
    pub fn find(&self, text: &[u8]) -> Option<u32> {
        let is_same = |at: &u32| {
            let known = &self.ir.keys[*at as usize].text;
            verify_slices_are_equal(known, text).is_ok()
        };
        let found = self.by_text.find(self.hasher.hash_one(text), is_same);
        found.copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::authentication::{ApiKey, User};

    fn policy() -> ObjectRef {
        ObjectRef::new("portcullis.dev", "AccessPolicy", "ns", "policy")
    }

    fn basic(users: &[(&str, &str)]) -> IrAuthentication {
        let users = users.iter().map(|(name, password)| User {
            name: (*name).into(),
            password: password.parse().unwrap(),
        });
        IrAuthentication {
            basic: Some(Arc::new(Basic {
                policy: policy(),
                realm: "a \"realm\"".into(),
                forward_user: None,
                users: users.collect(),
            })),
            api_key: None,
            tokens: None,
            oidc: None,
            external: None,
            require: Require::All,
        }
    }

    /// `password` and `secret`.
    const HASHES: [&str; 2] = [
        "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=",
        "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
    ];

    fn users() -> Arc<Users> {
        let ir = basic(&[("alice", HASHES[0]), ("bob", HASHES[1])]);
        Authenticators::default().get(&ir).users.unwrap()
    }

    #[test]
    fn remembers_what_was_verified_for_five_minutes() {
        let users = users();
        assert!(users.remembered(b"alice", b"password").is_none());
        assert!(users.verify(b"alice", b"secret").is_none());
        assert_eq!(users.verify(b"alice", b"password"), Some(0));
        assert_eq!(users.remembered(b"alice", b"password"), Some(0));
        for (name, password) in [
            ("alice", "secret"),
            ("alice", ""),
            ("bob", "password"),
            ("Alice", "password"),
            ("", "password"),
        ] {
            let found = users.remembered(name.as_bytes(), password.as_bytes());
            assert!(found.is_none(), "{name}:{password}");
        }
        let now = monotonic::now().get();
        let at = |after| users.remembered_at(b"alice", b"password", now + after);
        assert!(at(REMEMBERED - 1_000).is_some());
        assert!(at(REMEMBERED + 1).is_none());
    }

    #[test]
    fn unknown_users_have_no_valid_password() {
        let users = users();
        for name in ["carol", "dave", "erin", "frank"] {
            for password in ["password", "secret"] {
                assert!(users.verify(name.as_bytes(), password.as_bytes()).is_none());
            }
        }
    }

    #[test]
    fn hash_for_an_unknown_user_is_always_the_same_one() {
        let users = users();
        let mut decoys = std::collections::BTreeSet::new();
        for number in 0..64 {
            let name = format!("unknown-{number}");
            let decoy = users.decoy(name.as_bytes());
            assert_eq!(users.decoy(name.as_bytes()), decoy);
            decoys.insert(decoy);
        }
        assert_eq!(Vec::from_iter(decoys), [0, 1]);
    }

    #[test]
    fn configuration_changes_forget_only_what_they_change() {
        let authenticators = Authenticators::default();
        let first = basic(&[("alice", HASHES[0])]);
        let before = authenticators.get(&first);
        before.users.as_ref().unwrap().verify(b"alice", b"password");
        let remembered = |ir: &IrAuthentication| {
            let users = authenticators.get(ir).users.unwrap();
            users.remembered(b"alice", b"password").is_some()
        };
        assert!(remembered(&basic(&[("alice", HASHES[0])])));
        assert!(!remembered(&basic(&[("alice", HASHES[1])])));
    }

    #[test]
    fn ended_sessions_stay_while_no_policy_is_in_service() {
        let mut known = FxHashMap::default();
        let namespaces = ["one", "two"].map(Text::from);
        let [first, _] = namespaces.each_ref().map(|it| of_namespace(&mut known, it));
        let token = logout_token::LogoutToken {
            session: Some("s"),
            subject: None,
            id: "1",
        };
        // The sample ends an hour after that.
        first.add(&IrOidc::sample(), &token, now_micros()).unwrap();
        let address = Arc::as_ptr(&first);
        drop(first);
        of_namespace(&mut known, &Text::from("three"));
        assert_eq!(known.len(), 2);
        let again = of_namespace(&mut known, &namespaces[0]);
        assert!(std::ptr::eq(Arc::as_ptr(&again), address));
    }

    #[test]
    fn challenge_has_the_realm() {
        let expected = "Basic realm=\"a \\\"realm\\\"\", charset=\"UTF-8\"";
        assert_eq!(users().challenge, expected);
    }

    #[test]
    fn finds_clients_by_key() {
        let key = |client: &str, text: &str| ApiKey {
            client: client.into(),
            text: text.as_bytes().into(),
        };
        let keys = Arc::new(ApiKeys {
            policy: policy(),
            keys: [key("one", "1234"), key("two", "5678")].into(),
            from: Box::default(),
            forward_client: None,
            keep: false,
        });
        let clients = Clients::new(&keys);
        assert_eq!(clients.find(b"5678"), Some(1));
        assert!(clients.find(b"567").is_none() && clients.find(b"").is_none());
    }
}
