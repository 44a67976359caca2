//! How clients authenticate, and which credentials are valid. Never prints a password, its hash or a key. Must not know
//! requests.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderName;
use serde::{Serialize, Serializer};

use super::ObjectRef;
use super::auth_call::ExternalPolicy;
pub use super::key_place::KeyPlace;
use super::oidc::Oidc;
use super::serialized::optional_name;
use super::token::Tokens;

/// Greatest cost of a bcrypt hash, which takes a second of CPU time to verify.
pub const MAX_BCRYPT_COST: u32 = 14;
/// Greatest number of rounds of a SHA-crypt hash, which take about as long.
pub const MAX_SHA_CRYPT_ROUNDS: u32 = 1_000_000;

/// The credentials that requests need.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Authentication {
    /// User names and passwords.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basic: Option<Arc<Basic>>,
    /// API keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Arc<ApiKeys>>,
    /// JSON Web Tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Arc<Tokens>>,
    /// Sign-in at an OpenID provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oidc: Option<Arc<Oidc>>,
    /// The permission of an authorization server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<Arc<ExternalPolicy>>,
    /// Which of these.
    #[serde(skip_serializing_if = "Require::is_all")]
    pub require: Require,
}

impl Authentication {
    /// Reports whether credentials say who the client is. An authorization server does not.
    pub fn names_clients(&self) -> bool {
        self.basic.is_some() || self.api_key.is_some() || self.have_claims()
    }

    /// Reports whether credentials have claims.
    pub fn have_claims(&self) -> bool {
        self.tokens.is_some() || self.oidc.is_some()
    }
}

/// Which credentials a request needs of those that policies name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub enum Require {
    /// All of them.
    #[default]
    All,
    /// One of them.
    Any,
}

impl Require {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    fn is_all(&self) -> bool {
        *self == Self::All
    }
}

/// The users of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Basic {
    /// The policy.
    pub policy: ObjectRef,
    /// What clients are asked for: text of RFC 9110's quoted strings, without quotes.
    pub realm: Box<str>,
    /// Header with the name of the user.
    #[serde(
        serialize_with = "optional_name",
        skip_serializing_if = "Option::is_none"
    )]
    pub forward_user: Option<HeaderName>,
    /// The users, each once, in order of their names; never empty.
    pub users: Box<[User]>,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct User {
    /// Name.
    pub name: Box<str>,
    /// Hash of the password.
    pub password: PasswordHash,
}

/// The hash of a password, as in an htpasswd file. Prints only its scheme.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct PasswordHash {
    /// How it is computed.
    pub scheme: HashScheme,
    text: Box<str>,
}

/// How the hash of a password is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashScheme {
    /// bcrypt: `$2y$`, `$2b$` and `$2a$`.
    Bcrypt,
    /// SHA-crypt: `$5$` and `$6$`.
    ShaCrypt,
    /// MD5-crypt of Apache: `$apr1$`.
    Apr1,
    /// SHA-1 without salt: `{SHA}`.
    Sha1,
}

impl PasswordHash {
    /// Its text, in which a password can be looked for: never to be printed.
    pub fn secret_text(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.scheme.fmt(f)
    }
}

impl Serialize for PasswordHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{self:?}"))
    }
}

impl FromStr for PasswordHash {
    type Err = &'static str;

    /// Parses a hash. The error continues a sentence that begins with the place of the hash, and has nothing of its text.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let scheme = if text.starts_with("$2") {
            check_bcrypt(text)?;
            HashScheme::Bcrypt
        } else if let Some(rest) = text.strip_prefix("$5$") {
            check_sha_crypt(rest, 43)?;
            HashScheme::ShaCrypt
        } else if let Some(rest) = text.strip_prefix("$6$") {
            check_sha_crypt(rest, 86)?;
            HashScheme::ShaCrypt
        } else if let Some(rest) = text.strip_prefix("$apr1$") {
            if !is_salted(rest, 8, 22) {
                return Err("has a hash of $apr1$ that is cut off or changed");
            }
            HashScheme::Apr1
        } else if let Some(rest) = text.strip_prefix("{SHA}") {
            let bytes = STANDARD.decode(rest).ok();
            bytes
                .filter(|bytes| bytes.len() == 20)
                .ok_or("has no base64 of 20 bytes after {SHA}")?;
            HashScheme::Sha1
        } else {
            return Err("has no hash of bcrypt ($2y$), SHA-crypt ($5$, $6$), $apr1$ or {SHA}");
        };
        Ok(Self {
            scheme,
            text: text.into(),
        })
    }
}

/// Whether text has only the digits of `crypt`.
fn is_crypt_base64(text: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'/');
    text.bytes().all(is_digit)
}

/// Whether text has a salt, and digits of a hash after it.
fn is_salted(text: &str, max_salt: usize, digits: usize) -> bool {
    text.split_once('$').is_some_and(|(salt, hash)| {
        let is_salt = (1..=max_salt).contains(&salt.len()) && is_crypt_base64(salt);
        is_salt && hash.len() == digits && is_crypt_base64(hash)
    })
}

fn check_bcrypt(text: &str) -> Result<(), &'static str> {
    const SHAPE: &str = "has a bcrypt hash that is cut off or changed";
    let rest = ["$2y$", "$2b$", "$2a$"].into_iter();
    let mut rest = rest.filter_map(|version| text.strip_prefix(version));
    let (cost, rest) = rest.next().and_then(|it| it.split_once('$')).ok_or(SHAPE)?;
    let is_cost = cost.len() == 2 && cost.bytes().all(|byte| byte.is_ascii_digit());
    let cost: u32 = cost.parse().map_err(|_| SHAPE)?;
    if !is_cost || cost < 4 || rest.len() != 53 || !is_crypt_base64(rest) {
        return Err(SHAPE);
    }
    match cost {
        0..=MAX_BCRYPT_COST => Ok(()),
        _ => Err("has a bcrypt hash with a cost of more than 14, which takes too long to verify"),
    }
}

/// Checks what follows `$5$` or `$6$`: optional rounds, a salt, and digits of the hash.
fn check_sha_crypt(text: &str, digits: usize) -> Result<(), &'static str> {
    const SHAPE: &str = "has a SHA-crypt hash that is cut off or changed";
    let mut rest = text;
    if let Some(text) = text.strip_prefix("rounds=") {
        let (rounds, after) = text.split_once('$').ok_or(SHAPE)?;
        let is_number = rounds.bytes().all(|byte| byte.is_ascii_digit());
        let rounds: u32 = rounds.parse().map_err(|_| SHAPE)?;
        if !is_number || rounds < 1_000 {
            return Err(SHAPE);
        }
        if rounds > MAX_SHA_CRYPT_ROUNDS {
            return Err(
                "has a SHA-crypt hash of more than 1000000 rounds, which takes too long to verify",
            );
        }
        rest = after;
    }
    match is_salted(rest, 16, digits) {
        true => Ok(()),
        false => Err(SHAPE),
    }
}

/// The API keys of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ApiKeys {
    /// The policy.
    pub policy: ObjectRef,
    /// The keys, each once; never empty.
    pub keys: Box<[ApiKey]>,
    /// Where requests have the key. The first place that is not empty counts.
    pub from: Box<[KeyPlace]>,
    /// Header with the name of the client.
    #[serde(
        serialize_with = "optional_name",
        skip_serializing_if = "Option::is_none"
    )]
    pub forward_client: Option<HeaderName>,
    /// Whether backends get the key.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
}

/// An API key. Prints only the client.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ApiKey {
    /// The name of the client.
    pub client: Box<str>,
    /// Its text: never to be printed.
    pub text: Box<[u8]>,
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.client.fmt(f)
    }
}

impl Serialize for ApiKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BCRYPT: &str = "$2y$05$abcdefghijklmnopqrstuuWG29KuyeAicPCJODk1zjyGvyQUU2awu";
    const APR1: &str = "$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00";

    fn problem(text: &str) -> &'static str {
        text.parse::<PasswordHash>().err().unwrap_or_default()
    }

    #[test]
    fn reads_hashes_of_htpasswd() {
        let sha256 = format!("$5$rounds=10000$saltstring${}", "a".repeat(43));
        let sha512 = format!("$6$saltstring${}", "a".repeat(86));
        for (text, scheme) in [
            (BCRYPT, HashScheme::Bcrypt),
            (&sha256, HashScheme::ShaCrypt),
            (&sha512, HashScheme::ShaCrypt),
            (APR1, HashScheme::Apr1),
            ("{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", HashScheme::Sha1),
        ] {
            let hash: PasswordHash = text.parse().unwrap();
            assert_eq!((hash.scheme, hash.secret_text()), (scheme, text));
            assert_eq!(format!("{hash:?}"), format!("{scheme:?}"));
        }
    }

    #[test]
    fn refuses_other_hashes_and_those_that_take_too_long() {
        let cost = BCRYPT.replace("$05$", "$15$");
        let rounds = format!("$6$rounds=1000001$salt${}", "a".repeat(86));
        let few = format!("$6$rounds=10$salt${}", "a".repeat(86));
        let unsalted = format!("$5$${}", "a".repeat(43));
        for (text, expected) in [
            ("plain", "no hash"),
            ("rqXexS6ZhobKA", "no hash"),
            (&APR1[..36], "cut off"),
            (&*APR1.replace("ci$", "cici$"), "cut off"),
            (&*APR1.replace("lZL6V/ci", ""), "cut off"),
            (&*APR1.replace("eIMz", "eIM="), "cut off"),
            (&BCRYPT[..59], "cut off"),
            (&*cost, "cost of more than 14"),
            (&*BCRYPT.replace("$05$", "$+5$"), "cut off"),
            (&*BCRYPT.replace("$2y$", "$2z$"), "cut off"),
            (&*rounds, "more than 1000000 rounds"),
            (&*few, "cut off"),
            (&*unsalted, "cut off"),
            ("$5$salt", "cut off"),
            ("{SHA}abc", "20 bytes"),
        ] {
            assert!(
                problem(text).contains(expected),
                "{text}: {}",
                problem(text)
            );
        }
    }

    #[test]
    fn prints_no_key() {
        let key = ApiKey {
            client: "shop".into(),
            text: b"key"[..].into(),
        };
        assert_eq!(format!("{key:?}"), "\"shop\"");
        assert_eq!(serde_json::to_string(&key).unwrap(), "\"shop\"");
    }
}
