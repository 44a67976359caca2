//! The heads of messages as a picker gets them, and its changes of them. Does no I/O.

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, EXPECT, HOST, TRAILER};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, request};

use super::message::{Header, HeaderList, HeaderMutation, HeaderOption};
use crate::filter::Scheme;
use crate::ir::hop_by_hop::is_hop_by_hop;

/// Values of `append_action` of a header: 0 is the default.
const ADD_IF_ABSENT: i32 = 1;
const OVERWRITE_IF_EXISTS: i32 = 3;

/// Returns the head of a request, with its pseudo-headers.
pub(super) fn of_request(parts: &request::Parts, scheme: Scheme) -> HeaderList {
    let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let scheme = match scheme {
        Scheme::Http => "http",
        Scheme::Https => "https",
    };
    let host = parts.headers.get(HOST).map(HeaderValue::as_bytes);
    let pseudo = [
        (":method", parts.method.as_str().as_bytes()),
        (":scheme", scheme.as_bytes()),
        (":authority", host.unwrap_or_default()),
        (":path", path.as_bytes()),
    ];
    list(&pseudo, &parts.headers)
}

/// Returns the head of a response, with its status.
pub(super) fn of_response(status: StatusCode, headers: &HeaderMap) -> HeaderList {
    list(&[(":status", status.as_str().as_bytes())], headers)
}

fn list(pseudo: &[(&str, &[u8])], headers: &HeaderMap) -> HeaderList {
    let header = |key: &str, value: &[u8]| Header {
        key: key.to_owned(),
        value: String::new(),
        raw_value: Bytes::copy_from_slice(value),
    };
    let pseudo = pseudo.iter().map(|(key, value)| header(key, value));
    let sent = headers.iter().filter(|(name, _)| **name != HOST);
    let sent = sent.map(|(name, value)| header(name.as_str(), value.as_bytes()));
    HeaderList {
        headers: pseudo.chain(sent).collect(),
    }
}

/// Returns the value that [`apply`] gives a header which a message does not have before. Repeated ones are one value, joined by
/// `,`. `None` if it is no text.
pub(super) fn value(changes: &HeaderMutation, name: &str) -> Option<String> {
    let mut headers = HeaderMap::new();
    for option in &changes.set_headers {
        if let Some((key, value)) = pair(option)
            && key == name
        {
            set(option, &mut headers, key, value).ok()?;
        }
    }
    let values = headers.get_all(name).iter();
    let texts = values.map(|value| str::from_utf8(value.as_bytes()).ok());
    let texts: Vec<&str> = texts.collect::<Option<_>>()?;
    Some(texts.join(","))
}

/// Changes headers as a picker asks for. Leaves framing, host and what belongs to a connection alone.
///
/// # Errors
/// If there are more headers than a message can have.
pub(super) fn apply(changes: &HeaderMutation, headers: &mut HeaderMap) -> Result<(), TooMany> {
    for name in changes.remove_headers.iter().filter_map(|name| own(name)) {
        headers.remove(name);
    }
    for option in &changes.set_headers {
        if let Some((name, value)) = pair(option) {
            set(option, headers, name, value)?;
        }
    }
    Ok(())
}

/// More headers than a message can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

fn set(
    option: &HeaderOption,
    headers: &mut HeaderMap,
    name: HeaderName,
    value: HeaderValue,
) -> Result<(), TooMany> {
    let is_present = headers.contains_key(&name);
    let changed = match (&option.append, option.append_action) {
        (Some(append), _) if append.value => headers.try_append(name, value).map(drop),
        (_, ADD_IF_ABSENT) if is_present => Ok(()),
        (_, OVERWRITE_IF_EXISTS) if !is_present => Ok(()),
        // Without `append`, the default of `append_action` overwrites in this protocol.
        _ => headers.try_insert(name, value).map(drop),
    };
    changed.map_err(|_| TooMany)
}

fn pair(option: &HeaderOption) -> Option<(HeaderName, HeaderValue)> {
    let header = option.header.as_ref()?;
    let value = HeaderValue::from_bytes(bytes(header)).ok()?;
    Some((own(&header.key)?, value))
}

fn bytes(header: &Header) -> &[u8] {
    match header.raw_value.is_empty() {
        true => header.value.as_bytes(),
        false => &header.raw_value,
    }
}

/// Returns the name of a header that a picker may change. Pseudo-headers are no names.
fn own(name: &str) -> Option<HeaderName> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    let is_framing = [CONTENT_LENGTH, EXPECT, HOST, TRAILER].contains(&name);
    (!is_framing && !is_hop_by_hop(&name)).then_some(name)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::super::message::BoolValue;
    use super::*;

    fn option(key: &str, value: &str) -> HeaderOption {
        HeaderOption {
            header: Some(Header {
                key: key.to_owned(),
                value: String::new(),
                raw_value: Bytes::copy_from_slice(value.as_bytes()),
            }),
            append: None,
            append_action: 0,
        }
    }

    fn changed(set: Vec<HeaderOption>, removed: &[&str]) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        headers.append("host", HeaderValue::from_static("shop.test"));
        headers.append("content-length", HeaderValue::from_static("3"));
        headers.append("x-a", HeaderValue::from_static("1"));
        let changes = HeaderMutation {
            set_headers: set,
            remove_headers: removed.iter().map(ToString::to_string).collect(),
        };
        apply(&changes, &mut headers).unwrap();
        let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
        let pairs = headers.iter();
        pairs
            .map(|(name, value)| (name.to_string(), text(value)))
            .collect()
    }

    fn with(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        let always = [("host", "shop.test"), ("content-length", "3")];
        let all = always.iter().chain(expected);
        all.map(|(name, value)| (name.to_string(), value.to_string()))
            .collect()
    }

    #[test]
    fn headers_are_overwritten_unless_an_action_says_otherwise() {
        assert_eq!(
            changed(vec![option("X-A", "2")], &[]),
            with(&[("x-a", "2")])
        );
        let action = |key: &str, append_action| HeaderOption {
            append_action,
            ..option(key, "2")
        };
        for (set, expected) in [
            (action("x-a", ADD_IF_ABSENT), &[("x-a", "1")][..]),
            (
                action("x-b", ADD_IF_ABSENT),
                &[("x-a", "1"), ("x-b", "2")][..],
            ),
            (action("x-a", OVERWRITE_IF_EXISTS), &[("x-a", "2")][..]),
            (action("x-b", OVERWRITE_IF_EXISTS), &[("x-a", "1")][..]),
            (action("x-a", 2), &[("x-a", "2")][..]),
        ] {
            assert_eq!(changed(vec![set.clone()], &[]), with(expected), "{set:?}");
        }
        let appended = HeaderOption {
            append: Some(BoolValue { value: true }),
            ..option("x-a", "2")
        };
        assert_eq!(
            changed(vec![appended], &[]),
            with(&[("x-a", "1"), ("x-a", "2")])
        );
    }

    #[test]
    fn framing_host_and_pseudo_headers_stay() {
        let names = [
            ":path",
            "Host",
            "content-length",
            "Transfer-Encoding",
            "connection",
            "te",
            "upgrade",
            "trailer",
            "expect",
            "",
            "a b",
        ];
        let set = names.iter().map(|name| option(name, "9")).collect();
        assert_eq!(changed(set, &names), with(&[("x-a", "1")]));
        assert_eq!(
            changed(vec![option("x-b", "a\r\nb: c")], &["X-A"]),
            with(&[])
        );
    }

    #[test]
    fn what_is_removed_and_set_is_set() {
        assert_eq!(
            changed(vec![option("x-a", "2")], &["x-a"]),
            with(&[("x-a", "2")])
        );
    }

    #[test]
    fn heads_have_pseudo_headers_and_raw_values() {
        let request = Request::post("/v1/chat?a=b")
            .header("host", "shop.test")
            .header("x-a", "1");
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let list = of_request(&parts, Scheme::Https);
        let pairs: Vec<_> = list
            .headers
            .iter()
            .map(|header| {
                (
                    &*header.key,
                    std::str::from_utf8(&header.raw_value).unwrap(),
                )
            })
            .collect();
        let expected = [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "shop.test"),
            (":path", "/v1/chat?a=b"),
            ("x-a", "1"),
        ];
        assert_eq!(pairs, expected);
        let list = of_response(StatusCode::NOT_FOUND, &HeaderMap::new());
        assert_eq!(&*list.headers[0].raw_value, b"404");
    }

    #[test]
    fn value_is_raw_or_text_and_names_have_any_case() {
        let of = |set_headers| {
            let changes = HeaderMutation {
                set_headers,
                remove_headers: Vec::new(),
            };
            value(&changes, "x-endpoint")
        };
        let mut set = vec![option("X-Endpoint", "a"), option("x-other", "b")];
        assert_eq!(of(set.clone()).as_deref(), Some("a"));
        if let Some(header) = &mut set[0].header {
            header.raw_value = Bytes::new();
            header.value = "c".to_owned();
        }
        assert_eq!(of(set).as_deref(), Some("c"));
        assert_eq!(of(Vec::new()).as_deref(), Some(""));
    }

    #[test]
    fn value_is_the_one_that_is_forwarded() {
        let again = |append, append_action| HeaderOption {
            append: Some(BoolValue { value: append }),
            append_action,
            ..option("x-endpoint", "b")
        };
        for (second, expected) in [
            (again(false, 0), "b"),
            (again(false, ADD_IF_ABSENT), "a"),
            (again(true, 0), "a,b"),
        ] {
            let changes = HeaderMutation {
                set_headers: vec![option("x-endpoint", "a"), second],
                remove_headers: Vec::new(),
            };
            assert_eq!(value(&changes, "x-endpoint").as_deref(), Some(expected));
            let mut headers = HeaderMap::new();
            apply(&changes, &mut headers).unwrap();
            let forwarded = headers.get_all("x-endpoint").iter();
            let forwarded: Vec<_> = forwarded.map(|it| it.to_str().unwrap()).collect();
            assert_eq!(forwarded.join(","), expected);
        }
    }
}
