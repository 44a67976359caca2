//! RequestHeaderModifier and ResponseHeaderModifier: overwrite, append, delete, in this order for requests and
//! responses alike.

use http::header::{COOKIE, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::facts::FilterError;
use crate::ir::filter::HeaderChanges;

/// Applies all changes. Other spellings of the headers of a request are removed before.
pub(super) fn apply(changes: &HeaderChanges, headers: &mut HeaderMap) -> Result<(), FilterError> {
    let HeaderChanges { set, add, remove } = changes;
    for (name, value) in set {
        headers
            .try_insert(name, value.clone())
            .map_err(|_| FilterError::TooManyHeaders)?;
    }
    for (name, value) in add {
        append(headers, name, value)?;
    }
    for name in remove {
        headers.remove(name);
    }
    Ok(())
}

/// Appends to the present value. A second header line would mean the same (RFC 9110, 5.3), but backends get one value.
fn append(
    headers: &mut HeaderMap,
    name: &HeaderName,
    value: &HeaderValue,
) -> Result<(), FilterError> {
    let joined = match separator(name) {
        Some(separator) if headers.contains_key(name) => join(headers, name, value, separator),
        _ => None,
    };
    match joined {
        Some(joined) => headers.try_insert(name, joined).map(drop),
        None => headers.try_append(name, value.clone()).map(drop),
    }
    .map_err(|_| FilterError::TooManyHeaders)
}

/// Returns what separates the values of a header; `None` where each value needs its own line (RFC 9110, 5.3).
fn separator(name: &HeaderName) -> Option<&'static [u8]> {
    match *name {
        SET_COOKIE => None,
        COOKIE => Some(b"; "),
        _ => Some(b","),
    }
}

fn join(
    headers: &HeaderMap,
    name: &HeaderName,
    value: &HeaderValue,
    separator: &[u8],
) -> Option<HeaderValue> {
    let values = || headers.get_all(name).iter().chain([value]);
    let parts: Vec<&[u8]> = values().map(HeaderValue::as_bytes).collect();
    let mut joined = HeaderValue::from_bytes(&parts.join(separator)).ok()?;
    joined.set_sensitive(values().any(HeaderValue::is_sensitive));
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(name: &'static str, value: &'static str) -> (HeaderName, HeaderValue) {
        (
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        )
    }

    fn after(changes: &HeaderChanges, before: &[(&'static str, &'static str)]) -> Vec<String> {
        let mut headers: HeaderMap = before.iter().map(|(name, value)| field(name, value)).fold(
            HeaderMap::new(),
            |mut headers, (name, value)| {
                headers.append(name, value);
                headers
            },
        );
        apply(changes, &mut headers).unwrap();
        headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect()
    }

    #[test]
    fn set_replaces_every_line_of_a_header() {
        let changes = HeaderChanges {
            set: vec![field("x-a", "new"), field("x-b", "new")],
            ..HeaderChanges::default()
        };
        assert_eq!(
            after(&changes, &[("x-a", "1"), ("x-a", "2")]),
            ["x-a: new", "x-b: new"]
        );
    }

    #[test]
    fn add_extends_the_present_value() {
        let changes = HeaderChanges {
            add: vec![field("x-a", "b")],
            ..HeaderChanges::default()
        };
        assert_eq!(after(&changes, &[]), ["x-a: b"]);
        assert_eq!(after(&changes, &[("x-a", "a")]), ["x-a: a,b"]);
        assert_eq!(
            after(&changes, &[("x-a", "1"), ("x-a", "2")]),
            ["x-a: 1,2,b"]
        );
    }

    #[test]
    fn add_follows_the_syntax_of_cookies() {
        let changes = HeaderChanges {
            add: vec![field("set-cookie", "b=2"), field("cookie", "b=2")],
            ..HeaderChanges::default()
        };
        assert_eq!(
            after(&changes, &[("set-cookie", "a=1"), ("cookie", "a=1")]),
            ["set-cookie: a=1", "set-cookie: b=2", "cookie: a=1; b=2"]
        );
    }

    #[test]
    fn remove_is_applied_last() {
        let changes = HeaderChanges {
            set: vec![field("x-a", "1")],
            add: vec![field("x-b", "1")],
            remove: vec![
                HeaderName::from_static("x-a"),
                HeaderName::from_static("x-b"),
            ],
        };
        assert!(after(&changes, &[("x-b", "0")]).is_empty());
    }

    #[test]
    fn joined_value_stays_sensitive() {
        let mut headers = HeaderMap::new();
        let mut secret = HeaderValue::from_static("a");
        secret.set_sensitive(true);
        headers.insert("x-a", secret);
        let (name, value) = field("x-a", "b");
        append(&mut headers, &name, &value).unwrap();
        assert!(headers["x-a"].is_sensitive());
    }
}
