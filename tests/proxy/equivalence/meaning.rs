//! What a request means, at random. Must not know how it is spelled.

use serde_json::{Value, json};

use super::configuration::{HOSTS, METHODS};
use super::dice::Dice;
use crate::credentials::authorization;
use crate::issuer::{Issuer, claims};

/// The tokens of two users.
pub(super) struct Tokens {
    pub(super) key: Value,
    alice: String,
    bob: String,
}

impl Tokens {
    pub(super) fn new() -> Self {
        let issuer = Issuer::new("one", jsonwebtoken::Algorithm::ES256);
        let bob = json!({"sub": "bob", "groups": ["readers"]});
        Self {
            key: issuer.jwk(),
            alice: issuer.token(&claims(&json!({}))),
            bob: issuer.token(&claims(&bob)),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Meaning {
    pub(super) is_tls: bool,
    pub(super) host: &'static str,
    pub(super) method: &'static str,
    /// In canonical form.
    pub(super) path: String,
    pub(super) query: Vec<(&'static str, &'static str)>,
    /// Headers that are lists.
    pub(super) lists: Vec<(&'static str, Vec<&'static str>)>,
    pub(super) cookies: Vec<(&'static str, &'static str)>,
    /// Scheme and credentials of each header.
    pub(super) authorization: Vec<(String, String)>,
    pub(super) keys: Vec<&'static str>,
    /// What proxies tell: the client and further proxies.
    pub(super) forwarded_for: Vec<&'static str>,
    pub(super) client: &'static str,
}

const ADDRESSES: [&str; 4] = ["192.0.2.7", "192.0.2.8", "198.51.100.1", "203.0.113.1"];

impl Meaning {
    pub(super) fn new(dice: &mut Dice, tokens: &Tokens) -> Self {
        let mut query = Vec::new();
        let mut cookies = Vec::new();
        if dice.chance(40) {
            query.push(("q", dice.one(&["one", "two"])));
        }
        if dice.chance(10) {
            query.push(("key", dice.one(&["key-of-shop", "another"])));
        }
        if dice.chance(60) {
            cookies.push(("u", dice.one(&["one", "two"])));
        }
        if dice.chance(15) {
            cookies.push(("u", dice.one(&["one", "two"])));
        }
        if dice.chance(10) {
            cookies.push(("key", "key-of-billing"));
        }
        let mut lists = Vec::new();
        for name in ["x-team", "x-env", "x-tenant"] {
            let list = match dice.below(6) {
                0 => vec!["red"],
                1 => vec!["blue"],
                2 => vec!["red", "green"],
                3 => vec!["green", "red"],
                _ => continue,
            };
            lists.push((name, list));
        }
        let keys = match dice.below(10) {
            0..3 => vec!["key-of-shop"],
            3 => vec!["another"],
            4 => vec!["key-of-shop", "key-of-billing"],
            _ => Vec::new(),
        };
        let client = dice.one(&ADDRESSES);
        Self {
            is_tls: dice.chance(35),
            host: dice.one(&HOSTS),
            method: dice.one(&METHODS),
            path: dice.path(),
            query,
            lists,
            cookies,
            authorization: credentials(dice, tokens),
            keys,
            forwarded_for: match dice.chance(50) {
                true => vec!["198.51.100.9", client, "127.0.0.9"],
                false => vec![client],
            },
            client,
        }
    }
}

fn credentials(dice: &mut Dice, tokens: &Tokens) -> Vec<(String, String)> {
    let basic = |password| {
        let value = authorization("alice", password);
        let (scheme, encoded) = value.split_once(' ').expect("a scheme");
        (scheme.to_owned(), encoded.to_owned())
    };
    let bearer = |token: &str| ("Bearer".to_owned(), token.to_owned());
    match dice.below(10) {
        0..2 => vec![basic("password")],
        2 => vec![basic("another")],
        3..5 => vec![bearer(&tokens.alice)],
        5 => vec![bearer(&tokens.bob)],
        6 => vec![basic("password"), bearer(&tokens.alice)],
        _ => Vec::new(),
    }
}
