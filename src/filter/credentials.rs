//! Credentials in the head of a request: where they are, and how they are removed. Must not know which are valid.

use std::borrow::Cow;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, COOKIE, Entry, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{HeaderName, Uri};

use crate::ir::authentication::KeyPlace;
use crate::ir::cookie;

/// Maximum length of user name and password together, with the colon.
const MAX_BASIC: usize = 512;
/// Maximum length of a password. SHA-crypt and MD5-crypt take time in proportion to it.
const MAX_PASSWORD: usize = 256;
/// Maximum length of an API key.
const MAX_KEY: usize = 1024;
/// Maximum length of a token.
const MAX_TOKEN: usize = 8 * 1024;

/// A user name and a password (RFC 7617). Does not print them.
#[derive(PartialEq, Eq)]
pub struct BasicCredentials {
    bytes: [u8; MAX_BASIC],
    length: usize,
    colon: usize,
}

impl BasicCredentials {
    /// Returns the credentials of a request. There must be one header, of printable text within the limits.
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let value = only(headers, &AUTHORIZATION)?.as_bytes();
        let (scheme, encoded) = value.split_at_checked(6)?;
        if !scheme.eq_ignore_ascii_case(b"basic ") {
            return None;
        }
        let mut bytes = [0; MAX_BASIC];
        // RFC 9110, 11.4: one or more spaces.
        let encoded = encoded.trim_ascii_start();
        let length = STANDARD.decode_slice(encoded, &mut bytes).ok()?;
        let text = &bytes[..length];
        let colon = text.iter().position(|byte| *byte == b':')?;
        let is_long = length - colon - 1 > MAX_PASSWORD;
        if is_long || text.iter().any(u8::is_ascii_control) {
            return None;
        }
        Some(Self {
            bytes,
            length,
            colon,
        })
    }

    /// The user name.
    pub fn name(&self) -> &[u8] {
        &self.bytes[..self.colon]
    }

    /// The password.
    pub fn password(&self) -> &[u8] {
        &self.bytes[self.colon + 1..self.length]
    }
}

impl fmt::Debug for BasicCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BasicCredentials").finish_non_exhaustive()
    }
}

/// Returns the API key of a request: that in the first of these places that is not empty. `None` if there are several there.
pub fn api_key<'a>(
    request: (&'a HeaderMap, Option<&'a str>),
    places: &[KeyPlace],
) -> Option<Cow<'a, [u8]>> {
    let in_header = |name: &HeaderName| {
        let values = request.0.get_all(name).iter();
        first(values.map(|value| value.as_bytes().into()))
    };
    let key = in_first_place(request, places, in_header)?;
    (1..=MAX_KEY).contains(&key.len()).then_some(key)
}

/// Returns the token of a request, which follows the scheme `Bearer` in the header `Authorization` (RFC 6750, 2.1). Else
/// like [`api_key`].
pub fn token<'a>(
    request: (&'a HeaderMap, Option<&'a str>),
    places: &[KeyPlace],
) -> Option<Cow<'a, [u8]>> {
    let in_header = |name: &HeaderName| {
        let values = request.0.get_all(name).iter().map(HeaderValue::as_bytes);
        match first(values.map(Cow::Borrowed))? {
            Some(Cow::Borrowed(value)) if *name == AUTHORIZATION => {
                bearer(value).map(|token| Some(Cow::Borrowed(token)))
            }
            only => Some(only),
        }
    };
    let token = in_first_place(request, places, in_header)?;
    (1..=MAX_TOKEN).contains(&token.len()).then_some(token)
}

/// Returns what follows the scheme `Bearer`.
pub fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"bearer ");
    is_bearer.then(|| token.trim_ascii_start())
}

/// Reports whether the scheme `Bearer` occurs anywhere in a value, with any whitespace behind it.
fn has_bearer(value: &[u8]) -> bool {
    let is_scheme = |it: &[u8]| it.eq_ignore_ascii_case(b"bearer");
    let mut windows = value.windows(7);
    windows.any(|it| is_scheme(&it[..6]) && matches!(it[6], b' ' | b'\t'))
}

/// Reports whether a request has several `Authorization` headers. It has no valid credentials then: the proxy would verify one,
/// and the backend read another.
pub fn are_several(headers: &HeaderMap) -> bool {
    headers.get_all(AUTHORIZATION).iter().nth(1).is_some()
}

/// Returns what the first of these places has that is not empty. `None` if there are several values.
fn in_first_place<'a>(
    (headers, query): (&'a HeaderMap, Option<&'a str>),
    places: &[KeyPlace],
    in_header: impl Fn(&HeaderName) -> Option<Option<Cow<'a, [u8]>>>,
) -> Option<Cow<'a, [u8]>> {
    let mut found = places.iter().filter_map(|place| match place {
        KeyPlace::Header(name) => in_header(name),
        KeyPlace::Query(name) => {
            let parameters = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
            let values = parameters.filter(|(key, _)| *key == **name);
            first(values.map(|(_, value)| match value {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            }))
        }
        KeyPlace::Cookie(name) => first(cookie::values(headers, name).map(Cow::Borrowed)),
    });
    found.next()?
}

/// Returns the only value; `Some(None)` if there are several, and `None` if there is none.
fn first<'a>(mut values: impl Iterator<Item = Cow<'a, [u8]>>) -> Option<Option<Cow<'a, [u8]>>> {
    let first = values.next()?;
    Some(values.next().is_none().then_some(first))
}

fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    values.next().is_none().then_some(first)
}

/// Removes API keys from all of these places. Fails if what remains is no request, which no request leads to.
pub fn remove_api_keys(parts: &mut Parts, places: &[KeyPlace]) -> Option<()> {
    for place in places {
        match place {
            KeyPlace::Header(name) => drop(parts.headers.remove(name)),
            KeyPlace::Query(name) => remove_parameter(parts, name)?,
            KeyPlace::Cookie(name) => remove_cookie(&mut parts.headers, name)?,
        }
    }
    Some(())
}

/// Removes the keys or tokens of all of these places but for those that are kept. Credentials of other schemes in `Authorization`
/// stay, unless a backend may find a token in them. Fails like [`remove_api_keys`].
pub fn remove_others<'a>(
    parts: &mut Parts,
    places: impl Iterator<Item = &'a KeyPlace>,
    kept: &[Vec<u8>],
) -> Option<()> {
    let is_other = |value: &[u8]| kept.iter().all(|kept| kept != value);
    for place in places {
        match place {
            KeyPlace::Header(name) => {
                let is_of_other_scheme = |value: &[u8]| {
                    *name == AUTHORIZATION && value.contains(&b' ') && !has_bearer(value)
                };
                let is_removed = |value: &[u8]| match bearer(value) {
                    Some(token) => is_other(token) && is_other(value),
                    None => is_other(value) && !is_of_other_scheme(value),
                };
                let mut values = parts.headers.get_all(name).iter();
                if values.any(|value| is_removed(value.as_bytes())) {
                    parts.headers.remove(name);
                }
            }
            KeyPlace::Query(name) => {
                let query = parts.uri.query().unwrap_or_default();
                let mut parameters = form_urlencoded::parse(query.as_bytes());
                let mut behind = query.split('&').flat_map(|pair| pair.split(';').skip(1));
                let is_hidden = behind.any(|part| is_named(part, name));
                if is_hidden
                    || parameters.any(|(key, value)| *key == **name && is_other(value.as_bytes()))
                {
                    remove_parameter(parts, name)?;
                }
            }
            KeyPlace::Cookie(name) => {
                if cookie::values(&parts.headers, name).any(is_other) {
                    remove_cookie(&mut parts.headers, name)?;
                }
            }
        }
    }
    Some(())
}

/// Removes a query parameter. The others stay as they are.
fn remove_parameter(parts: &mut Parts, name: &str) -> Option<()> {
    let Some(query) = parts.uri.query() else {
        return Some(());
    };
    let others = query.split('&').filter_map(|pair| before(pair, name));
    let others: Vec<&str> = others.collect();
    let kept = others.join("&");
    if kept == query {
        return Some(());
    }
    let path = parts.uri.path();
    let target = match others.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{kept}"),
    };
    let mut uri = std::mem::take(&mut parts.uri).into_parts();
    uri.path_and_query = Some(target.try_into().ok()?);
    parts.uri = Uri::from_parts(uri).ok()?;
    Some(())
}

/// Returns what a pair of a query has before a parameter of this name: some servers take a semicolon for the end of a parameter.
/// `None` if that is nothing.
fn before<'a>(pair: &'a str, name: &str) -> Option<&'a str> {
    let mut start = 0;
    for part in pair.split(';') {
        if is_named(part, name) {
            return pair.get(..start)?.strip_suffix(';');
        }
        start += part.len() + 1;
    }
    Some(pair)
}

/// Reports whether a part of a query is a parameter of this name.
fn is_named(part: &str, name: &str) -> bool {
    let mut parsed = form_urlencoded::parse(part.as_bytes());
    parsed.any(|(key, _)| *key == *name)
}

/// Removes a cookie. The others stay as they are.
fn remove_cookie(headers: &mut HeaderMap, name: &str) -> Option<()> {
    remove_cookies(headers, |it| it == name.as_bytes())
}

/// Removes the cookies with a name that is selected. The others stay as they are. Fails if what remains is no header, which
/// no request leads to.
pub fn remove_cookies(headers: &mut HeaderMap, is_removed: impl Fn(&[u8]) -> bool) -> Option<()> {
    let is_removed = |part: &&[u8]| cookie::name(part).is_some_and(&is_removed);
    let Entry::Occupied(entry) = headers.try_entry(COOKIE).ok()? else {
        return Some(());
    };
    let mut has_changed = false;
    let mut kept = Vec::new();
    for value in entry.iter() {
        let others = match without(value.as_bytes(), is_removed) {
            None => value.clone(),
            Some(others) => {
                has_changed = true;
                HeaderValue::from_bytes(&others).ok()?
            }
        };
        if !others.is_empty() {
            kept.push(others);
        }
    }
    if has_changed {
        entry.remove_entry_mult();
        for value in kept {
            headers.append(COOKIE, value);
        }
    }
    Some(())
}

/// Returns a header with cookies without some of its parts; `None` if it has none of these. Reads the header once.
fn without(header: &[u8], is_removed: impl Fn(&&[u8]) -> bool) -> Option<Vec<u8>> {
    let mut has_any = false;
    let others = cookie::parts(header).filter(|part| {
        let is_removed = is_removed(part);
        has_any |= is_removed;
        !is_removed
    });
    let others: Vec<&[u8]> = others.map(<[u8]>::trim_ascii).collect();
    has_any.then(|| others.join(&b"; "[..]))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn basic(value: &str) -> Option<(String, String)> {
        let mut headers = HeaderMap::new();
        headers.append(AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        let found = BasicCredentials::of(&headers)?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Some((text(found.name()), text(found.password())))
    }

    fn encoded(text: &str) -> String {
        format!("Basic {}", STANDARD.encode(text))
    }

    #[test]
    fn reads_user_and_password() {
        for (text, name, password) in [
            ("alice:secret", "alice", "secret"),
            ("alice:a:b", "alice", "a:b"),
            ("alice:", "alice", ""),
            (":secret", "", "secret"),
            ("jürgen:pässword", "jürgen", "pässword"),
        ] {
            let expected = Some((name.to_owned(), password.to_owned()));
            assert_eq!(basic(&encoded(text)), expected, "{text}");
        }
        assert!(basic(&encoded("a:b").replace("Basic", "bASIC")).is_some());
    }

    #[test]
    fn refuses_what_is_not_basic_authentication() {
        for value in [
            "",
            "Basic",
            "Basic ",
            "Bearer YTpi",
            "BasicYTpi",
            "Basic YTp",
            "Basic YTpi YTpi",
            "Basic YTpi,Basic YTpi",
            "Basic YTpi=",
            "Basic *",
        ] {
            assert_eq!(basic(value), None, "{value}");
        }
        for text in ["alice", "a\0:b", "a:b\n", "a:b\x7f"] {
            assert_eq!(basic(&encoded(text)), None, "{text:?}");
        }
        assert!(basic(&encoded(&format!("a:{}", "b".repeat(MAX_PASSWORD)))).is_some());
        assert!(basic(&encoded(&format!("a:{}", "b".repeat(MAX_PASSWORD + 1)))).is_none());
        assert!(basic(&encoded(&format!("{}:b", "a".repeat(MAX_BASIC)))).is_none());
        assert!(basic(&encoded(&"a:".repeat(100_000))).is_none());
        let mut twice = HeaderMap::new();
        twice.append(AUTHORIZATION, HeaderValue::from_static("Basic YTpi"));
        twice.append(AUTHORIZATION, HeaderValue::from_static("Basic YTpi"));
        assert!(BasicCredentials::of(&twice).is_none());
    }

    fn places() -> [KeyPlace; 3] {
        [
            KeyPlace::Header(HeaderName::from_static("x-api-key")),
            KeyPlace::Query("key".into()),
            KeyPlace::Cookie("key".into()),
        ]
    }

    fn parts(target: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::get(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn finds_the_key_in_the_first_place_that_has_one() {
        let header = ("x-api-key", "one");
        let cookie = ("cookie", "a=b; key=three;c=d");
        for (target, headers, expected) in [
            ("/", &[header][..], Some("one")),
            ("/?key=two", &[header, cookie], Some("one")),
            ("/?a=b&key=two", &[cookie], Some("two")),
            ("/?a=b&k%65y=t%77o", &[], Some("two")),
            ("/?keys=two", &[cookie], Some("three")),
            ("/", &[("cookie", "key=\"three\"")], Some("three")),
            ("/", &[("cookie", "keys=three; xkey=three")], None),
            ("/", &[header, header], None),
            ("/?key=a&key=b", &[], None),
            ("/?key=a", &[header, header], None),
            ("/?key=", &[cookie], None),
            ("/", &[], None),
        ] {
            let parts = parts(target, headers);
            let found = api_key((&parts.headers, parts.uri.query()), &places());
            let found = found.map(|key| String::from_utf8(key.into_owned()).unwrap());
            assert_eq!(found.as_deref(), expected, "{target} {headers:?}");
        }
        let long = "a".repeat(MAX_KEY + 1);
        let parts = parts("/", &[("x-api-key", &long)]);
        assert!(api_key((&parts.headers, None), &places()).is_none());
    }

    #[test]
    fn token_follows_the_scheme_bearer() {
        let places = [KeyPlace::Header(AUTHORIZATION), KeyPlace::Query("t".into())];
        for (target, values, expected) in [
            ("/", &["Bearer a.b.c"][..], Some("a.b.c")),
            ("/", &["bearer   a.b.c"], Some("a.b.c")),
            ("/", &["Basic YTpi", "Bearer a"], None),
            ("/", &["Bearer a", "Basic YTpi"], None),
            ("/?t=b", &["Basic YTpi", "Negotiate a"], None),
            ("/?t=b", &["Bearer a"], Some("a")),
            ("/?t=b", &["Basic YTpi"], Some("b")),
            ("/?t=b", &[], Some("b")),
            ("/", &["Bearer a", "Bearer a"], None),
            ("/?t=b", &["Bearer a", "Bearer b"], None),
            ("/?t=b&t=b", &[], None),
            ("/", &["Bearer "], None),
            ("/", &["Bearer"], None),
            ("/", &["a.b.c"], None),
        ] {
            let values: Vec<_> = values.iter().map(|it| ("authorization", *it)).collect();
            let parts = parts(target, &values);
            let found = token((&parts.headers, parts.uri.query()), &places);
            let found = found.map(|it| String::from_utf8(it.into_owned()).unwrap());
            assert_eq!(found.as_deref(), expected, "{target} {values:?}");
        }
        let long = "a".repeat(MAX_TOKEN + 1);
        let parts = parts(&format!("/?t={long}"), &[]);
        assert!(token((&parts.headers, parts.uri.query()), &places).is_none());
    }

    #[test]
    fn no_credentials_stay_but_those_that_were_verified() {
        let places = [places(), [AUTHORIZATION; 3].map(KeyPlace::Header)].concat();
        for (target, headers, expected) in [
            ("/?key=a&b", &["Bearer a", "a", "key=a"][..], "/?key=a&b"),
            ("/?key=c&b", &["Bearer c", "c", "key=c"], "/?b"),
            ("/?key=a&key=c", &["Basic c", "a", "key=a; key=c"], "/"),
            ("/?key=b", &["c", "b", "key=b"], "/?key=b"),
            ("/?key=a&b=1;k%65y=c", &["Bearer a", "a", "key=a"], "/?b=1"),
            // Some backends find the token.
            ("/", &["Basic x, Bearer c", "b", "key=b"], "/"),
            ("/", &["Bearer\tx c", "b", "key=b"], "/"),
        ] {
            let names = ["authorization", "x-api-key", "cookie"];
            let headers: Vec<_> = names.into_iter().zip(headers.iter().copied()).collect();
            let mut parts = parts(target, &headers);
            let kept = ["a", "b"].map(Vec::from);
            remove_others(&mut parts, places.iter(), &kept).unwrap();
            assert_eq!(parts.uri.to_string(), expected);
            for (name, value) in headers {
                let stays = !value.ends_with('c') || value == "Basic c";
                assert_eq!(parts.headers.contains_key(name), stays, "{value}");
            }
        }
    }

    #[test]
    fn removes_keys_and_nothing_else() {
        for (target, cookies, expected, kept) in [
            ("/a", "a=b", "/a", Some("a=b")),
            ("/a?key=1", "key=1", "/a", None),
            (
                "/a?x=%20&key=1&&y",
                "a=b;key=1;  c=d",
                "/a?x=%20&&y",
                Some("a=b; c=d"),
            ),
            (
                "/a?k%65y=1&key&key=2&x=+",
                "key=1; key=2; x=",
                "/a?x=+",
                Some("x="),
            ),
            (
                "/a?x=1;y;key=1;z&key=2;x&a;b",
                "a=b",
                "/a?x=1;y&a;b",
                Some("a=b"),
            ),
            (
                "http://a.com/a?key=1&b",
                "keys=1",
                "http://a.com/a?b",
                Some("keys=1"),
            ),
        ] {
            let mut parts = parts(target, &[("cookie", cookies), ("x-api-key", "1")]);
            remove_api_keys(&mut parts, &places()).unwrap();
            let cookies = parts.headers.get(COOKIE).map(|it| it.to_str().unwrap());
            assert_eq!((&*parts.uri.to_string(), cookies), (expected, kept));
            assert!(!parts.headers.contains_key("x-api-key"));
        }
    }
}
