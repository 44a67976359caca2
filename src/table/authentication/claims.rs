//! What a valid token says: each claim with its values as text. Must not know tokens.

use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::ir::claim_name::{ClaimName, within};
use crate::ir::token::ClaimHeader;

/// Maximum number of values of a token, and of bytes of these with their paths: each value of a list has the path of the list.
const MAX_VALUES: usize = 256;
const MAX_BYTES: usize = 64 * 1024;
/// Claims with the scopes of a token: one text of words (RFC 8693, 4.2), or a list.
const SCOPES: [&str; 2] = ["scope", "scp"];
/// Memory of a value beside its bytes and those of its path: the pointers to both, and what the allocator adds.
const VALUE: usize = 64;
/// Memory of a header beside its value.
const HEADER: usize = 128;
/// Maximum depth of objects in each other.
const MAX_DEPTH: usize = 8;

/// Claims by their [paths](ClaimName), with their values. A list has several.
#[derive(Debug, Default)]
pub struct Claims(Box<[(Box<str>, Box<str>)]>);

impl Claims {
    /// Returns the claims of a token; `None` if there are too many. Objects in lists have no name and are left out.
    pub(in crate::table) fn new(claims: &Map<String, Value>) -> Option<Self> {
        let mut found = Found::default();
        add_object(None, claims, MAX_DEPTH, &mut found)?;
        Some(Self(found.values.into()))
    }

    /// Returns the number of bytes that the values and their paths take.
    pub(super) fn size(&self) -> usize {
        let sizes = self.0.iter();
        let sizes = sizes.map(|(claim, value)| VALUE + claim.len() + value.len());
        sizes.sum()
    }

    /// Returns the values of the claim with this path, in the order of the token.
    pub(in crate::table) fn values<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a str> {
        let named = self.0.iter().filter(move |(claim, _)| **claim == *path);
        named.map(|(_, value)| &**value)
    }

    /// Reports whether a claim has one of these values. Each word of `scope` and `scp` is a value.
    pub fn has(&self, name: &ClaimName, values: &[Box<str>]) -> bool {
        let is_value = |own: &str| values.iter().any(|value| **value == *own);
        let has_words = SCOPES.contains(&name.as_str());
        self.values(name.as_str())
            .any(|own| is_value(own) || has_words && own.split(' ').any(is_value))
    }

    /// Returns the headers with claims.
    pub(super) fn headers(&self, wanted: &[ClaimHeader]) -> Box<[(HeaderName, HeaderValue)]> {
        let headers = wanted.iter().filter_map(|it| {
            let value = self.text(&it.claim)?;
            let value = HeaderValue::from_bytes(value.as_bytes()).ok()?;
            Some((it.header.clone(), value))
        });
        headers.collect()
    }

    /// Returns a claim as the value of a header: its values, with commas between those of a list. A value that a reader of
    /// the header would take for two, or for another one, is left out.
    fn text(&self, name: &ClaimName) -> Option<String> {
        let is_one = |value: &&str| !value.contains(',') && value.trim_ascii() == *value;
        let values: Vec<_> = self.values(name.as_str()).filter(is_one).collect();
        (!values.is_empty()).then(|| values.join(","))
    }
}

/// Returns the number of bytes that headers take.
pub(super) fn size_of_headers(headers: &[(HeaderName, HeaderValue)]) -> usize {
    let sizes = headers.iter().map(|(_, value)| HEADER + value.len());
    sizes.sum()
}

#[derive(Default)]
struct Found {
    values: Vec<(Box<str>, Box<str>)>,
    bytes: usize,
}

fn add_object(
    path: Option<&str>,
    object: &Map<String, Value>,
    depth: usize,
    found: &mut Found,
) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    for (name, value) in object {
        let name = within(path, name);
        match value {
            Value::Object(object) => add_object(Some(&name), object, depth, found)?,
            Value::Array(values) => values
                .iter()
                .try_for_each(|value| add_value(&name, value, found))?,
            value => add_value(&name, value, found)?,
        }
    }
    Some(())
}

fn add_value(name: &str, value: &Value, found: &mut Found) -> Option<()> {
    let text: Box<str> = match value {
        Value::String(text) => text.as_str().into(),
        Value::Number(number) => number.to_string().into(),
        Value::Bool(value) => value.to_string().into(),
        Value::Null | Value::Array(_) | Value::Object(_) => return Some(()),
    };
    found.bytes += name.len() + text.len();
    if found.values.len() == MAX_VALUES || found.bytes > MAX_BYTES {
        return None;
    }
    found.values.push((name.into(), text));
    Some(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claims(value: &Value) -> Option<Claims> {
        Claims::new(value.as_object().unwrap())
    }

    #[test]
    fn claims_have_values() {
        let claims = claims(&json!({
            "sub": "alice", "admin": true, "level": 3, "none": null,
            "groups": ["staff", "shop", ["nested"], {"a": "b"}],
            "realm_access": {"roles": ["reader"]}, "https://example.com/team": "one",
            "scope": "openid orders:read", "scp": ["a b", "profile"], "title": "chief clerk",
        }))
        .unwrap();
        for (name, value, expected) in [
            ("sub", "alice", true),
            ("sub", "Alice", false),
            ("admin", "true", true),
            ("level", "3", true),
            ("none", "null", false),
            ("groups", "shop", true),
            ("groups", "nested", false),
            ("groups", "staff,shop", false),
            ("realm_access.roles", "reader", true),
            ("realm_access", "reader", false),
            ("https://example.com/team", "one", true),
            ("scope", "orders:read", true),
            ("scope", "openid orders:read", true),
            ("scope", "orders", false),
            ("scope", "", false),
            ("scp", "profile", true),
            ("title", "chief", false),
        ] {
            assert_eq!(
                claims.has(&name.into(), &[value.into()]),
                expected,
                "{name} {value}"
            );
        }
        let groups = "groups".into();
        assert!(claims.has(&groups, &["other".into(), "staff".into()]));
        assert!(!claims.has(&groups, &[]));
        assert_eq!(claims.text(&groups).unwrap(), "staff,shop");
        assert_eq!(claims.text(&"other".into()), None);
    }

    #[test]
    fn name_with_dots_is_never_that_of_a_claim_in_an_object() {
        let flat = claims(&json!({"realm.roles": "admin"})).unwrap();
        let nested = claims(&json!({"realm": {"roles": "admin"}})).unwrap();
        let mixed = claims(&json!({"a.b": {"c": "admin"}, "": {"x": "admin"}})).unwrap();
        for (claims, name, expected) in [
            (&flat, "realm.roles", false),
            (&flat, r"realm\.roles", true),
            (&nested, "realm.roles", true),
            (&nested, r"realm\.roles", false),
            (&mixed, "a.b.c", false),
            (&mixed, r"a\.b.c", true),
            (&mixed, r"a\.b\.c", false),
            // An object without a name is not the token itself.
            (&mixed, "x", false),
        ] {
            assert_eq!(
                claims.has(&name.into(), &["admin".into()]),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn value_in_a_header_never_becomes_two_or_another_one() {
        for (value, expected) in [
            (json!(["staff", "a,admin"]), Some("staff")),
            (json!(["a,admin"]), None),
            (json!("a,admin"), None),
            (
                json!([" admin", "admin\t", "staff", "two words"]),
                Some("staff,two words"),
            ),
            (json!(["jürgen"]), Some("jürgen")),
        ] {
            let claims = claims(&json!({"groups": value})).unwrap();
            let text = claims.text(&"groups".into());
            assert_eq!(text.as_deref(), expected, "{value}");
        }
    }

    #[test]
    fn number_of_values_and_depth_are_limited() {
        let many = |count: usize| json!({"groups": vec!["a"; count]});
        assert!(claims(&many(MAX_VALUES)).is_some());
        assert!(claims(&many(MAX_VALUES + 1)).is_none());
        let mut deep = json!({"a": 1});
        for _ in 0..MAX_DEPTH {
            deep = json!({"a": deep});
        }
        assert!(claims(&deep).is_none());
    }

    #[test]
    fn bytes_of_values_and_of_their_paths_are_limited() {
        let name = "a".repeat(1023);
        let list = |count: usize| json!({(name.as_str()): vec!["b"; count]});
        assert!(claims(&list(MAX_BYTES / 1024)).is_some());
        assert!(claims(&list(MAX_BYTES / 1024 + 1)).is_none());
        let within = |count: usize| {
            let object = (0..count).map(|index| (index.to_string(), json!("b")));
            json!({(name.as_str()): Value::Object(object.collect())})
        };
        assert!(claims(&within(32)).is_some());
        assert!(claims(&within(64)).is_none());
    }
}
